"""Attempts that an executor has claimed ahead of their turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from waiting import wait_until

from holdfast import App
from holdfast.engine.in_turn import MOST, InTurn
from holdfast.ports import Attempt, Executor, Outcome
from holdfast.testing.contract import MovableClock

SECOND = 1_000_000


class ByHand(Executor):
    """Executes what it is told to, until it is told that it has ended."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock
        self.executing: dict[int, Outcome] = {}

    def start(
        self,
        on_outcome: Callable[[Outcome], None],
        on_report: Callable[[Attempt, str, Any], None],
        may_begin: Callable[[], bool],
    ) -> None:
        self._on_outcome = on_outcome

    def submit(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self.executing[attempt.token] = Outcome(attempt=attempt, started=self._clock.now())

    def end(self, token: int) -> None:
        self._on_outcome(self.executing.pop(token))

    def withdraw(self, tokens: Iterable[int]) -> set[int]:
        return set()  # all have begun

    def started_at(self, token: int) -> int | None:
        return None

    def cancel(self, token: int) -> None:
        outcome = self.executing.pop(token)
        outcome.cancelled = True
        self._on_outcome(outcome)

    def stop(self, grace: float) -> None:
        self.executing.clear()

    def close(self) -> None: ...


class Scene:
    def __init__(self, most: int) -> None:
        self.clock = MovableClock()
        self.there = ByHand(self.clock)
        self.turns = InTurn(self.there, most, self.clock)
        self.ended: list[Outcome] = []
        self.turns.start(self.ended.append, lambda attempt, kind, value: None, lambda: True)

    def submit(self, *tokens: int) -> None:
        self.turns.submit([attempt(token) for token in tokens])

    def executing(self) -> list[int]:
        return sorted(self.there.executing)

    def takes(self, seconds: float, times: int = 200) -> None:
        """Attempts that take so long."""
        for token in range(1_000, 1_000 + times):
            self.submit(token)
            self.clock.move(round(seconds * SECOND))
            self.there.end(token)


def attempt(token: int) -> Attempt:
    return Attempt(
        token=token, run_no=1, run_id="r", workflow="w", root_id="r", parent_id=None, cmd=f"{token}s0", step="s", args=b"[]",
        number=1, idempotency_key="k", timeout=None, stall_timeout=None, pool="thread", data={},
    )  # fmt: skip


def test_so_many_execute_at_a_time_and_the_end_of_one_is_the_beginning_of_the_next() -> None:
    scene = Scene(2)
    scene.submit(1, 2, 3, 4)
    assert scene.executing() == [1, 2]
    scene.there.end(2)
    assert scene.executing() == [1, 3]
    scene.there.end(1)
    scene.there.end(3)
    assert scene.executing() == [4]
    assert [outcome.attempt.token for outcome in scene.ended] == [2, 1, 3]


def test_what_waits_for_its_turn_can_be_taken_back_or_cancelled() -> None:
    scene = Scene(1)
    scene.submit(1, 2, 3, 4, 5)
    assert scene.turns.withdraw([1, 2]) == {2}
    scene.turns.cancel(3)
    assert [(outcome.attempt.token, outcome.cancelled) for outcome in scene.ended] == [(3, True)]
    scene.turns.cancel(1)
    assert scene.executing() == [4]
    scene.turns.stop(0)
    assert [outcome.attempt.token for outcome in scene.ended] == [3, 1, 5]
    assert scene.executing() == []


def test_only_of_what_is_short_more_is_claimed_than_executes() -> None:
    scene = Scene(4)
    assert scene.turns.ahead(0.01) == 0, "nothing is known of it"
    scene.takes(0.001)
    assert 39 <= scene.turns.ahead(0.005) <= 40, "four of them end each millisecond, and the way is twice 5 ms"
    assert scene.turns.ahead(10.0) <= 201, "what is claimed ahead takes 50 ms at most"
    scene.takes(0.000_001)
    assert scene.turns.ahead(0.01) == MOST
    scene.takes(1.0)
    assert scene.turns.ahead(0.01) == 0


def test_what_waits_behind_a_long_step_is_given_back_and_executed_elsewhere(tmp_path: Path) -> None:
    app = App("ahead", str(tmp_path / "ahead.db"))
    has_begun, may_end = threading.Event(), threading.Event()

    @app.step(queue="gpu")
    def takes_long() -> str:
        has_begun.set()
        assert may_end.wait(60)
        return "long"

    @app.step(queue="gpu")
    def short(i: int) -> int:
        return i

    @app.workflow
    async def many(n: int) -> int:
        return sum(await asyncio.gather(*[short.submit(i) for i in range(n)]))

    with app.worker(), app.executor(["gpu"], concurrency=1) as first:
        long = takes_long.start()
        assert has_begun.wait(20)
        puller: Any = first.engine
        queues = puller._source
        queues._turns._seconds, queues._away = 0.000_01, 0.05  # as if all had been short so far
        run = many.start(20)
        wait_until(lambda: len(puller.inflight) == 21, 20)
        with app.executor(["gpu"], concurrency=1):
            assert run.result(timeout=20) == 190
            may_end.set()
            assert long.result(timeout=20) == "long"
    app.close()


def test_what_is_executed_at_most_once_is_claimed_only_when_it_can_begin(tmp_path: Path) -> None:
    app = App("once", str(tmp_path / "once.db"))
    has_begun, may_end = threading.Event(), threading.Event()

    @app.step(queue="gpu")
    def takes_long() -> None:
        has_begun.set()
        assert may_end.wait(60)

    @app.step(queue="gpu", at_most_once=True)
    def once(i: int) -> int:
        return i

    @app.workflow
    async def many(n: int) -> int:
        return sum(await asyncio.gather(*[once.submit(i) for i in range(n)]))

    with app.worker(), app.executor(["gpu"], concurrency=1) as executor:
        long = takes_long.start()
        assert has_begun.wait(20)
        queues: Any = executor.engine._source
        queues._turns._seconds, queues._away = 0.000_01, 0.05  # as if all had been short so far
        run = many.start(5)
        wait_until(lambda: len(app.store.attempts(run.id)) == 5, 20)
        for _ in range(2):  # once the second turn has begun the first one has ended
            asked = app.storage.clock.monotonic()
            executor.wake()
            wait_until(lambda: executor._pulse.turn > asked, 20)  # noqa: B023
        assert [row.worker for row in app.store.attempts(run.id)] == [None] * 5
        may_end.set()
        assert run.result(timeout=20) == 10
        long.result(timeout=20)
    app.close()
