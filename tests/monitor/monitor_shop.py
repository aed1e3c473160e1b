"""The app that the monitor's tests look at."""

from __future__ import annotations

from typing import Any

from holdfast import App, hook, sleep, this_step, wf

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


@app.workflow
async def asks(who: str) -> str:
    answer: Any = await hook("signature", key=who)
    return f"{who}: {answer}"


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
