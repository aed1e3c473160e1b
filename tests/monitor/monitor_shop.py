"""The app that the monitor's tests look at."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from holdfast import App, define_hook, hook, saga, sleep, this_step, wf

app = App("shop")
NASTY = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@app.step
def add(a: int, b: int = 1) -> int:
    return a + b


@app.step(max_retries=2, retry_delay=0)
def flaky(times: int) -> int:
    if this_step.attempt <= times:
        raise ConnectionError("no answer")
    return this_step.attempt


@app.step(max_retries=0)
def explode(text: str) -> None:
    raise ValueError(text)


@app.workflow
def total(a: int, customer: int = 42) -> int:
    wf.set_data("customer", customer)
    return add(a) + flaky(1)


@app.workflow
async def fails(text: str) -> None:
    add(1)
    explode(text)


@app.workflow(max_retries=1)
def twice() -> None:
    """Both of its attempts fail; the second one keeps what the first has done."""
    add(1)
    add(2)
    explode("no")


@app.step
async def lasts() -> None:
    await asyncio.sleep(60)


@app.workflow
async def besides() -> None:
    await asyncio.gather(lasts.submit(), hook("besides"))


@app.workflow
async def asks(who: str) -> str:
    answer: Any = await hook("signature", key=who)
    return f"{who}: {answer}"


@app.workflow
async def echoes(value: Any) -> Any:
    answer: Any = await hook("echo")
    return {"given": value, "answer": answer, "nan": float("nan"), "raw": b"\0\xff", "text": "AP8="}


@app.workflow
async def sleeps() -> None:
    await sleep("1d")


@app.workflow
async def nasty(text: str) -> str:
    """Puts a text wherever a user can put one."""
    wf.set_data("note", text)
    add(1)
    answer: Any = await hook("nasty", key=text[:60])
    explode(f"{text} {answer}")
    return text


@app.workflow(schedule="0 2 * * *")
async def nightly() -> int:
    return add(1)


@dataclass
class Decision:
    approved: bool
    note: str = ""


decision = define_hook("shop_decision", Decision)


@dataclass
class Price:
    price: float


price = define_hook("shop_price", Price)


@app.workflow
async def prices() -> float:
    return (await price()).price


@app.workflow
async def decides() -> bool:
    answer = await decision()
    return answer.approved


@dataclass
class Item:
    name: str
    price: Decimal


@app.workflow
async def orders(
    item: Item,
    count: int,
    rebate: float = 0.5,
    size: Literal["s", "m"] = "m",
    gift: bool = False,
    note: str | None = None,
) -> dict[str, Any]:
    return {"item": item, "count": count, "rebate": rebate, "size": size, "gift": gift, "note": note}


@app.workflow
async def collects(*parts: int) -> int:
    return sum(parts)


@app.workflow
async def pays(amount: int, card: str = "4111") -> str:
    return card


@app.workflow
async def fans(count: int) -> int:
    first = add(1)
    done = await asyncio.gather(*(add.submit(i) for i in range(count)))
    return first + len(done)


@app.workflow
async def undone() -> None:
    async with saga() as s:
        await s.step(add, 1, compensate=add)
        s.step(explode, "no room")


@app.step
def tells(secret: str) -> dict[str, str]:
    this_step.stream({"card": secret})
    return {"card": secret, "name": "ann"}


@app.workflow
def hides(secret: str) -> dict[str, str]:
    wf.set_data("card", secret)
    return tells(secret)
