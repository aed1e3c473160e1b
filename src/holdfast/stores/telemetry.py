"""Those who watch, what workers tell them, and what they read: in every SQL store the same way."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from holdfast.ports import Backlog, Notes, RecordedEvent, RunRow
from holdfast.stores.queries import SqlQuery

KEPT = 1_000
KEPT_FOR = 15 * 1_000_000
"""How many notes are kept for those who are slow, and for how long."""
_decoder = msgspec.json.Decoder(Notes)


class TelemetryTables(SqlQuery):
    """The part of the ports that is about telemetry."""

    @abc.abstractmethod
    def write(self, name: str, lasting: bool = True) -> AbstractContextManager[Any]: ...

    # -- telling

    def publish(self, notes: Notes) -> None:
        with self.write("publish", lasting=False) as db:
            now = self.now()
            (number,) = db.execute(
                self._q["publish"], {"app": self.app, "now": now, "body": msgspec.json.encode(notes)}
            ).fetchone()
            db.execute(self._q["forget_published"], {"before": number - KEPT, "long_ago": now - KEPT_FOR})

    # -- watching

    def watch(self, watcher: str, until: int) -> None:
        with self.write("watch", lasting=False) as db:
            now = self.now()
            if until > now:
                db.execute(self._q["watch"], {"id": watcher, "app": self.app, "until": until})
            else:
                db.execute(self._q["watch_no_more"], {"id": watcher, "now": now})
                db.execute(self._q["forget_published"], {"before": 0, "long_ago": now - KEPT_FOR})

    def is_watched(self) -> bool:
        with self.read() as db:
            found = db.execute(self._q["anybody_watches"], {"app": self.app, "now": self.now()}).fetchone()
        return found is not None

    # -- what those who look keep

    def saved_views(self) -> dict[str, str]:
        prefix = self._view("")
        with self.read() as db:
            rows = db.execute(self._q["saved_views"], {"prefix": prefix, "length": len(prefix)}).fetchall()
        return {key.removeprefix(prefix): bytes(value).decode() for key, value in rows}

    def save_view(self, name: str, filter: str | None) -> None:
        with self.write("save_view") as db:
            if filter is None:
                db.execute(self._q["forget_view"], {"key": self._view(name)})
            else:
                db.execute(self._q["set_meta"], {"key": self._view(name), "value": filter.encode()})

    def _view(self, name: str) -> str:
        return f"view:{self.app}:{name}"

    # -- what was told

    def newest_notes(self) -> int:
        with self.read() as db:
            return int(db.execute(self._q["newest_published"]).fetchone()[0])

    def notes(self, after: int, limit: int) -> list[tuple[int, Notes]]:
        with self.read() as db:
            rows = db.execute(self._q["published"], {"after": after, "app": self.app, "limit": limit}).fetchall()
        return list(_readable(rows))

    def rows(self, numbers: Sequence[int]) -> list[RunRow]:
        with self.read() as db:
            parameters = {"app": self.app, "nos": self.dialect.array(numbers)}
            return [self._row(row) for row in db.execute(self._q["rows_by_number"], parameters)]

    def recorded(self, ranges: Mapping[int, tuple[int, int]]) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        with self.read() as db:
            for no, (first, last) in ranges.items():
                rows = db.execute(self._q["recorded"], {"no": no, "first": first, "last": last})
                found += [RecordedEvent(no, *row) for row in rows]
        return found

    def backlog(self, most: int) -> Backlog:
        with self.read() as db:
            parameters = {"app": self.app, "now": self.now(), "most": most}
            parked, due, since, inbox = db.execute(self._q["backlog"], parameters).fetchone()
        return Backlog(parked=parked, due=due, due_since=since, inbox=inbox)


def _readable(rows: Sequence[tuple[int, bytes | None]]) -> Iterator[tuple[int, Notes]]:
    for number, body in rows:
        try:
            yield number, Notes(worker="") if body is None else _decoder.decode(body)
        except msgspec.DecodeError:  # of a newer version
            yield number, Notes(worker="")
