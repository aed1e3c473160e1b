"""Large values apart from the history: what is longer than a limit is kept in a store of blobs under the digest of its
bytes, and recorded as a reference.

A blob is durable before the commit that names it. What no run names any more is deleted a day later at the earliest:
until then somebody may be about to name it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import DefinitionError, TransformError
from holdfast.printing import show, show_error

GRACE = 24 * 3_600.0
"""Seconds between the time when a blob is written and the commit that names it, at most."""

_REFERENCE = re.compile(rb'"\$":"blob","v":\["([0-9a-f]{64})"')
_SIZES = {"": 1, "b": 1, "kb": 1_000, "mb": 1_000_000, "kib": 1_024, "mib": 1_024**2}


class Blobs(Protocol):
    """Where large values live: a `Directory`, or an object store of your own. Keys are digests of what they stand for.
    Methods are called from any thread and process, may block, and raise whatever they like if they fail: a step is then
    tried again, and a workflow set aside until it is resumed."""

    def put(self, key: str, data: bytes) -> None:
        """Keep it. When this returns it outlives the machine. If there is one of that key it is the same; its age begins
        anew."""

    def get(self, key: str) -> bytes:
        """What was put; LookupError if there is none."""

    def old(self, before: float) -> Iterator[str]:
        """The keys of all that were put before that time (seconds since the epoch)."""

    def delete(self, key: str, before: float) -> bool:
        """Delete it, unless it was put again since; whether it is gone by this."""

    def belongs_to(self, store: str) -> bool:
        """Whether all that is here is named by that store. The first store that asks is the one: nobody else may delete."""


class Directory:
    """Blobs as files in a folder, which all processes of the app reach. It belongs to one store."""

    def __init__(self, path: str | Path) -> None:
        try:
            self.path = Path(path)
        except TypeError:
            raise DefinitionError(f"Directory({show(path)}): give the path of a folder") from None

    def __repr__(self) -> str:
        return f"Directory({str(self.path)!r})"

    def put(self, key: str, data: bytes) -> None:
        """Write a file, synced; or make the one that is there young."""
        path = self._file(key)
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)
            _sync(path.parent)  # whoever has just made it may not have come to this
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{key}.{uuid.uuid4().hex}")
        try:
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        for folder in (path.parent, self.path):
            _sync(folder)

    def get(self, key: str) -> bytes:
        """The content of its file."""
        try:
            return self._file(key).read_bytes()
        except FileNotFoundError:
            raise LookupError(f"{self._file(key)} isn't there") from None

    def old(self, before: float) -> Iterator[str]:
        """The names of files that are older. Halves that were left behind are removed on the way."""
        for folder in self.path.glob("??"):
            for file in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if file.stat().st_mtime < before:
                        if len(file.name) == 64:
                            yield file.name
                        else:  # left behind by a process that was killed while it wrote
                            file.unlink()

    def delete(self, key: str, before: float) -> bool:
        """By a name of its own first: whoever puts the same meanwhile either finds it and makes it young, which is seen
        here, or doesn't and writes it anew."""
        path = self._file(key)
        aside = path.with_name(f".{key}.{uuid.uuid4().hex}")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False
        with contextlib.suppress(FileNotFoundError):  # of two who delete at once
            if aside.stat().st_mtime >= before:
                aside.replace(path)
                return False
            aside.unlink()
        return True

    def belongs_to(self, store: str) -> bool:
        """Whether the mark in the folder names this store; it is made if there is none."""
        mark = self.path / ".store"
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), mark.open("x") as file:
            file.write(store)
        return mark.read_text() == store

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / key


class Apart:
    """A codec's way to its blobs."""

    def __init__(self, blobs: Blobs, over: int) -> None:
        self.blobs = blobs
        self.over = over

    def keep(self, data: bytes) -> bytes:
        """A reference in place of the bytes, which are durable by then."""
        key = hashlib.sha256(data).hexdigest()
        self._do("written", key, lambda: self.blobs.put(key, data))
        return b'{"$":"blob","v":["%b",%d]}' % (key.encode(), len(data))

    def fetch(self, reference: dict[str, Any]) -> bytes:
        key = str(reference["v"][0])
        data: bytes = self._do("read", key, lambda: self.blobs.get(key))
        if hashlib.sha256(data).hexdigest() != key:
            raise TransformError(f"blob {key} in {self.blobs!r} is damaged; restore it from a backup")
        return data

    def _do(self, what: str, key: str, action: Callable[[], Any]) -> Any:
        try:
            with own_io():
                return action()
        except Exception as error:  # a full disk, a service that is away, a file that somebody has deleted
            raise TransformError(f"blob {key} can't be {what} in {self.blobs!r}: {show_error(error)}") from error


MARK = b'"blob"'
"""Recorded bytes without it name none."""


def keys_in(payload: bytes) -> list[str]:
    """The blobs that recorded bytes name. Inside of a JSON text the pattern can't be: its quotes would be escaped."""
    if MARK not in payload:
        return []
    return [key.decode() for key in _REFERENCE.findall(payload)]


def sweep(blobs: Blobs, store: str, named: Callable[[list[str]], Iterable[str]], grace: float = GRACE) -> int:
    """Delete what nobody names and is older than `grace` seconds; how many there were."""
    if not blobs.belongs_to(store):
        raise DefinitionError(
            f"{blobs!r} belongs to another store, so what nobody names here may be named there; give each store its own"
        )
    before = time.time() - grace
    keys, gone = blobs.old(before), 0
    while some := list(islice(keys, 500)):
        kept = set(named(some))
        gone += sum(blobs.delete(key, before) for key in some if key not in kept)
    return gone


def store_mark(secret: bytes) -> str:
    """What names a store to its blobs."""
    return hashlib.sha256(b"holdfast blobs\0" + secret).hexdigest()[:16]


def size_of(what: str, value: Any) -> int:
    """A number of bytes, or a text such as "64KB" or "1MiB"."""
    if type(value) is int and value > 0:
        return value
    found = re.fullmatch(r"(\d+) ?([a-z]*)", value.strip().lower()) if isinstance(value, str) else None
    if found is None or found[2] not in _SIZES or not int(found[1]):
        raise DefinitionError(f"{what}={show(value)}: give a number of bytes, or a text such as '64KB' or '1MiB'")
    return int(found[1]) * _SIZES[found[2]]


_busy: set[int] = set()


@contextlib.contextmanager
def own_io() -> Iterator[None]:
    """What this thread does inside is Holdfast's own, and not that of the workflow code that it may stand in."""
    thread = threading.get_ident()
    is_outermost = thread not in _busy
    _busy.add(thread)
    try:
        yield
    finally:
        if is_outermost:
            _busy.discard(thread)


def does_own_io(thread: int) -> bool:
    return thread in _busy


def _sync(folder: Path) -> None:
    if os.name == "nt":  # where a folder can't be opened
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
