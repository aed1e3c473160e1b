"""Domain events that runs and others emit, and the runs that they start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from waiting import wait_until

from holdfast import App, DefinitionError, EncodeError, RetryableError, Run, WrongContextError, emit, sleep, use, wf
from holdfast.testing import TestApp


@dataclass
class Payment:
    order: str
    amount: Decimal
    currency: str = "EUR"


def runs_of(app: App, workflow: str) -> list[Run[Any]]:
    return list(reversed(app.runs(workflow=workflow)))


def results_of(app: App, workflow: str) -> list[Any]:
    return [run.result() for run in runs_of(app, workflow)]


def test_an_event_from_outside_starts_what_listens_with_the_payload(app: App) -> None:
    @app.on("PaymentCompleted")
    @app.workflow
    async def ship(payment: Payment) -> str:
        return f"{payment.order}: {payment.amount + 1}"

    @app.on("PaymentCompleted")
    @app.step
    def mail(payment: dict[str, Any]) -> str:
        return str(payment)

    with TestApp(app) as world:
        event = app.emit("PaymentCompleted", {"order": "o-1", "amount": "9.90"})
        world.settle()
        assert results_of(app, "ship") == ["o-1: 10.90"]
        assert len(results_of(app, "mail")) == 1
        assert event.startswith("evt-")


def test_what_is_decorated_stays_what_it_was(app: App) -> None:
    @app.on("A")
    @app.on("B", where={"n": 1})
    @app.step
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    with TestApp(app):
        assert double.start(5).result() == 10


def test_a_handler_may_take_nothing(app: App) -> None:
    @app.on("Tick")
    @app.workflow
    def tock() -> str:
        return "tock"

    with TestApp(app) as world:
        app.emit("Tick", {"n": 1})
        world.settle()
        assert results_of(app, "tock") == ["tock"]


def test_a_handler_is_given_the_resources_that_it_asks_for(app: App) -> None:
    @app.resource
    def ledger() -> Iterator[list[int]]:
        yield [10]

    @app.on("Paid")
    @app.step
    def book(amount: int, entries: list[int] = use(ledger)) -> int:
        return amount + entries[0]

    with TestApp(app) as world:
        app.emit("Paid", 5)
        world.settle()
        assert results_of(app, "book") == [15]


def test_the_same_key_again_is_the_same_event(app: App) -> None:
    @app.on("Paid")
    @app.workflow
    async def ship(n: int) -> int:
        return n

    with TestApp(app) as world:
        first = app.emit("Paid", 1, key="order-17")
        assert app.emit("Paid", 2, key="order-17") == first
        other = app.emit("Paid", 3, key="order-18")
        assert other != first
        world.settle()
        assert app.emit("Paid", 4, key="order-17") == first
        world.settle()
        assert sorted(results_of(app, "ship")) == [1, 3]


def test_events_are_emitted_from_async_code(app: App) -> None:
    @app.on("Paid")
    @app.workflow
    async def ship(n: int) -> int:
        return n

    async def main() -> None:
        async with TestApp(app) as world:
            await app.aemit("Paid", 1)
            await world.asettle()
            assert [await run for run in await app.aruns(workflow="ship")] == [1]

    asyncio.run(main())


def test_a_workflow_emits_once_however_often_it_is_replayed(app: App) -> None:
    @app.step(max_retries=0)
    async def work() -> None: ...

    @app.workflow
    async def order() -> list[str]:
        first = await emit("Stage", "begun")
        await work()
        await sleep("1d")
        second = wf.emit("Stage", "over")
        return [first, second]

    @app.on("Stage")
    @app.workflow
    def note(stage: str) -> str:
        return stage

    with TestApp(app) as world:
        run = order.start()
        assert len(set(run.result())) == 2
        world.settle()
        assert results_of(app, "note") == ["begun", "over"]
        assert world.kinds(run).count("EventEmitted") == 2


def test_the_same_payload_twice_is_two_events(app: App) -> None:
    @app.workflow
    def order() -> None:
        for _ in range(3):
            wf.emit("Tick")

    @app.on("Tick")
    @app.workflow
    def count() -> None: ...

    with TestApp(app) as world:
        order.start().result()
        world.settle()
        assert len(runs_of(app, "count")) == 3


def test_a_workflow_that_is_retried_emits_only_what_it_had_not(app: App) -> None:
    @app.workflow(max_retries=2)
    async def order() -> int:
        await emit("Stage", "begun")
        await emit("Stage", "begun")
        if wf.attempt < 3:
            raise RuntimeError("again")
        await emit("Stage", "over")
        return wf.attempt

    @app.on("Stage")
    @app.workflow
    def note(stage: str) -> str:
        return stage

    with TestApp(app) as world:
        assert order.start().result() == 3
        world.settle()
        assert sorted(results_of(app, "note")) == ["begun", "begun", "over"]


def test_each_round_of_a_run_that_continues_as_new_emits(app: App) -> None:
    @app.workflow
    async def rounds(left: int) -> None:
        await emit("Round")
        if left:
            wf.continue_as_new(left - 1)

    @app.on("Round")
    @app.workflow
    def count() -> None: ...

    with TestApp(app) as world:
        rounds.start(3).result()
        world.settle()
        assert len(runs_of(app, "count")) == 4


def test_a_fork_does_not_repeat_what_its_past_has_emitted(app: App) -> None:
    @app.step
    def work(n: int) -> int:
        return n

    @app.workflow
    def order() -> int:
        wf.emit("Begun")
        n = work(1)
        wf.emit("Worked", n)
        return n

    @app.on("Begun")
    @app.workflow
    def begun() -> None: ...

    @app.on("Worked")
    @app.workflow
    def worked(n: int) -> int:
        return n

    with TestApp(app) as world:
        run = order.start()
        run.result()
        seq = next(event.seq for event in run.history() if event.kind == "StepCompleted")
        run.fork(seq, replace={seq: 2}).result()
        world.settle()
        assert len(runs_of(app, "begun")) == 1
        assert sorted(results_of(app, "worked")) == [1, 2]


# -- steps


@pytest.mark.parametrize("plain", [True, False])
def test_a_step_emits_when_its_attempt_has_succeeded_and_not_before(app: App, plain: bool) -> None:
    attempts: list[int] = []

    if plain:

        @app.step(retry_delay=0)
        def charge(n: int) -> int:
            attempts.append(n)
            wf.emit("Charged", {"try": len(attempts)})
            if len(attempts) < 3:
                raise RetryableError("again")
            return n

    else:

        @app.step(retry_delay=0)
        async def charge(n: int) -> int:
            attempts.append(n)
            await emit("Charged", {"try": len(attempts)})
            if len(attempts) < 3:
                raise RetryableError("again")
            return n

    @app.workflow
    async def order() -> int:
        return charge(7) if plain else await charge(7)

    @app.on("Charged")
    @app.workflow
    def note(payload: dict[str, int]) -> int:
        return payload["try"]

    with TestApp(app) as world:
        assert order.start().result() == 7
        world.settle()
        assert results_of(app, "note") == [3]


def test_a_step_that_fails_has_emitted_nothing(app: App) -> None:
    @app.step(max_retries=0)
    def charge() -> None:
        app.emit("Charged")
        raise ValueError("no")

    @app.on("Charged")
    @app.workflow
    def note() -> None: ...

    with TestApp(app) as world:
        with pytest.raises(ValueError, match="no"):
            charge.start().result()
        world.settle()
        assert runs_of(app, "note") == []


def test_what_the_app_emits_in_a_step_is_held_like_the_steps_own(app: App) -> None:
    def helper(n: int) -> str:
        return app.emit("Charged", n)

    @app.step
    async def charge() -> list[str]:
        return [helper(1), await app.aemit("Charged", 2)]

    @app.on("Charged")
    @app.workflow
    def note(n: int) -> int:
        return n

    with TestApp(app) as world:
        run = charge.start()
        ids = run.result()
        world.settle()
        assert results_of(app, "note") == [1, 2]
        assert [app.store.domain_event(id).run_id for id in ids] == [run.id, run.id]


def test_many_events_of_one_step_all_arrive(app: App) -> None:
    @app.step
    def burst(n: int) -> None:
        for i in range(n):
            wf.emit("Item", i)

    @app.on("Item")
    @app.workflow(durable=False)
    def take(i: int) -> int:
        return i

    with TestApp(app) as world:
        burst.start(450).result()
        world.settle()
        assert sorted(run.result() for run in app.runs(workflow="take", limit=1000)) == list(range(450))


# -- where


@pytest.mark.parametrize(
    ("where", "payload", "starts"),
    [
        ({"currency": "EUR"}, {"currency": "EUR", "n": 1}, True),
        ({"currency": "EUR"}, {"currency": "USD"}, False),
        ({"currency": "EUR"}, {}, False),
        ({"currency": "EUR"}, "EUR", False),
        ({"customer.tier": "gold"}, {"customer": {"tier": "gold"}}, True),
        ({"customer.tier": "gold"}, {"customer": ["gold"]}, False),
        ({"n": 2}, {"n": 2.0}, True),
        ({"n": 1}, {"n": True}, False),
        ({"n": True}, {"n": 1}, False),
        ({"n": True}, {"n": True}, True),
        ({"gone": None}, {"gone": None}, True),
        ({"gone": None}, {}, False),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, False),
        ({"amount": "9.90"}, Payment("o", Decimal("9.90")), True),
        ({"n": "1"}, {"n": 1}, False),
        ({}, None, True),
    ],
)
def test_where_compares_with_the_payloads_json(app: App, where: Any, payload: Any, starts: bool) -> None:
    app.codec.types.learn_hint(Payment)

    @app.on("It", where=where)
    @app.workflow
    def take(payload: Any) -> None: ...

    with TestApp(app) as world:
        app.emit("It", payload)
        world.settle()
        assert len(runs_of(app, "take")) == int(starts)


def test_several_conditions_on_one_function_start_it_once(app: App) -> None:
    @app.on("Paid", where={"currency": "EUR"})
    @app.on("Paid", where={"big": True})
    @app.on("Refunded")
    @app.workflow
    def note(payload: dict[str, Any]) -> Any:
        return payload["n"]

    with TestApp(app) as world:
        app.emit("Paid", {"currency": "EUR", "big": True, "n": 1})
        app.emit("Paid", {"currency": "USD", "big": True, "n": 2})
        app.emit("Paid", {"currency": "USD", "n": 3})
        app.emit("Refunded", {"n": 4})
        world.settle()
        assert sorted(results_of(app, "note")) == [1, 2, 4]


# -- what is refused


@pytest.mark.parametrize(
    "where",
    ["EUR", {1: 2}, {"a..b": 1}, {"": 1}, {"a": [1]}, {"a": {}}, {"a": float("nan")}, {"a": 2**64}, {"a": "\ud800"}],
)
def test_what_can_never_be_matched_is_refused(app: App, where: Any) -> None:
    with pytest.raises(DefinitionError, match="'Paid'"):
        app.on("Paid", where=where)


@pytest.mark.parametrize("name", ["", "two words", "x" * 201, 5, "run.started", "step.done"])
def test_names_that_are_none_are_refused(app: App, name: Any) -> None:
    with pytest.raises(DefinitionError, match="event"):
        app.on(name)


@pytest.mark.parametrize("name", ["", "run.failed", "run.mine"])
def test_names_that_are_not_ours_to_emit_are_refused(app: App, name: str) -> None:
    with pytest.raises(DefinitionError, match="event"):
        app.emit(name)
    with pytest.raises(DefinitionError, match="event"):
        asyncio.run(emit(name))


@pytest.mark.parametrize("key", ["", 5, "x" * 201, "two\nlines"])
def test_keys_that_are_none_are_refused(app: App, key: Any) -> None:
    with pytest.raises(DefinitionError, match="key"):
        app.emit("Paid", key=key)


def test_a_payload_that_can_not_be_recorded_is_refused_at_the_call(app: App) -> None:
    with pytest.raises(EncodeError, match="the payload of event 'Paid'"):
        app.emit("Paid", object())


def test_on_goes_above_a_step_or_workflow_of_this_app_that_takes_one_argument(app: App, other: App) -> None:
    with pytest.raises(DefinitionError, match="goes above"):

        @app.on("Paid")
        def plain() -> None: ...

    @other.step
    def theirs(payload: Any) -> None: ...

    with pytest.raises(DefinitionError, match="belongs to app 'warehouse'"):
        app.on("Paid")(theirs)
    with pytest.raises(DefinitionError, match="one argument"):

        @app.on("Paid")
        @app.step
        def two(a: int, b: int) -> None: ...


def test_outside_a_run_emit_does_nothing_and_says_so(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.step
    async def charge(n: int) -> int:
        await emit("Charged", n)
        wf.emit("Charged", n)
        return n

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(charge(3)) == 3
    assert "app.emit" in caplog.text


def test_the_app_of_another_run_refuses_to_emit(app: App, other: App) -> None:
    @app.workflow
    def order() -> None:
        other.emit("Paid")

    with TestApp(app):
        with pytest.raises(WrongContextError, match="belongs to app 'shop'"):
            order.start().result()


def test_a_payload_that_does_not_fit_the_annotation_fails_the_run_that_gets_it(app: App) -> None:
    @app.on("Paid")
    @app.workflow
    async def ship(payment: Payment) -> None: ...

    with TestApp(app) as world:
        app.emit("Paid", 5)
        world.settle()
        (run,) = runs_of(app, "ship")
        with pytest.raises(Exception, match="payment"):
            run.result()


def test_an_event_that_is_emitted_before_there_ever_was_a_worker_reaches_what_the_emitter_declares(app: App) -> None:
    @app.on("PaymentCompleted", where={"currency": "EUR"})
    @app.workflow
    async def ship(payment: Payment) -> str:
        return payment.order

    app.emit("PaymentCompleted", Payment("o-1", Decimal(1)))
    app.emit("PaymentCompleted", Payment("o-2", Decimal(1), "USD"))
    app.emit("PaymentCompleted", Payment("o-3", Decimal(1)))
    with app.worker():
        wait_until(lambda: len(runs_of(app, "ship")) == 2)
        assert [run.result(timeout=20) for run in runs_of(app, "ship")] == ["o-1", "o-3"]
