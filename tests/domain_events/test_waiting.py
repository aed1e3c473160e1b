"""Runs that wait for domain events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, DefinitionError, Run, WrongContextError, emit, hook, sleep, wait_for_event, wf
from holdfast.testing import TestApp


@dataclass
class Payment:
    order: str
    amount: int = 0


def waits(app: App) -> int:
    """How many runs wait for an event, as the store knows it."""
    with app.store.read() as db:  # type: ignore[attr-defined]
        return int(db.execute("SELECT count(*) FROM subscriptions WHERE run IS NOT NULL").fetchone()[0])


def test_a_run_waits_for_the_event_that_has_its_values(app: App) -> None:
    @app.workflow
    async def order(id: str) -> Any:
        return await wait_for_event("Paid", where={"order": id})

    with TestApp(app) as world:
        runs = [order.start(f"o-{i}") for i in range(3)]
        world.settle()
        assert runs[1].reason == "event 'Paid' where {'order': 'o-1'}"
        app.emit("Paid", {"order": "o-1", "amount": 7})
        app.emit("Paid", {"order": "o-9"})
        world.settle()
        assert runs[1].result() == {"order": "o-1", "amount": 7}
        assert [run.status for run in runs] == ["WAITING", "SUCCESS", "WAITING"]
        assert world.kinds(runs[1]) == ["RunStarted", "HookOpened", "HookReceived", "RunCompleted"]
        assert waits(app) == 2


def test_a_def_workflow_waits_in_a_plain_call_for_a_payload_of_a_type(app: App) -> None:
    @app.workflow
    def order() -> Any:
        payment = wf.wait_for_event("Paid", where={"order": "a"}, payload=Payment)
        return [type(payment).__name__, payment.amount]

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        app.emit("Paid", {"order": "a", "amount": 3})
        assert run.result() == ["Payment", 3]


def test_an_event_before_the_wait_is_not_waited_for(app: App) -> None:
    @app.workflow
    async def order() -> Any:
        await emit("Step", "before")
        waiting = asyncio.create_task(_wait())
        await asyncio.sleep(0)
        await emit("Step", "after")
        return await waiting

    async def _wait() -> Any:
        return await wait_for_event("Step")

    with TestApp(app):
        app.emit("Step", "long before")
        assert order.start().result() == "after"


def test_an_event_with_few_listeners_overtakes_no_older_one_with_many(app: App) -> None:
    for number in range(20):
        app.on("Step", where={"n": 1})(app.step(name=f"reacts{number}")(lambda event: None))

    @app.workflow
    async def waits() -> int:
        return int((await wait_for_event("Step"))["n"])

    @app.workflow
    async def emits() -> None:
        await emit("Step", {"n": 1})
        await emit("Step", {"n": 2})

    with TestApp(app) as world:
        run = waits.start()
        world.settle()
        emits.start().result()
        assert run.result() == 1


def test_each_wait_gets_one_event(app: App) -> None:
    @app.workflow
    async def order() -> list[int]:
        first = await wait_for_event("Tick")
        return [first, await wait_for_event("Tick")]

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        app.emit("Tick", 1)
        world.settle()
        app.emit("Tick", 2)
        app.emit("Tick", 3)
        assert run.result() == [1, 2]


def test_two_waits_of_one_run_both_get_the_event(app: App) -> None:
    @app.workflow
    async def order() -> list[int]:
        return list(await asyncio.gather(wait_for_event("Tick"), wait_for_event("Tick"), wait_for_event("Tick")))

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        app.emit("Tick", 1)
        assert run.result() == [1, 1, 1]
        world.settle()
        assert waits(app) == 0


def test_one_event_wakes_all_who_wait(app: App) -> None:
    @app.workflow
    async def order(n: int) -> Any:
        return await wait_for_event("Go", where={"all": True} if n % 2 else None)

    with TestApp(app, check_replay=False) as world:
        runs = [order.start(n) for n in range(450)]
        world.settle()
        app.emit("Go", {"all": True})
        assert {str(run.result()) for run in runs} == {"{'all': True}"}
        assert waits(app) == 0


def test_no_event_within_the_timeout_raises_timeout_error(app: App) -> None:
    @app.workflow
    async def order() -> str:
        try:
            await wait_for_event("Paid", timeout="2d")
        except TimeoutError as error:
            return str(error)
        return ""

    with TestApp(app) as world:
        run = order.start()
        assert run.result() == "there was no event 'Paid' within 2d"
        world.settle()
        assert waits(app) == 0


def test_a_wait_that_is_dropped_ends(app: App) -> None:
    @app.workflow
    async def order() -> str:
        try:
            async with asyncio.timeout(3600):
                await wait_for_event("Paid")
        except TimeoutError:
            return "late"
        return ""

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        assert waits(app) == 1
        assert run.result() == "late"
        assert waits(app) == 0


@pytest.mark.parametrize("how", ["cancel", "delete"])
def test_a_wait_ends_with_its_run(app: App, how: str) -> None:
    @app.workflow
    async def order() -> None:
        await wait_for_event("Paid")

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        if how == "delete":
            run.pause()
            world.settle()
            assert waits(app) == 1
            run.delete()
        else:
            run.cancel()
            world.settle()
            assert run.status == "CANCELLED"
        assert waits(app) == 0


def test_a_run_that_is_parked_is_woken(app: App) -> None:
    @app.workflow
    async def order() -> Any:
        return await wait_for_event("Paid")

    with TestApp(app) as world:
        world.engine.env.settings.park_after = 0
        run = order.start()
        world.settle()
        world.advance("1h")
        app.emit("Paid", 5)
        assert run.result() == 5


def test_a_held_run_gets_the_event_when_it_goes_on(app: App) -> None:
    @app.workflow
    async def order() -> Any:
        return await wait_for_event("Paid")

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        run.pause()
        world.settle()
        app.emit("Paid", 5)
        world.settle()
        assert run.status == "PAUSED"
        run.resume()
        assert run.result() == 5


def test_a_retry_of_the_run_keeps_what_came_and_waits_for_the_rest(app: App) -> None:
    @app.workflow(max_retries=1)
    async def order() -> list[Any]:
        first = await wait_for_event("Paid")
        if wf.attempt == 1:
            raise RuntimeError("again")
        return [first, await wait_for_event("Packed")]

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        app.emit("Paid", 1)
        world.settle()
        app.emit("Packed", 2)
        assert run.result() == [1, 2]


def test_a_wait_that_failed_with_its_attempt_is_opened_anew(app: App) -> None:
    @app.workflow(max_retries=1)
    async def order() -> Any:
        if wf.attempt > 1:
            return await wait_for_event("Paid", where={"n": 1})
        task = asyncio.create_task(_wait())
        await sleep(60)
        task.cancel()
        raise RuntimeError("again")

    async def _wait() -> Any:
        return await wait_for_event("Paid", where={"n": 1})

    with TestApp(app) as world:
        run = order.start()
        world.advance("2m")
        assert waits(app) == 1
        app.emit("Paid", {"n": 1})
        assert run.result() == {"n": 1}


def test_a_run_that_continues_as_new_waits_anew(app: App) -> None:
    @app.workflow
    async def order(seen: list[int]) -> list[int]:
        seen.append(await wait_for_event("Tick"))
        if len(seen) < 3:
            wf.continue_as_new(seen)
        return seen

    with TestApp(app) as world:
        run = order.start([])
        for n in range(3):
            world.settle()
            app.emit("Tick", n)
        assert run.result() == [0, 1, 2]


def test_a_fork_waits_by_itself(app: App) -> None:
    @app.workflow
    async def order() -> Any:
        return await wait_for_event("Paid")

    with TestApp(app) as world:
        run = order.start()
        world.settle()
        fork = run.fork(2)
        world.settle()
        assert waits(app) == 2
        app.emit("Paid", 1)
        assert (run.result(), fork.result()) == (1, 1)


def test_a_wait_and_a_hook_of_the_same_name_are_two_things(app: App) -> None:
    @app.workflow
    async def order() -> list[Any]:
        return list(await asyncio.gather(wait_for_event("Paid"), hook("Paid"), hook("Paid", key="k")))

    with TestApp(app) as world:
        run: Run[list[Any]] = order.start()
        world.settle()
        app.emit("Paid", "event")
        run.send("Paid", "hook")
        app.send_hook(key="k", payload="key")
        assert run.result() == ["event", "hook", "key"]


# -- what is refused


def test_a_step_can_not_wait(app: App) -> None:
    @app.step(max_retries=0)
    async def work() -> None:
        await wait_for_event("Paid")

    with TestApp(app):
        with pytest.raises(WrongContextError, match="move the wait to the workflow"):
            work.start().result()


def test_outside_a_run_there_is_nothing_to_wait_with() -> None:
    with pytest.raises(WrongContextError, match="works in a run"):
        wait_for_event("Paid")


def test_a_run_without_a_history_can_not_wait(app: App) -> None:
    @app.workflow(durable=False)
    async def order() -> None:
        await wait_for_event("Paid")

    with TestApp(app):
        with pytest.raises(WrongContextError, match="durable=False"):
            order.start().result()


def test_wrong_conditions_are_refused_where_they_are_given(app: App) -> None:
    @app.workflow
    async def order() -> None:
        await wait_for_event("Paid", where={"at": [1]})  # type: ignore[dict-item]

    with TestApp(app):
        with pytest.raises(DefinitionError, match="'at' is compared with"):
            order.start().result()
