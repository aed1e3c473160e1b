"""continue_as_new: a fresh history under the same id, with data and unread payloads."""

from __future__ import annotations

import asyncio
from typing import Any

from core_code import Broken, a, b, world

from holdfast import WrongContextError, hook, shield, wf
from holdfast.core import commands as co
from holdfast.core import events as ev


def test_replay_begins_after_it_with_data_and_unread_payloads() -> None:
    async def flow(n: int = 0) -> Any:
        wf.set_data("n", n)
        await a(n)
        if n < 2:
            wf.continue_as_new(n + 1)
        return wf.get_data("n"), wf.get_data("before"), await hook("h"), await hook("h")

    run = world(flow, strict=True)
    run.send("h", "first")
    run.complete(run.step("a"), None, before="kept")
    run.send("h", "second")
    run.complete(run.step("a"))
    run.crash()
    run.complete(run.step("a"))
    assert run.result() == (2, "kept", "first", "second")
    assert run.kinds().count("ContinuedAsNew") == 2
    base = max(i for i, kind in enumerate(run.kinds()) if kind == "ContinuedAsNew")
    again = run.replay(run.history[base:])
    assert again.journal.take() == ([], [])
    again.evict()


def test_what_is_under_way_ends_with_the_old_history() -> None:
    async def flow(n: int = 0) -> Any:
        if n:
            return "new"
        a.submit()
        await b()
        wf.continue_as_new(1)

    run = world(flow, strict=True)
    run.complete(run.step("b"))
    assert run.wake()
    assert run.result() == "new"
    assert [event.name for event in run.of(ev.StepCancelled)] == ["a"]
    assert [command.cmd for command in run.commands if isinstance(command, co.CancelStep)] == ["1s0"]


def test_each_history_has_random_values_of_its_own() -> None:
    async def flow(found: list[Any] | None = None) -> Any:
        found = [*(found or []), wf.random(), str(wf.uuid())]
        if len(found) < 6:
            wf.continue_as_new(found)
        return found

    run = world(flow, strict=True)
    run.wake()
    assert len(set(run.result())) == 6


def test_payloads_that_came_along_are_there_again_in_a_retry() -> None:
    async def flow(n: int = 0) -> Any:
        if n == 0:
            await a()
            wf.continue_as_new(1)
        return await hook("h"), await hook("h"), await b(), await hook("h")

    run = world(flow, strict=True, max_retries=1)
    run.send("h", 1)
    run.complete(run.step("a"))
    run.send("h", 2)
    run.fail(run.step("b"), Broken())
    run.send("h", 3)
    run.crash()
    run.complete(run.step("b"), "b")
    assert run.result() == (1, 2, "b", 3)


def test_payloads_that_a_failed_attempt_had_not_read_come_along_too() -> None:
    async def flow(n: int = 0) -> Any:
        if n == 0:
            await a()
            wf.continue_as_new(1)
        return await hook("h"), await hook("h")

    run = world(flow, strict=True, max_retries=1)
    run.send("h", 1)
    run.fail(run.step("a"), Broken())
    run.send("h", 2)
    run.complete(run.step("a"))
    assert run.wake()
    assert run.result() == (1, 2)


def test_arguments_that_cannot_be_recorded_fail_the_run() -> None:
    async def flow(n: Any = 0) -> Any:
        await a()
        wf.continue_as_new(object())

    run = world(flow)
    run.complete(run.step("a"))
    assert "object" in str(run.result())
    assert run.kinds()[-1] == "RunFailed"


def test_a_cancellation_that_a_shield_has_kept_is_not_forgotten() -> None:
    async def flow(n: int = 0) -> Any:
        async with shield():
            await a(n)
        wf.continue_as_new(n + 1)

    run = world(flow, strict=True)
    run.complete(run.step("a"))
    run.cancel("enough")
    run.complete(run.step("a"))
    assert run.kinds()[-1] == "RunCancelled"
    assert run.of(ev.RunCancelled)[0].reason == "enough"


def test_in_a_task_of_a_group_it_says_where_to_call_it() -> None:
    async def flow(n: int = 0) -> Any:
        async def task() -> None:
            await a(n)
            wf.continue_as_new(n + 1)

        async with asyncio.TaskGroup() as group:
            group.create_task(task())

    run = world(flow)
    run.complete(run.step("a"))
    error = run.result()
    assert isinstance(error, WrongContextError)
    assert "continue_as_new() was called in a task of a TaskGroup" in str(error)
