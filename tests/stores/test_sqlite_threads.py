"""One SQLite store used by many threads, and closed while it is used."""

from __future__ import annotations

import fcntl
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import SystemClock
from holdfast.ports import NewRun, Record, RunQuery
from holdfast.stores.locks import Turnstile
from holdfast.stores.sqlite import SqliteStore


def create(store: SqliteStore, run_id: str) -> None:
    now = store.now()
    record = Record(1, "RunStarted", "", "", 0, 0, "", now, b"{}")
    store.create(NewRun(id=run_id, workflow="ship", records=[record], wake_at=now, created_at=now, fingerprint=b""))


@pytest.mark.parametrize("where", ["file", ":memory:"])
def test_many_threads_write_and_read_at_once(tmp_path: Path, where: str) -> None:
    store = SqliteStore("orders", where if where == ":memory:" else str(tmp_path / "x.db"), SystemClock())

    def work(number: int) -> None:
        for i in range(30):
            create(store, f"{number}-{i}")
            assert store.get(f"{number}-{i}") is not None
            assert store.payloads(f"{number}-{i}") == [b"{}"]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(store.runs(RunQuery(limit=1_000))) == 240
    store.close()


def test_a_store_closed_by_one_thread_leaves_no_connection_of_another_open(tmp_path: Path) -> None:
    store = SqliteStore("orders", str(tmp_path / "x.db"), SystemClock())
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with store.read() as db:
            db.execute("SELECT 1")
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    store.close()
    go_on.set()
    thread.join()
    assert store.database.connections.idle == []
    gc.collect()  # a connection left open would warn


def test_a_store_closed_while_a_connection_is_given_back_leaves_none_open(tmp_path: Path) -> None:
    store = SqliteStore("orders", str(tmp_path / "x.db"), SystemClock())

    class ClosedMeanwhile(list[Any]):
        def append(self, connection: Any) -> None:
            store.close()
            super().append(connection)

    store.database.connections.idle = ClosedMeanwhile(store.database.connections.idle)
    assert store.get("nobody") is None
    assert store.database.connections.idle == []


def test_whoever_waits_to_write_goes_before_whoever_comes_back_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "x.db")
    greedy, patient = Turnstile(path, 10), Turnstile(path, 10)
    entered: list[str] = []

    def wait() -> None:
        patient.enter()
        entered.append("patient")
        patient.leave()

    for _ in range(20):
        greedy.enter()
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: is_locked(path + "-next"))
        greedy.leave()
        greedy.enter()
        entered.append("greedy")
        greedy.leave()
        thread.join()
    assert entered == ["patient", "greedy"] * 20
    greedy.close()
    patient.close()


def is_locked(file: str) -> bool:
    """Whether somebody stands at the door."""
    with open(file) as door:
        try:
            fcntl.flock(door, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
