"""A workflow-level retry is a replay with the failures removed: only what failed is done again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core_code import Broken, a, b, c, deploy, kid, world
from core_world import CANCELLED, SECOND, START, World
from msgspec import Raw

from holdfast import hook, sleep, wf
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.loop import running


def asked_in_attempt(run: World, attempt: int) -> list[str]:
    """The steps that were handed over in an attempt of the run."""
    bounds = [e.seq for e in run.history if isinstance(e, ev.Beginning)] + [10**9]
    low, high = bounds[attempt - 1], bounds[attempt]
    return [name for cmd, name, _ in run.effects if ":" not in cmd and low <= int(cmd.partition("s")[0]) < high]


def ask(name: str, argument: Any, *, key: str = "", undoes: str = "") -> Any:
    loop = running()
    assert loop is not None
    call = Raw(loop.execution.codec.encode_call((argument,), {}))
    return loop.execution.steps.ask(name, call, key=key, undoes=undoes)


def test_only_the_step_that_failed_runs_again() -> None:
    async def flow() -> Any:
        return [await a(), await b(), await c()]

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"), 1)
    run.complete(run.step("b"), 2)
    run.fail(run.step("c"), Broken())
    run.crash()
    assert run.pending() == {run.step("c"): "c"}
    run.complete(run.step("c"), 3)
    assert run.result() == [1, 2, 3]
    assert asked_in_attempt(run, 2) == ["c"]
    assert [(e.name, e.source) for e in run.of(ev.OutcomeReused)] == [("a", 2), ("b", 3)]


def test_outcomes_are_delivered_in_the_order_they_were_recorded() -> None:
    """Two branches call the same step; the slow one would otherwise get the other's outcome."""

    async def flow() -> Any:
        async def ship(who: str, first: Any) -> Any:
            await first
            number = await b("next id")
            return await c((who, number))

        found = await asyncio.gather(ship("slow", a("slow")), ship("fast", a("fast")))
        return found, await a("confirm")

    run = world(flow, max_retries=1, strict=True)
    run.complete("1s1", None)
    run.complete(run.step("b"), 1)
    run.complete("1s0", None)
    run.complete(run.step("b"), 2)
    run.complete(run.step("c"), "fast 1")
    run.complete(run.step("c"), "slow 2")
    run.fail(run.step("a"), Broken())
    run.complete(run.step("a"), "confirmed")
    assert run.result() == (["slow 2", "fast 1"], "confirmed")
    assert asked_in_attempt(run, 2) == ["a"]


def test_of_identical_parallel_calls_only_those_that_failed_run_again() -> None:
    async def flow() -> Any:
        found = await asyncio.gather(*(a(1) for _ in range(4)), return_exceptions=True)
        if any(isinstance(each, Exception) for each in found):
            raise Broken
        return found

    run = world(flow, max_retries=1, strict=True)
    run.fail("1s1", Broken())
    run.complete("1s3", "fourth")
    run.complete("1s0", "first")
    run.fail("1s2", Broken())
    run.crash()
    assert len(run.pending()) == 2
    for cmd, result in zip(list(run.pending()), ("second", "third"), strict=True):
        run.complete(cmd, result)
    assert run.result() == ["first", "second", "third", "fourth"]


def test_what_three_attempts_achieved_adds_up() -> None:
    async def flow() -> Any:
        return [await a(1), await a(1), await sleep(5), await a(1), await sleep(5)]

    run = world(flow, max_retries=2, strict=True)
    run.complete(run.step("a"), "first")
    run.fail(run.step("a"), Broken())
    run.complete(run.step("a"), "second")
    run.fire()
    run.fail(run.step("a"), Broken())
    run.crash()
    run.complete(run.step("a"), "third")
    assert run.wake().next_timer() is not None
    run.fire()
    assert run.result() == ["first", "second", None, "third", None]
    assert [event.sleep for event in run.of(ev.TimerFired)] == [True, True]


def test_random_values_and_times_repeat_over_attempts() -> None:
    async def flow() -> Any:
        values = [wf.random(), str(wf.uuid()), wf.utc_now().isoformat()]
        await a()
        values += [wf.random(), wf.utc_now().isoformat()]
        wf.set_data(f"attempt {wf.attempt}", values)
        await b()
        return [wf.get_data("attempt 1"), wf.get_data("attempt 2"), wf.utc_now().isoformat()]

    run = world(flow, max_retries=1, strict=True)
    run.wake()
    run.now += SECOND
    run.complete(run.step("a"))
    run.now += SECOND
    run.fail(run.step("b"), Broken())
    run.now += SECOND
    run.complete(run.step("b"))
    first, second, last = run.result()
    assert first == second
    assert last > first[-1]


def test_data_of_earlier_attempts_is_there_from_the_beginning() -> None:
    async def flow() -> Any:
        seen = wf.get_data("progress", 0), wf.get_data("by step")
        wf.set_data("progress", 50)
        await a()
        wf.set_data("progress", 90)
        await b()
        return seen

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"), None, **{"by step": "yes"})
    run.fail(run.step("b"), Broken())
    run.complete(run.step("b"))
    assert run.result() == (90, "yes")


def test_a_sleep_that_is_over_is_not_slept_again_but_a_timeout_runs_anew() -> None:
    async def flow() -> Any:
        await sleep("1d")
        try:
            async with asyncio.timeout(60):
                return await a()
        except TimeoutError:
            raise Broken from None

    run = world(flow, max_retries=1, strict=True)
    run.fire()
    run.fire()
    assert run.wake().journal.attempt == 2
    assert list(run.pending().values()) == ["a"]
    timer = run.wake().next_timer()
    assert timer is not None
    assert timer.delay == 60 * SECOND
    run.complete(run.step("a"), "in time")
    assert run.result() == "in time"


def test_a_sleep_that_lost_a_race_leaves_its_outcome_to_the_next_of_that_length() -> None:
    async def flow() -> Any:
        nap = asyncio.ensure_future(sleep(5))
        step = asyncio.ensure_future(a())
        await asyncio.wait([nap, step], return_when=asyncio.FIRST_COMPLETED)
        nap.cancel()
        await sleep(5)
        return await b()

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"))
    run.fire()
    run.fail(run.step("b"), Broken())
    run.crash()
    assert list(run.pending().values()) == ["b"]
    assert run.wake().next_timer() is None


def test_a_sleep_beside_one_that_lost_a_race_is_not_slept_again_either() -> None:
    async def race() -> None:
        nap = asyncio.ensure_future(sleep(5))
        await a()
        nap.cancel()

    async def flow() -> Any:
        await asyncio.gather(race(), sleep(5))
        return await b()

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"))
    run.fire()
    run.fail(run.step("b"), Broken())
    run.crash()
    assert list(run.pending().values()) == ["b"]
    assert run.wake().next_timer() is None


def test_payloads_received_by_earlier_attempts_are_delivered_again_in_order() -> None:
    async def flow() -> Any:
        first = await hook("h")
        await a()
        return first, await hook("h"), await hook("h", key="k"), await b(), await hook("h")

    run = world(flow, max_retries=2, strict=True)
    run.send("h", 1)
    run.send("h", 2)
    run.send("h", "k", key="k")
    run.complete(run.step("a"))
    run.fail(run.step("b"), Broken())
    run.send("h", 3)
    run.fail(run.step("b"), Broken())
    run.crash()
    run.complete(run.step("b"), "b")
    assert run.result() == (1, 2, "k", "b", 3)


def test_a_hook_that_lost_a_race_leaves_its_payload_to_the_next() -> None:
    async def flow() -> Any:
        asked = asyncio.ensure_future(hook("h"))
        step = asyncio.ensure_future(a())
        await asyncio.wait([asked, step], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return await hook("h"), await b()

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"))
    run.send("h", "payload")
    run.fail(run.step("b"), Broken())
    run.crash()
    run.complete(run.step("b"), "b")
    assert run.result() == ("payload", "b")


def test_a_hook_beside_one_that_lost_a_race_gets_its_payload() -> None:
    async def race() -> None:
        asked = asyncio.ensure_future(hook("h"))
        await a()
        asked.cancel()

    async def flow() -> Any:
        return (await asyncio.gather(race(), hook("h")))[1], await b()

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"))
    run.send("h", "payload")
    run.fail(run.step("b"), Broken())
    run.crash()
    run.complete(run.step("b"), "b")
    assert run.result() == ("payload", "b")


def test_a_token_is_good_for_one_answer_over_all_attempts() -> None:
    async def flow() -> Any:
        return await hook("h"), await a()

    run = world(flow, max_retries=1)
    run.wake()
    run.deliver(ev.HookReceived(name="h", token="1h0"))
    assert "1h0" in run.wake().hooks.answered
    run.fail(run.step("a"), Broken())
    assert run.wake().journal.attempt == 2
    assert "1h0" in run.wake().hooks.answered


def test_a_completed_child_is_reused_and_a_failed_one_is_retried_under_its_id() -> None:
    async def flow() -> Any:
        return await asyncio.gather(kid(1), kid(2))

    run = world(flow, max_retries=1, strict=True)
    ids = [child.child_id for child in run.wake().children.pending.values()]
    run.child("1c0", "one")
    run.child("1c1", Broken())
    run.crash()
    run.wake()
    again = [command for command in run.commands if isinstance(command, co.StartChild) and command.again]
    assert [(command.child_id, command.waited) for command in again] == [(ids[1], True)]
    (cmd,) = run.wake().children.pending
    run.child(cmd, "two")
    assert run.result() == ["one", "two"]


@pytest.mark.parametrize("failed", [Broken(), CANCELLED])
def test_a_detached_child_whose_failure_was_seen_is_retried_too(failed: Any) -> None:
    async def flow() -> Any:
        handle: Any = kid.start(1)
        await a()
        return await handle

    run = world(flow, max_retries=1, strict=True, retry_for=None)
    run.complete(run.step("a"))
    (child,) = run.wake().children.pending.values()
    run.child("1c0", failed)
    assert run.wake().journal.attempt == 2
    again = [command for command in run.commands if isinstance(command, co.StartChild) and command.again]
    assert [command.child_id for command in again] == [child.child_id]
    (cmd,) = run.wake().children.pending
    run.child(cmd, "now")
    assert run.result() == "now"


def test_a_detached_child_nobody_heard_of_is_left_alone() -> None:
    async def flow() -> Any:
        kid.start(1)
        await a()

    run = world(flow, max_retries=1, strict=True)
    run.fail(run.step("a"), Broken())
    run.wake()
    started = [command for command in run.commands if isinstance(command, co.StartChild)]
    assert len(started) == 1
    assert [event.again for event in run.of(ev.ChildStarted)] == [False, True]
    assert len({event.child_id for event in run.of(ev.ChildStarted)}) == 1


def test_what_a_compensation_has_undone_is_never_reused() -> None:
    async def flow() -> Any:
        kept = await ask("a", "kept", key="kept")
        booked = await ask("a", "booked", key="booked")
        try:
            await c()
        except Broken:
            await ask("b", "undo", key="undo", undoes="s:booked")
            raise
        return kept, booked

    run = world(flow, max_retries=1, strict=True)
    run.complete("s:kept", "kept")
    run.complete("s:booked", "first booking")
    run.fail(run.step("c"), Broken())
    run.complete("s:undo", None)
    run.crash()
    assert list(run.pending()) == ["s:booked"]
    run.complete("s:booked", "second booking")
    run.complete(run.step("c"))
    assert run.result() == ("kept", "second booking")


def test_what_a_compensation_may_have_undone_is_not_reused_either() -> None:
    """It was begun, and nobody knows how far it came."""

    async def flow() -> Any:
        booked = await ask("a", "booked", key="booked")
        try:
            await c()
        finally:
            if wf.attempt == 1:
                await ask("b", "undo", key="undo", undoes="s:booked")
        return booked

    run = world(flow, max_retries=1, strict=True)
    run.complete("s:booked", "first")
    run.fail(run.step("c"), Broken())
    run.fail("s:undo", Broken("undo failed"))
    run.crash()
    assert list(run.pending()) == ["s:booked"]


def test_an_undone_outcome_that_had_been_reused_is_not_reused_again() -> None:
    async def flow() -> Any:
        booked = await ask("a", "booked", key="booked")
        try:
            await c()
        except Broken:
            if wf.attempt == 2:
                await ask("b", "undo", key="undo", undoes="s:booked")
            raise
        return booked

    run = world(flow, max_retries=2, strict=True)
    run.complete("s:booked", "first")
    run.fail(run.step("c"), Broken())
    run.fail(run.step("c"), Broken())
    run.complete("s:undo")
    run.crash()
    assert list(run.pending()) == ["s:booked"]


def test_a_keyed_outcome_is_reused_only_for_the_same_arguments() -> None:
    async def flow() -> Any:
        try:
            basis = await a()
        except Broken:
            basis = "fallback"
        found = await ask("b", basis, key="node")
        return found, await c()

    run = world(flow, max_retries=1, strict=True)
    run.fail(run.step("a"), Broken())
    run.complete("s:node", "from fallback")
    run.fail(run.step("c"), Broken())
    run.complete(run.step("a"), "basis")
    assert list(run.pending()) == ["s:node"]
    run.complete("s:node", "from basis")
    run.complete(run.step("c"), "c")
    assert run.result() == ("from basis", "c")


def test_a_step_asked_for_with_other_arguments_runs_anew() -> None:
    async def flow() -> Any:
        return await a(wf.attempt), await b()

    run = world(flow, max_retries=1, strict=True)
    run.complete(run.step("a"), "first")
    run.fail(run.step("b"), Broken())
    assert list(run.pending().values()) == ["a"]


def test_arguments_that_change_after_an_outcome_was_reused_keep_it() -> None:
    async def before() -> Any:
        return await a("old"), await b()

    async def after() -> Any:
        return await a("new"), await b()

    run = world(before, max_retries=1)
    run.complete(run.step("a"), "kept")
    run.fail(run.step("b"), Broken())
    run.wake()
    deploy(run, after, max_retries=1)
    run.complete(run.step("b"), "b")
    assert run.result() == ("kept", "b")


def test_attempts_and_their_errors_are_in_the_history() -> None:
    async def flow() -> Any:
        return await a(), wf.attempt

    run = world(flow, max_retries=2, retry_for=(Broken,))
    run.fail(run.step("a"), Broken("once"))
    run.fail(run.step("a"), Broken("twice"))
    run.complete(run.step("a"), "at last")
    assert run.result() == ("at last", 3)
    assert [(e.attempt, str(run.app.codec.decode_error(e.error))) for e in run.of(ev.AttemptFailed)] == [
        (1, "once"),
        (2, "twice"),
    ]
    assert [event.attempt for event in run.of(ev.AttemptStarted)] == [2, 3]


def test_an_error_that_is_not_to_be_retried_ends_the_run() -> None:
    async def flow() -> Any:
        await a()

    run = world(flow, max_retries=2, retry_for=(KeyError,))
    run.fail(run.step("a"), Broken())
    assert run.kinds()[-1] == "RunFailed"


def test_time_is_counted_anew_when_somebody_retries_a_run_that_had_ended() -> None:
    async def flow() -> Any:
        await a()

    run = world(flow)
    run.fail(run.step("a"), Broken())
    run.crash()
    assert run.wake().time.started_at == START
    run.crash()
    run.now = START + 3600 * SECOND
    run._commit([ev.AttemptStarted(seq=len(run.committed) + 1, ts=run.now, attempt=2)])
    assert run.wake().time.started_at == run.now


def test_time_goes_on_over_automatic_retries() -> None:
    async def flow() -> Any:
        await a()

    run = world(flow, max_retries=1)
    run.wake()
    run.now += SECOND
    run.fail(run.step("a"), Broken())
    assert run.wake().journal.attempt == 2
    assert run.wake().time.started_at == START
