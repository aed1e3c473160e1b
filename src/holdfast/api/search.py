"""What runs are searched by: how and when they were started, and what they have published with `wf.set_data`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from holdfast.api.checks import check_text, to_epoch
from holdfast.codec import Codec
from holdfast.codec.ordering import LAST_CHARACTER, next_kind, order_key
from holdfast.durations import Duration
from holdfast.errors import ArgumentError
from holdfast.ports import DataSpan, RunQuery, Status
from holdfast.printing import show


class PageFilter(TypedDict, total=False):
    """What `app.runs(...)` takes to say which runs are meant."""

    status: Status | str | Sequence[Status | str] | None
    workflow: str | None
    parent: str | None
    since: dt.datetime | None
    until: dt.datetime | None
    data: dict[str, Any] | None
    schedule: str | None


class RunFilter(PageFilter, total=False):
    """What `app.select(...)` and `app.count(...)` take."""

    older_than: Duration | None


ALL_RUNS = dict.fromkeys(("status", "workflow", "parent", "since", "until", "older_than", "data", "schedule"))
"""A filter that names none of them."""


def query_of(given: PageFilter, codec: Codec) -> RunQuery:
    """What a filter asks for; ArgumentError says what it can't mean."""
    status, data = given.get("status"), given.get("data")
    since, until = given.get("since"), given.get("until")
    statuses = [] if status is None else [status] if isinstance(status, str) else status
    if not isinstance(statuses, list | tuple | set | frozenset):
        raise ArgumentError(f"status={show(status)}: give one of {', '.join(Status)}, or a list of them")
    for one in statuses:
        if type(one) not in (str, Status) or one not in Status.__members__:
            raise ArgumentError(f"status={show(one)}: give one of {', '.join(Status)}")
    workflow, parent, schedule = given.get("workflow"), given.get("parent"), given.get("schedule")
    for what, name in (("workflow", workflow), ("parent", parent), ("schedule", schedule)):
        if name is not None:
            check_text(what, name)
    if data is not None and not isinstance(data, dict):
        raise ArgumentError(f"data={show(data)}: give a dict of what runs have kept with wf.set_data")
    equal, spans = conditions_of(data or {}, codec)
    return RunQuery(
        statuses=[str(s) for s in statuses], workflow=workflow, parent=parent, schedule=schedule,
        since=None if since is None else to_epoch(since, "since"),
        until=None if until is None else to_epoch(until, "until"),
        data=equal, spans=spans,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values between two bounds, for `app.runs(data={"amount": Range(at_least=100, below=200)})`. Numbers compare as
    numbers, times as times, texts letter by letter."""

    above: Any = None
    at_least: Any = None
    below: Any = None
    at_most: Any = None

    def __post_init__(self) -> None:
        for one, other in (("above", "at_least"), ("below", "at_most")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ArgumentError(f"Range({one}=..., {other}=...): both say the same bound; give one of them")
        if all(getattr(self, name) is None for name in ("above", "at_least", "below", "at_most")):
            raise ArgumentError("Range(): give a bound: above, at_least, below or at_most")

    def span(self, key: str, codec: Codec) -> DataSpan:
        """Where such values are."""
        low = None if (least := _either(self.above, self.at_least)) is None else order_key(codec.encode(least))
        high = None if (most := _either(self.below, self.at_most)) is None else order_key(codec.encode(most))
        some = low or high
        assert some is not None
        if (low or some)[0] != (high or some)[0] or some[0] == "J":
            raise ArgumentError(
                f"data {key!r}: {show(self)}: give bounds of one kind: numbers, texts, or times of which all have a zone, or none"
            )
        return DataSpan(
            key=key, low=low or some[0], high=high or next_kind(some), above=self.above is not None, upto=self.at_most is not None
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prefix:
    """Texts that begin so, for `app.runs(data={"customer": Prefix("ac")})`."""

    text: str

    def __post_init__(self) -> None:
        check_text("Prefix", self.text)

    def span(self, key: str, codec: Codec) -> DataSpan:
        """Where such values are."""
        begins = order_key(codec.encode(self.text))
        return DataSpan(key=key, low=begins, high=begins + LAST_CHARACTER)


def _either(one: Any, other: Any) -> Any:
    return other if one is None else one


def conditions_of(data: dict[str, Any], codec: Codec) -> tuple[dict[str, str], tuple[DataSpan, ...]]:
    """What a query asks for of data: values that are equal, and those that are between."""
    equal: dict[str, str] = {}
    spans: list[DataSpan] = []
    for key, value in data.items():
        check_text("a key of data", key)
        if isinstance(value, Range | Prefix):
            spans.append(value.span(key, codec))
        else:
            equal[key] = codec.encode(value).decode(errors="replace")
    return equal, tuple(spans)
