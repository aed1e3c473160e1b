"""The store fails an engine before or after it has really committed: nothing is lost and nothing executed twice, for
no process has died."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import effects
import pytest
from world import World

from holdfast.core import events as ev
from holdfast.engine import backoff
from holdfast.engine.engine import Engine
from holdfast.engine.settings import Settings
from holdfast.errors import StoreError
from holdfast.ports import Change, Claimed

SETTINGS = {"sweep": 0.1, "unknown_after": 0.0, "started_after": 0.02, "park_after": 0.05}


@contextmanager
def running_engine(world: World, prepare: Callable[[Engine], None], **settings: Any) -> Iterator[Engine]:
    host = world.app.make_engine(settings=Settings(**(SETTINGS | settings)))
    prepare(host.engine)
    host.start()
    thread = threading.Thread(target=host.run)
    thread.start()
    try:
        yield host.engine
    finally:
        host.stop(5)
        thread.join(20)
        host.store.close()
    assert not thread.is_alive()
    assert host.failure is None


class FailingCommit:
    """Stands before `store.commit`, and fails it now and then."""

    def __init__(self, engine: Engine, should_fail: Callable[[Sequence[Change]], str]) -> None:
        self._commit = engine.env.store.commit
        self._should_fail = should_fail
        self.failures = 0
        engine.env.store.commit = self  # type: ignore[method-assign]

    def __call__(self, worker_id: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> list[Claimed]:
        when = self._should_fail(changes)
        if when == "before":
            self.failures += 1
            raise StoreError("failed before it was committed")
        claimed = self._commit(worker_id, changes, claim, names)
        if when == "after":
            self.failures += 1
            raise StoreError("failed after it was committed")
        return claimed


def check_executed_once(world: World) -> None:
    counts = Counter((entry.key, entry.attempt) for entry in world.ledger())
    assert not {key: count for key, count in counts.items() if count > 1}


def storm(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of all commits fail, either way, and each is tried again soon: there are hundreds."""
    monkeypatch.setattr(backoff, "LONGEST", 0.01)
    chance = random.Random(seed)
    commits: list[FailingCommit] = []
    effects.start_scenario()

    def prepare(engine: Engine) -> None:
        commits.append(
            FailingCommit(engine, lambda changes: chance.choice(["", "", "", "", "before", "after"]) if changes else "")
        )

    # Turns that end after one run leave others to be looked at later.
    with running_engine(world, prepare, turn=chance.choice([0.0, 0.025])):
        world.until(world.is_done, 60, f"the end of all runs (seed {seed})")
    assert commits[0].failures
    world.check_histories()
    check_executed_once(world)
    results = world.results()
    ended = {run_id: status for run_id, (status, *_) in results.items() if status != "SUCCESS"}
    assert ended == {"unwound": "CANCELLED", "stranger": "STUCK", "failing": "FAILURE", "on_failure.on": "FAILURE"}
    assert results["second_try"][1] == "12"
    assert results["family"][1] == "[100, 101]"
    assert results["diary"][2] == {"chapter": 2, "seen": 7}


@pytest.mark.parametrize("seed", range(1))
def test_commits_that_fail_now_and_then_lose_nothing_and_repeat_nothing(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm(world, seed, monkeypatch)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 130))
def test_commits_that_fail_now_and_then_lose_nothing(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storm(world, seed, monkeypatch)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 7))
def test_one_failed_commit_repeats_nothing(world: World, when: str, nth: int) -> None:
    left = [nth]

    def should_fail(changes: Sequence[Change]) -> str:
        left[0] -= bool(changes)
        return when if changes and left[0] == 0 else ""

    with running_engine(world, lambda engine: FailingCommit(engine, should_fail), started_after=60.0):
        run = effects.sequence.start(4)
        assert run.result(timeout=20) == 6
    world.check_histories()
    check_executed_once(world)
    assert [e.kind for e in world.events(run.id)] == ["RunStarted"] + ["StepCompleted"] * 4 + ["RunCompleted"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_that_failed_is_recorded_as_failed_once(world: World, when: str) -> None:
    """The commit of the first StepRetrying fails."""
    done: list[int] = []

    def should_fail(changes: Sequence[Change]) -> str:
        if not done and any(record.kind == "StepRetrying" for change in changes for record in change.records):
            done.append(1)
            return when
        return ""

    with running_engine(world, lambda engine: FailingCommit(engine, should_fail)):
        run = effects.stubborn.start(2)
        assert run.result(timeout=20) == 3
    world.check_histories()
    check_executed_once(world)
    assert [e.attempt for e in world.events(run.id) if isinstance(e, ev.StepRetrying)] == [1, 2]


def test_a_run_without_a_history_goes_on_after_a_failed_commit(world: World) -> None:
    left = [2]

    def should_fail(changes: Sequence[Change]) -> str:
        left[0] -= bool(changes)
        return "before" if changes and left[0] in (0, 1) else ""

    with running_engine(world, lambda engine: FailingCommit(engine, should_fail), show_after=0.0, park_after=0.01):
        run = effects.fleeting.start(3)
        assert run.result(timeout=20) == 3
    check_executed_once(world)


def test_a_store_that_stays_away_for_a_while_stops_nothing(world: World) -> None:
    """Every method fails for a second, also while steps end."""
    away = threading.Event()

    def prepare(engine: Engine) -> None:
        for name in (
            "commit",
            "beat",
            "declare_dead",
            "workers",
            "inbox",
            "get",
            "payloads",
            "next_wake",
            "post",
            "orphans",
        ):
            whole = getattr(engine.env.store, name)

            def fail(*args: Any, _whole: Any = whole, **kwargs: Any) -> Any:
                if away.is_set():
                    raise StoreError("the store is away")
                return _whole(*args, **kwargs)

            setattr(engine.env.store, name, fail)

    with running_engine(world, prepare) as engine:
        runs = [effects.gated.start("one") for _ in range(3)] + [effects.nap.start(0.3)]
        world.until(lambda: len(world.ledger("wait_at_gate")) == 3)
        away.set()
        world.open_gate("one")
        world.until(lambda: engine.env.backoff.failures >= 3)
        away.clear()
        assert [run.result(timeout=20) for run in runs] == ["one"] * 3 + [3]
    world.check_histories()
    check_executed_once(world)
