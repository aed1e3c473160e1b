"""The queries in `sql/` by name, in the words of one database, and what they find as the ports have it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from holdfast.errors import EncodeError
from holdfast.ports import AttemptRow, DomainEventRow, RunRow
from holdfast.stores.dialect import Dialect

COLUMNS = RunRow.__struct_fields__
EVENT_COLUMNS = DomainEventRow.__struct_fields__
ATTEMPT_COLUMNS = ("token", "run", "cmd", "step", "number", "queue", "not_before", "worker", "claimed_at")
SHARED = ("queries.sql", "domain_events.sql", "attempts.sql", "limits.sql", "telemetry.sql")
Item = TypeVar("Item", bound=str | int)


def refuse_nul(*texts: str) -> None:
    """Not every database can hold it in a text, and what works on one has to work on all."""
    for text in texts:
        if "\0" in text:
            raise EncodeError(
                f"{text!r} contains a NUL character, which can't be kept in an id, a name or a key; leave it out"
            )


def list_in(text: Any, kind: type[Item]) -> list[Item]:
    """A column that holds a list; an empty one if it was damaged. One bad row must not keep anybody from the others."""
    return _read_list(text, kind) or []


def _read_list(text: Any, kind: type[Item]) -> list[Item] | None:
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        return None
    return found if isinstance(found, list) and all(type(item) is kind for item in found) else None


def damage_of(**columns: tuple[Any, type[str] | type[int]]) -> str:
    """What to say of the columns that should hold lists of that kind, and don't; empty if they do."""
    bad = [name for name, (text, kind) in columns.items() if _read_list(text, kind) is None]
    return f"its row in the store is damaged: {' and '.join(bad)} can't be read" if bad else ""


@cache
def read_queries(dialect: Dialect) -> dict[str, str]:
    """All queries by name, in the words of one database, with the parts that they share put in."""
    folder = resources.files("holdfast.stores").joinpath("sql")
    text = "".join(folder.joinpath(name).read_text() for name in (*SHARED, *dialect.files))
    blocks = re.split(r"^-- (name|part): (\w+)\n", text, flags=re.M)[1:]
    texts = [re.sub(r"^--.*\n", "", block, flags=re.M).strip().rstrip("; ") for block in blocks[2::3]]
    queries: dict[str, str] = {}
    parts = {
        "columns": ", ".join(COLUMNS),
        "event": ", ".join(f"e.{name}" for name in EVENT_COLUMNS),
        "attempt": ", ".join(f"a.{name}" for name in ATTEMPT_COLUMNS),
    }
    for what, name, query in zip(blocks[::3], blocks[1::3], texts, strict=True):
        for part, words in parts.items():
            query = query.replace(f"{{{part}}}", words)
        (parts if what == "part" else queries)[name] = query
    return {name: dialect.render(query) for name, query in queries.items()}


def run_row(values: Sequence[Any]) -> RunRow:
    row = RunRow(**dict(zip(COLUMNS, values, strict=True)))
    row.durable = bool(row.durable)
    return row


def attempt_row(values: Sequence[Any]) -> AttemptRow:
    return AttemptRow(**dict(zip(AttemptRow.__struct_fields__, values, strict=True)))


def event_row(values: Sequence[Any]) -> DomainEventRow:
    row = DomainEventRow(**dict(zip(EVENT_COLUMNS, values, strict=True)))
    row.quiet = bool(row.quiet)
    return row
