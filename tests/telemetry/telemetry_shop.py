"""An app with something of everything, for workers that tests listen to."""

from __future__ import annotations

import os

from holdfast import App, FatalError, RetryableError, hook, sleep, this_step

app = App("shop", os.environ.get("SHOP_STORE", "shop.db"))


@app.step
def pack(item: str) -> str:
    for done in range(3):
        this_step.progress(done, 3, item)
    return f"packed {item}"


@app.step(max_retries=2, retry_delay=0)
async def charge(item: str) -> str:
    if this_step.attempt == 1:
        raise RetryableError(f"the bank is asleep: {item}")
    return f"charged {item}"


@app.step(max_retries=0)
def refuse(item: str) -> str:
    raise FatalError(f"nobody wants {item}")


@app.workflow
async def delivery(item: str) -> str:
    await sleep(0.01)
    return pack(item)


@app.workflow
async def order(item: str) -> list[str]:
    return [pack(item), await charge(item), await delivery(item)]


@app.workflow
def unwanted(item: str) -> str:
    return refuse(item)


@app.workflow
async def approval(item: str) -> str:
    return str(await hook("approved"))
