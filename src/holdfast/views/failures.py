"""Failures that are alike, as one: the same exception, raised in the same place, with a text that differs in values only."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.codec.exceptions import own_frames
from holdfast.ports import Query, RunQuery, RunRow, Status
from holdfast.views.times import iso
from holdfast.views.values import PlainReader

FAILURES_LOOKED_AT = 1_000
BROKEN = (Status.FAILURE, Status.STUCK)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_VALUES = re.compile(r"\b[0-9a-f]{8,}(?:-[0-9a-f]{4,})*\b|\d+(?:\.\d+)*")
_FRAME = re.compile(r'^  File "([^"]+)", line \d+, in (.+)$', re.M)
_LIBRARY = re.compile(r"/holdfast/(?:api|compose|core|engine|executors)/|/lib/python|/site-packages/")
RUNS_NAMED = 20


class FailureGroup(msgspec.Struct, kw_only=True):
    """`where` is the function that raised; `run_ids` are those of all runs of the group that were looked at."""

    fingerprint: str
    type: str
    message: str
    where: str
    traceback: str
    first_at: int
    last_at: int
    workflows: Counter[str]
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


def groups_of(failures: Iterable[tuple[RunRow, Mapping[str, Any]]]) -> list[FailureGroup]:
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
        group.run_ids.append(row.id)
        group.first_at, group.last_at = min(group.first_at, at), max(group.last_at, at)
    return list(found.values())


def read_failures(store: Query, query: RunQuery, reader: PlainReader) -> list[FailureGroup]:
    """Of the newest runs that a query finds: those that have failed, and those that are stuck. Groups of most runs come
    first."""
    statuses = [status for status in BROKEN if not query.statuses or status in query.statuses]
    wanted = msgspec.structs.replace(query, statuses=statuses, limit=FAILURES_LOOKED_AT)
    rows = store.runs(wanted) if statuses else []
    endings = store.histories([row.no for row in rows], ["RunFailed"])
    groups = groups_of((row, _error(row, endings[row.no], reader)) for row in rows)
    return sorted(groups, key=lambda group: -len(group.run_ids))


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
        "count": len(group.run_ids),
        "workflows": dict(group.workflows.most_common()),
        "first_at": iso(group.first_at),
        "last_at": iso(group.last_at),
        "runs": group.run_ids[:RUNS_NAMED],
    }
