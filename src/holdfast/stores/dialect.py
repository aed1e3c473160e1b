"""Where databases differ in the SQL that all stores share.

The files in `sql/` are written once: parameters are `:named`, and the few places where databases have no common words
are marks in braces, which a dialect fills in. Parts that several queries have in common are put in by their names, in braces
too. A query of the same name in one of the dialect's own files takes the place of the shared one.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = tuple[Any, ...]
Statement = tuple[str, Any]
CHUNKS = (128, 32, 8, 4, 2, 1)
"""Few sizes, so that their statements stay prepared."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """What is said differently in one database."""

    name: str
    marks: Mapping[str, str]
    """`{ordered_join}`: a join whose left side is read first. `{lock}`: rows that are read stay as they are until the end
    of the transaction. `{skip}`: the same, leaving out what others have locked (`{skip_slots}`: of the table `s` alone).
    `{fence}`: a row that is read can't be deleted until then, but be changed. `{unindexed}`: no index is to be chosen for the
    column that follows."""
    among: str
    """A condition: one of the texts in the parameter {0}."""
    numbered: str
    """A condition: one of the numbers in the parameter {0}."""
    each: str
    """The texts in the parameter {0}, as something to select `value` from."""
    elements: str
    """The texts in the column {0} of another table, as a table `j` with a column `value`; none if the column is damaged."""
    sql: Callable[[str], str]
    """A statement as the driver takes it."""
    array: Callable[[Iterable[Any]], Any]
    """A list as the parameter of `among` or `numbered`."""
    insert: Callable[[str, Sequence[str], Sequence[Row]], Iterator[Statement]]
    """Statements that insert rows into a table."""
    update: Callable[[str, Sequence[str], Sequence[Row]], Iterator[Statement]]
    """Statements that set columns; the first of them says of which row."""
    tables: str
    """A query for the names of all tables there are."""
    counts_in_order: bool
    """Whether what has a higher number was committed later."""
    files: Sequence[str] = ()
    """Queries of its own."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Words of migrations, and what is said instead."""

    def render(self, text: str) -> str:
        for mark, words in self.marks.items():
            text = text.replace(f"{{{mark}}}", words)
        for mark in ("among", "numbered", "each", "elements"):
            text = re.sub(rf"{{{mark} ([\w.]+)}}", lambda found: getattr(self, mark).format(found[1]), text)  # noqa: B023
        return self.sql(text)

    def script(self, text: str) -> str:
        for word, instead in self.types.items():
            text = text.replace(word, instead)
        return text


def in_chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows to be written with one statement each: every statement lets other threads in, and getting back in may take
    longer than the statement itself."""
    at = 0
    while at < len(rows):
        size = next(size for size in CHUNKS if size <= len(rows) - at)
        yield rows[at : at + size]
        at += size


@functools.lru_cache(1_000)
def _values(columns: int, rows: int) -> str:
    marks = f"({', '.join('?' * columns)})"
    return f"VALUES {', '.join([marks] * rows)}"


def _insert(table: str, columns: Sequence[str], rows: Sequence[Row]) -> Iterator[Statement]:
    for chunk in in_chunks(rows):
        values = _values(len(columns), len(chunk))
        yield f"INSERT INTO {table} ({', '.join(columns)}) {values}", [*itertools.chain.from_iterable(chunk)]


def _update(table: str, columns: Sequence[str], rows: Sequence[Row]) -> Iterator[Statement]:
    sets = ", ".join(f"{name} = v.column{i}" for i, name in enumerate(columns[1:], 2))
    for chunk in in_chunks(rows):
        values = _values(len(columns), len(chunk))
        statement = f"UPDATE {table} SET {sets} FROM ({values}) AS v WHERE {columns[0]} = v.column1"
        yield statement, [*itertools.chain.from_iterable(chunk)]


SQLITE = Dialect(
    name="sqlite",
    marks={"ordered_join": "CROSS JOIN", "lock": "", "skip": "", "skip_slots": "", "fence": "", "unindexed": "+"},
    among="IN (SELECT value FROM json_each(:{0}))",
    numbered="IN (SELECT value FROM json_each(:{0}))",
    each="json_each(:{0})",
    elements="json_each(CASE WHEN json_valid({0}) THEN {0} ELSE '[]' END) j",
    sql=str,
    array=lambda values: json.dumps(list(values)),
    insert=_insert,
    update=_update,
    tables="SELECT name FROM sqlite_master WHERE type = 'table'",
    counts_in_order=True,
)
