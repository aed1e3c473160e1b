"""What SQLite and the system raise, in words that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator

from holdfast.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreMovedError,
    StoreReadOnlyError,
    StoreUnavailableError,
)


@contextlib.contextmanager
def translated(path: str, timeout: float) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise in_our_words(error, path, timeout) from error


def in_our_words(error: Exception, path: str, timeout: float) -> StoreError:
    text, code = str(error), getattr(error, "sqlite_errorcode", 0) & 0xFF
    number = error.errno if isinstance(error, OSError) else 0
    if code == sqlite3.SQLITE_READONLY or number in (errno.EACCES, errno.EPERM, errno.EROFS) or _is_shut(path, code):
        return StoreReadOnlyError(
            f"{path} can't be written ({text}); make the file and its folder writable for this user"
        )
    if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT) or _has_no_room(path, code):
        return StoreFullError(f"there is no room left for {path} ({text}); free some, runs go on by themselves")
    if number in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailableError(
            f"{path} can't be used ({text}); close files, or allow the process more of them (ulimit -n)"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusyError(
            f"{path} was locked by another program for {timeout:g} s ({text}); close whatever has it open in a transaction"
        )
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER:  # of our own, see copying.py
        return StoreMovedError(text)
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailableError(f"{path} can't be opened ({text}); check the path and its permissions")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreUnavailableError(f"{path} is not a SQLite database ({text}); name another file")
    return StoreError(f"{path}: {text}")


def _is_shut(path: str, code: int) -> bool:
    """A folder where nothing can be made is one reason why a database can't be opened."""
    if code != sqlite3.SQLITE_CANTOPEN:
        return False
    return not os.access(os.path.dirname(path), os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _has_no_room(path: str, code: int) -> bool:
    """Some of what SQLite needs room for (shared memory, locks) fails as an I/O error instead."""
    if code not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    try:
        return os.statvfs(os.path.dirname(path)).f_bavail == 0
    except OSError:
        return False
