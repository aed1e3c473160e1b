"""Events are delivered one by one, live as on replay; time moves with them; values are never shared."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any

import pytest
from core_code import Broken, a, b, c, kid, p, world
from core_world import CANCELLED, SECOND, START, state

from holdfast import NondeterminismError, RunCancelledError, hook, sleep, wf
from holdfast.core import commands as co
from holdfast.core import events as ev


def test_outcomes_that_arrive_together_are_delivered_one_by_one() -> None:
    async def flow() -> Any:
        seen: list[str] = []

        async def left() -> None:
            await a()
            seen.append("a")
            await asyncio.sleep(0)
            await c(list(seen))

        async def right() -> None:
            await b()
            seen.append("b")
            await c(list(seen))

        await asyncio.gather(left(), right())

    run = world(flow)
    execution = run.wake()
    first, second = run.completed(run.step("a")), run.completed(run.step("b"))
    for event in (first, second):
        event.ts = START
        execution.deliver(event)
    execution.settle(START)
    run.commit()
    live = state(execution)
    assert [run.argument(step.args) for step in execution.steps.pending.values()] == [["a"], ["a", "b"]]
    run.crash()
    assert state(run.wake()) == live


def test_live_code_gets_copies_as_replayed_code_does() -> None:
    async def flow() -> Any:
        wf.set_data("list", shared := [1])
        shared.append(2)
        wf.get_data("list").append(3)
        found = await a(shared)
        shared.append(4)
        found.append(5)
        again = await b()
        return wf.get_data("list"), found, again

    run = world(flow)
    assert run.argument(run.wake().steps.pending[run.step("a")].args) == [1, 2]
    result = [9]
    run.complete(run.step("a"), result)
    run.complete(run.step("b"), result)
    assert run.result() == ([1], [9, 5], [9])
    assert result == [9]


def test_a_timer_is_recorded_only_when_it_fires() -> None:
    async def flow() -> Any:
        async with asyncio.timeout(60):
            await sleep(5)
        await a()

    run = world(flow)
    run.wake()
    assert run.kinds() == ["RunStarted"]
    run.fire()
    assert run.kinds() == ["RunStarted", "TimerFired"]
    (fired,) = run.of(ev.TimerFired)
    assert (fired.cmd, fired.due, fired.delay, fired.sleep) == ("1t1", START + 5 * SECOND, 5 * SECOND, True)
    assert run.wake().next_timer() is None


def test_timers_that_are_due_together_fire_one_by_one_in_the_order_they_were_made() -> None:
    async def flow() -> Any:
        async def nap(n: int) -> None:
            await sleep(5)
            await a(n)

        await asyncio.gather(*(nap(n) for n in range(3)))

    run = world(flow)
    for n in range(3):
        run.fire()
        assert [run.argument(step.args) for step in run.wake().steps.pending.values()] == list(range(n + 1))
        run.crash()
    assert [event.cmd for event in run.of(ev.TimerFired)] == ["1t0", "1t1", "1t2"]


def test_a_sleep_that_fires_late_moves_the_time_of_all() -> None:
    async def flow() -> Any:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await sleep(5)
        return begun, loop.time(), wf.utc_now()

    run = world(flow)
    timer = run.wake().next_timer()
    assert timer is not None
    timer.ts = START + 3600 * SECOND
    run.deliver(timer)
    assert run.result() == (0.0, 3600.0, dt.datetime.fromtimestamp(START / SECOND + 3600, dt.UTC))


def test_time_never_runs_backwards() -> None:
    async def flow() -> Any:
        await a()
        first = asyncio.get_running_loop().time()
        await b()
        return first, asyncio.get_running_loop().time()

    run = world(flow)
    execution = run.wake()
    for name, ts in (("a", START + 10 * SECOND), ("b", START + SECOND)):
        event = run.completed(run.step(name))
        event.ts = ts
        execution.deliver(event)
        execution.settle(START)
        run.commit()
    assert run.result() == (10.0, 10.0)


def test_utc_now_is_the_time_of_the_event_and_is_recorded() -> None:
    async def flow() -> Any:
        first = wf.utc_now()
        await a()
        return first, wf.utc_now()

    run = world(flow)
    run.wake()
    run.now += 7 * SECOND
    run.complete(run.step("a"))
    begin = dt.datetime.fromtimestamp(START / SECOND, dt.UTC)
    assert run.result() == (begin, begin + dt.timedelta(seconds=7))
    assert [event.value for event in run.of(ev.TimeRead)] == [START, START + 7 * SECOND]


def test_random_values_come_from_the_seed_of_the_run() -> None:
    async def flow() -> Any:
        return [wf.random(), str(wf.uuid()), wf.random()]

    def values(seed: int) -> Any:
        run = world(flow, seed=seed)
        run.wake()
        return run.result()

    assert values(1) == values(1)
    assert values(1) != values(2)


def test_a_step_reads_the_data_as_of_its_scheduling() -> None:
    async def flow() -> Any:
        wf.set_data("k", 1)
        first = a.submit()
        wf.set_data("k", 2)
        await b()
        return await first, wf.get_data("k"), wf.get_data("written")

    run = world(flow)
    data = {name: bytes(step.data["k"]) for step in run.wake().steps.pending.values() for name in [step.name]}
    assert data == {"a": b"1", "b": b"2"}
    run.complete(run.step("b"), None, written="by b")
    run.complete(run.step("a"), "done", k=3)
    assert run.result() == ("done", 3, "by b")


def test_data_written_by_a_failed_step_is_dropped() -> None:
    async def flow() -> Any:
        try:
            await a()
        except Broken:
            return wf.get_data("k", "nothing")

    run = world(flow)
    run.fail(run.step("a"), Broken())
    assert run.result() == "nothing"


def test_a_read_of_data_sees_the_history_up_to_this_point_on_replay_too() -> None:
    async def flow() -> Any:
        reads = [wf.get_data("k")]
        for n in range(2):
            wf.set_data("k", n)
            await a()
            reads.append(wf.get_data("k"))
        return reads

    run = world(flow, strict=True)
    run.complete(run.step("a"), None, k="first")
    run.crash()
    run.complete(run.step("a"))
    assert run.result() == [None, "first", 1]


def test_payloads_sent_before_the_workflow_asks_are_kept_in_order() -> None:
    async def flow() -> Any:
        await a()
        return [await hook("h"), await hook("h"), await hook("h", key="k"), await hook("h")]

    run = world(flow, strict=True)
    run.send("h", 1)
    run.send("h", 2)
    run.send("h", "keyed", key="k")
    run.crash()
    run.complete(run.step("a"))
    run.crash()
    run.send("h", 3)
    assert run.result() == [1, 2, "keyed", 3]


def test_a_hook_that_times_out_leaves_later_payloads_to_the_next() -> None:
    async def flow() -> Any:
        try:
            await hook("h", timeout=5)
        except TimeoutError as error:
            said = str(error)
        return said, await hook("h")

    run = world(flow, strict=True)
    run.fire()
    run.crash()
    run.send("h", "late")
    said, payload = run.result()
    assert "'h'" in said
    assert payload == "late"
    opened = [command.cmd for command in run.commands if isinstance(command, co.OpenHook)]
    assert opened == ["1h0", "3h0"]
    assert {command.cmd for command in run.commands if isinstance(command, co.CloseHook)} == set(opened)


def test_a_hook_opened_again_stays_known_when_its_run_is_replayed() -> None:
    async def flow() -> Any:
        return [await hook("h", key="k") for _ in range(3)]

    run = world(flow, strict=True)
    run.send("h", 1, key="k")
    del run.commands[:]
    run.crash()
    run.wake()
    assert run.commands == []
    run.send("h", 2, key="k")
    assert [type(command).__name__ for command in run.commands] == ["CloseHook", "OpenHook"]


def test_a_key_that_two_hooks_wait_for_stays_known_until_both_are_answered() -> None:
    async def flow() -> Any:
        return await asyncio.gather(hook("h", key="k"), hook("h", key="k")), await a()

    run = world(flow, strict=True)
    run.send("h", 1, key="k")
    assert not [command for command in run.commands if isinstance(command, co.CloseHook)]
    run.send("h", 2, key="k")
    assert [command.cmd for command in run.commands if isinstance(command, co.CloseHook)] == ["1h1"]


def test_an_answered_hook_leaves_no_timer_behind() -> None:
    async def flow() -> Any:
        return await hook("h", timeout=5), await a()

    run = world(flow)
    run.send("h", 1)
    assert run.wake().next_timer() is None
    assert not run.wake().hooks.pending


def test_a_child_reports_its_outcome_under_its_own_command() -> None:
    async def flow() -> Any:
        handle: Any = kid.start(1)
        waited = kid.submit(2)
        found = [await kid(3), await waited, await handle]
        return found, handle.child_run_id

    run = world(flow, strict=True)
    run.wake()
    started = [command for command in run.commands if isinstance(command, co.StartChild)]
    assert [(command.cmd, command.waited) for command in started] == [("1c0", False), ("1c1", True), ("1c2", True)]
    assert len({command.child_id for command in started}) == 3
    run.child("1c1", "two")
    run.child("1c2", "three")
    watched = [(command.cmd, command.child_id) for command in run.commands if isinstance(command, co.WatchChild)]
    assert watched == [("1c0", started[0].child_id)]
    run.crash()
    run.child("1c0", "one")
    assert run.result() == (["three", "two", "one"], started[0].child_id)


def test_a_cancelled_child_is_an_error_that_names_it() -> None:
    async def flow() -> Any:
        try:
            await kid()
        except RunCancelledError as error:
            return str(error), error.run_id

    run = world(flow)
    child_id = run.wake().children.pending["1c0"].child_id
    run.child("1c0", CANCELLED)
    assert run.result() == (f"child run {child_id} was cancelled: somebody stopped it", child_id)


def test_a_child_id_is_readable_unless_it_would_be_too_long() -> None:
    async def flow() -> Any:
        return kid.start().child_run_id  # type: ignore[attr-defined]

    run = world(flow)
    run.run_id = "r" * 300
    run.wake()
    first = run.result()
    assert len(first) < 120
    assert first.startswith("kid.")


def test_an_event_that_fits_nothing_is_refused() -> None:
    async def flow() -> Any:
        return await a()

    run = world(flow)
    event = run.completed(run.step("a"))
    event.cmd = "1s7"
    with pytest.raises(NondeterminismError, match="the code asks for nothing like it, but waits for step 'a'"):
        run.deliver(event)


def test_notes_count_attempts_and_losses_of_a_step() -> None:
    async def flow() -> Any:
        return p()

    run = world(flow)
    cmd = run.step("p")
    about = run._about(cmd)
    run.note(ev.StepStarted(**about))
    run.note(ev.StepLost(**about))
    run.note(ev.StepRetrying(**about, retry_at=START + SECOND))
    live = state(run.wake())
    command = run.wake().steps.pending[cmd]
    assert (command.attempt, command.losses, command.not_before, command.started) == (2, 1, START + SECOND, False)
    assert run.wake().waiting_for() == "retry of step 'p' (attempt 2)"
    run.crash()
    assert state(run.wake()) == live
    run.note(ev.StepStarted(**{**about, "attempt": 2}))
    assert run.wake().waiting_for() == ""
    run.crash()
    assert run.wake().waiting_for() == ""


def test_time_begins_when_a_worker_takes_up_a_run_that_waited() -> None:
    async def flow() -> Any:
        before = wf.utc_now()
        await sleep(10)
        return (wf.utc_now() - before).total_seconds()

    run = world(flow, strict=True)
    run.now = START + 3600 * SECOND
    run._commit([ev.RunTakenUp(seq=2, ts=run.now)])
    timer = run.wake().next_timer()
    assert timer is not None
    assert timer.due == START + 3610 * SECOND
    run.crash()
    run.fire()
    assert run.result() == 10
