"""Workflows in workflows, and workflows started by steps."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time
from typing import Any

import pytest

from holdfast import (
    App,
    ArgumentError,
    ChildRun,
    Run,
    RunCancelledError,
    RunExistsError,
    WrongContextError,
    hook,
    sleep,
    start_child_workflow,
    this_step,
    wf,
)
from holdfast.testing import TestApp


class PaymentError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


# -- from a workflow


def test_calling_a_workflow_in_a_workflow_waits_for_a_child_run(app: App) -> None:
    @app.step
    def label(order: str) -> str:
        return f"label for {order}"

    @app.workflow
    async def shipping(order: str) -> str:
        await sleep("1d")
        return label(order)

    @app.workflow
    async def fulfil(order: str) -> str:
        return await shipping(order)

    with TestApp(app) as world:
        run = fulfil.start("o1")
        world.settle()
        (child,) = run.children()
        assert run.status == "WAITING"
        assert run.reason == f"child '{child.id}'"
        assert (child.workflow, child.parent_id) == ("shipping", run.id)
        assert child.id.startswith(f"{run.id}.shipping.")
        assert run.result() == "label for o1"
        step = run.steps[0]
        assert (step.name, step.child_run_id, step.result) == ("shipping", child.id, "label for o1")


def test_a_def_workflow_calls_children_plainly_and_in_parallel_branches(app: App) -> None:
    @app.workflow
    def double(n: int) -> int:
        wf.sleep("1h")
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        async def branch(n: int) -> int:
            return double(n) + double(n)

        return list(await asyncio.gather(branch(1), branch(2)))

    with TestApp(app) as world:
        begin = world.now
        assert flow.start().result() == [4, 8]
        assert world.now - begin == dt.timedelta(hours=2)


def test_start_in_a_workflow_gives_a_handle_and_the_child_outlives_the_parent(app: App) -> None:
    @app.workflow
    async def audit(order: str) -> str:
        await sleep("1h")
        return f"audited {order}"

    @app.workflow
    async def fulfil(order: str) -> str:
        handle = audit.start(order)
        assert isinstance(handle, ChildRun)
        return handle.child_run_id

    with TestApp(app) as world:
        run = fulfil.start("o1")
        child = app.get_run(run.result())
        assert child.parent_id == run.id
        assert not child.status.is_final
        world.advance("1h")
        assert child.result() == "audited o1"


def test_a_child_that_was_started_can_be_awaited_later(app: App) -> None:
    @app.workflow
    async def double(n: int) -> int:
        await sleep(n)
        return n * 2

    @app.workflow
    async def flow() -> list[int]:
        early, late = double.start(1), double.start(3600)
        await sleep("1m")
        return [await early, await late, await early]

    with TestApp(app):
        assert flow.start().result() == [2, 7200, 2]


def test_submit_starts_a_child_that_is_waited_for(app: App) -> None:
    @app.workflow
    async def double(n: int) -> int:
        await sleep("1h")
        return n * 2

    @app.workflow
    def flow() -> tuple[list[int], bool]:
        handles = [double.submit(n) for n in range(3)]
        assert len({handle.child_run_id for handle in handles}) == 3
        return [handle.result() for handle in handles], handles[0].done()

    with TestApp(app) as world:
        begin = world.now
        assert flow.start().result() == ([0, 2, 4], True)
        assert world.now - begin == dt.timedelta(hours=1)


@pytest.mark.parametrize("wait", [True, False])
def test_start_child_workflow_waits_or_gives_a_handle(app: App, wait: bool) -> None:
    @app.workflow
    async def pay(order: str, amount: float = 1.0) -> dict[str, Any]:
        return {"order": order, "amount": amount}

    @app.workflow
    async def flow(wait: bool) -> Any:
        found = await start_child_workflow(pay, "o1", amount=9.5, wait_for_completion=wait)
        return found if wait else found.child_run_id

    with TestApp(app):
        run = flow.start(wait)
        expected = {"order": "o1", "amount": 9.5}
        found = run.result()
        assert (found if wait else app.get_run(found).result()) == expected


def test_a_child_may_have_a_parameter_of_any_name(app: App) -> None:
    @app.workflow
    async def child(workflow: str, name: str, id: int) -> list[Any]:
        return [workflow, name, id]

    @app.workflow
    async def flow() -> list[Any]:
        return await start_child_workflow(child, workflow="w", name="n", id=5)

    with TestApp(app):
        assert flow.start().result() == ["w", "n", 5]
        assert child.options(id="x").start(workflow="w", name="n", id=6).result() == ["w", "n", 6]
        assert app.start("child", workflow="w", name="n", id=7).result() == ["w", "n", 7]


def test_options_say_more_about_a_child(app: App) -> None:
    @app.workflow
    async def pay(order: str) -> str:
        return wf.identity.workflow_id

    @app.workflow
    async def flow() -> list[str]:
        at = wf.utc_now() + dt.timedelta(hours=2)
        return [
            await pay.options(id="payment-17").submit("a"),
            await pay.options(delay="1h").submit("b"),
            await pay.options(at=at).submit("c"),
        ]

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        ids = run.result()
        assert ids[0] == "payment-17"
        started = [app.get_run(run_id).started_at for run_id in ids]
        assert [s - begin for s in started if s] == [dt.timedelta(0), dt.timedelta(hours=1), dt.timedelta(hours=2)]


def test_a_child_whose_id_is_taken_by_another_run_fails_in_the_parent(app: App) -> None:
    @app.workflow
    async def pay(order: str) -> str:
        return order

    @app.workflow
    async def flow() -> str:
        try:
            return await pay.options(id="taken").submit("mine")
        except RunExistsError as error:
            return str(error)

    with TestApp(app):
        pay.options(id="taken").start("other").result()
        assert flow.start().result().startswith("run 'taken' exists, and is not a child of run")


def test_a_started_child_whose_id_is_taken_fails_when_it_is_awaited_and_harms_nobody(app: App) -> None:
    @app.workflow
    async def pay(order: str) -> str:
        await sleep("1h")
        return order

    @app.workflow
    async def owner() -> str:
        return await pay.options(id="taken").submit("theirs")

    @app.workflow
    async def stranger() -> str:
        handle = pay.options(id="taken").start("mine")
        await sleep("1m")
        try:
            return await handle
        except RunExistsError:
            return "not mine"

    with TestApp(app) as world:
        first = owner.start()
        world.settle()
        second = stranger.start()
        assert second.result() == "not mine"
        assert first.result() == "theirs"
        late = stranger.start()
        assert late.result() == "not mine"


def test_a_childs_failure_reaches_the_parent_as_its_own_exception(app: App) -> None:
    @app.step(max_retries=0)
    def charge() -> None:
        raise PaymentError(402)

    @app.workflow
    def pay() -> None:
        charge()

    @app.workflow
    def flow() -> int:
        try:
            pay()
        except PaymentError as error:
            return error.code
        return 0

    @app.workflow
    async def careless() -> None:
        await start_child_workflow(pay)

    with TestApp(app):
        assert flow.start().result() == 402
        run = careless.start()
        with pytest.raises(PaymentError, match="declined with 402"):
            run.result()
        assert run.steps[0].state == "FAILURE"


def test_a_cancelled_child_raises_in_its_parent(app: App) -> None:
    @app.workflow
    async def pay() -> None:
        await hook("never")

    @app.workflow
    async def flow() -> str:
        try:
            await pay()
        except RunCancelledError as error:
            return str(error)
        return ""

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        child = run.children()[0]
        child.cancel("by hand")
        assert run.result() == f"child run {child.id} was cancelled: by hand"


def test_cancelling_a_parent_cancels_the_children_it_waits_for(app: App) -> None:
    @app.workflow
    async def leaf() -> None:
        await hook("never")

    @app.workflow
    async def middle() -> None:
        await leaf()

    @app.workflow
    async def root() -> None:
        handle = middle.submit()
        await asyncio.gather(leaf(), handle)

    with TestApp(app) as world:
        run = root.start()
        world.settle()
        run.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            run.result()
        world.settle()
        assert {each.status for each in app.runs()} == {"CANCELLED"}
        assert len(app.runs()) == 4


def test_a_child_that_was_only_started_lives_on(app: App) -> None:
    @app.workflow
    async def child() -> str:
        await sleep("1h")
        return "done"

    @app.workflow
    async def parent() -> None:
        child.start()
        await hook("never")

    with TestApp(app) as world:
        run = parent.start()
        world.settle()
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        assert run.children()[0].result() == "done"


@pytest.mark.parametrize("how", ["cancel", "abandon"])
def test_on_parent_close_lets_waited_for_children_live(app: App, how: Any) -> None:
    @app.workflow
    async def child() -> str:
        await sleep("1h")
        return "done"

    @app.workflow
    async def parent(how: Any) -> None:
        await child.options(on_parent_close=how).submit()

    with TestApp(app) as world:
        run = parent.start(how)
        world.settle()
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result()
        (left,) = run.children()
        if how == "abandon":
            assert left.result() == "done"
        else:
            with pytest.raises(RunCancelledError, match="no longer waits for it"):
                left.result()


def test_children_left_when_the_parent_returns_are_cancelled_too(app: App) -> None:
    @app.workflow
    async def child() -> None:
        await hook("never")

    @app.workflow
    async def parent() -> str:
        child.submit()
        return "gone"

    with TestApp(app) as world:
        run = parent.start()
        assert run.result() == "gone"
        world.settle()
        assert run.children()[0].status == "CANCELLED"


def test_a_childs_timeout_cancels_it(app: App) -> None:
    @app.workflow
    async def child() -> None:
        await hook("never")

    @app.workflow
    async def parent() -> str:
        try:
            await asyncio.wait_for(child(), timeout=60)
        except TimeoutError:
            return "gave up"
        return ""

    with TestApp(app) as world:
        run = parent.start()
        assert run.result() == "gave up"
        world.settle()
        assert run.children()[0].status == "CANCELLED"


def test_children_keep_their_own_data(app: App) -> None:
    @app.workflow
    def child() -> Any:
        found = wf.get_data("who")
        wf.set_data("who", "child")
        return found

    @app.workflow
    def parent() -> list[Any]:
        wf.set_data("who", "parent")
        return [child(), wf.get_data("who")]

    with TestApp(app):
        run = parent.start()
        assert run.result() == [None, "parent"]
        assert run.children()[0].data == {"who": "child"}


def test_a_handle_is_of_use_only_in_its_workflow(app: App) -> None:
    kept: list[ChildRun[int]] = []

    @app.workflow
    async def child() -> int:
        return 1

    @app.workflow
    async def parent() -> int:
        kept.append(child.submit())
        return await kept[-1]

    with TestApp(app, check_replay=False):
        parent.start().result()
        with pytest.raises(
            WrongContextError, match=r"belongs to the workflow that started it; elsewhere use app\.get_run"
        ):
            kept[0].result()


def test_a_step_is_not_started_as_a_run_by_workflow_code(app: App) -> None:
    @app.step
    def work() -> None: ...

    @app.workflow
    def flow() -> None:
        work.start()

    with TestApp(app):
        with pytest.raises(WrongContextError, match=r"in a workflow: call it, or use \.submit\(\)"):
            flow.start().result()


def test_start_child_workflow_takes_only_workflows(app: App) -> None:
    @app.step
    async def work() -> None: ...

    @app.workflow
    async def flow() -> None:
        await start_child_workflow(work)  # type: ignore[call-overload]

    with TestApp(app):
        with pytest.raises(ArgumentError, match=r"give a function decorated with @app\.workflow"):
            flow.start().result()


def test_start_child_workflow_outside_a_run_says_what_to_use(app: App) -> None:
    @app.workflow
    async def flow() -> None: ...

    with pytest.raises(WrongContextError, match=r"elsewhere use workflow\.start"):
        asyncio.run(start_child_workflow(flow))


def test_submit_outside_a_workflow_says_what_to_use(app: App) -> None:
    @app.workflow
    async def flow() -> None: ...

    with pytest.raises(WrongContextError, match=r"submit\(\) works in a workflow; elsewhere use \.start\(\)"):
        flow.submit()


# -- from a step


def test_a_step_starts_a_child_and_waits_for_it(app: App) -> None:
    @app.workflow
    async def pay(order: str, amount: float) -> dict[str, Any]:
        return {"paid": True, "amount": amount, "parent": wf.identity.parent_workflow_id}

    @app.step
    async def process(order: str) -> Any:
        return await start_child_workflow(pay, order, 99.99, wait_for_completion=True)

    @app.workflow
    async def flow() -> Any:
        return await process("o1")

    with TestApp(app):
        run = flow.start()
        assert run.result() == {"paid": True, "amount": 99.99, "parent": run.id}
        assert [child.workflow for child in run.children()] == ["pay"]


def test_time_is_skipped_for_a_child_that_a_step_waits_for(app: App) -> None:
    @app.workflow
    async def pay() -> str:
        await sleep("1d")
        return "paid"

    @app.step
    async def process() -> str:
        return str(await start_child_workflow(pay))

    with TestApp(app) as world:
        begin = world.now
        assert process.start().result(timeout=20) == "paid"
        assert world.now - begin == dt.timedelta(days=1)


def test_a_step_starts_a_child_without_waiting(app: App) -> None:
    @app.workflow
    async def pay() -> str:
        await sleep("1d")
        return "paid"

    @app.step
    async def process() -> str:
        handle = await start_child_workflow(pay, wait_for_completion=False)
        return str(handle.child_run_id)

    @app.workflow
    async def flow() -> str:
        return await process()

    with TestApp(app) as world:
        run = flow.start()
        child = app.get_run(run.result())
        assert (child.parent_id, child.status.is_final) == (run.id, False)
        world.advance("1d")
        assert child.result() == "paid"


def test_a_sync_step_starts_children_too(app: App) -> None:
    @app.workflow
    def pay(n: int) -> int:
        return n * 2

    @app.step
    def process() -> list[int]:
        runs = [pay.start(n) for n in range(3)]
        assert all(isinstance(run, Run) for run in runs)
        return [run.result(timeout=10) for run in runs]

    with TestApp(app):
        run = process.start()
        assert run.result() == [0, 2, 4]
        assert len(run.children()) == 3


def test_a_retried_step_does_not_start_a_second_child(app: App) -> None:
    executed: list[int] = []

    @app.step
    def work(n: int) -> int:
        executed.append(n)
        return n * 10

    @app.workflow
    def child(n: int) -> int:
        return work(n)

    @app.step(max_retries=2, retry_delay=0)
    async def process() -> list[Any]:
        first = await start_child_workflow(child, 1)
        if this_step.attempt == 1:
            raise OSError("after the first")
        second = await start_child_workflow(child, 2)
        if this_step.attempt == 2:
            raise OSError("after the second")
        return [first, second, this_step.attempt]

    @app.workflow
    async def flow() -> list[Any]:
        return await process()

    with TestApp(app):
        run = flow.start()
        assert run.result() == [10, 20, 3]
        assert len(run.children()) == 2
    assert executed == [1, 2]


def test_two_steps_start_children_of_their_own(app: App) -> None:
    @app.workflow
    def child() -> str:
        return wf.identity.workflow_id

    @app.step
    async def process() -> str:
        return str(await start_child_workflow(child))

    @app.workflow
    async def flow() -> list[str]:
        return [await process(), await process(), *await asyncio.gather(process(), process())]

    with TestApp(app):
        assert len(set(flow.start().result())) == 4


def test_the_failure_of_a_child_reaches_the_step(app: App) -> None:
    @app.workflow
    def pay() -> None:
        raise PaymentError(500)

    @app.step(max_retries=0)
    async def process() -> int:
        try:
            await start_child_workflow(pay)
        except PaymentError as error:
            return error.code
        return 0

    with TestApp(app):
        assert process.start().result() == 500


def test_a_workflow_called_in_a_step_is_an_error_that_names_the_way(app: App) -> None:
    @app.workflow
    def pay() -> None: ...

    @app.workflow
    async def async_pay() -> None: ...

    @app.step(max_retries=0)
    async def process(which: str) -> None:
        pay() if which == "sync" else await async_pay()

    with TestApp(app):
        for which in ("sync", "async"):
            with pytest.raises(
                WrongContextError,
                match=r"is called in a step; .*await start_child_workflow\(.*\.start\(\.\.\.\)\.result\(\)$",
            ):
                process.start(which).result()


def test_cancelling_a_run_reaches_a_step_that_waits_for_a_child(app: App) -> None:
    begun = threading.Event()

    @app.workflow
    async def endless() -> None:
        begun.set()
        await hook("never")

    @app.step(max_retries=0)
    async def process() -> None:
        await start_child_workflow(endless)

    @app.workflow
    async def flow() -> None:
        await process()

    with app.worker():
        run = flow.start()
        assert begun.wait(10)
        started = time.monotonic()
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result(timeout=10)
        assert time.monotonic() - started < 3


def test_children_that_a_step_starts_at_once_keep_their_places_over_attempts(app: App) -> None:
    @app.workflow
    def child(n: int) -> int:
        return n * 10

    @app.step(max_retries=5, retry_delay=0)
    async def process() -> list[int]:
        found = await asyncio.gather(*(start_child_workflow(child, n) for n in range(8)))
        if this_step.attempt <= 5:
            raise OSError("again")
        return list(found)

    with TestApp(app):
        run = process.start()
        assert run.result() == [n * 10 for n in range(8)]
        assert len(run.children()) == 8


def test_a_retried_step_that_skips_a_child_still_finds_the_others(app: App) -> None:
    @app.workflow
    def first() -> str:
        return "first"

    @app.workflow
    def second() -> str:
        return "second"

    @app.step(max_retries=1, retry_delay=0)
    def process() -> str:
        if this_step.attempt == 1:
            app.start("first").result(timeout=10)
        found = second.start().result(timeout=10)
        if this_step.attempt == 1:
            raise OSError("again")
        return found

    with TestApp(app):
        run = process.start()
        assert run.result() == "second"
        assert sorted(child.workflow for child in run.children()) == ["first", "second"]


def test_what_app_start_starts_in_a_step_is_a_child_too(app: App) -> None:
    @app.workflow
    def child() -> str | None:
        return wf.identity.parent_workflow_id

    @app.step(max_retries=1, retry_delay=0)
    async def process() -> str:
        run = await app.astart("child")
        if this_step.attempt == 1:
            raise OSError("again")
        return str(await run)

    with TestApp(app):
        run = process.start()
        assert run.result() == run.id
        assert len(run.children()) == 1


def test_a_restarted_run_has_children_of_its_own(app: App) -> None:
    executed: list[str] = []

    @app.step
    def work() -> None:
        executed.append(this_step.idempotency_key)

    @app.workflow
    def child() -> str:
        work()
        return wf.identity.workflow_id

    @app.step
    async def by_step() -> str:
        return str(await start_child_workflow(child))

    @app.workflow
    async def parent() -> list[str]:
        return [child(), await by_step()]

    with TestApp(app):
        first = parent.options(id="daily").start().result()
        second = parent.options(id="daily", if_exists="restart").start().result()
        app.get_run("daily").delete()
        third = parent.options(id="daily").start().result()
    assert len({*first, *second, *third}) == 6
    assert len(set(executed)) == 6


def test_a_run_that_was_a_child_is_found_again_by_its_id_and_arguments(app: App) -> None:
    @app.workflow
    def pay(order: str) -> str:
        return f"paid {order}"

    @app.workflow
    async def flow() -> str:
        return await pay.options(id="payment-17").submit("o1")

    with TestApp(app):
        assert flow.start().result() == "paid o1"
        assert pay.options(id="payment-17").start("o1").result() == "paid o1"
        with pytest.raises(RunExistsError):
            pay.options(id="payment-17").start("o2")


def test_if_exists_is_not_for_children(app: App) -> None:
    @app.workflow
    def pay() -> None: ...

    @app.workflow
    async def flow() -> None:
        await pay.options(id="x", if_exists="restart").submit()

    with TestApp(app):
        with pytest.raises(WrongContextError, match="if_exists='restart' is for runs that are started from outside"):
            flow.start().result()


def test_a_step_that_is_tried_again_retries_its_failed_child(app: App) -> None:
    executed: list[str] = []

    @app.step
    def reserve() -> None:
        executed.append("reserve")

    @app.step(max_retries=0)
    def charge() -> str:
        executed.append("charge")
        if executed.count("charge") < 3:
            raise PaymentError(503)
        return "paid"

    @app.workflow
    def pay() -> str:
        reserve()
        return charge()

    @app.step(max_retries=1, retry_delay=0)
    async def process() -> str:
        return str(await start_child_workflow(pay))

    @app.workflow(max_retries=1)
    async def flow() -> str:
        return await process()

    with TestApp(app):
        run = flow.start()
        assert run.result() == "paid"
        assert len(run.children()) == 1
    assert executed == ["reserve", "charge", "charge", "charge"]
