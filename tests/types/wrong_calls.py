# mypy: ignore-errors
"""Calls that must fail type-checking: each line marked `# E: code`, and no other. `test_wrong_calls.py` checks this
file with its first line taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import holdfast
from holdfast import (
    App,
    RetryableError,
    Run,
    Schedule,
    define_hook,
    define_request,
    every,
    sleep,
    step,
    this_step,
    use,
    wf,
    workflow,
)

app = App("wrong")


@app.step
def price(order: str, *, currency: str = "EUR") -> int:
    return 1


@app.step(max_retries=2)
async def charge(order: str, amount: int = 0) -> bool:
    return True


@app.workflow
async def fulfil(order: str, *, express: bool = False) -> int:
    return 1


@app.workflow(timeout="1h")
def quote(order: str) -> int:
    return price(order)


@step
def top_level_step(a: int) -> str:
    return str(a)


@workflow
async def top_level_workflow(a: int) -> str:
    return str(a)


class Resize:
    def __call__(self, path: str) -> bytes:
        return b""


resize = app.step(Resize)


@app.resource
def pool() -> Iterator[list[int]]:
    yield []


# -- resources


@app.step
def load(x: int, rows: dict[str, int] = use(pool)) -> None: ...  # E: arg-type


@app.step
def read(x: int, rows: list[int] = use(pool)) -> None: ...


@app.resource  # E: arg-type
def no_generator() -> int:
    return 1


@app.around_step  # E: type-var
def no_argument() -> Iterator[None]:
    yield


def resources() -> None:
    use(price)  # E: arg-type
    use(pool).keys()  # E: attr-defined
    read(1, rows={})  # E: arg-type
    read()  # E: call-arg


# -- options

app.step(max_retires=3)  # E: call-overload
app.step(max_retries="3")  # E: call-overload
app.step(pool="greenlet")  # E: call-overload
app.step(timeout=[])  # E: call-overload
app.step(retry_for="ConnectionError")  # E: arg-type
app.step("name")  # E: call-overload
app.step(3)  # E: call-overload
app.workflow(pool="process")  # E: call-overload
app.workflow(durable="no")  # E: call-overload

# -- calls


def plain_calls() -> None:
    price()  # E: call-arg
    price(1)  # E: arg-type
    price("o", "USD")  # E: call-arg
    price("o", curency="USD")  # E: call-arg
    _result: str = price("o")  # E: assignment
    charge("o") + 1  # E: operator
    top_level_step("a")  # E: arg-type
    resize(1)  # E: arg-type
    quote("o").bit_length()
    fulfil("o").bit_length()  # E: attr-defined


async def awaited_calls() -> None:
    await price("o")  # E: misc
    await charge("o", "1")  # E: arg-type
    _number: int = await charge("o", 1)
    _text: str = await fulfil("o")  # E: assignment
    await fulfil("o", True)  # E: call-arg
    await top_level_workflow()  # E: call-arg
    await sleep(None)  # E: arg-type


# -- starting


def starting() -> None:
    price.start()  # E: call-arg
    price.start("o", currency=3)  # E: arg-type
    fulfil.start("o", express="yes")  # E: arg-type
    fulfil.start("o", id="order-17")  # E: call-arg
    fulfil.delay(1)  # E: arg-type
    fulfil.options(id=17)  # E: arg-type
    fulfil.options(retries=3)  # E: call-arg
    fulfil.options(if_exists="replace")  # E: arg-type
    fulfil.options(id="x").start()  # E: call-arg
    fulfil.options(id="x").start("o", express=1)  # E: arg-type
    fulfil.run("o")  # E: attr-defined
    resize.start()  # E: call-arg
    _run: Run[str] = fulfil.start("o")  # E: assignment
    fulfil.start("o").result(timeout=[60])  # E: arg-type
    fulfil.start("o").result().upper()  # E: attr-defined
    fulfil.start("o").state  # E: attr-defined


async def submitting() -> None:
    price.submit()  # E: call-arg
    charge.submit("o", "1")  # E: arg-type
    price.submit("o").child_run_id  # E: attr-defined
    (await price.submit("o")).upper()  # E: attr-defined
    await fulfil.astart()  # E: call-arg


# -- hooks and contexts


@dataclass
class Approval:
    ok: bool


approval = define_hook("approval", Approval)


async def hooks() -> None:
    (await approval()).okay  # E: attr-defined
    await approval("2d")  # E: call-arg
    approval(timeout=[])  # E: arg-type


def contexts() -> None:
    wf.attempt = 3  # E: misc
    wf.utcnow()  # E: attr-defined
    wf.set_data(1, "x")  # E: arg-type
    this_step.checkpoint()  # E: call-arg
    this_step.attempts  # E: attr-defined
    raise RetryableError("later", after="60s")  # E: call-arg


# -- schedules

app.workflow(schedule=15)  # E: call-overload
app.schedules.declare("@daily", fulfil)  # E: call-overload
app.schedules.declare("@daily", fulfil, 17)  # E: call-overload
app.schedules.put("@daily", fulfil, "o-1", expres=True)  # E: call-arg
Schedule("@daily", overlap="later")  # E: arg-type
every("15m", 5)  # E: call-arg


# -- domain events


@app.on("Paid")  # E: type-var
def plain(payload: object) -> None: ...


app.on("Paid", where={"order": [1]})  # E: dict-item
app.emit("Paid", {}, "key")  # E: call-arg
wf.wait_for_event("Paid", {"order": 1})  # E: call-arg


# -- requests


def asks_wrongly(run: Run[int]) -> None:
    add = define_request("wrong.add", int, str)
    size = define_request("wrong.size", None, int)
    run.ask(add)  # E: arg-type
    run.ask(add, "one")  # E: misc
    run.ask(size, 3)  # E: misc
    add.of("one")  # E: arg-type
    fulfil.start_and_ask(add.of(1))  # E: call-arg
    fulfil.start_and_ask(add, "o-1")  # E: arg-type
    define_request("wrong", int, int, data=3)  # E: call-overload
    define_request("wrong", "int")  # E: call-overload
    define_hook("wrong", 3)  # E: call-overload


@app.around_workflow  # E: type-var
def wraps_nothing() -> None: ...


# -- the package


def names() -> None:
    holdfast.Ap("orders")  # E: attr-defined
    holdfast.App(17)  # E: arg-type
