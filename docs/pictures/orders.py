"""The order process that is in the picture."""

from __future__ import annotations

import asyncio

from holdfast import App, hook, this_step

app = App("orders")


@app.step
def reserve(order: str) -> str:
    return f"reservation of {order}"


@app.step
def charge(order: str) -> str:
    return f"payment of {order}"


@app.step(timeout="10m")
async def pack(order: str, items: int) -> int:
    for item in range(this_step.last_checkpoint or 0, items):
        await asyncio.sleep(0.25 if item < 7 else 60)
        this_step.checkpoint(item + 1)
        this_step.progress(item + 1, items, "items")
    return items


@app.step(max_retries=5, retry_delay="30s")
async def book_carrier(order: str) -> str:
    raise ConnectionError("no answer")


@app.step
def print_label(order: str) -> str:
    return f"label of {order}"


@app.workflow
async def ship(order: str) -> str:
    label = print_label(order)
    await hook("picked_up", timeout="2d")
    return label


@app.workflow
async def fulfil(order: str) -> None:
    reserve(order)
    charge(order)
    await asyncio.gather(pack(order, 10), book_carrier(order), ship(order))
