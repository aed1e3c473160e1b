"""Connections to SQLite that this library shares with code of its users."""

from __future__ import annotations

import sqlite3
from typing import Any

from holdfast.errors import WrongContextError

ENDS = ("commit", "rollback", "close", "executescript")


class Joined:
    """A connection of a user's, as the shared code uses it, whatever rows its owner wants."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        cursor = self._raw.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, parameters)


class StepConnection:
    """The store's own connection, as a step gets it: a sqlite3.Connection, but for what would end the transaction."""

    def __init__(self, driver: sqlite3.Connection) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        if name in ENDS:
            raise WrongContextError(
                f"{name}() would end the transaction of this step, which is committed together with its outcome; leave it out"
            )
        return getattr(self.driver, name)
