"""Moves everything that is in one store to another, empty one, of the same or of another kind, so that its runs go on
there and nowhere else.

It is generic over the schema: all tables that both have are copied with all their columns, but for workers, of which
none may live. The old store is kept from changing until it is marked as moved. At each moment at most one of the two can
be opened, and a move that was interrupted is finished, or begun anew, by saying it again:

| interrupted                       | the old store | the new store            | said again                   |
|-----------------------------------|---------------|--------------------------|------------------------------|
| before the rows are committed     | counts        | is empty                 | begins                       |
| before the old one is marked      | counts        | refuses, as incomplete   | empties the new, begins anew |
| before the new one is released    | refuses       | refuses, and is complete | releases the new one         |
| after that                        | refuses       | counts                   | says that it was moved       |
"""

from __future__ import annotations

import abc
import contextlib
import re
import secrets
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import StoreBusyError, StoreError, StoreMovedError
from holdfast.stores.dialect import Row
from holdfast.stores.moves import MARKS, Mark, Move, move_of, moved_text
from holdfast.stores.schema import all_scripts
from holdfast.stores.store import SqlStore

BATCH = 2_000
NOT_COPIED = {"workers", "boots", "meta", "telemetry", "watchers"}
"""Workers, servers and those who watch don't move, and what is said of a store as a whole is not all said of its copy."""
OF_THE_STORE = {"schema", *MARKS}
"""What each store says of itself alone."""


@dataclass(frozen=True)
class Copied:
    """How many rows there were in each table. `finished` is a move that had been interrupted at its end."""

    rows: dict[str, int]
    finished: bool = False


def copy(source: SqlStore, target: SqlStore) -> Copied:
    """Move all runs and what belongs to them. Both stores were opened `as_it_is`."""
    if source.url == target.url:
        raise StoreError(f"{source.url} can't be copied to itself; name another file, or another ?schema=")
    for store in (source, target):
        store.upgrade(even_if_moved=True)
    with source.read() as db:
        left = move_of(db)
    with target.read() as db:
        arrived = move_of(db)
    if left.moved_to is not None:
        return _finish(source, target, left.moved_to, arrived)
    if left.incoming is not None:
        raise StoreMovedError(f"{source.url} is itself the target of a copy that was not finished; finish that first")
    if arrived.moved_to is not None:
        raise StoreMovedError(moved_text(target.url, arrived.moved_to))
    _refuse_the_living(source)
    old, new = _side(source), _side(target)
    with source.write("copy_out") as reading:
        old.freeze(reading)
        _refuse_workers(source, reading)  # of those that came since
        token = secrets.token_hex(8)
        with target.write("copy_in") as writing:
            new.freeze(writing)
            tables = [table for table in old.tables(reading) if table in set(new.tables(writing)) - NOT_COPIED]
            if arrived.incoming is None:
                _refuse_rows(target, writing, tables)
            rows = _copy_tables(old, reading, new, writing, tables)
            _copy_meta(reading, writing, target)
            _mark(target, writing, "incoming", Mark(source.url, token, source.now()))
        moved = Mark(target.url, token, source.now())
        _mark(source, reading, "moved_to", moved)
        old.seal(reading, tables, moved_text(source.url, moved))
    _release(target)
    return Copied(rows)


def _finish(source: SqlStore, target: SqlStore, mark: Mark, arrived: Move) -> Copied:
    if arrived.incoming is None or arrived.incoming.token != mark.token:
        raise StoreMovedError(moved_text(source.url, mark))
    _release(target)
    return Copied({}, finished=True)


def _release(target: SqlStore) -> None:
    with target.write("copy_done") as db:
        db.execute("DELETE FROM meta WHERE key = 'incoming'")
    _side(target).settle(target)


def _mark(store: SqlStore, db: Any, key: str, mark: Mark) -> None:
    db.execute(store.database.q["set_meta"], {"key": key, "value": mark.encode()})


# -- what is refused


def _refuse_the_living(source: SqlStore) -> None:
    """Whoever is dead is declared so, which gives back its runs."""
    for app in source.apps():
        source.app = app
        source.declare_dead("")
    with source.read() as db:
        _refuse_workers(source, db)


def _refuse_workers(source: SqlStore, db: Any) -> None:
    found = db.execute("SELECT app, host, pid FROM workers ORDER BY app, host, pid").fetchall()
    if found:
        names = ", ".join(f"process {pid} on {host} (app {app!r})" for app, host, pid in found)
        raise StoreBusyError(
            f"{source.url} has workers that live: {names}; stop them first (one that was killed is known to be dead within "
            "some seconds)"
        )


def _refuse_rows(target: SqlStore, db: Any, tables: Iterable[str]) -> None:
    filled = set(re.findall(r"^INSERT INTO (\w+)", all_scripts(), re.MULTILINE))  # as soon as they are made
    for table in [*tables, "workers"]:
        if table not in filled and db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:
            raise StoreError(
                f"{target.url} is not empty (there are {table}), and a copy would mix two stores; name another "
                f"{'?schema=' if target.database.dialect.name == 'postgres' else 'file'}"
            )


# -- rows


def _copy_tables(old: Side, reading: Any, new: Side, writing: Any, tables: Sequence[str]) -> dict[str, int]:
    copied = {}
    for table in tables:
        writing.execute(f"DELETE FROM {table}")
        types = new.columns(writing, table)
        columns = [name for name in old.columns(reading, table) if name in types]
        kinds = [types[name] for name in columns]
        with contextlib.closing(old.rows(reading, table, columns)) as rows:
            copied[table] = new.load(writing, table, columns, (_fitting(row, kinds) for row in rows))
    new.set_last_numbers(writing, old.last_numbers(reading))
    return copied


def _copy_meta(reading: Any, writing: Any, target: SqlStore) -> None:
    """The key that tokens are signed with, among others: links that were sent stay good."""
    for key, value in reading.execute("SELECT key, value FROM meta").fetchall():
        if key not in OF_THE_STORE:
            value = value.encode() if isinstance(value, str) else bytes(value)
            writing.execute(target.database.q["set_meta"], {"key": key, "value": value})


def _fitting(row: Row, types: Sequence[str]) -> Row:
    """A row as the target's columns want it. SQLite keeps what it is given, whatever the column's type."""
    return tuple(
        value.encode() if kind == "bytes" and isinstance(value, str) else value
        for value, kind in zip(row, types, strict=True)
    )


# -- what a database is asked in its own words


class Side(abc.ABC):
    """One of the two databases."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store

    def tables(self, db: Any) -> list[str]:
        found = (name for (name,) in db.execute(self.store.database.dialect.tables).fetchall())
        return sorted(name for name in found if not name.startswith("sqlite_"))

    @abc.abstractmethod
    def freeze(self, db: Any) -> None:
        """Nobody else writes until the end of this transaction."""

    @abc.abstractmethod
    def columns(self, db: Any, table: str) -> dict[str, str]:
        """Names, and "bytes" or another word for their type."""

    @abc.abstractmethod
    def rows(self, db: Any, table: str, columns: Sequence[str]) -> Generator[Row, None, None]: ...

    @abc.abstractmethod
    def load(self, db: Any, table: str, columns: Sequence[str], rows: Iterable[Row]) -> int: ...

    @abc.abstractmethod
    def last_numbers(self, db: Any) -> dict[str, int]:
        """The last number that each table has given to a row, which may be gone."""

    @abc.abstractmethod
    def set_last_numbers(self, db: Any, numbers: dict[str, int]) -> None: ...

    @abc.abstractmethod
    def seal(self, db: Any, tables: Iterable[str], text: str) -> None:
        """Let nobody insert anything any more, whichever version of this library it uses: a process that has opened the
        store before it was moved would start runs that nobody finds."""

    @abc.abstractmethod
    def settle(self, store: SqlStore) -> None:
        """What is worth doing once all is there."""


class SqliteSide(Side):
    def freeze(self, db: Any) -> None:
        """A transaction that writes is the only one here."""

    def columns(self, db: Any, table: str) -> dict[str, str]:
        found = db.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
        return {name: "bytes" if kind == "BLOB" else kind for name, kind in found}

    def rows(self, db: Any, table: str, columns: Sequence[str]) -> Generator[Row, None, None]:
        yield from db.execute(f"SELECT {', '.join(columns)} FROM {table}")

    def load(self, db: Any, table: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        return int(max(0, db.executemany(sql, rows).rowcount))

    def last_numbers(self, db: Any) -> dict[str, int]:
        return dict(db.execute("SELECT name, seq FROM sqlite_sequence").fetchall())

    def set_last_numbers(self, db: Any, numbers: dict[str, int]) -> None:
        known = self.last_numbers(db)
        for table, last in numbers.items():
            db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, max(last, known.get(table, 0))))

    def seal(self, db: Any, tables: Iterable[str], text: str) -> None:
        said = text.replace("'", "''")
        for table in [*tables, "workers"]:
            db.execute(
                f"CREATE TRIGGER moved_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, '{said}'); END"
            )

    def settle(self, store: SqlStore) -> None:
        """Its plans need no statistics."""


class PostgresSide(Side):
    def freeze(self, db: Any) -> None:
        db.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # one side waits while the other one works
        db.execute(f"LOCK TABLE {', '.join(self.tables(db))} IN EXCLUSIVE MODE")

    def columns(self, db: Any, table: str) -> dict[str, str]:
        found = db.execute(
            "SELECT column_name::text, data_type::text FROM information_schema.columns "
            "WHERE table_schema = current_schema() AND table_name = %s ORDER BY ordinal_position",
            (table,),
        ).fetchall()
        return {name: "bytes" if kind == "bytea" else kind for name, kind in found}

    def rows(self, db: Any, table: str, columns: Sequence[str]) -> Generator[Row, None, None]:
        with db.connection.cursor(name=f"copy_{table}", binary=True) as cursor:
            cursor.itersize = BATCH
            cursor.execute(f"SELECT {', '.join(columns)} FROM {table}")
            yield from cursor

    def load(self, db: Any, table: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
        count = 0
        with db.connection.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as into:
            for row in rows:
                into.write_row(row)
                count += 1
        return count

    def _sequences(self, db: Any) -> list[tuple[str, str, str]]:
        """Tables that number their rows, the column, the sequence."""
        found: list[tuple[str, str, str]] = db.execute(
            "SELECT table_name::text, column_name::text, "
            "pg_get_serial_sequence(format('%I.%I', table_schema, table_name), column_name)::text "
            "FROM information_schema.columns WHERE table_schema = current_schema() AND is_identity = 'YES'"
        ).fetchall()
        return found

    def last_numbers(self, db: Any) -> dict[str, int]:
        asked = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM "
        return {table: db.execute(asked + sequence).fetchone()[0] for table, _, sequence in self._sequences(db)}

    def set_last_numbers(self, db: Any, numbers: dict[str, int]) -> None:
        for table, column, sequence in self._sequences(db):
            (largest,) = db.execute(f"SELECT coalesce(max({column}), 0) FROM {table}").fetchone()
            last = max(largest, numbers.get(table, 0))
            db.execute("SELECT setval(%s::regclass, %s::bigint, %s)", (sequence, max(last, 1), last > 0))

    def seal(self, db: Any, tables: Iterable[str], text: str) -> None:
        said = text.replace("'", "''")
        db.execute(
            "CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $moved$ BEGIN "
            f"RAISE EXCEPTION USING MESSAGE = '{said}', ERRCODE = 'HF001'; END $moved$"
        )
        for table in [*tables, "workers"]:
            db.execute(f"CREATE TRIGGER moved BEFORE INSERT ON {table} EXECUTE FUNCTION moved()")

    def settle(self, store: SqlStore) -> None:
        """Until it has statistics the database has to guess what it holds."""
        with store.read() as db:
            for table in self.tables(db):
                db.execute(f"ANALYZE {table}")


def _side(store: SqlStore) -> Side:
    return PostgresSide(store) if store.database.dialect.name == "postgres" else SqliteSide(store)
