"""Failures that are alike, as one: the same exception, raised in the same place, with a text that differs in values only."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.codec.exceptions import own_frames
from holdfast.ports import Query, RunQuery, RunRow, Status
from holdfast.views.times import iso
from holdfast.views.values import PlainReader

FAILURES_LOOKED_AT = 1_000  # by a page that is read anew whenever something changes
PAGE = 500  # in memory at a time
BROKEN = (Status.FAILURE, Status.STUCK)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_VALUES = re.compile(r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:\.\d+)*")
_FRAME = re.compile(r'^  File "([^"]+)", line \d+, in (.+)$', re.M)
_LIBRARY = re.compile(r"/holdfast/(?:api|compose|core|engine|executors)/|/lib/python|/site-packages/")
RUNS_NAMED = 20
Failure = tuple[RunRow, Mapping[str, Any]]
"""A run, and what it has failed with."""


class FailureGroup(msgspec.Struct, kw_only=True):
    """`where` is the function that raised; `run_ids` are those of the newest runs of the group."""

    fingerprint: str
    type: str
    message: str
    where: str
    traceback: str
    first_at: int
    last_at: int
    workflows: Counter[str]
    count: int = 0
    run_ids: list[str]


def shape_of(message: str) -> str:
    """A text without the values in it."""
    return _VALUES.sub("#", _QUOTED.sub("'…'", message))


def where_of(traceback: str) -> str:
    """The function that raised, and its file; lines move with every change of the code."""
    frames = _FRAME.findall(traceback)
    if not frames:
        return ""
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    file, function = (own or frames)[-1]
    return f"{function} in {file.rpartition('/')[2]}"


def fingerprint_of(error: Mapping[str, Any]) -> str:
    parts = (error["type"], shape_of(error["message"]), where_of(error.get("traceback", "")))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def groups_of(failures: Iterable[Failure]) -> list[FailureGroup]:
    """The newest first, as the failures are."""
    found: dict[str, FailureGroup] = {}
    for row, error in failures:
        key = fingerprint_of(error)
        at = row.finished_at or row.started_at or row.created_at
        group = found.get(key)
        if group is None:
            traceback = error.get("traceback", "")
            group = found[key] = FailureGroup(
                fingerprint=key, type=error["type"], message=error["message"], where=where_of(traceback),
                traceback=traceback, first_at=at, last_at=at, workflows=Counter(), run_ids=[],
            )  # fmt: skip
        group.workflows[row.workflow] += 1
        group.count += 1
        if len(group.run_ids) < RUNS_NAMED:
            group.run_ids.append(row.id)
        group.first_at, group.last_at = min(group.first_at, at), max(group.last_at, at)
    return list(found.values())


def read_failures(store: Query, query: RunQuery, reader: PlainReader, most: int | None = None) -> list[FailureGroup]:
    """Of all failures that a query finds, or of the newest of them. Groups of most runs come first."""
    failures = itertools.chain.from_iterable(pages_of_failures(store, query, reader))
    return sorted(groups_of(itertools.islice(failures, most)), key=lambda group: -group.count)


def pages_of_failures(store: Query, query: RunQuery, reader: PlainReader) -> Iterator[list[Failure]]:
    """Of the runs that a query finds: those that have failed, and those that are stuck, with their errors, newest first.
    A page is read when it is asked for, so that all of them never have to fit into memory."""
    statuses = [status for status in BROKEN if not query.statuses or status in query.statuses]
    query = msgspec.structs.replace(query, statuses=statuses, limit=PAGE)
    while statuses and (rows := store.runs(query)):
        endings = store.histories([row.no for row in rows], ["RunFailed"])
        yield [(row, _error(row, endings[row.no], reader)) for row in rows]
        query = msgspec.structs.replace(query, after=rows[-1].no)


def pages_of_group(store: Query, query: RunQuery, reader: PlainReader, fingerprint: str) -> Iterator[list[RunRow]]:
    """Those of them that belong to one group."""
    for page in pages_of_failures(store, query, reader):
        if rows := [row for row, error in page if fingerprint_of(error) == fingerprint]:
            yield rows


def _error(row: RunRow, endings: list[bytes], reader: PlainReader) -> Mapping[str, Any]:
    found = None
    if row.status == Status.FAILURE and endings:
        raw = msgspec.json.decode(endings[-1], type=dict[str, msgspec.Raw])
        found = reader.error(raw.get("error"))
    return found or {"type": "Stuck" if row.status == Status.STUCK else "Failure", "message": row.reason}


def group_summary(group: FailureGroup) -> dict[str, Any]:
    return {
        "fingerprint": group.fingerprint,
        "type": group.type,
        "message": group.message,
        "where": group.where,
        "traceback": own_frames(group.traceback) or group.traceback,
        "count": group.count,
        "workflows": dict(group.workflows.most_common()),
        "first_at": iso(group.first_at),
        "last_at": iso(group.last_at),
        "runs": group.run_ids,
    }
