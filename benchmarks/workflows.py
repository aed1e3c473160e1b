"""The workflows that the benchmark runs, in a module of its own so that worker processes find them."""

from __future__ import annotations

import asyncio

from holdfast import App, Dag, emit, sleep, wait_for_event, wf

app = App("bench", "bench.db")


@app.step
async def async_step(i: int) -> int:
    return i


@app.step
def plain_step(i: int) -> int:
    return i


@app.step(force_local=True)
async def local_step(i: int) -> int:
    return i


@app.workflow
async def in_sequence(n: int) -> int:
    total = 0
    for i in range(n):
        total += await async_step(i)
    return total


@app.step(queue="far")
async def far_step(i: int) -> int:
    return i


@app.workflow
async def in_sequence_far(n: int) -> int:
    total = 0
    for i in range(n):
        total += await far_step(i)
    return total


@app.workflow
def in_sequence_plain(n: int) -> int:
    total = 0
    for i in range(n):
        total += plain_step(i)
    return total


@app.workflow
async def in_sequence_local(n: int) -> int:
    total = 0
    for i in range(n):
        total += await local_step(i)
    return total


@app.workflow(durable=False)
async def in_sequence_volatile(n: int) -> int:
    total = 0
    for i in range(n):
        total += await async_step(i)
    return total


@app.workflow
async def gathered(n: int) -> int:
    return sum(await asyncio.gather(*[async_step(i) for i in range(n)]))


@app.step(concurrency=1_000)
async def limited_step(i: int) -> int:
    return i


@app.step(concurrency=20, key=lambda i: i % 50)
async def keyed_step(i: int) -> int:
    return i


@app.step(concurrency=20)
async def scarce_step(i: int) -> int:
    return i


@app.workflow
async def gathered_under_limits(n: int, how: str) -> int:
    step = {"limited": limited_step, "keyed": keyed_step, "scarce": scarce_step}[how]
    return sum(await asyncio.gather(*[step(i) for i in range(n)]))


@app.workflow
async def then_wait(n: int) -> int:
    total = 0
    for i in range(n):
        total += await async_step(i)
    await sleep("30d")
    return total


@app.workflow
async def sleeper(seconds: float) -> None:
    await sleep(seconds)


@app.workflow
async def sleeper_until(moment: float) -> None:
    await sleep(max(0.0, moment - wf.utc_now().timestamp()))


@app.on("Hop")
@app.step
async def hop(left: int) -> None:
    await emit("Hop" if left else "Landed", max(left - 1, 0))


@app.workflow
async def by_events(n: int) -> None:
    await emit("Hop", n - 1)
    await wait_for_event("Landed")


@app.step
async def node() -> int:
    return 1


@app.step
async def count(results: list[int]) -> int:
    return len(results)


LENGTH = 200
in_a_line = Dag("in-a-line", app=app)
for number in range(LENGTH):
    in_a_line.add_step(f"n{number}", node, depends_on=[f"n{number - 1}"] if number else [])

WIDTH = 1_000
fan = Dag("fan", app=app)
fan.add_step("source", node)
for number in range(WIDTH - 2):
    fan.add_step(f"n{number}", node, depends_on=["source"])
fan.add_step("sink", node, depends_on=[f"n{number}" for number in range(WIDTH - 2)])
