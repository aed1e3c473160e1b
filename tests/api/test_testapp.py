"""`TestApp`: an in-memory world with skipped time, for users' own tests."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    App,
    ArgumentError,
    Dag,
    EncodeError,
    NondeterminismError,
    Saga,
    SagaFailed,
    StepState,
    UnknownNameError,
    WaitTimeoutError,
    hook,
    sleep,
    this_step,
    wf,
)
from holdfast.testing import TestApp


def boom() -> None:
    raise ValueError("boom")


def order_app(app: App) -> tuple[Any, Any, Any]:
    @app.step(max_retries=2, retry_delay="1m")
    def charge(order: str, amount: int = 10) -> str:
        raise AssertionError("the real provider is not called in tests")

    @app.step
    async def notify(text: str) -> None:
        raise AssertionError("no mail is sent in tests")

    @app.workflow
    async def fulfil(order: str) -> str:
        payment = charge(order, amount=12)
        await sleep("1d")
        if await hook("approval", timeout="2d"):
            await notify(f"approved {payment}")
            return payment
        return "refused"

    return charge, notify, fulfil


# -- the block


def test_the_app_lives_in_memory_inside_the_block_and_in_its_own_store_outside(app: App, tmp_path: Path) -> None:
    @app.workflow
    def flow() -> int:
        return 1

    with TestApp(app):
        flow.start().result()
        assert len(app.runs()) == 1
    assert not (tmp_path / "shop.db").exists()
    flow.start()
    assert (tmp_path / "shop.db").exists()
    with TestApp(app):
        assert app.runs() == []
    assert len(app.runs()) == 1


def test_two_worlds_are_apart(app: App) -> None:
    @app.workflow
    def flow() -> None: ...

    with TestApp(app):
        flow.options(id="same").start().result()
    with TestApp(app):
        flow.options(id="same").start().result()
        assert len(app.runs()) == 1


def test_the_block_works_for_async_tests(app: App) -> None:
    charge, notify, fulfil = order_app(app)

    async def main() -> str:
        async with TestApp(app) as world:
            world.mock(charge, "paid")
            world.mock(notify, None)
            run = await fulfil.astart("o1")
            await world.aadvance("1d")
            await run.asend("approval", True)
            await world.asettle()
            assert world.calls(notify) == [("approved paid",)]
            return str(await run)

    assert asyncio.run(main()) == "paid"


def test_nothing_is_left_running_after_the_block(app: App) -> None:
    @app.step
    def work() -> None: ...

    @app.step
    async def awork() -> None: ...

    before = threading.active_count()
    with TestApp(app):
        work.start().result()
        awork.start().result()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_an_error_in_the_block_is_the_one_that_is_seen(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("never")

    with pytest.raises(ZeroDivisionError), TestApp(app):
        flow.start()
        1 / 0


# -- time


def test_time_stands_still_until_somebody_waits_or_advances(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await sleep("1d")

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        world.settle()
        time.sleep(0.02)
        assert world.now == begin
        world.advance("23h")
        assert world.now == begin + dt.timedelta(hours=23)
        assert run.status == "WAITING"
        world.advance(3600)
        assert run.status == "SUCCESS"
        assert run.finished_at == begin + dt.timedelta(days=1)


def test_a_year_takes_no_time(app: App) -> None:
    @app.workflow
    async def flow() -> int:
        for _ in range(365):
            await sleep("1d")
        return 365

    with TestApp(app) as world:
        begin, real = world.now, time.monotonic()
        assert flow.start().result() == 365
        assert world.now - begin == dt.timedelta(days=365)
        assert time.monotonic() - real < 5


def test_advance_lets_everything_that_falls_due_happen_in_order(app: App) -> None:
    order: list[tuple[str, dt.timedelta]] = []

    @app.step
    def note(name: str) -> None:
        order.append((name, world.now - begin))

    @app.workflow
    async def flow(name: str, seconds: int) -> None:
        await sleep(seconds)
        note(name)
        await sleep(seconds)
        note(name)

    with TestApp(app) as world:
        begin = world.now
        for name, seconds in (("slow", 50), ("quick", 20), ("middle", 30)):
            flow.start(name, seconds)
        world.advance(70)
        at = [(name, int(after.total_seconds())) for name, after in order]
        assert at == [("quick", 20), ("middle", 30), ("quick", 40), ("slow", 50), ("middle", 60)]


def test_the_world_begins_when_it_is_told(app: App) -> None:
    @app.workflow
    def flow() -> dt.datetime:
        return wf.utc_now()

    begin = dt.datetime(1999, 12, 31, 23, 59, tzinfo=dt.UTC)
    with TestApp(app, start=begin) as world:
        assert world.now == begin
        assert flow.start().result() == begin
    with pytest.raises(TypeError, match=r"start=.* has no time zone"):
        TestApp(app, start=dt.datetime(1999, 12, 31))


def test_time_is_not_skipped_while_a_step_works(app: App) -> None:
    @app.step
    def slow() -> dt.datetime:
        time.sleep(0.05)
        return world.now

    @app.workflow
    async def flow() -> list[Any]:
        async def timer() -> None:
            await sleep("1h")

        task = asyncio.create_task(timer())
        found = slow()
        await task
        return [found]

    with TestApp(app) as world:
        begin = world.now
        assert flow.start().result() == [begin]
        assert world.now == begin + dt.timedelta(hours=1)


def test_a_run_that_nothing_can_move_is_reported_at_once(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("approval")

    with TestApp(app):
        run = flow.start()
        real = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            run.result()
        assert str(caught.value) == (
            f"run {run.id} is WAITING (hook 'approval') and nothing more will happen in this test; send the hook it waits "
            "for, or resume it"
        )
        assert time.monotonic() - real < 5


def test_what_is_started_by_name_without_its_code_is_no_error_of_the_test(app: App) -> None:
    with TestApp(app):
        run = app.remote("fulfil").options(id="order-17").start({"id": "17"})
        assert app.get_run("order-17").workflow == "fulfil"
        with pytest.raises(
            TimeoutError, match="app 'shop' has no workflow or step named 'fulfil' in this test; import"
        ):
            run.result()


def test_a_workflow_defined_inside_the_block_works(app: App) -> None:
    with TestApp(app):

        @app.workflow
        def late() -> int:
            return 1

        assert late.start().result() == 1


# -- steps


def test_mocks_stand_in_for_steps(app: App) -> None:
    charge, _, fulfil = order_app(app)
    sent: list[str] = []

    async def fake_notify(text: str) -> None:
        sent.append(text)

    with TestApp(app) as world:
        world.mock(charge, lambda order, amount: f"{order} paid {amount}")
        world.mock("notify", fake_notify)
        run = fulfil.start("o1")
        run.send("approval", True)
        assert run.result() == "o1 paid 12"
        assert sent == ["approved o1 paid 12"]
        world.mock(charge, "a value")
        run = fulfil.start("o2")
        run.send("approval", False)
        assert run.result() == "refused"


def test_a_mock_may_be_sync_for_an_async_step_and_the_other_way_round(app: App) -> None:
    @app.step
    async def awaited() -> str:
        return "real"

    @app.step
    def plain() -> str:
        return "real"

    async def fake() -> str:
        return "async mock"

    @app.workflow
    async def flow() -> list[str]:
        return [await awaited(), plain()]

    with TestApp(app) as world:
        world.mock(awaited, lambda: "sync mock")
        world.mock(plain, fake)
        assert flow.start().result() == ["sync mock", "async mock"]


def test_a_mock_knows_which_step_it_stands_in_for(app: App) -> None:
    @app.step(max_retries=1)
    def work() -> int:
        return 0

    def fake() -> int:
        if this_step.attempt == 1:
            raise OSError("once")
        wf.set_data("by", "mock")
        return this_step.attempt

    with TestApp(app) as world:
        world.mock(work, fake)
        run = work.start()
        assert run.result() == 2
        assert run.data == {"by": "mock"}


def test_mocks_are_gone_after_the_block(app: App) -> None:
    @app.step
    def work() -> str:
        return "real"

    with TestApp(app) as world:
        world.mock(work, "mock")
        assert work.start().result() == "mock"
    with TestApp(app):
        assert work.start().result() == "real"


def test_the_nth_call_of_a_step_can_be_made_to_fail(app: App) -> None:
    charge, notify, fulfil = order_app(app)
    with TestApp(app) as world:
        world.mock(charge, "paid")
        world.mock(notify, None)
        world.fail(charge, ConnectionError("down"))
        world.fail(charge, ConnectionError("down again"), call=2)
        begin = world.now
        run = fulfil.start("o1")
        run.send("approval", True)
        assert run.result() == "paid"
        assert len(world.calls(charge)) == 3
        assert (world.now - begin) == dt.timedelta(days=1, minutes=2)
        assert [str(e.detail["error"]) for e in run.history() if e.kind == "StepRetrying"] == ["down", "down again"]
        world.fail(charge, ValueError("once more"), call=1)
        run = fulfil.start("o2")
        run.send("approval", False)
        assert run.result() == "refused"
        assert len(world.calls(charge)) == 5


def test_calls_show_the_arguments_of_each_execution(app: App) -> None:
    @app.step
    def work(a: int, b: str = "x", *, c: float = 0.0) -> None: ...

    @app.workflow
    def flow() -> None:
        work(1)
        work(2, b="y")
        work(3, c=1.5)

    with TestApp(app) as world:
        flow.start().result()
        assert world.calls(work) == [(1,), (2, "y"), (3, 1.5)]
        assert world.calls("work") == world.calls(work)


def test_a_step_that_is_not_there_cannot_be_mocked(app: App) -> None:
    charge, _, _ = order_app(app)
    assert charge.name == "charge"
    with TestApp(app) as world:
        with pytest.raises(
            UnknownNameError, match="no workflow or step named 'chrage' in app 'shop'; known: charge, ful"
        ):
            world.mock("chrage", None)
        with pytest.raises(UnknownNameError):
            world.calls("chrage")
        with pytest.raises(UnknownNameError):
            world.fail("chrage", OSError())


def parent_and_child(app: App) -> tuple[Any, Any]:
    @app.workflow
    async def ship(order: str, *, express: bool = False) -> int:
        raise AssertionError("the child's own code is not executed")

    @app.workflow
    async def fulfil(order: str) -> int:
        try:
            return await ship(order, express=True)
        except OSError:
            return await ship(order) + 100

    return fulfil, ship


def test_a_parent_is_tested_apart_from_its_children(app: App) -> None:
    fulfil, ship = parent_and_child(app)
    executed = []
    with TestApp(app) as world:
        world.mock(ship, lambda order, express=False: executed.append(order) or 7)
        assert fulfil.start("a").result() == 7
        world.fail(ship, OSError("no truck"))
        assert fulfil.start("b").result() == 107
        assert world.calls("ship") == [("a", True), ("b", True), ("b",)]
        assert [call.kwargs for call in world.calls(ship)] == [{"express": True}, {"express": True}, {}]
        world.mock("ship", 9)
        assert ship.start("c").result() == 9
        assert fulfil.start("d").result() == 9
    assert executed == ["a", "b"]  # also when the block ends, where all runs are replayed
    with TestApp(app, check_replay=False), pytest.raises(AssertionError, match="the child's own code"):
        fulfil.start("e").result()


def test_the_mock_of_a_workflow_has_to_return_what_its_annotation_says(app: App) -> None:
    fulfil, ship = parent_and_child(app)
    with TestApp(app) as world:
        world.mock(ship, "soon")
        with pytest.raises(EncodeError, match="expected int, got 'soon'"):
            fulfil.start("a").result()


def test_a_workflow_has_to_return_what_its_annotation_says(app: App) -> None:
    @app.workflow
    async def flow() -> int:
        return "3"  # type: ignore[return-value]

    @app.workflow
    def plain(ok: bool) -> list[int]:
        return [1] if ok else ["1"]  # type: ignore[list-item]

    with TestApp(app):
        with pytest.raises(
            EncodeError, match="the result of workflow 'flow': expected int, got '3' of type str; return what"
        ):
            flow.start().result()
        with pytest.raises(EncodeError, match="expected int"):
            plain.start(False).result()
        assert plain.start(True).result() == [1]


def test_what_is_elsewhere_can_be_mocked(app: App) -> None:
    bill = app.remote("bill")
    with TestApp(app) as world:
        world.mock(bill, lambda order, total: {"order": order, "total": total})
        assert bill.start("a", total=3).result() == {"order": "a", "total": 3}
        assert world.calls(bill) == [("a", 3)]


def test_functions_that_are_steps_of_a_dag_or_a_saga_are_mocked_as_they_are(app: App) -> None:
    etl, trip = Dag("etl", app=app), Saga("trip", app=app)

    @etl.step
    def fetch(day: str) -> list[int]:
        raise AssertionError("nothing is fetched in tests")

    @etl.step(depends_on=["fetch"], max_retries=1)
    def load(fetch: list[int]) -> int:
        return sum(fetch)

    def book(to: str) -> str:
        return f"flight to {to}"

    def cancel(result: str) -> None:
        raise AssertionError("nothing is cancelled in tests")

    trip.add_step("flight", book, cancel)
    trip.add_step("hotel", boom, max_retries=0)
    with TestApp(app) as world:
        world.mock(fetch, lambda day: [1, 2])
        world.fail(load, OSError("busy"))
        assert etl.start({"day": "today"}).result() == {"day": "today", "fetch": [1, 2], "load": 3}
        assert world.calls(fetch) == world.calls("etl.fetch") == [("today",)]
        assert len(world.calls(load)) == 2
        world.mock(cancel, None)
        with pytest.raises(SagaFailed):
            trip.start({"to": "Rome"}).result()
        assert world.calls(cancel) == [("flight to Rome",)]


def test_a_function_of_several_steps_is_mocked_by_the_name_of_one(app: App) -> None:
    def fetch() -> int:
        return 1

    Dag("daily", app=app).add_step("fetch", fetch)
    Dag("weekly", app=app).add_step("fetch", fetch)
    with TestApp(app) as world:
        with pytest.raises(ArgumentError, match=r"the one you mean: 'daily\.fetch' or 'weekly\.fetch'"):
            world.mock(fetch, 2)
        with pytest.raises(ArgumentError, match=r"known steps: daily\.fetch, weekly\.fetch"):
            world.calls(boom)
        world.mock("weekly.fetch", 2)
        assert app.start("weekly", {}).result() == {"fetch": 2}


def test_a_workflow_is_mocked_before_its_first_run(app: App) -> None:
    _, ship = parent_and_child(app)
    with TestApp(app) as world:
        with pytest.raises(ArgumentError, match="workflow 'ship' isn't mocked"):
            world.calls(ship)
        ship.start("a")
        with pytest.raises(ArgumentError, match="has runs of it already"):
            world.mock(ship, 3)


def test_calls_tell_which_arguments_were_given_by_name(app: App) -> None:
    @app.step
    def charge(order: str, *, currency: str = "EUR", note: str = "") -> None: ...

    @app.workflow
    def flow() -> None:
        charge("a", note="x")
        charge("a", currency="x")

    with TestApp(app) as world:
        flow.start().result()
        first, second = world.calls(charge)
        assert (first.args, first.kwargs) == (("a",), {"note": "x"})
        assert (second.args, second.kwargs) == (("a",), {"currency": "x"})
        assert repr([first, second]) == "[('a', note='x'), ('a', currency='x')]"


def test_what_cannot_be_mocked_or_made_to_fail_is_refused(app: App) -> None:
    charge, _, fulfil = order_app(app)
    wrong: Any = len
    with TestApp(app) as world:
        for ask in (lambda: world.mock(wrong, 3), lambda: world.calls(wrong), lambda: world.fail(wrong, OSError())):
            with pytest.raises(ArgumentError, match="<built-in function len>: give a step or workflow of the app"):
                ask()
        for call in (0, -1, True, "1"):
            with pytest.raises(ArgumentError, match="counted from 1"):
                world.fail(charge, OSError(), call=call)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="give an exception"):
            world.fail(charge, "down")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="give an exception"):
            world.fail(charge, OSError)  # type: ignore[arg-type]
        run = fulfil.options(id="o").start("a")
        world.settle()
        assert world.kinds("o") == world.kinds(run)


# -- histories


def test_history_can_be_asserted_on(app: App) -> None:
    charge, notify, fulfil = order_app(app)
    with TestApp(app) as world:
        world.mock(charge, "paid")
        world.mock(notify, None)
        run = fulfil.start("o1")
        world.advance("1d")
        run.send("approval", True)
        run.result()
        assert world.kinds(run) == [
            "RunStarted", "StepCompleted", "TimerFired", "HookOpened", "HookReceived", "StepCompleted", "RunCompleted",
        ]  # fmt: skip
        assert [(step.name, step.state) for step in run.steps] == [
            ("charge", StepState.SUCCESS),
            ("notify", StepState.SUCCESS),
        ]


def test_code_that_is_not_deterministic_is_found_at_the_end_of_the_block(app: App) -> None:
    calls: list[int] = []

    @app.step
    def one() -> None: ...

    @app.step
    def two() -> None: ...

    @app.workflow
    def flow() -> None:
        calls.append(1)
        one() if len(calls) % 2 else two()

    with pytest.raises(NondeterminismError, match="the history has step 'one', the code asks for step 'two'") as caught:
        with TestApp(app):
            flow.start().result()
    assert f"{__file__}:" in str(caught.value)
    assert "keep the old one: name='one'. Otherwise the code decides by something that is not recorded" in str(
        caught.value
    )


def test_arguments_that_change_on_replay_are_found_too(app: App) -> None:
    calls: list[int] = []

    @app.step
    def work(n: int) -> None: ...

    @app.workflow
    def flow() -> None:
        calls.append(1)
        work(len(calls))

    with pytest.raises(NondeterminismError, match=r"step 'work' .*\[1\].* step 'work' .*\[2\]"):
        with TestApp(app):
            flow.start().result()


def test_a_result_that_changes_on_replay_is_found_too(app: App) -> None:
    calls: list[int] = []

    @app.workflow
    def flow() -> int:
        calls.append(1)
        return len(calls)

    with pytest.raises(NondeterminismError, match="returns something else on replay"):
        with TestApp(app):
            flow.start().result()


def test_the_check_can_be_left_out(app: App) -> None:
    calls: list[int] = []

    @app.workflow
    def flow() -> int:
        calls.append(1)
        return len(calls)

    with TestApp(app, check_replay=False):
        flow.start().result()


def test_replay_checks_one_run_against_the_code_as_it_is_now(app: App) -> None:
    deployed: list[bool] = []

    @app.step
    def work() -> None: ...

    @app.step
    def more() -> None: ...

    @app.workflow
    async def flow() -> None:
        work()
        if deployed:
            more()
        await hook("go")

    with TestApp(app, check_replay=False) as world:
        run = flow.start()
        world.settle()
        world.replay(run)
        deployed.append(True)
        with pytest.raises(NondeterminismError, match="the history has hook 'go'"):
            world.replay(run.id)


def test_a_run_that_has_ended_replays_the_old_way_of_a_change_made_since(app: App) -> None:
    deployed: list[bool] = []

    @app.step
    def work() -> int:
        return 1

    @app.workflow
    async def flow() -> int:
        done = work()
        if deployed and wf.patched("twice"):
            done += work()
        return done

    with TestApp(app, check_replay=False) as world:
        old = flow.start()
        assert old.result() == 1
        deployed.append(True)
        new = flow.start()
        assert new.result() == 2
        for run in (old, new):
            world.replay(run)


def test_an_engine_that_broke_is_reported_instead_of_waiting_for_ever(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("never")

    with pytest.raises(RuntimeError, match="the engine of this TestApp has failed") as caught:
        with TestApp(app) as world:

            def broken(*args: object) -> None:
                raise ZeroDivisionError("a bug in the engine")

            monkeypatch.setattr(world.engine, "_advance", broken)
            flow.start().result()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_pytest_shows_of_a_failed_run_is_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "from holdfast import App, hook\n"
        "from holdfast.testing import TestApp\n"
        "app = App('shop', ':memory:')\n"
        "@app.workflow\n"
        "async def breaks(): raise ValueError('no such order')\n"
        "@app.workflow\n"
        "async def waits(): await hook('never')\n"
        "def test_it():\n"
        "    with TestApp(app): breaks.start().result()\n"
        "def test_async():\n"
        "    import asyncio\n"
        "    async def main():\n"
        "        async with TestApp(app): await breaks.start()\n"
        "    asyncio.run(main())\n"
        "def test_waiting():\n"
        "    with TestApp(app): waits.start().result()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_shop.py"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120).stdout
    assert "3 failed" in shown
    assert shown.count("no such order") >= 2
    inside = [line for line in shown.splitlines() if re.search(r"holdfast/(api|blocking|testing)\S*:\d+: ", line)]
    assert inside == []


def test_who_does_not_want_to_wait_lets_no_time_pass(app: App) -> None:
    @app.workflow
    async def asks() -> str:
        answer: str = await hook("approval", timeout="2d")
        return answer

    with TestApp(app) as world:
        begun = world.now
        run = asks.start()
        world.settle()
        world.notifier.watch = lambda run_id: pytest.fail("nobody waits")  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(WaitTimeoutError):
                run.result(timeout=0)
            with pytest.raises(WaitTimeoutError):
                asyncio.run(run.aresult(timeout=0))
        del world.notifier.watch
        assert world.now == begun
        run.send("approval", "yes")
        assert run.result() == "yes"
