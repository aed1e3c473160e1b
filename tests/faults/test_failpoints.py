"""A real worker is killed at each failpoint, another one goes on, and what came out is compared with an undisturbed
run: the same results, sound histories, and nothing executed again whose outcome had been recorded."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import code_sites
import effects
import pytest
from world import World, open_world

from holdfast.telemetry import ClusterState, EventReceiver

SETTINGS = {"beat": 0.05, "sweep": 0.1, "unknown_after": 0.0, "collect_every": 0.1, "started_after": 0.05}
CLIENT = {"create", "delete", "emit", "save_view"}
EXECUTOR = {"claim_attempts", "claim_attempt", "end_attempts", "release_attempts", "report_attempts"}
SEED = int(os.environ.get("HOLDFAST_SEED", "2026"))


# -- the list is the code's


def test_every_commit_is_between_two_failpoints() -> None:
    found = list(code_sites.commits())
    assert found
    for where, function, commit in found:
        lines = [hit.lineno for hit in code_sites.hits(function)]
        assert any(line < commit.lineno for line in lines), f"{where}: nothing before the COMMIT"
        assert any(line > commit.lineno for line in lines), f"{where}: nothing after the COMMIT"


def test_every_hand_over_is_between_two_failpoints() -> None:
    assert not code_sites.uncovered("engine", "executor.submit", "store.commit", after=True)


def test_every_message_to_others_has_a_failpoint_before_it() -> None:
    assert not code_sites.uncovered("engine", "notifier.ring", "notifier.announce", "store.post", after=False)


def test_a_call_without_a_failpoint_would_be_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "careless.py").write_text("def act(self):\n    self.executor.submit(1)\n")
    monkeypatch.setattr(code_sites, "SOURCE", tmp_path)
    assert len(code_sites.uncovered("engine", "executor.submit", after=True)) == 1


# -- the matrix


def play(world: World) -> None:
    """All that the client does, and a worker that had died before."""
    effects.start_scenario()
    world.leave_a_dead_worker()


class Undisturbed:
    """What comes out if nothing goes wrong, and how often each failpoint is passed."""

    def __init__(self, folder: Path, store: str = "") -> None:
        with open_world(folder, store=store) as world:
            play(world)
            engine = world.engine(SETTINGS, EFFECTS_HITS=str(folder / "hits"))
            world.until(world.is_done)
            assert world.stop(engine) == 0
            world.check_histories()
            self.results: dict[str, Any] = world.results()
            self.executed = world.executed()
            self.hits: dict[str, int] = json.loads((folder / "hits").read_text())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_the_scenario_passes_every_failpoint_of_a_worker(undisturbed: Undisturbed) -> None:
    # Nothing is defined late, no clock is set back, no step has a transaction of its own, and nobody watches: see below.
    others = {
        "migrate",
        "update_worker",
        "reset_times",
        "transaction",
        "watch",
        "publish",
        "put_off",
        *CLIENT,
        *EXECUTOR,
    }
    elsewhere = {f"{name}.{when}_commit" for name in others for when in ("before", "after")}
    of_executors = {name for name in code_sites.failpoints() if name.startswith("puller.")}  # tests/remote
    assert code_sites.failpoints() - elsewhere - of_executors == set(undisturbed.hits)


def kill_at(world: World, undisturbed: Undisturbed, failpoint: str) -> bool:
    """Whether the worker got there."""
    play(world)
    first = world.engine(SETTINGS, failpoint)
    world.until(lambda: first.poll() is not None or world.is_done(), 60, f"the end of a worker killed at {failpoint}")
    code = world.stop(first) if first.poll() is None else first.returncode
    assert code in (0, -signal.SIGKILL), world.log()
    recorded, before = world.recorded(), len(world.ledger())

    second = world.engine(SETTINGS)
    world.until(world.is_done, 60, f"the end of all runs after a kill at {failpoint}")
    assert world.stop(second) == 0
    again = [entry for entry in world.ledger()[before:] if entry.name in recorded]
    assert not again, f"executed again after its outcome was recorded: {again}"
    world.check_histories()
    assert world.results() == undisturbed.results
    assert world.executed() == undisturbed.executed
    assert not world.workers(), "everybody has said goodbye or was declared dead"
    return code == -signal.SIGKILL


def cells(hits: dict[str, int]) -> list[str]:
    """Where to kill: at each passing of each failpoint. Beats and sweeps are all alike, so a few of them will do."""
    found = []
    for name, count in sorted(hits.items()):
        alike = name.startswith(("beat.", "collect."))
        found += [f"{name}:{nth}" for nth in range(1, (min(count, 3) if alike else count) + 1)]
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("draw", range(4))
def test_a_worker_killed_at_a_failpoint_loses_nothing(tmp_path: Path, undisturbed: Undisturbed, draw: int) -> None:
    chance = random.Random(SEED * 1_000 + draw)
    name = chance.choice(sorted(undisturbed.hits))
    nth = chance.randint(1, min(undisturbed.hits[name], 12))
    # How often a worker gets there differs a little from time to time, but once it always does.
    assert any(kill_there(tmp_path / str(each), undisturbed, f"{name}:{each}") for each in (nth, 1))


def kill_there(folder: Path, undisturbed: Undisturbed, failpoint: str) -> bool:
    folder.mkdir(exist_ok=True)
    with open_world(folder) as world:
        return kill_at(world, undisturbed, failpoint)


@pytest.mark.torture
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("part", range(8))
def test_a_worker_killed_anywhere_loses_nothing(undisturbed: Undisturbed, tmp_path: Path, part: int) -> None:
    # A worker process imports for most of a second: several cells to a test, and their folders tell them apart.
    killed = [
        kill_there(tmp_path / f"{number:03}-{cell.replace(':', '-')}", undisturbed, cell)
        for number, cell in enumerate(cells(undisturbed.hits)[part::8])
    ]
    assert sum(killed) > 0.8 * len(killed), "some are passed less often than the first time, most are not"


@pytest.mark.parametrize("failpoint", ["migrate.before_commit:1", "migrate.after_commit:1"])
def test_a_worker_killed_while_it_makes_the_database_is_no_harm(world: World, failpoint: str) -> None:
    first = world.engine(SETTINGS, failpoint)
    assert first.wait(20) == -signal.SIGKILL, world.log()
    second = world.engine(SETTINGS)
    assert effects.sequence.start(3).result(timeout=20) == 3
    world.stop(second)


# -- the client's side

START_ONE = """
import effects
from holdfast import failpoints
failpoints.arm_from_environment()
effects.sequence.options(id="only").start(3)
"""
DELETE_ONE = """
import effects
from holdfast import failpoints
failpoints.arm_from_environment()
effects.app.get_run("only").delete()
"""


@pytest.mark.parametrize("failpoint", ["create.before_commit:1", "create.after_commit:1"])
def test_a_client_killed_while_it_starts_a_run_starts_again_and_there_is_one(world: World, failpoint: str) -> None:
    assert world.python("-c", START_ONE, HOLDFAST_FAILPOINT=failpoint).wait(20) == -signal.SIGKILL
    assert len(world.app.runs()) == (1 if "after" in failpoint else 0)
    assert world.python("-c", START_ONE).wait(20) == 0
    worker = world.engine(SETTINGS)
    assert world.app.get_run("only").result(timeout=20) == 3
    assert [run.id for run in world.app.runs()] == ["only"]
    assert len(world.ledger()) == 3
    world.stop(worker)


@pytest.mark.parametrize("failpoint", ["delete.before_commit:1", "delete.after_commit:1"])
def test_a_client_killed_while_it_deletes_a_run_leaves_all_of_it_or_nothing(world: World, failpoint: str) -> None:
    worker = world.engine(SETTINGS)
    effects.sequence.options(id="only").start(3).result(timeout=20)
    world.stop(worker)
    assert world.python("-c", DELETE_ONE, HOLDFAST_FAILPOINT=failpoint).wait(20) == -signal.SIGKILL
    if "before" in failpoint:
        world.check_histories()
        assert world.app.get_run("only").result(timeout=0) == 3
    else:
        assert not world.app.runs()


# -- those who watch

LISTEN = """
import effects
from holdfast import failpoints
from holdfast.telemetry import EventReceiver
failpoints.arm_from_environment()
EventReceiver(effects.app.telemetry).capture({}, timeout=20)
"""


def finished(receiver: EventReceiver, state: ClusterState, id: str) -> bool:
    receiver.capture({"*": state.apply}, timeout=0)
    return id in state.runs and state.runs[id].ready


@pytest.mark.parametrize("failpoint", ["publish.before_commit:2", "publish.after_commit:2"])
def test_a_worker_killed_while_it_tells_what_it_does_loses_nothing(world: World, failpoint: str) -> None:
    receiver, state = EventReceiver(world.app.telemetry), ClusterState()
    first = world.engine(SETTINGS, failpoint)
    effects.sequence.options(id="one").start(3)
    world.until(lambda: finished(receiver, state, "nobody") or first.poll() is not None, 20, "a worker that is killed")
    assert first.returncode == -signal.SIGKILL, world.log()
    second = world.engine(SETTINGS)
    effects.sequence.options(id="two").start(3)
    world.until(lambda: finished(receiver, state, "two"), 20, "what the second worker tells")
    assert [effects.app.get_run(id).result(timeout=20) for id in ("one", "two")] == [3, 3]
    assert [step.state for step in state.steps.values() if step.run_id == "two"] == ["SUCCESS"] * 3
    world.check_histories()
    receiver.stop()
    world.stop(second)


@pytest.mark.parametrize("failpoint", ["watch.before_commit:1", "watch.after_commit:1"])
def test_a_listener_that_is_killed_keeps_nobody_from_working_or_listening(world: World, failpoint: str) -> None:
    assert world.python("-c", LISTEN, HOLDFAST_FAILPOINT=failpoint).wait(20) == -signal.SIGKILL, world.log()
    assert world.app.store.is_watched() == ("after" in failpoint), "until its time is over"
    receiver, state = EventReceiver(world.app.telemetry), ClusterState()
    with world.app.worker():
        assert effects.sequence.options(id="one").start(3).result(timeout=20) == 3
        world.until(lambda: finished(receiver, state, "one"), 20, "what the worker tells")
    receiver.stop()
