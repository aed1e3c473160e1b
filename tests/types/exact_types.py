"""Decorating changes nothing about a function's type. mypy reads this as part of `make check`; nothing runs it."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, NamedTuple, assert_type

from holdfast import (
    App,
    Checkpoint,
    Checkpointed,
    ChildRun,
    Dag,
    HookCall,
    HookDefinition,
    Prefix,
    Range,
    Request,
    RequestDefinition,
    Resource,
    Run,
    RunEvent,
    RunPage,
    RunStep,
    RunSteps,
    Saga,
    Schedule,
    ScheduleInfo,
    Sent,
    StartCall,
    Status,
    StatusEntry,
    Step,
    StepAttempt,
    StepFuture,
    TraceNode,
    Workflow,
    WorkflowAttempt,
    WorkflowIdentity,
    define_hook,
    define_request,
    emit,
    every,
    hook,
    saga,
    shield,
    sleep,
    start_child_workflow,
    step,
    this_step,
    use,
    wait_for_event,
    wf,
    workflow,
)
from holdfast.testing import TestApp


@dataclass
class Order:
    id: str
    total: Decimal


class Receipt(NamedTuple):
    order: Order
    paid: bool


app = App("typed")


# -- defining: with and without parentheses, sync and async, every kind of parameter


@app.step
def price(order: Order, *, currency: str = "EUR") -> Decimal:
    return order.total


@app.step
async def charge(order: Order, amount: Decimal, attempts: int = 3) -> bool:
    return True


@app.step(max_retries=5, retry_delay="exponential", timeout="30s", retry_for=[ConnectionError], pool="process")
def resize(path: str, /, width: int, *rest: int, sharp: bool = False, **tags: str) -> bytes:
    return b""


@app.step(name="notify-user", retry_delay=dt.timedelta(seconds=2), stall_timeout=5, timeout=None, retry_for=OSError)
async def notify(user: str, text: str | None = None) -> None:
    return None


@app.workflow
def quote(order: Order) -> Decimal:
    return price(order, currency="USD")


@app.workflow(max_retries=1, retry_for=(ConnectionError,), timeout="1h", retain=None)
async def fulfil(order: Order, *, express: bool = False) -> Receipt:
    return Receipt(order, True)


@app.workflow(durable=False, retry_delay=["1s", 5, dt.timedelta(minutes=1)])
def tidy() -> None:
    return None


class Resize:
    """A class with `__call__` is called like that method. mypy ignores decorators on classes, so that it sees the
    step only if the decorator is called; other type checkers see both."""

    def __call__(self, path: str, *, width: int = 100) -> bytes:
        return b""


class Fetch:
    async def __call__(self, url: str) -> str:
        return url


resize_class = app.step(Resize)
fetch_class = app.step(timeout="5s")(Fetch)
resize_flow = app.workflow(max_retries=1)(Resize)
fetch_flow = app.workflow(Fetch)


@step
def top_level_step(a: int) -> str:
    return str(a)


@step(max_retries=0)
async def top_level_step_with_options(a: int) -> str:
    return str(a)


@workflow
async def top_level_workflow(a: int = 1) -> list[str]:
    return [top_level_step(a)]


@workflow(name="other")
def top_level_workflow_with_options(a: int = 1) -> list[str]:
    return [top_level_step(a)]


@app.resource
def pool() -> Iterator[list[int]]:
    yield []


@app.resource
async def client(rows: list[int] = use(pool)) -> AsyncIterator[bytes]:
    yield b""


@app.step
def load(x: int, rows: list[int] = use(pool)) -> str:
    return str(rows[x])


@app.step
async def fetch(x: int, *, http: bytes = use(client)) -> str:
    return str(http)


@app.around_step
def traced(attempt: StepAttempt) -> Iterator[None]:
    assert_type(attempt.step, str)
    assert_type(attempt.number, int)
    yield


@app.around_step
async def traced_too(attempt: StepAttempt) -> AsyncIterator[None]:
    yield


# -- calling: a plain call gives the result, an async one is awaited


def plain_calls(order: Order) -> None:
    assert_type(price(order), Decimal)
    assert_type(price(order, currency="USD"), Decimal)
    assert_type(resize("a.png", 10, 1, 2, sharp=True, tag="x"), bytes)
    assert_type(resize("a.png", width=10), bytes)
    _ = assert_type(charge(order, Decimal(1)), Coroutine[None, None, bool])
    assert_type(quote(order), Decimal)
    _ = assert_type(fulfil(order, express=True), Coroutine[None, None, Receipt])
    assert_type(tidy(), None)
    assert_type(resize_class("a.png", width=1), bytes)
    _ = assert_type(fetch_class("u"), Coroutine[None, None, str])
    assert_type(resize_flow("a.png"), bytes)
    _ = assert_type(fetch_flow("u"), Coroutine[None, None, str])
    assert_type(top_level_step(1), str)
    _ = assert_type(top_level_step_with_options(1), Coroutine[None, None, str])
    _ = assert_type(top_level_workflow(), Coroutine[None, None, list[str]])
    assert_type(top_level_workflow_with_options(a=2), list[str])


async def awaited_calls(order: Order) -> None:
    assert_type(await charge(order, Decimal(1), attempts=2), bool)
    assert_type(await notify("u"), None)
    assert_type(await fulfil(order), Receipt)
    assert_type(await asyncio.gather(charge(order, Decimal(1)), fulfil(order)), tuple[bool, Receipt])
    assert_type(await asyncio.gather(approval(), fulfil.submit(order), sleep(1)), tuple[Approval, Receipt, None])
    assert_type(await asyncio.gather(fulfil.start(order), price.start(order)), tuple[Receipt, Decimal])
    assert_type(await asyncio.wait_for(charge(order, Decimal(1)), timeout=5), bool)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(charge(order, Decimal(1)))
    assert_type(task.result(), bool)
    assert_type(await sleep("1d"), None)
    async with shield():
        pass
    with shield():
        pass


async def resources() -> None:
    assert_type(pool, Resource[list[int]])
    assert_type(client, Resource[bytes])
    assert_type(use(pool), list[int])
    assert_type(use(client), bytes)
    assert_type(load(1), str)
    assert_type(load(1, rows=[1, 2]), str)
    assert_type(await fetch(1), str)
    assert_type(await fetch(1, http=b""), str)
    assert_type(load.start(1), Run[str])
    assert_type(traced(StepAttempt("s", "r", "w", 1, "k", False)), Iterator[None])
    with TestApp(app, resources={pool: [], client: b""}):
        pass


def kinds_of_function() -> None:
    any_step: Step[..., Any] = price
    any_step = charge
    any_workflow: Workflow[..., Any] = quote
    any_workflow = fulfil
    exact: Step[[Order, Decimal, int], bool] = charge
    assert_type(any_step.name, str)
    assert_type(any_workflow.name, str)
    assert_type(exact.name, str)


# -- starting: the function's signature, and a run of its result


def starting(order: Order) -> None:
    assert_type(price.start(order), Run[Decimal])
    assert_type(price.start(order, currency="USD"), Run[Decimal])
    assert_type(charge.start(order, amount=Decimal(1)), Run[bool])
    assert_type(fulfil.start(order, express=True), Run[Receipt])
    assert_type(fulfil.delay(order), Run[Receipt])
    assert_type(fulfil.apply_async((order,), {"express": True}, countdown=5), Run[Receipt])
    assert_type(fulfil.options(id="order-17", delay="1h", if_exists="error").start(order), Run[Receipt])
    assert_type(fulfil.options(at=dt.datetime.now(dt.UTC), priority=5).delay(order), Run[Receipt])
    assert_type(charge.options(timeout=5, max_retries=0, queue="slow").start(order, Decimal(1)), Run[bool])
    assert_type(resize_class.start("a.png", width=2), Run[bytes])
    assert_type(top_level_step.start(1), Run[str])
    assert_type(top_level_workflow.options(id="x").start(), Run[list[str]])
    assert_type(price.options(timeout="1m")(order, currency="USD"), Decimal)
    _ = assert_type(charge.options(timeout="1m")(order, Decimal(1)), Coroutine[None, None, bool])
    assert_type(top_level_workflow_with_options.options(id="x")(a=2), list[str])
    assert_type(app.start("fulfil", order), Run[Any])


async def compositions(order: Order, dag: Dag, trip: Saga, job: Checkpointed) -> None:
    for each in (dag, trip, job):
        assert_type(each.start({"order": order}), Run[dict[str, Any]])
        assert_type(await each({"order": order}), dict[str, Any])
    assert_type(dag.add_step("charge", charge, depends_on=["price"], max_retries=2), Dag)
    assert_type(job.checkpoint, Checkpoint | None)
    assert_type(job.options(priority=3).start({"order": order}), Run[dict[str, Any]])

    @dag.step
    def first(order: Order) -> int:
        return 1

    @dag.step(depends_on=["first"], max_retries=2)
    def second(first: int) -> str:
        return str(first)

    assert_type(first(order), int)
    assert_type(second(1), str)
    async with saga() as s:
        assert_type(s.step(price, order, compensate=charge), Decimal)
        assert_type(await s.step(charge, order, Decimal(1)), bool)
        assert_type(s.step(price.options(timeout="5s"), order), Any)


async def starting_from_async_code(order: Order) -> None:
    assert_type(await fulfil.astart(order), Run[Receipt])
    assert_type(await price.options(id="p").astart(order), Run[Decimal])
    assert_type(await app.astart("fulfil", order), Run[Any])


async def submitting(order: Order) -> None:
    future = price.submit(order, currency="USD")
    assert_type(future, StepFuture[Decimal])
    assert_type(future.result(), Decimal)
    assert_type(await future, Decimal)
    assert_type(future.done(), bool)
    assert_type(charge.options(timeout="5s").submit(order, Decimal(1)), StepFuture[bool])
    child = fulfil.submit(order)
    assert_type(child, ChildRun[Receipt])
    assert_type(child.child_run_id, str)
    assert_type(child.result(), Receipt)
    assert_type(await child, Receipt)
    assert_type(fulfil.options(on_parent_close="abandon").submit(order), ChildRun[Receipt])
    assert_type(await start_child_workflow(fulfil, order), Receipt)
    assert_type(await start_child_workflow(quote, order, wait_for_completion=True), Decimal)
    handle = await start_child_workflow(fulfil, order, wait_for_completion=False)
    assert_type(handle, ChildRun[Receipt] | Run[Receipt])
    assert_type(handle.child_run_id, str)
    assert_type(await handle, Receipt)


# -- runs


def looking_at_a_run(run: Run[Receipt]) -> None:
    assert_type(run.result(), Receipt)
    assert_type(run.result(timeout=60), Receipt)
    assert_type(run.id, str)
    assert_type(run.child_run_id, str)
    assert_type(run.status, Status)
    assert_type(run.status.is_final, bool)
    assert_type(run.reason, str)
    assert_type(run.workflow, str)
    assert_type(run.data, dict[str, Any])
    assert_type(run.steps, RunSteps)
    assert_type(run.steps[0], RunStep)
    assert_type(run.steps["charge"], RunStep)
    assert_type(run.history(), list[RunEvent])
    assert_type(run.status_history(), list[StatusEntry])
    assert_type(run.children(), list[Run[Any]])
    assert_type(run.created_at, dt.datetime)
    assert_type(run.finished_at, dt.datetime | None)
    assert_type(run.fork(12, replace={3: "other"}), Run[Receipt])
    assert_type(run.fork_reruns(12), list[str])


async def awaiting_a_run(run: Run[Receipt]) -> None:
    assert_type(await run, Receipt)
    assert_type(await run.aresult(timeout=1.5), Receipt)
    assert_type(await run.astatus(), Status)
    assert_type(await run.ahistory(), list[RunEvent])
    assert_type(await run.afork(12), Run[Receipt])
    assert_type(await run.asend("approval", {"ok": True}), Sent)


def looking_at_an_app() -> None:
    assert_type(app.get_run("x"), Run[Any])
    page = app.runs(status=["FAILURE", Status.STUCK], workflow="fulfil", data={"customer": 42})
    assert_type(page, RunPage)
    assert_type(page[0], Run[Any])
    assert_type(page.cursor, int | None)
    assert_type(app.gc(), int)


async def looking_at_an_app_from_async_code() -> None:
    assert_type(await app.aget_run("x"), Run[Any])
    assert_type(await app.aruns(status="FAILURE", limit=10), RunPage)
    assert_type(await app.agc(), int)


# -- hooks


@dataclass
class Approval:
    ok: bool


approval = define_hook("approval", Approval)


async def waiting_for_hooks() -> None:
    assert_type(approval, HookDefinition[Approval])
    asked = approval(timeout="2d", key="order-17")
    assert_type(asked, HookCall[Approval])
    assert_type(asked.token, str)
    assert_type(await asked, Approval)
    assert_type((await approval()).ok, bool)
    assert_type(await hook("anything", timeout=5), Any)


# -- inside


def in_a_workflow(order: Order) -> None:
    assert_type(wf.identity, WorkflowIdentity)
    assert_type(wf.identity.workflow_id, str)
    assert_type(wf.identity.parent_workflow_id, str | None)
    assert_type(wf.set_data("k", order), None)
    assert_type(wf.get_data("k"), Any)
    assert_type(wf.uuid(), uuid.UUID)
    assert_type(wf.random(), float)
    assert_type(wf.utc_now(), dt.datetime)
    assert_type(wf.attempt, int)
    assert_type(wf.scheduled_at, dt.datetime | None)
    assert_type(wf.patched("change"), bool)
    assert_type(wf.sleep(dt.timedelta(days=1)), None)
    assert_type(wf.hook("approval"), Any)
    assert_type(wf.wait(approval()), Approval)
    assert_type(wf.wait(charge(order, Decimal(1))), bool)
    assert_type(wf.wait(fulfil.submit(order)), Receipt)


def in_a_step() -> None:
    assert_type(this_step.attempt, int)
    assert_type(this_step.idempotency_key, str)
    assert_type(this_step.checkpoint({"page": 3}), None)
    assert_type(this_step.last_checkpoint, Any)
    assert_type(this_step.progress(3, total=10, note="pages"), None)


# -- web processes


async def in_a_web_process() -> None:
    from starlette.applications import Starlette

    Starlette(lifespan=app.lifespan)
    web = Starlette(lifespan=app.lifespan(worker=False, concurrency=4))
    async with app.lifespan(web):
        pass


# -- testing


async def in_a_test(order: Order) -> None:
    with TestApp(app) as world:
        assert_type(world, TestApp)
        world.mock(charge, True)
        world.mock("price", lambda order, currency: Decimal(1))
        world.fail(charge, ConnectionError("down"), call=2)
        world.advance("2d")
        assert_type(world.now, dt.datetime)
    async with TestApp(app) as world:
        await world.aadvance("2d")


# -- schedules take the arguments of the function, exactly


@app.workflow(schedule="0 2 * * *", tz="Europe/Berlin")
async def nightly() -> int:
    return 1


@app.step(schedule=[every("15m"), Schedule("@daily", name="daily", overlap="queue")])
def poll(depth: int = 1) -> str:
    return ""


assert_type(app.schedules.put(Schedule("@daily", name="eu"), fulfil, Order("1", Decimal(1))), ScheduleInfo)
assert_type(app.schedules.put("@daily", "fulfil", 1, anything=2), ScheduleInfo)
app.schedules.declare(every("1h"), price, Order("1", Decimal(1)), currency="USD")


async def scheduled() -> None:
    assert_type(await nightly(), int)
    assert_type(poll(2), str)
    assert_type(await app.schedules.aput("@daily", poll, 3), ScheduleInfo)
    assert_type(await app.schedules.alist(), list[ScheduleInfo])
    assert_type(app.schedules.trigger("nightly"), Run[Any])
    assert_type(wf.scheduled_at, dt.datetime | None)


# -- domain events


@app.on("PaymentCompleted", where={"currency": "EUR", "customer.vip": True})
@app.on("run.failed")
@app.workflow
async def react(payload: dict[str, Any]) -> int:
    return 1


@app.on("PaymentCompleted")
@app.step
def count(payload: Order) -> str:
    return ""


async def with_events(order: Order) -> None:
    assert_type(await react({}), int)
    assert_type(count(order), str)
    assert_type(count.start(order), Run[str])
    assert_type(await emit("OrderCreated", order, key="o-1"), str)
    assert_type(wf.emit("OrderCreated"), str)
    assert_type(app.emit("OrderCreated", {"id": 1}), str)
    assert_type(await app.aemit("OrderCreated"), str)
    assert_type(await wait_for_event("Paid", where={"order": 1}, timeout="2d"), Any)
    assert_type(await wait_for_event("Paid", payload=Order), Order)
    assert_type(await wait_for_event("Paid", payload=Order | None), Any)
    assert_type(count.start(order).trace(), TraceNode)
    assert_type((await app.atrace("o-1")).children, list[TraceNode])


# -- requests: typed on both sides

add_item = define_request("types.add", Order, Decimal)
size = define_request("types.size", None, int)
note_it = define_request("types.note", str)
poke = app.define_request("types.poke")
published = define_request("types.published", None, str, data="key")

assert_type(add_item, RequestDefinition[Order, Decimal])
assert_type(size, RequestDefinition[None, int])
assert_type(note_it, RequestDefinition[str, None])
assert_type(poke, RequestDefinition[None, None])
assert_type(app.define_hook("types.hook", Order), HookDefinition[Order])

# Types that are no classes are taken; what is made of them is Any to a type checker, unless it is told.
Choice = Literal["a", "b"]
assert_type(define_hook("types.maybe", int | None), HookDefinition[Any])
assert_type(app.define_hook("types.choice", Choice), HookDefinition[Any])
told: HookDefinition[Order | None] = define_hook("types.told", Order | None)
change = define_request("types.change", int | None, str | None)
assert_type(change, RequestDefinition[Any, Any])
assert_type(app.define_request("types.read", None, list[int] | None), RequestDefinition[None, Any])
assert_type(app.define_request("types.write", Choice), RequestDefinition[Any, None])


@app.workflow
async def answers(customer: str) -> int:
    async for request in add_item:
        assert_type(request, Request[Order, Decimal])
        assert_type(request.payload, Order)
        request.answer(Decimal(1))
    assert_type(await size.next(timeout="1h"), Request[None, int])

    @add_item.handle
    async def handler(order: Order) -> Decimal:
        return order.total

    assert_type(await handler(Order("1", Decimal(1))), Decimal)
    assert_type(await wf.send("id", "hook", {"x": 1}, key="k"), None)
    assert_type(wf.history_length, int)
    assert_type(wf.should_continue, bool)
    return 1


async def asks(run: Run[int], order: Order) -> None:
    assert_type(run.ask(add_item, order, id="q", timeout="5s"), Decimal)
    assert_type(run.ask(size), int)
    assert_type(run.ask(change, None), Any)
    assert_type(run.ask("types.add", {"id": "1"}), Any)
    assert_type(await run.aask(add_item, order), Decimal)
    assert_type(await run.aask(size, timeout=1), int)
    assert_type(answers.start_and_ask(add_item.of(order), "ada"), tuple[Run[int], Decimal])
    assert_type(answers.options(id="a").start_and_ask(size.of(None), customer="ada"), tuple[Run[int], int])
    assert_type(await answers.astart_and_ask(add_item.of(order, timeout="1s"), "ada"), tuple[Run[int], Decimal])
    assert_type(run.wait_data("key", timeout="1s"), Any)
    assert_type(app.runs(data={"amount": Range(at_least=1), "who": Prefix("a")}), RunPage)
    assert_type(this_step.hand_over(), str)


@app.around_workflow
def around_workflows(run: WorkflowAttempt) -> Iterator[None]:
    assert_type(run.headers["tenant"], str)
    yield


@app.around_start
def around_starts(call: StartCall) -> Iterator[None]:
    call.headers["tenant"] = "acme"
    yield
