"""What the tests of a store have in common: a clock that is moved, runs and workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any

from holdfast.ports import Change, Claimed, Emission, NewRun, Record, RunRow, Status, Store, WorkerRow

SECOND = 1_000_000
LEASE = 10 * SECOND
NAMES = ("ship", "bill")


class MovableClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self._now = 1_900_000_000 * SECOND

    def now(self) -> int:
        return self._now

    def move(self, us: int) -> None:
        self._now += us

    def wait(
        self, get: Callable[[float], Any], due: int | None, timeout: float, busy: int, tick: int | None = None
    ) -> Any:
        raise Empty


def raised(kind: type[BaseException], function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call raises an error of that kind."""
    try:
        function(*args)
    except kind:
        return True
    return False


def record(seq: int, kind: str = "Thing", payload: bytes = b"") -> Record:
    return Record(seq, kind, "", "", 0, 1, "w", seq, payload or b'{"seq":%d}' % seq)


class Arranged:
    """What tests begin with."""

    @functools.cached_property
    def clock(self) -> MovableClock:
        return MovableClock()

    def new(self, run_id: str = "r", **given: Any) -> NewRun:
        now = self.clock.now()
        run = NewRun(id=run_id, workflow="ship", records=[record(1)], wake_at=now, created_at=now, fingerprint=b"f")
        for name, value in given.items():
            setattr(run, name, value)
        return run

    def worker(self, store: Store, worker_id: str = "w1", build: str = "1", names: Sequence[str] = NAMES) -> str:
        store.register(
            WorkerRow(
                id=worker_id, app=store.app, host="h", pid=1, build=build, names=list(names), address=f"{worker_id}-bell"
            ),
            LEASE,
        )  # fmt: skip
        return worker_id

    def claim(
        self, store: Store, worker_id: str = "w1", limit: int = 10, names: Sequence[str] = NAMES
    ) -> list[Claimed]:
        return store.commit(worker_id, [], limit, names).claimed

    def owned(self, store: Store, run_id: str = "r", **given: Any) -> RunRow:
        """A run that worker w1 owns."""
        if not store.workers():
            self.worker(store)
        store.create(self.new(run_id, **given))
        (claimed,) = self.claim(store)
        return claimed.row

    def change(self, store: Store, row: RunRow, **parts: Any) -> None:
        store.commit(row.owner or "", [Change(no=row.no, **parts)], 0, NAMES)

    def leave(self, store: Store, row: RunRow, status: str, **columns: Any) -> None:
        """Let a run go with that status."""
        held = int(status in (Status.PAUSED, Status.STUCK))
        finished = self.clock.now() if Status(status).is_final else None
        columns = {"status": status, "held": held, "finished_at": finished, "wake_at": None, **columns}
        self.change(store, row, columns={"owner": None, **columns})

    def row(self, store: Store, run_id: str = "r") -> RunRow:
        row = store.get(run_id)
        assert row is not None
        return row

    def emission(self, name: str = "Paid", key: str = "1", **given: Any) -> Emission:
        emission = Emission(
            id=f"{name}-{key}", name=name, key=key, payload=b"{}", correlation="orders:r", ts=self.clock.now()
        )
        for field, value in given.items():
            setattr(emission, field, value)
        return emission
