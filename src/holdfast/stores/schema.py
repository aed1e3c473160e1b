"""The schema of every SQL store: numbered migrations, forward only."""

from __future__ import annotations

import re
import secrets
from importlib import resources
from typing import Any

from holdfast.errors import StoreSchemaError
from holdfast.stores.database import Tables
from holdfast.stores.dialect import SQLITE, Dialect
from holdfast.stores.moves import move_of, refuse_moved


def migrations(dialect: Dialect = SQLITE) -> list[tuple[int, str]]:
    """By number. `0007_name.sql` is for every database, `0007_name.postgres.sql` for one."""
    scripts = _scripts()
    meant = [name for name in sorted(scripts) if name.split(".")[1:-1] in ([], [dialect.name])]
    return [(int(name[:4]), dialect.script(scripts[name])) for name in meant]


def all_scripts() -> str:
    """The migrations of every database."""
    return "\n".join(_scripts().values())


def _scripts() -> dict[str, str]:
    folder = resources.files("holdfast.stores").joinpath("sql")
    return {file.name: file.read_text() for file in folder.iterdir() if file.name[:4].isdigit()}


class Schema(Tables):
    """What version of it a database has."""

    def versions(self) -> tuple[int, int]:
        """The schema's version here, 0 if there is nothing yet, and the newest that this library knows."""
        with self.database.read() as db:
            return self._version(db), migrations(self._dialect)[-1][0]

    def upgrade(self, even_if_moved: bool = False) -> None:
        """Bring the schema up to date."""
        known = migrations(self._dialect)
        newest = known[-1][0]
        with self.database.read() as db:
            current = self._version(db)
            if current and not even_if_moved:
                refuse_moved(self.database.url, move_of(db))
        if current < newest:
            with self.database.write("migrate") as db:
                self.database.before_migrating(db)
                current = self._version(db)  # somebody else may have been faster
                for number, script in known:
                    if number > current:
                        for statement in _statements(script):
                            db.execute(statement)
                if current < newest:
                    db.execute(self._q["set_meta"], {"key": "schema", "value": b"%d" % newest})
                    db.execute(self._q["add_meta"], {"key": "secret", "value": secrets.token_bytes(32)})
        if current > newest:
            raise StoreSchemaError(
                f"{self.database.url} has schema {current}, this version of Holdfast knows {newest}; upgrade Holdfast here, "
                "or use another store"
            )

    def _version(self, db: Any) -> int:
        tables = {name for (name,) in db.execute(self._dialect.tables)}
        if not tables:
            return 0
        if {"meta", "runs", "history", "inbox"} <= tables:
            found = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
            if found is not None and re.fullmatch(rb"\d+", _bytes(found[0])):
                return int(found[0])
        raise StoreSchemaError(
            f"{self.database.url} is a database of another program; name another file or schema for Holdfast"
        )


def _statements(script: str) -> list[str]:
    return [text for text in (part.strip() for part in re.sub(r"--.*", "", script).split(";")) if text]


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
