"""The laws of the replay core, over random programs, random orders of events and random crashes.

HOLDFAST_EXAMPLES says how many programs each law is tried on.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import re
import weakref
from collections import Counter
from typing import Any

import greenlet
import pytest
from core_programs import app, programs, reply, sequences, straight_programs
from core_world import World, state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core import events as ev
from holdfast.core.forking import fork

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "60"))
laws = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
workflows = st.sampled_from(["program", "program", "plain_program", "retried"])
some_program = programs(("ends", "ends", "ends", "fails", "fails once"))
seeds = st.integers(0, 2**16)
DISTURBED: dict[str, Any] = {"hooks": ("a",), "cancel": True, "notes": True}


@pytest.fixture(scope="module", autouse=True)
def only_what_these_tests_make_is_collected() -> None:
    """What is in the process already is much, and looking at it each time takes most of the time."""
    gc.collect()
    gc.freeze()


@laws
@given(workflows, some_program, seeds)
def test_replaying_twice_gives_the_same_commands_and_the_same_state(workflow: str, op: Any, seed: int) -> None:
    def look(world: World) -> None:
        world.crash()
        first, second = world.replay(), world.replay()
        assert first.journal.take() == second.journal.take()
        assert state(first) == state(second)
        first.evict()
        second.evict()

    World(app, workflow, op, seed=seed, reply=reply).run(look, **DISTURBED)


@laws
@given(workflows, some_program, seeds)
def test_live_code_and_replayed_code_are_in_the_same_state(workflow: str, op: Any, seed: int) -> None:
    def look(world: World) -> None:
        live = world.wake()
        replayed = world.replay()
        assert state(replayed) == state(live)
        events, commands = replayed.journal.take()
        assert events == []
        assert [command.cmd for command in commands] == list(live.steps.pending)
        replayed.evict()

    World(app, workflow, op, seed=seed, reply=reply).run(look, **DISTURBED)


@laws
@given(workflows, some_program, seeds)
def test_every_prefix_of_a_history_replays_and_goes_on_as_it_did(workflow: str, op: Any, seed: int) -> None:
    world = World(app, workflow, op, seed=seed, reply=reply).run(**DISTURBED)
    history = world.history
    for length in range(1, len(history) + 1):
        end = min(commit for commit in world.commits if commit >= length)
        begins = [n + 1 for n in range(length, end) if isinstance(history[n], ev.Beginning)]
        end = begins[0] if begins else end  # what follows a new beginning is asked for by another execution
        if any(isinstance(event, ev.Patched) for event in history[length:end]):
            continue  # a run that is cut in the midst of a commit has been here, and so goes the old way
        if isinstance(history[length - 1], ev.AttemptFailed | ev.RunEnded):
            continue
        world.now = history[end - 1].ts
        replayed = world.replay(history[:length])
        events, _ = replayed.journal.take()
        assert [ev.to_json(event) for event in events] == world.committed[length:end]
        replayed.evict()


@laws
@given(workflows, some_program, seeds, seeds)
def test_crashes_at_any_commit_change_nothing(workflow: str, op: Any, seed: int, crashes: int) -> None:
    calm = World(app, workflow, op, seed=seed, reply=reply).run(**DISTURBED)
    shaken = World(app, workflow, op, seed=seed, reply=reply)
    chance = random.Random(crashes)
    while not shaken.is_over():
        if chance.random() < 0.3:
            shaken.crash()
        shaken.turn(**DISTURBED, crash_before_commit=chance.random() < 0.3)
    shaken.crash()
    assert shaken.committed == calm.committed
    assert shaken.history[-1] == calm.history[-1]
    assert set(shaken.effects) == set(calm.effects)


@laws
@given(workflows, some_program, seeds, seeds)
def test_what_the_code_says_is_heard_once_wherever_it_crashes(workflow: str, op: Any, seed: int, crashes: int) -> None:
    calm = World(app, workflow, op, seed=seed, reply=reply).run(**DISTURBED)
    chance = random.Random(crashes)

    def crash(world: World) -> None:
        if chance.random() < 0.3:
            world.crash()

    shaken = World(app, workflow, op, seed=seed, reply=reply).run(crash, **DISTURBED)
    shaken.replay().evict()
    assert shaken.said == calm.said


@laws
@given(workflows, some_program, seeds)
def test_an_eviction_at_any_point_asks_for_nothing_and_leaves_nothing(workflow: str, op: Any, seed: int) -> None:
    left: list[weakref.ref[Any]] = []

    def look(world: World) -> None:
        execution = world.wake()
        before, length = dict(execution.journal.data), len(world.committed)
        left.extend([weakref.ref(execution), weakref.ref(execution.loop)])
        execution.evict()
        assert execution.journal.take() == ([], [])
        assert execution.journal.data == before
        assert execution.journal.last_seq == length
        world.crash()

    world = World(app, workflow, op, seed=seed, reply=reply)
    calm = World(app, workflow, op, seed=seed, reply=reply).run(**DISTURBED)
    world.run(look, **DISTURBED)
    assert world.committed == calm.committed
    del world, calm
    for _ in range(2):
        gc.collect()
    assert [each() for each in left if each() is not None] == []


def test_greenlets_are_given_back_after_every_program() -> None:
    counts = []

    @settings(laws, max_examples=min(EXAMPLES, 60))
    @given(workflows, some_program, seeds)
    def run(workflow: str, op: Any, seed: int) -> None:
        world = World(app, workflow, op, seed=seed, reply=reply)
        world.run(World.crash, **DISTURBED)
        world.greenlets.close()
        del world
        gc.collect()
        counts.append(sum(isinstance(each, greenlet.greenlet) for each in gc.get_objects()))

    run()
    assert len(set(counts)) == 1


@laws
@given(straight_programs(), seeds)
def test_a_retry_repeats_only_what_failed(op: Any, seed: int) -> None:
    """Where no failure is caught and nothing races, all attempts together complete each call once."""

    def done(world: World) -> Counter[Any]:
        kinds = ev.StepCompleted | ev.ChildCompleted | ev.TimerFired
        return Counter(
            (event.kind, event.name, bytes(event.args), getattr(event, "delay", 0)) for event in world.of(kinds)
        )

    def never_fails(name: str, job: Any, attempt: int) -> Any:
        return reply(name, job, 2)

    smooth = World(app, "retried", op, seed=seed, reply=never_fails).run()
    bumpy = World(app, "retried", op, seed=seed, reply=reply).run(World.crash)
    assert bumpy.kinds()[-1] == smooth.kinds()[-1] == "RunCompleted"
    assert done(bumpy) == done(smooth)
    sources = [event.source for event in bumpy.of(ev.OutcomeReused)]
    attempts = [event.seq for event in bumpy.of(ev.AttemptStarted)]
    assert len(sources) == len(set(sources)) or len(attempts) > 1


@laws
@given(sequences(), seeds)
def test_deterministic_values_repeat_over_attempts(op: Any, seed: int) -> None:
    traces: list[list[Any]] = []

    def look(world: World) -> None:
        trace = world.wake().trace  # type: ignore[attr-defined]
        if not traces or traces[-1] is not trace:
            traces.append(trace)

    world = World(app, "retried", op, seed=seed, reply=reply)
    world.run(look)
    values = [[entry for entry in trace if entry[0] in ("random", "uuid", "now")] for trace in traces]
    for earlier, later in itertools.pairwise(values):
        shared = min(len(earlier), len(later))
        assert later[:shared] == earlier[:shared]


@laws
@given(workflows, some_program, seeds)
def test_a_fork_at_any_point_keeps_the_prefix_and_can_be_finished(workflow: str, op: Any, seed: int) -> None:
    states: dict[int, dict[str, Any]] = {}

    def look(world: World) -> None:
        states[len(world.committed)] = state(world.wake())

    world = World(app, workflow, op, seed=seed, reply=reply).run(look, **DISTURBED)
    history = world.history
    for at in range(1, len(history) + 1, 1 + len(history) // 6):
        plan = fork(history, "run", at, {})
        assert [event.seq for event in plan.events] == list(range(1, len(plan.events) + 1))
        copy = World(app, workflow, op, seed=seed + at, reply=reply, run_id="copy")
        copy.committed, copy.now = [], history[at - 1].ts
        copy._commit(plan.events)
        forked = copy.wake()
        if at in states:
            assert similar(state(forked)) == similar(states[at])
        copy.run(**DISTURBED)
        assert isinstance(copy.history[-1], ev.RunEnded)


def similar(found: dict[str, Any]) -> dict[str, Any]:
    """A state without the numbers and ids that a fork changes."""
    return {
        "data": found["data"],
        "now": found["now"],
        "numbers": found["numbers"],
        "attempt": found["attempt"],
        "tasks": found["tasks"],
        "hooks": Counter(hook[:2] for hook in found["hooks"].values()),
        "timers": Counter(found["timers"].values()),
        "children": Counter((child[1], child[2], child[4]) for child in found["children"].values()),
        "cancelling": found["cancelling"] is not None,
        "trace": [re.sub(r"(run|copy)\.child\.[-\w]+", "child", str(entry)) for entry in found["trace"]],
    }


@pytest.mark.parametrize("workflow", ["program", "plain_program", "retried"])
def test_the_programs_meet_every_kind_of_event(workflow: str) -> None:
    """Laws over programs that do nothing would hold for any code."""
    kinds: Counter[str] = Counter()

    @laws
    @given(some_program, seeds)
    def run(op: Any, seed: int) -> None:
        world = World(app, workflow, op, seed=seed, reply=reply).run(**DISTURBED)
        kinds.update(world.kinds())
        for line in world.committed:
            assert ev.to_json(ev.from_json(line)) == line

    run()
    expected = {
        "RunStarted", "StepCompleted", "StepFailed", "TimerFired", "ChildCompleted", "ChildFailed", "HookReceived",
        "CancelRequested", "ChildStarted", "ChildAwaited", "HookOpened", "DataSet", "TimeRead", "Patched",
        "StepStarted", "StepRetrying", "StepLost", "StepCancelled", "ChildDropped", "RunCompleted", "RunCancelled",
        "ContinuedAsNew", "Streamed",
    }  # fmt: skip
    expected |= {"AttemptStarted", "AttemptFailed", "OutcomeReused"} if workflow == "retried" else {"RunFailed"}
    assert expected - kinds.keys() == set()
    assert kinds.total() > 7 * EXAMPLES
