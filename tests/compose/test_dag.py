"""DAGs: what runs, what is skipped, what each step sees, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    Dag,
    DagFailed,
    DefinitionError,
    DuplicateNameError,
    FatalError,
    RunCancelledError,
    Saga,
    SagaFailed,
    WorkflowTimeoutError,
    group,
    hook,
    sleep,
    this_step,
)
from holdfast.testing import TestApp

pytestmark = pytest.mark.parametrize("app", ["sqlite"], indirect=True)


def boom(*_: Any) -> Any:
    raise ValueError("boom")


def failure_of(run: Any) -> DagFailed:
    with pytest.raises(DagFailed) as caught:
        run.result()
    return caught.value


def states(run: Any) -> dict[str, str]:
    return {step.key: str(step.status) for step in run.steps}


# -- results and context


def test_the_result_is_the_context_with_each_finished_step(app: App) -> None:
    @app.step
    def charge(validate: dict[str, Any], amount: int) -> str:
        return f"{amount} with {validate['card']}"

    @app.workflow
    async def ship(order: str, charge: str, express: bool = False) -> str:
        await sleep("1d")
        return f"shipped {order} for {charge}, {express}"

    dag = Dag("order-processing", app=app)
    dag.add_step("validate", lambda ctx: {"card": "visa", "seen": sorted(ctx)})
    dag.add_step("charge", charge, depends_on=["validate"])
    dag.add_step("ship", ship, depends_on=["charge"])

    @dag.step(depends_on=["validate"])
    async def reserve(order: str) -> str:
        return f"reserved {order}"

    @dag.step(depends_on=["ship", "reserve"])
    def notify(context: dict[str, Any]) -> list[str]:
        return sorted(context)

    with TestApp(app):
        run = dag.start({"order": "o1", "amount": 7})
        assert run.result() == {
            "order": "o1",
            "amount": 7,
            "validate": {"card": "visa", "seen": ["amount", "order"]},
            "charge": "7 with visa",
            "ship": "shipped o1 for 7 with visa, False",
            "reserve": "reserved o1",
            "notify": ["amount", "charge", "order", "reserve", "ship", "validate"],
        }
        assert run.workflow == "order-processing"
        step = run.steps["charge"]
        assert (step.status, step.attempts, step.result, step.error) == ("SUCCESS", 1, "7 with visa", None)
        assert (step.name, run.steps["notify"].name) == ("charge", "order-processing.notify")
        assert run.steps["ship"].child_run_id
    assert asyncio.run(reserve("plain")) == "reserved plain"


@dataclass
class Order:
    id: str
    items: list[str]


def test_values_keep_their_types_on_the_way(app: App) -> None:
    def fetch(id: str) -> Order:
        return Order(id, ["tea", "cup"])

    def count(fetch: Order, ctx: dict[str, Any]) -> int:
        assert isinstance(fetch, Order)
        return len(fetch.items)

    dag = Dag("typed", app=app)
    dag.add_step("fetch", fetch)
    dag.add_step("count", count, depends_on=["fetch"], condition=lambda ctx: isinstance(ctx["fetch"], Order))
    with TestApp(app):
        assert dag.start({"id": "7"}).result()["count"] == 2


def test_a_step_sees_what_it_comes_after_and_nothing_else(app: App) -> None:
    dag = Dag("sight", app=app)
    dag.add_step("a", lambda: 1)
    dag.add_step("b", lambda a: a + 1, depends_on=["a"])
    dag.add_step("aside", lambda: 5)
    dag.add_step("c", lambda ctx: ctx, depends_on=["b"])
    with TestApp(app):
        assert dag.start({"x": 0}).result()["c"] == {"x": 0, "a": 1, "b": 2}


@pytest.mark.parametrize("kind", [Dag, Saga])
def test_what_a_lambda_gives_to_be_awaited_is_awaited(app: App, kind: type[Dag | Saga]) -> None:
    """In a run and in a plain call alike: a function, a step, and something that fails only when it is awaited."""

    async def charge(order: str) -> str:
        await asyncio.sleep(0)
        return f"{order} is paid, attempt {this_step.attempt}"

    @app.step
    async def ship(order: str) -> str:
        return f"{order} is sent"

    async def fail() -> None:
        raise FatalError("no more stamps")

    good = kind("good", app=app).add_step("charge", lambda order: charge(order))
    good.add_step("ship", lambda ctx: ship(ctx["order"]))
    bad = kind("bad", app=app).add_step("stamp", lambda ctx: fail())
    told = {"order": "o", "charge": "o is paid, attempt 1", "ship": "o is sent"}
    with TestApp(app):
        assert good.start({"order": "o"}).result() == told
        with pytest.raises((DagFailed, SagaFailed), match="no more stamps"):
            bad.start({}).result()
    assert asyncio.run(good({"order": "o"})) == told
    with pytest.raises((DagFailed, SagaFailed), match="no more stamps"):
        asyncio.run(bad({}))


def test_a_compensation_that_a_lambda_gives_to_be_awaited_is_awaited(app: App) -> None:
    refunded = []

    async def refund(payment: str) -> None:
        refunded.append(payment)

    async def book() -> None:
        raise FatalError("full")

    saga = Saga("trip", app=app)
    saga.add_step("pay", lambda: "p1", lambda ctx: refund(ctx["pay"]))
    saga.add_step("book", lambda: book())
    with TestApp(app), pytest.raises(SagaFailed, match="Compensated: pay"):
        saga.start({}).result()
    with pytest.raises(SagaFailed, match="Compensated: pay"):
        asyncio.run(saga({}))
    assert refunded == ["p1", "p1"]


def test_what_a_lambda_awaits_is_cancelled_with_its_step(app: App) -> None:
    """Else it would go on beside the next attempt, and after the end of all."""
    ends: list[str] = []

    async def charge(order: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ends.append(order)
            raise

    dag = Dag("late", app=app)
    dag.add_step("charge", lambda order: charge(order), timeout="100ms", max_retries=1, retry_delay="10ms")
    begun = threading.Event()
    other = Dag("cancelled", app=app).add_step("charge", lambda order: begun.set() or charge(order))
    with app.worker():
        with pytest.raises(DagFailed, match="took longer than its timeout"):
            dag.start({"order": "late"}).result(timeout=20)
        run = other.start({"order": "cancelled"})
        assert begun.wait(20)
        run.cancel()
        with pytest.raises(RunCancelledError):
            run.result(timeout=20)
        wait_until(lambda: sorted(ends) == ["cancelled", "late", "late"], 20)


class Shop:
    async def _paid(self, order: str) -> str:
        return f"{order} is paid"

    def charge(self, order: str) -> Any:
        return self._paid(order)


def test_methods_and_partial_functions_are_awaited_too(app: App) -> None:
    dag = Dag("methods", app=app)
    dag.add_step("method", Shop().charge)
    dag.add_step("partial", functools.partial(lambda extra, order: Shop().charge(order + extra), "!"))
    with TestApp(app):
        found = dag.start({"order": "o"}).result()
    assert (found["method"], found["partial"]) == ("o is paid", "o! is paid")


def test_large_values_are_recorded_once(app: App) -> None:
    dag = Dag("large", app=app)
    dag.add_step("make", lambda: "x" * 100_000)
    for number in range(10):
        dag.add_step(f"use{number}", lambda make: len(make), depends_on=["make"])
        dag.add_step(f"all{number}", lambda ctx: len(ctx), depends_on=["make"])
    with TestApp(app) as world:
        run = dag.start({})
        assert run.result()["use9"] == 100_000
        recorded = sum(len(payload) for payload in world.store.payloads(run.id))
    assert recorded < 220_000, "once as the result of a step, and once in the result of the run"


def test_results_take_the_place_of_initial_values_of_their_name(app: App) -> None:
    dag = Dag("shadow", app=app)
    dag.add_step("n", lambda: 2)
    dag.add_step("m", lambda n, ctx: (n, ctx["n"]), depends_on=["n"])
    with TestApp(app):
        assert dag.start({"n": 1, "$": "odd"}).result() == {"n": 2, "$": "odd", "m": (2, 2)}
        assert dag.start({"n": 1}).result() == {"n": 2, "m": (2, 2)}


def test_a_step_takes_the_initial_value_of_its_own_name(app: App) -> None:
    dag = Dag("own", app=app)
    dag.add_step("order", lambda order: order.upper())
    dag.add_step("parts", lambda part: part + 1, map_over="parts")
    dag.add_step("ship", lambda order, parts: f"{order} {sum(parts)}", depends_on=["order", "parts"])
    with pytest.raises(ArgumentError, match="step 'order' takes 'order', which is neither in the context nor a step"):
        dag.start({"parts": []})
    with pytest.raises(ArgumentError, match="step 'parts' is mapped over 'parts', which is neither"):
        dag.start({"order": "o-17"})
    context = {"order": "o-17", "parts": [1, 2]}
    expected = {"order": "O-17", "parts": [2, 3], "ship": "O-17 5"}
    assert asyncio.run(dag(context)) == expected
    with TestApp(app):
        assert dag.start(context).result() == expected


# -- order


def test_ready_steps_begin_at_once_and_not_in_waves(app: App) -> None:
    order: list[str] = []
    dag = Dag("branches", app=app)

    async def slow() -> None:
        while "quick3" not in order:
            await asyncio.sleep(0.001)
        order.append("slow")

    def note(name: str) -> Any:
        return lambda: order.append(name)

    dag.add_step("start", note("start"))
    dag.add_step("slow", slow, depends_on=["start"])
    for number in (1, 2, 3):
        before = "start" if number == 1 else f"quick{number - 1}"
        dag.add_step(f"quick{number}", note(f"quick{number}"), depends_on=[before])
    dag.add_step("end", note("end"), depends_on=["slow", "quick3"])
    with app.worker():
        dag.start({}).result(timeout=20)
    assert order == ["start", "quick1", "quick2", "quick3", "slow", "end"]


# -- conditions, run_if, skips


def test_a_condition_that_is_not_met_skips_the_step_and_what_follows(app: App) -> None:
    dag = Dag("skips", app=app)
    dag.add_step("a", lambda: 1)
    dag.add_step("b", lambda a: 2, depends_on=["a"], condition=lambda ctx: ctx["a"] > 1)
    dag.add_step("c", lambda b: 3, depends_on=["b"])
    dag.add_step("d", lambda ctx: 4, depends_on=["c"])
    dag.add_step("end", lambda ctx: sorted(ctx), depends_on=["a", "d"], run_if="none_failed")
    with TestApp(app):
        run = dag.start({})
        assert run.result() == {"a": 1, "end": ["a"]}
        assert states(run) == {"a": "SUCCESS", "b": "SKIPPED", "c": "SKIPPED", "d": "SKIPPED", "end": "SUCCESS"}
        assert run.steps["b"].reason == "its condition is not met"
        assert run.steps["c"].reason == "'b' was skipped"
        assert [event.kind for event in run.history()].count("StepSkipped") == 3


@pytest.mark.parametrize(
    ("run_if", "expected"),
    [
        (
            "all_success",
            {"ok": "SUCCESS", "skip": "SKIPPED", "fail": "SKIPPED", "behind": "SKIPPED", "both": "SKIPPED"},
        ),
        ("all_done", {"ok": "SUCCESS", "skip": "SUCCESS", "fail": "SUCCESS", "behind": "SUCCESS", "both": "SUCCESS"}),
        (
            "any_success",
            {"ok": "SUCCESS", "skip": "SKIPPED", "fail": "SKIPPED", "behind": "SKIPPED", "both": "SUCCESS"},
        ),
        (
            "none_failed",
            {"ok": "SUCCESS", "skip": "SUCCESS", "fail": "SKIPPED", "behind": "SKIPPED", "both": "SKIPPED"},
        ),
    ],
)
def test_run_if_decides_what_follows(app: App, run_if: Any, expected: dict[str, str]) -> None:
    dag = Dag("rules", app=app)
    dag.add_step("ok", lambda: 1)
    dag.add_step("skip", lambda: 1, condition=lambda ctx: False)
    dag.add_step("fail", boom, max_retries=0)
    dag.add_step("behind", lambda: 1, depends_on=["fail"])
    for name in ("ok", "skip", "fail", "behind"):
        dag.add_step(f"after_{name}", lambda: 1, depends_on=[name], run_if=run_if)
    dag.add_step("after_both", lambda: 1, depends_on=["ok", "fail"], run_if=run_if)
    with TestApp(app):
        run = dag.start({})
        error = failure_of(run)
        found = states(run)
        assert {name: found[f"after_{name}"] for name in expected} == expected
        assert list(error.failed) == ["fail"]
        assert repr(error.failed["fail"]) == "ValueError('boom')"
        assert error.skipped == [name for name, state in found.items() if state == "SKIPPED"]
        assert error.results["ok"] == 1
        assert str(error).startswith("dag 'rules' failed at fail (ValueError: boom); skipped: skip, behind")


def test_other_branches_go_on_after_a_failure(app: App) -> None:
    dag = Dag("branches", app=app)
    dag.add_step("bad", boom, max_retries=0)
    dag.add_step("a", lambda: 1)
    dag.add_step("b", lambda a: a + 1, depends_on=["a"])
    with TestApp(app):
        assert failure_of(dag.start({})).results == {"a": 1, "b": 2}


def test_a_condition_that_raises_fails_its_step(app: App) -> None:
    dag = Dag("raising", app=app)
    dag.add_step("a", lambda: 1)
    dag.add_step("b", lambda: 2, depends_on=["a"], condition=lambda ctx: ctx["missing"])
    dag.add_step("c", lambda: 3, depends_on=["b"])
    with TestApp(app):
        run = dag.start({})
        error = failure_of(run)
        assert repr(error.failed["b"]) == "KeyError('missing')"
        assert error.skipped == ["c"]
        assert (run.steps["b"].status, repr(run.steps["b"].error)) == ("FAILURE", "KeyError('missing')")


def test_a_value_that_is_not_there_because_it_was_skipped_fails_the_step_that_needs_it(app: App) -> None:
    dag = Dag("absent", app=app)
    dag.add_step("a", lambda: 1, condition=lambda ctx: False)
    dag.add_step("needs", lambda a: a, depends_on=["a"], run_if="all_done")
    dag.add_step("can_do_without", lambda a=None: a, depends_on=["a"], run_if="all_done")
    with TestApp(app):
        error = failure_of(dag.start({}))
        assert isinstance(error.failed["needs"], ArgumentError)
        assert "takes 'a', which is not in its context" in str(error.failed["needs"])
        assert error.results == {"can_do_without": None}


# -- map_over


def test_map_over_executes_a_step_for_each_element_and_keeps_their_order(app: App) -> None:
    async def fetch(page: int, ctx: dict[str, Any], base: str) -> str:
        await asyncio.sleep(0.02 / page)
        return f"{base}{page}"

    dag = Dag("pages", app=app)
    dag.add_step("pages", lambda: (1, 2, 3))
    dag.add_step("fetch", fetch, map_over="pages")
    dag.add_step("join", lambda fetch: "+".join(fetch), depends_on=["fetch"])
    with TestApp(app):
        run = dag.start({"base": "p"})
        assert run.result()["join"] == "p1+p2+p3"
        assert run.steps["fetch"].result == ["p1", "p2", "p3"]
        assert run.steps["fetch[1]"].result == "p2"
        assert run.steps["fetch[1]"].kwargs["page"] == 2


def test_a_dag_may_have_the_name_of_one_of_its_steps(app: App) -> None:
    dag = Dag("each", app=app)
    dag.add_step("each", lambda n: n + 1, map_over="numbers")
    with TestApp(app):
        run = dag.start({"numbers": [1, 2]})
        assert run.result()["each"] == [2, 3]
        assert run.steps["each"].result == [2, 3]


def test_map_over_takes_initial_values_workflows_and_nothing_at_all(app: App) -> None:
    @app.workflow
    def double(n: int) -> int:
        return 2 * n

    dag = Dag("doubles", app=app)
    dag.add_step("double", double, map_over="numbers")
    dag.add_step("total", lambda double: sum(double), depends_on=["double"])
    with TestApp(app):
        assert dag.start({"numbers": [1, 2]}).result()["double"] == [2, 4]
        run = dag.start({"numbers": []})
        assert run.result() == {"numbers": [], "double": [], "total": 0}
        assert (run.steps["double"].status, run.steps["double"].result) == ("SUCCESS", [])


def test_more_elements_than_may_be_under_way_at_once(app: App) -> None:
    dag = Dag("crowd", app=app)
    dag.add_step("each", lambda n: n + 1, map_over="numbers")
    dag.add_step("total", lambda each: sum(each), depends_on=["each"])
    with TestApp(app, check_replay=False) as world:
        run = dag.start({"numbers": list(range(5_000))})
        assert run.result()["total"] == sum(range(5_001))
        world.replay(run)


def test_a_mapped_step_without_the_other_values_that_it_needs_fails(app: App) -> None:
    dag = Dag("lacking", app=app)
    dag.add_step("base", lambda: 1, condition=lambda ctx: False)
    dag.add_step("each", lambda n, base: n + base, depends_on=["base"], run_if="all_done", map_over="numbers")
    with TestApp(app):
        error = failure_of(dag.start({"numbers": [1, 2]}))
        assert "takes 'base', which is not in its context" in str(error.failed["each"])


def test_a_mapped_step_fails_if_one_of_its_executions_does_and_the_others_finish(app: App) -> None:
    done: list[int] = []

    def half(n: int) -> int:
        if n % 2:
            raise ValueError(f"{n} is odd")
        done.append(n)
        return n // 2

    dag = Dag("halves", app=app)
    dag.add_step("half", half, map_over="numbers", max_retries=0)
    with TestApp(app):
        run = dag.start({"numbers": [2, 3, 4, 5]})
        assert str(failure_of(run).failed["half"]) == "3 is odd"
        assert sorted(done) == [2, 4]
        assert (run.steps["half"].status, run.steps["half[2]"].status) == ("FAILURE", "SUCCESS")


def test_a_step_is_mapped_over_a_list_or_refused(app: App) -> None:
    dag = Dag("halves", app=app)
    dag.add_step("few", lambda few: few, condition=lambda ctx: ctx["few"] is not None)
    dag.add_step("half", lambda n: n // 2, map_over="few", run_if="all_done")
    dag.add_step("third", lambda n: n // 3, map_over="many")
    with pytest.raises(ArgumentError, match="mapped over 'many', which has to be a list or a tuple, and is int: 5"):
        dag.start({"few": [], "many": 5})
    with TestApp(app):
        run = dag.start({"few": 7, "many": [3]})
        assert "and is int: 7" in str(failure_of(run).failed["half"])
        assert run.steps["third"].result == [1]


def test_a_step_that_had_not_begun_when_its_run_ended_is_not_left_pending(app: App) -> None:
    many = Dag("many", app=app)
    many.add_step("nap", app.workflow(name="nap")(_nap), map_over="naps")
    many.add_step("after", lambda: 1, depends_on=["nap"])
    with TestApp(app):
        run = many.options(timeout="1s").start({"naps": [1, 2]})
        with pytest.raises(WorkflowTimeoutError):
            run.result()
        assert {step.key: step.status for step in run.steps} == {
            "nap": "CANCELLED", "nap[0]": "CANCELLED", "nap[1]": "CANCELLED", "after": "SKIPPED"
        }  # fmt: skip
        assert run.steps["after"].reason == "the run ended before its turn"
        cancelled = many.start({"naps": [1]})
        cancelled.cancel()
        with pytest.raises(RunCancelledError):
            cancelled.result()
        assert cancelled.steps["after"].status == "CANCELLED"


async def _nap(n: int) -> None:
    await sleep("1h")


# -- acting on runs


def test_a_retry_executes_only_what_failed_and_was_skipped(app: App) -> None:
    done: list[str] = []
    broken = [True]

    def work(name: str) -> Any:
        def execute(ctx: dict[str, Any]) -> str:
            done.append(name)
            return name

        return execute

    def fragile(n: int) -> int:
        if broken and n == 2:
            raise ValueError("two")
        done.append(f"n{n}")
        return n

    dag = Dag("mended", app=app)
    dag.add_step("a", work("a"))
    dag.add_step("each", fragile, depends_on=["a"], map_over="numbers", max_retries=0)
    dag.add_step("b", work("b"), depends_on=["a"])
    dag.add_step("clean", work("clean"), depends_on=["each"], run_if="all_done")
    dag.add_step("end", work("end"), depends_on=["each", "b"])
    with TestApp(app):
        run = dag.start({"numbers": [1, 2, 3]})
        assert failure_of(run).skipped == ["end"]
        assert states(run)["end"] == "SKIPPED"
        broken.clear()
        run.retry()
        assert run.result()["each"] == [1, 2, 3]
        assert {step.key for step in run.steps if step.reused} == {"a", "b", "each[0]", "each[2]"}
        assert set(states(run).values()) == {"SUCCESS"}
    assert sorted(done) == ["a", "b", "clean", "clean", "end", "n1", "n2", "n3"], "what clean comes after has changed"


def test_a_cancelled_dag_cancels_what_is_under_way(app: App) -> None:
    @app.workflow
    async def ask() -> str:
        return str(await hook("never"))

    dag = Dag("waits", app=app)
    dag.add_step("a", lambda: 1)
    dag.add_step("ask", ask)
    dag.add_step("b", lambda ask: 2, depends_on=["ask"])
    with TestApp(app) as world:
        run = dag.start({})
        world.settle()
        assert states(run) == {"a": "SUCCESS", "ask": "STARTED", "b": "PENDING"}
        run.cancel("enough")
        with pytest.raises(RunCancelledError):
            run.result()
        world.settle()
        assert run.children()[0].status == "CANCELLED"


def test_a_dag_is_a_step_of_another_and_a_child_in_a_workflow(app: App) -> None:
    inner = Dag("inner", app=app)
    inner.add_step("twice", lambda n: 2 * n)
    outer = Dag("outer", app=app)
    outer.add_step("n", lambda: 4)
    outer.add_step("inner", inner, depends_on=["n"])
    outer.add_step("end", lambda inner: inner["twice"], depends_on=["inner"])

    @app.workflow
    async def flow() -> int:
        return int((await inner({"n": 1}))["twice"]) + int((await inner.submit({"n": 2}))["twice"])

    with TestApp(app):
        assert outer.start({}).result()["end"] == 8
        assert flow.start().result() == 6
        assert app.start("inner", {"n": 8}).result()["twice"] == 16


def test_options_of_a_step_apply(app: App) -> None:
    attempts: list[str] = []

    @app.step
    def known() -> None:
        attempts.append("known")
        raise ValueError

    def plain() -> None:
        attempts.append("plain")
        raise ValueError

    dag = Dag("options", app=app)
    dag.add_step("known", known, max_retries=1, retry_delay=1)
    dag.add_step("plain", plain, max_retries=2, retry_delay="1s", timeout="5s")
    with TestApp(app):
        run = dag.start({})
        failure_of(run)
        assert run.steps["plain"].attempts == 3
    assert (attempts.count("known"), attempts.count("plain")) == (2, 3)


def test_a_dag_can_be_retried_as_a_whole(app: App) -> None:
    tries: list[int] = []

    def sometimes() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError
        return len(tries)

    dag = Dag("again", app=app, max_retries=5)
    dag.add_step("a", sometimes, max_retries=0)
    with TestApp(app):
        assert dag.start({}).result() == {"a": 3}


def test_outside_a_run_a_dag_is_a_plain_call(app: App) -> None:
    dag = Dag("plain", app=app)
    dag.add_step("a", lambda n: list(range(n)))
    dag.add_step("b", lambda x: x + 1, map_over="a")
    dag.add_step("c", lambda: 1, depends_on=["a"], condition=lambda ctx: False)
    dag.add_step("d", lambda ctx: sorted(ctx), depends_on=["b", "c"], run_if="all_done")
    assert asyncio.run(dag({"n": 2})) == {"n": 2, "a": [0, 1], "b": [1, 2], "d": ["a", "b", "n"]}
    dag.add_step("e", boom)
    with pytest.raises(DagFailed, match="failed at e"):
        asyncio.run(dag({"n": 2}))


@pytest.mark.parametrize("count", [2_500, pytest.param(10_000, marks=pytest.mark.torture)])
def test_thousands_of_steps_are_no_trouble(app: App, count: int) -> None:
    dag = Dag("many", app=app)
    dag.add_step("source", lambda: 1)
    for number in range(count - 2):
        dag.add_step(f"n{number}", lambda source: source, depends_on=["source"])
    dag.add_step("sink", lambda ctx: len(ctx), depends_on=[f"n{number}" for number in range(count - 2)])
    with TestApp(app, check_replay=False) as world:
        run = dag.start({})
        assert run.result()["sink"] == count - 1
        assert len(run.steps) == count
        recorded = sum(len(payload) for payload in world.store.payloads(run.id))
    assert recorded < count * 500


def test_a_long_chain_needs_no_stack(app: App) -> None:
    dag = Dag("long", app=app)
    dag.add_step("n0", lambda ctx: 0)
    for number in range(1, 1_500):
        dag.add_step(f"n{number}", lambda ctx: len(ctx), depends_on=[f"n{number - 1}"])
    assert dag.to_mermaid().count("-->") == 1_499
    assert dag.to_svg().count("<rect") == 1_500
    with TestApp(app, check_replay=False):
        assert dag.start({}).result()["n1499"] == 1_499


# -- refusals


def test_a_cycle_is_shown(app: App) -> None:
    dag = Dag("circle", app=app)
    dag.add_step("start", lambda: 1)
    dag.add_step("a", lambda: 1, depends_on=["start", "c"])
    dag.add_step("b", lambda: 1, depends_on=["a"])
    dag.add_step("c", lambda: 1, depends_on=["b"])
    for use in (lambda: dag.start({}), dag.to_mermaid, lambda: asyncio.run(dag({}))):
        with pytest.raises(DefinitionError, match="has a cycle: a → b → c → a"):
            use()
    itself = Dag("itself", app=app)
    itself.add_step("a", lambda: 1, depends_on=["a"])
    with pytest.raises(DefinitionError, match="cycle: a → a"):
        itself.start({})


def test_none_is_no_dependencies(app: App) -> None:
    dag = Dag("d", app=app)
    dag.add_step("a", lambda: 1, depends_on=None)
    dag.step(name="b", depends_on=None)(lambda: 2)
    with TestApp(app):
        assert dag.start({}).result() == {"a": 1, "b": 2}


def test_what_cannot_work_is_refused_where_it_is_said(app: App) -> None:
    @app.step
    def known(n: int) -> int:
        return n

    def refused(text: str, error: type[Exception] = DefinitionError) -> Any:
        return pytest.raises(error, match=text)

    dag = Dag("wrong", app=app)
    dag.add_step("a", lambda: 1)
    with refused("has a step 'a' already", DuplicateNameError):
        dag.add_step("a", lambda: 2)
    with refused("run_if='sometimes': give 'all_success', 'all_done'"):
        dag.add_step("b", known, run_if="sometimes")  # type: ignore[arg-type]
    with refused("depends_on='a': give a list"):
        dag.add_step("b", known, depends_on="a")
    with refused("give a plain function"):
        dag.add_step("b", known, condition="yes")  # type: ignore[arg-type]
    with refused("brackets"):
        dag.add_step("b[0]", known)
    with refused("without spaces"):
        dag.add_step("b c", known)
    with refused("is not a function"):
        dag.add_step("b", 5)
    with refused("no parameter for the element"):
        dag.add_step("c", lambda ctx: 1, map_over="a")
    with refused("has no option|there is no option 'retries'"):
        dag.add_step("d", lambda: 1, retries=3)
    with refused("only timeout, max_retries, priority"):
        dag.add_step("e", Dag("other", app=app), queue="x")
    with refused("belongs to another app"):
        dag.add_step("f", App("elsewhere", ":memory:").step(known.__wrapped__))
    with refused("a workflow 'wrong'", DuplicateNameError):
        Dag("wrong", app=app)

    dag.add_step("g", lambda: 1, depends_on=["nowhere"])
    with refused("'g' depends on 'nowhere', which is no step of it; known: a"):
        dag.start({})


def test_a_context_is_checked_however_the_dag_is_started(app: App) -> None:
    dag = Dag("one", app=app)
    dag.add_step("next", lambda n: n + 1)
    for start in (
        lambda: dag.start({}),
        lambda: app.start("one", {}),
        lambda: app.start("one"),
        lambda: dag.s({}).start(),
        lambda: group(dag.s({"n": 1}), dag.s({"m": 1})).start(),
        lambda: (dag.s({"n": 1}) | dag.si()).start(),
    ):
        with pytest.raises(ArgumentError, match="'next' takes 'n', which is neither"):
            start()
    assert app.runs() == []
    with TestApp(app):
        assert (dag.s({"n": 1}) | dag.s()).start().result() == {"n": 1, "next": 2}


def test_handlers_and_conditions_that_are_something_else_are_refused(app: App) -> None:
    @app.step
    def check(ctx: dict[str, Any]) -> bool:
        return True

    dag = Dag("odd", app=app)
    for canvas in (check.s({}), group(check.s({}))):
        with pytest.raises(DefinitionError, match="is a canvas; give the step itself, or a workflow that awaits"):
            dag.add_step("more", canvas)
    for condition in (check, lambda: True, lambda ctx, more: True):
        with pytest.raises(DefinitionError, match="give a plain function of the context"):
            dag.add_step("more", lambda: 1, condition=condition)
    dag.add_step("more", lambda: 1, condition=bool)


def test_a_context_is_one_dict(app: App) -> None:
    dag = Dag("one", app=app)
    dag.add_step("next", lambda n: n + 1)
    with pytest.raises(ArgumentError, match="takes one dict, its context"):
        dag.start(n=1)
    with pytest.raises(ArgumentError, match="takes one dict, its context"):
        dag.start({"n": 1}, 2)


def test_what_cannot_work_is_refused_before_anything_is_written(app: App) -> None:
    dag = Dag("early", app=app)
    dag.add_step("a", lambda: 1)
    dag.add_step("b", lambda order, a: 1, depends_on=["a"])
    with TestApp(app):
        with pytest.raises(ArgumentError, match="step 'b' takes 'order', which is neither in the context nor a step"):
            dag.start({})
        with pytest.raises(ArgumentError, match="give the context as a dict"):
            dag.start("order")
        dag.add_step("c", lambda a: 1)
        with pytest.raises(DefinitionError, match="'c' takes the result of 'a', but doesn't come after it"):
            dag.start({"order": 1})
        assert app.runs() == []


# -- pictures


def test_mermaid_escapes_names_and_shows_what_steps_are(app: App) -> None:
    dag = Dag("drawn", app=app)
    dag.add_step('a"<b>', lambda: [1])
    dag.add_step("cond", lambda: 1, depends_on=['a"<b>'], condition=bool)
    dag.add_step("each", lambda x: x, map_over='a"<b>')
    dag.add_step("end", lambda: 1, depends_on=["cond", "each"], run_if="all_done")
    assert dag.to_mermaid() == (
        "flowchart TD\n"
        '    s0["a#34;#60;b#62;"]\n'
        '    s1{{"cond"}}\n'
        '    s2["each × a#34;#60;b#62;"]\n'
        '    s3["end"]\n'
        "    s0 --> s1\n"
        "    s0 --> s2\n"
        "    s1 -->|all_done| s3\n"
        "    s2 -->|all_done| s3\n"
    )


def test_svg_is_well_formed_and_its_boxes_do_not_overlap(app: App) -> None:
    from xml.etree import ElementTree

    dag = Dag("drawn", app=app)
    names = ['a"<b>&c', "second", "a-much-longer-name", "d", "e"]
    for number, name in enumerate(names):
        dag.add_step(name, lambda ctx: 1, depends_on=names[max(0, number - 2) : number])
    root = ElementTree.fromstring(dag.to_svg())
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in root.iter(f"{space}text")] == names
    boxes = [{key: float(box.get(key, 0)) for key in ("x", "y", "width")} for box in root.iter(f"{space}rect")]
    for one in boxes:
        for other in boxes:
            if one is not other and one["y"] == other["y"]:
                assert one["x"] + one["width"] < other["x"] or other["x"] + other["width"] < one["x"]
    assert len(list(root.iter(f"{space}path"))) == 1 + sum(min(number, 2) for number in range(len(names)))
    empty = ElementTree.fromstring(Dag("empty", app=app).to_svg())
    assert not list(empty.iter(f"{space}rect"))


def test_a_dag_without_steps_gives_its_context_back(app: App) -> None:
    with TestApp(app):
        dag = Dag("nothing", app=app)
    with TestApp(app):
        assert dag.start({"a": 1}).result() == {"a": 1}
        assert dag.start().result() == {}
