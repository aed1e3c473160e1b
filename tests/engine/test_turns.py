"""What an engine does in one turn, and for how long it keeps what only waits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from holdfast import App, hook, wf
from holdfast.engine.records import outcome_message
from holdfast.engine.settings import Settings
from holdfast.ports import Attempt, Change, Claimed, Outcome


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App("turns", str(tmp_path / "turns.db"))
    yield app
    app.close()


def spend(seconds: float) -> float:
    """Workflow code that takes its time; how long it took."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        pass
    return time.perf_counter() - begin


def test_a_run_with_much_to_replay_does_not_hold_up_the_others(app: App) -> None:
    order: list[str] = []
    is_slow = False

    @app.step
    def note(name: str) -> None:
        order.append(name)

    @app.workflow
    async def long() -> None:
        for _ in range(100):
            wf.set_data("turn", 1)
            await hook("go on")
            spend(0.01 if is_slow else 0)
        note("long")

    @app.workflow
    async def short() -> None:
        note("short")

    with app.worker():
        run = long.options(id="long").start()
        for _ in range(99):
            run.send("go on")
        wait_until(lambda: sum(event.kind == "HookReceived" for event in run.history()) == 99, 20)
    is_slow = True
    run.send("go on")
    short.options(id="short").start()
    with app.worker(concurrency=1, settings=Settings(claim=2)):
        run.result(timeout=20)
    assert order == ["short", "long"], "it was claimed second, and begins its step while the first is still replayed"


def test_a_commit_takes_so_many_events_and_not_many_more(app: App) -> None:
    sizes: list[int] = []

    @app.workflow
    async def writes() -> None:
        for number in range(5):
            wf.set_data("n", number)

    runs = [writes.start() for _ in range(100)]
    engine = app.make_engine(settings=Settings(max_events=20, turn=60))
    commit = engine.store.commit

    def measured(worker: str, changes: Sequence[Change], *rest: Any) -> list[Claimed]:
        sizes.append(sum(len(change.records) for change in changes))
        return commit(worker, changes, *rest)

    engine.store.commit = measured  # type: ignore[method-assign]
    engine.start()
    while not all(run.status.is_final for run in runs):
        engine.engine.turn([])
    engine.stop(0)
    engine.run()
    engine.store.close()
    assert sum(sizes) >= 600
    assert max(sizes) <= 20 + 7, "the run that goes over the limit is the last one"


# -- parking


def owner(app: App, run_id: str) -> str | None:
    row = app.store.get(run_id)
    assert row is not None
    return row.owner


def test_code_that_computes_between_steps_is_not_taken_for_blocked_when_it_is_replayed(app: App) -> None:
    """Live each step is waited for. On replay their results are there, and others have to go on all the same."""

    @app.step
    def number(n: int) -> int:
        return n

    @app.workflow
    def adds() -> int:
        total = 0
        for n in range(20):
            total += number(n)
            spend(0.02)
        wf.wait(hook("go on"))
        return total

    run = adds.start()
    with app.worker(settings=Settings(blocked_after=0.2)):
        wait_until(lambda: run.reason == "hook 'go on'")
    run.send("go on")
    with app.worker(settings=Settings(blocked_after=0.2)):
        assert run.result(timeout=20) == sum(range(20))


def test_a_run_that_was_slow_to_replay_is_kept_for_longer(app: App) -> None:
    took: list[float] = []

    @app.workflow
    async def asks() -> None:
        took.append(spend(0.1))
        await hook("first")
        begun.append(time.monotonic())
        await hook("second")

    begun: list[float] = []
    run = asks.start()
    settings = Settings(park_after=0.01, show_after=0.0)
    with app.worker(settings=settings):
        wait_until(lambda: run.status == "WAITING" and owner(app, run.id) is None)
        run.send("first")  # claimed again, and replayed to get there
        wait_until(lambda: bool(begun))
        wait_until(lambda: owner(app, run.id) is None, 30)
        kept = time.monotonic() - begun[-1]
    assert kept > 10 * took[-1], "twenty times what its replay took"


def test_those_that_have_waited_longest_are_let_go_at_once_where_there_are_too_many(app: App) -> None:
    @app.workflow
    async def asks() -> None:
        await hook("never")

    settings = Settings(park_after=3600, show_after=0.0)
    with app.worker(settings=settings) as engine:
        runs = []
        for _ in range(5):
            runs.append(asks.start())
            wait_until(lambda: runs[-1].status == "WAITING")
        assert all(owner(app, run.id) is not None for run in runs)
        engine.engine.env.settings.max_live = 2
        wait_until(lambda: sum(owner(app, run.id) is not None for run in runs) <= 2)
        assert [owner(app, run.id) for run in runs[:3]] == [None] * 3
    app.close()


# -- outcomes that take the inbox


def test_an_outcome_that_is_posted_again_arrives_once(app: App) -> None:
    """A post whose fate is unknown is repeated."""

    @app.workflow
    async def asks() -> None:
        await hook("never")

    run = asks.start()
    row = app.store.get(run.id)
    assert row is not None
    attempt = Attempt(
        token=1, run_no=row.no, run_id=run.id, workflow="asks", root_id=run.id, parent_id=None, cmd="1s0", step="s",
        args=b"{}", number=1, idempotency_key="", timeout=None, stall_timeout=None, pool="thread", data={},
    )  # fmt: skip
    for _ in range(2):
        app.store.post(outcome_message(run.id, Outcome(attempt=attempt, started=1, result=b"1"), "worker"))
    with app.store.read() as db:  # type: ignore[attr-defined]
        assert db.execute("SELECT count(*) FROM inbox").fetchone() == (1,)
    app.close()
