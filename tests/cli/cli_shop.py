"""The app that the command's tests work on."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from holdfast import App, Dag, Saga, define_hook, hook, sleep, this_step, wf

app = App("shop")
log = logging.getLogger("shop")


@dataclass
class Order:
    id: str
    qty: int
    price: Decimal = Decimal("9.99")


@dataclass
class Approval:
    ok: bool


approval = define_hook("shop-approval", Approval)


@app.step
def add(a: int, b: int = 1) -> int:
    return a + b


@app.step(max_retries=3, retry_delay=0)
def flaky(times: int) -> int:
    if this_step.attempt <= times:
        raise ConnectionError(f"attempt {this_step.attempt} got no answer")
    return this_step.attempt


@app.step(max_retries=0)
def explode(text: str) -> None:
    raise ValueError(text)


@app.step
async def pack(gate: str) -> str:
    this_step.progress(3, 4, "boxes")
    while not Path(gate).exists():
        await asyncio.sleep(0.01)
    return "packed"


@app.step(max_retries=1, retry_delay=0)
def talk(lines: int) -> None:
    for n in range(lines):
        log.info("line %d of attempt %d", n, this_step.attempt)
    if this_step.attempt == 1:
        raise ConnectionError("no answer")


@app.step(pool="process")
def talk_apart() -> None:
    log.warning("from another process", extra={"customer": 7})


@app.workflow
async def talks(lines: int) -> None:
    log.info("begin")
    talk(lines)
    talk_apart()


@app.workflow
def total(a: int, b: int = 1) -> int:
    wf.set_data("who", "ann")
    return add(add(a, b), flaky(1))


@app.workflow
async def buy(order: Order) -> Decimal:
    wf.set_data("order", order.id)
    await ship(order.id)
    return order.price * order.qty


@app.workflow
async def ship(id: str) -> str:
    return f"{id}{add(1)}"


@app.workflow
async def fails(text: str) -> None:
    add(1)
    explode(text)


@app.workflow
async def asks(who: str) -> str:
    answer = await approval(timeout="2d")
    return f"{who}: {answer.ok}"


@app.workflow
async def polls(count: int) -> list[str]:
    return await asyncio.gather(*(hook(f"vote-{i}") for i in range(count)))


@app.workflow
async def listens() -> str:
    return str(await hook("word", key="k1"))


@app.workflow
async def sleeps() -> None:
    await sleep("1d")


@app.workflow
async def packs(gate: str) -> str:
    return await pack(gate)


@app.workflow
async def many(n: int) -> int:
    return sum(add(i) for i in range(n))


@app.step(max_retries=0)
def needs(gate: str) -> None:
    if not Path(gate).exists():
        raise FileNotFoundError("the gate is closed")


@app.workflow
async def inner(gate: str) -> None:
    needs(gate)


@app.workflow
async def outer(gate: str) -> None:
    await inner(gate)


@app.on("ShopOpened")
@app.workflow
async def greet(payload: object) -> str:
    return f"hello {payload}"


parcels = Dag("parcels", app=app)
parcels.add_step("boxes", lambda: [1, 2])
parcels.add_step("pack", lambda box: box, map_over="boxes")
parcels.add_step("gift", lambda: "ribbon", depends_on=["boxes"], condition=lambda ctx: len(ctx["boxes"]) > 2)

inspection = Dag("inspection", app=app)
inspection.add_step("look", lambda box: 100 // (7 - box), map_over="boxes", max_retries=0)

returns = Saga("returns", app=app)
returns.add_step("label", lambda order: f"label {order}", lambda label: None)
returns.add_step("collect", lambda ctx: 1 // 0, max_retries=0)


@app.workflow(concurrency=1, rate_limit="100/m", burst=10, key="customer")
async def deliver(customer: str) -> None:
    await sleep("1h")
