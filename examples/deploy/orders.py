"""The app that the examples of this folder deploy. Its store is named by HOLDFAST_STORE, as that of your app may be."""

from __future__ import annotations

from holdfast import App, sleep

app = App("orders")


@app.step
def charge(order: str) -> str:
    return f"payment of {order}"


@app.step(max_retries=5, retry_delay="exponential", timeout="30s")
async def ship(order: str, payment: str) -> str:
    return f"{order} is on its way, thanks to the {payment}"


@app.workflow
async def fulfil(order: str, wait: str = "1s") -> str:
    payment = charge(order)
    await sleep(wait)
    return await ship(order, payment)
