"""Those who watch, what workers tell them, and what they read: in every SQL store the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.ports import Backlog, Notes, RecordedEvent
from holdfast.stores.database import Tables

KEPT = 1_000
KEPT_FOR = 15 * 1_000_000
"""How many notes are kept for those who are slow, and for how long."""
_decoder = msgspec.json.Decoder(Notes)


class Telemetry(Tables):
    """Notes for those who watch, and what these keep."""

    # -- telling

    def publish(self, notes: Notes) -> None:
        with self.database.write("publish", lasting=False) as db:
            now = self.database.now()
            (number,) = db.execute(
                self._q["publish"], {"app": self.database.app, "now": now, "body": msgspec.json.encode(notes)}
            ).fetchone()
            db.execute(self._q["forget_published"], {"before": number - KEPT, "long_ago": now - KEPT_FOR})

    # -- watching

    def watch(self, watcher: str, until: int) -> None:
        with self.database.write("watch", lasting=False) as db:
            now = self.database.now()
            if until > now:
                db.execute(self._q["watch"], {"id": watcher, "app": self.database.app, "until": until})
            else:
                db.execute(self._q["watch_no_more"], {"id": watcher, "now": now})
                db.execute(self._q["forget_published"], {"before": 0, "long_ago": now - KEPT_FOR})

    def is_watched(self) -> bool:
        return bool(self._ask("anybody_watches", now=self.database.now()))

    # -- what those who look keep

    def saved_views(self) -> dict[str, str]:
        prefix = self._view("")
        rows = self._ask("saved_views", prefix=prefix, length=len(prefix))
        return {key.removeprefix(prefix): bytes(value).decode() for key, value in rows}

    def save_view(self, name: str, filter: str | None) -> None:
        with self.database.write("save_view") as db:
            if filter is None:
                db.execute(self._q["forget_view"], {"key": self._view(name)})
            else:
                db.execute(self._q["set_meta"], {"key": self._view(name), "value": filter.encode()})

    def _view(self, name: str) -> str:
        return f"view:{self.database.app}:{name}"

    # -- what was told

    def newest_notes(self) -> int:
        ((number,),) = self._ask("newest_published")
        return int(number)

    def notes(self, after: int, limit: int) -> list[tuple[int, Notes]]:
        return list(_readable(self._ask("published", after=after, limit=limit)))

    def recorded(self, ranges: Mapping[int, tuple[int, int]]) -> list[RecordedEvent]:
        found: list[RecordedEvent] = []
        with self.database.read() as db:
            for no, (first, last) in ranges.items():
                rows = db.execute(self._q["recorded"], {"no": no, "first": first, "last": last})
                found += [RecordedEvent(no, *row) for row in rows]
        return found

    def backlog(self, most: int) -> Backlog:
        ((parked, due, since, inbox),) = self._ask("backlog", now=self.database.now(), most=most)
        return Backlog(parked=parked, due=due, due_since=since, inbox=inbox)


def _readable(rows: Sequence[tuple[int, bytes | None]]) -> Iterator[tuple[int, Notes]]:
    for number, body in rows:
        try:
            yield number, Notes(worker="") if body is None else _decoder.decode(body)
        except msgspec.DecodeError:  # of a newer version
            yield number, Notes(worker="")
