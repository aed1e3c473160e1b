"""Lists of runs as JSON data: pages, counts, and failures that are alike."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from holdfast.monitor.source import COUNTED, Source
from holdfast.ports import RunQuery, RunRow
from holdfast.views.failures import (
    FAILURES_LOOKED_AT,
    fingerprint_of,
    group_summary,
    pages_of_failures,
    read_failures,
)
from holdfast.views.summaries import run_summary
from holdfast.views.times import SECOND, iso, marking, unmarked
from holdfast.views.why import doing

MANY_NAMES = 50
"""So many workflows that share the beginning of a name are counted each by itself."""
DATA_SHOWN = 5
SHORT = 200
"""Longer data is not shown in a list of runs."""
BARS = 60


@dataclass(slots=True)
class RunLists:
    """All that is told of the runs that a filter finds."""

    source: Source

    def runs(self, filter: str, after: int | None, limit: int) -> dict[str, Any]:
        store, query = self.source.store, self.source.query_of(filter)
        rows = store.runs(replace(query, after=after, limit=limit + 1))
        now = store.now()
        shown = rows[:limit]
        data = store.data_of([row.no for row in shown], SHORT) if shown else {}
        return {
            "now": iso(now),
            "runs": [
                {**run_summary(row, now), **_doing(row, now), "data": self._data(data.get(row.no, {}))} for row in shown
            ],
            "after": shown[-1].no if len(rows) > limit else None,
        }

    def _data(self, published: Mapping[str, bytes]) -> dict[str, Any]:
        return {key: self.source.reader.named(key, value) for key, value in list(published.items())[:DATA_SHOWN]}

    def counts(self, filter: str) -> dict[str, Any]:
        """Of the runs that a filter finds, whatever it says of statuses."""
        query = replace(self.source.query_of(filter), statuses=())
        counts = self.source.store.counts(query, COUNTED)
        # Where not all were counted the others are lower bounds too, unless each status was counted on its own.
        capped = query != RunQuery() and sum(counts.values()) >= counted_of(query)
        return {
            "counts": {status: min(n, COUNTED - 1) for status, n in counts.items()},
            "more": [status for status, n in counts.items() if n >= COUNTED or capped],
        }

    def counts_over_time(self, filter: str, seconds: int) -> dict[str, Any]:
        """How many runs began in each stretch of the last `seconds`, by status; the newest of them if they are many."""
        query, now = self.source.query_of(filter), self.source.store.now()
        width = max(1, seconds // BARS) * SECOND
        first = now // width * width - (BARS - 1) * width
        query.since = max(first, query.since or 0)
        found = self.source.store.counts_over_time(query, width, COUNTED - 1)
        bars: list[dict[str, int]] = [{} for _ in range(BARS)]
        for at, status, count in found:
            if first <= at < first + BARS * width:
                bars[(at - first) // width][status] = count
        capped = sum(count for _, _, count in found) >= COUNTED - 1
        return {"since": iso(first), "width": width // SECOND, "bars": bars, "capped": capped, "now": iso(now)}

    def views(self) -> dict[str, Any]:
        """Filters that somebody has given a name, for all."""
        return {"views": [{"name": name, "filter": text} for name, text in self.source.store.saved_views().items()]}

    def failures(self, filter: str) -> dict[str, Any]:
        source = self.source
        groups = read_failures(source.store, source.query_of(filter), source.reader, FAILURES_LOOKED_AT)
        count = sum(group.count for group in groups)
        return {
            "groups": [group_summary(group) for group in groups], "count": count, "all": count < FAILURES_LOOKED_AT,
            "now": iso(self.source.store.now()),
        }  # fmt: skip

    def run_ids_of_failure(self, filter: str, fingerprint: str) -> list[str]:
        """Of those that the page of failures counts."""
        source = self.source
        pages = pages_of_failures(source.store, source.query_of(filter), source.reader)
        newest = itertools.islice(itertools.chain.from_iterable(pages), FAILURES_LOOKED_AT)
        return [row.id for row, error in newest if fingerprint_of(error) == fingerprint]


def _doing(row: RunRow, now: int) -> dict[str, str]:
    with marking():
        text = doing(row, now)
    return {"doing": unmarked(text, now), "marked": text}


def counted_of(query: RunQuery) -> int:
    """If so many runs were counted there may be more."""
    return COUNTED // MANY_NAMES if (query.workflow or "").endswith("*") else COUNTED
