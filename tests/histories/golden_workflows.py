"""The workflows behind the golden histories. Their histories are kept for ever, so their code must not change:
to cover something new, add a workflow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import enum
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

from holdfast import App, Dag, Saga, chord, define_request, emit, group, hook, saga, shield, sleep, wait_for_event, wf

app = App("golden")


class Refused(Exception):
    """How things go wrong here."""


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclasses.dataclass
class Order:
    id: str
    total: Decimal
    size: Size
    lines: list[tuple[str, int]]


@app.step
async def fetch(what: Any) -> Any: ...


@app.step
async def reserve(order: Order) -> Order: ...


@app.step
def charge(order_id: str, amount: Decimal) -> Decimal: ...


@app.step
def note(what: Any) -> Any: ...


@app.workflow
async def shipping(order: Any) -> dt.date: ...


@app.workflow
def billing(order: Any) -> Any: ...


@app.workflow
async def fulfilment(order: Order) -> Any:
    """A sequence with data, a sleep, a hook, a child, and identical calls side by side."""
    wf.set_data("status", "started")
    reserved = await reserve(order)
    paid = charge(reserved.id, reserved.total)
    wf.set_data("status", "paid")
    await sleep("1d")
    approval = await hook("approval", timeout="2d")
    shipped = await shipping(reserved)
    found = await asyncio.gather(fetch("label"), fetch("label"), fetch("mail"))
    return reserved, paid, approval, shipped, found, wf.get_data("status")


@app.workflow
async def suspected() -> Any:
    """Its worker was lost, a message can't be read, and a step was taken back before it began."""
    return await fetch("once")


@app.workflow
async def misled() -> Any:
    """The clock was ahead when it fell asleep, and was set back."""
    await sleep("1h")
    await sleep("2h")
    return await fetch("once")


@app.workflow
async def racing() -> Any:
    """Races and timeouts, what they cancel, and tasks in sets."""
    found: list[Any] = []
    tasks = [asyncio.ensure_future(fetch(n)) for n in range(5)]
    done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in late:
        task.cancel()
    found.append([task.result() for task in done])
    try:
        async with asyncio.timeout(5):
            await shipping("late")
    except TimeoutError:
        found.append("no shipping")
    try:
        await asyncio.wait_for(hook("answer", timeout=60), 10)
    except TimeoutError:
        found.append("no answer")
    try:
        await hook("answer", timeout=3)
    except TimeoutError as error:
        found.append(str(error))
    found += [await each for each in asyncio.as_completed([fetch(f"c{n}") for n in range(4)])]
    return found


@app.workflow
async def napping() -> Any:
    """Timers that are due together, beside others that wait with a timeout: the order must not depend on Python."""
    order: list[str] = []

    async def nap(name: str) -> str:
        await asyncio.sleep(5)
        order.append(name)
        await fetch(name)
        return name

    tasks = {asyncio.ensure_future(asyncio.wait_for(nap(f"w{n}"), 9)) for n in range(3)}
    tasks |= {asyncio.ensure_future(nap(f"s{n}")) for n in range(3)}
    kept = [await task for task in tasks]
    return order, kept


@app.workflow
async def grouped() -> Any:
    """A group that is aborted, with clean-up by plain calls; then one that succeeds."""
    seen: list[Any] = []

    async def careful(n: int) -> Any:
        try:
            return note(n)
        finally:
            seen.append(note(f"clean {n}"))

    async def fails() -> None:
        await fetch("refusal")

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(3):
                group.create_task(careful(n))
            group.create_task(fails())
    except* Refused as refused:
        seen.append([str(each) for each in refused.exceptions])
    async with asyncio.TaskGroup() as group:
        twins = [group.create_task(careful(7)) for _ in range(2)]
    return seen, [twin.result() for twin in twins]


@app.workflow
async def family() -> Any:
    """Children: waited for, submitted, detached, awaited later, failed, cancelled."""
    detached: Any = shipping.start("detached")
    later: Any = billing.start("later")
    submitted = shipping.submit("submitted")
    first = await shipping("first")
    seen = [first, await submitted]
    for child in (billing.submit("failing"), billing.submit("cancelled")):
        try:
            await child
        except Exception as error:
            seen.append(type(error).__name__)
    seen.append(await later)
    return seen, detached.child_run_id


@app.workflow
async def chances() -> Any:
    """Deterministic values, and a patch."""
    values: list[Any] = [wf.random(), wf.uuid(), wf.utc_now()]
    await fetch("one")
    values += [wf.random(), wf.utc_now()]
    if wf.patched("two steps"):
        await fetch("two")
    return values, wf.utc_now(), asyncio.get_running_loop().time()


@app.workflow(max_retries=2, retry_for=(Refused,))
async def stubborn() -> Any:
    """Attempts of a whole workflow: all that was achieved is kept."""

    async def ship(name: str) -> Any:
        await fetch(name)
        number = await fetch("next number")
        return name, number

    started = wf.utc_now(), wf.random()
    wf.set_data("attempt", wf.attempt)
    pairs = await asyncio.gather(ship("slow"), ship("fast"))
    await sleep("1h")
    answer = await hook("answer")
    shipped = await shipping("again")
    billed = billing("unlucky")
    last = note("last")
    return started, pairs, answer, shipped, billed, last, wf.attempt


@app.workflow
async def endless(round: int = 0) -> Any:
    """A fresh history each round, with data and payloads that nobody has read yet."""
    wf.set_data(f"round {round}", wf.random())
    await fetch(round)
    if round < 2:
        wf.continue_as_new(round + 1)
    return await hook("left"), await hook("left"), sorted(f"round {n}" for n in range(3) if wf.get_data(f"round {n}"))


@app.workflow
async def unwanted() -> Any:
    """Cancelled while it works, and cleans up with steps."""
    try:
        await asyncio.gather(fetch("long"), shipping("long"), hook("long", key="k"), sleep("30d"))
    finally:
        async with shield():
            await fetch("clean up")
        note("done")


@app.workflow
async def spared() -> Any:
    """Swallows its cancellation."""
    try:
        note("long")
    except asyncio.CancelledError:
        return await fetch("instead")


@app.workflow
async def troubled(what: str = "old") -> Any:
    """Lost workers, pauses, code that was set aside, changed arguments; fails in the end."""
    await fetch("steady")
    await fetch("steady")
    raise Refused(what)


@app.workflow
def plain(times: int) -> Any:
    """A `def` workflow."""
    found: list[Any] = []
    for n in range(times):
        try:
            found.append(note(n))
        except Refused as refused:
            found.append(str(refused))
    wf.sleep(60)
    handle = shipping.submit("plain")
    future = fetch.submit("plain")
    found.append(wf.hook("plain", timeout=60))
    found.append(billing("plain"))
    with shield():
        found.append(wf.wait(asyncio.wait_for(fetch("waited"), 5)))
    return found, handle.result(), future.result()


@app.workflow
async def workers() -> Any:
    """A queue with workers, a semaphore, a condition, an async generator left half-way."""
    queue: asyncio.Queue[int] = asyncio.Queue()
    gate = asyncio.Semaphore(2)
    changed = asyncio.Condition()
    done: list[Any] = []

    async def work(name: str) -> None:
        while True:
            item = await queue.get()
            async with gate:
                done.append((name, await fetch(item)))
            async with changed:
                changed.notify_all()
            queue.task_done()

    crew = [asyncio.create_task(work(name)) for name in "abc"]
    for n in range(6):
        queue.put_nowait(n)
    async with changed:
        await changed.wait_for(lambda: len(done) >= 3)
    half = len(done)
    await queue.join()
    for each in crew:
        each.cancel()
    await asyncio.gather(*crew, return_exceptions=True)

    async def pages() -> AsyncIterator[Any]:
        try:
            for n in range(9):
                yield await fetch(f"page {n}")
        finally:
            note("closed")

    read = []
    async with contextlib.aclosing(pages()) as each_page:
        async for page in each_page:
            read.append(page)
            if len(read) == 2:
                break
    return done, half, read


@app.workflow
async def talkative() -> Any:
    """Items for those who watch, and completions taken late, with a time limit for all."""
    wf.stream("begins")
    completions = asyncio.as_completed([asyncio.wait_for(fetch(n), 9) for n in range(3)], timeout=20)
    wf.stream({"half": await fetch("half")})
    return [await each for each in completions]


errands = Dag("errands", app=app)
errands.add_step("look", fetch)
errands.add_step("order", fetch, depends_on=["look"], condition=lambda ctx: ctx["look"] != "nothing")
errands.add_step("each", note, depends_on=["order"], map_over="things")
errands.add_step("ship", shipping, depends_on=["order", "each"])
errands.add_step("idle", note, depends_on=["look"], condition=lambda ctx: ctx["look"] == "nothing")
errands.add_step("odd", note, depends_on=["look"], condition=lambda ctx: ctx["lost"])
errands.add_step("sweep", note, depends_on=["ship", "idle", "odd"], run_if="all_done")
"""Steps that run, are skipped, fail before they begin, and are executed for each of several things."""

travel = Saga("travel", app=app)
travel.add_step("order", fetch, note)
travel.add_step("ship", shipping, billing)
travel.add_step("pay", note)
"""Named steps that are undone, one of them by a workflow."""


@app.workflow
async def hasty() -> Any:
    """A saga in the midst of a workflow, cancelled while one of its steps is under way."""
    async with saga() as s:
        s.step(note, "bed", compensate=note)
        await asyncio.gather(s.step(fetch, "car", compensate=fetch), s.step(fetch, "boat", compensate=fetch))


@app.workflow(max_retries=1)
async def eventful() -> Any:
    """Domain events emitted, waited for in turn and at once, and again by another attempt."""
    await emit("Begun", Order("o-1", Decimal("1.50"), Size.SMALL, []))
    both = await asyncio.gather(wait_for_event("Paid", where={"order": "o-1", "n": 1}), wait_for_event("Paid"))
    wf.emit("Paid", both, key="own")
    if wf.attempt == 1:
        raise Refused("again")
    with contextlib.suppress(TimeoutError):
        await wait_for_event("Never", timeout="1d")
    return await fetch([both, wf.emit("Over")])


@app.workflow
async def late() -> Any:
    """A run that waited for its first worker, and sleeps from then on."""
    before = wf.utc_now()
    await sleep(5)
    return (wf.utc_now() - before).total_seconds()


@app.workflow
async def composed() -> Any:
    """Canvases in the midst of a workflow: joined, collected, failed and told of."""
    told = chord([fetch.s(n) for n in range(3)], note.s(), on_failure="collect").submit()
    try:
        await group(note.si("one"), fetch.si("two") | shipping.s()).on_error(note.s())
    except Exception as error:
        return await told, type(error).__name__, await (fetch.s("x" * 20_000) | note.s() | note.s())


rename = define_request("golden.rename", str, str)
total = define_request("golden.total", None, int)


@app.workflow(max_retries=1)
async def answering(generation: int = 1) -> Any:
    """Requests answered in a loop and beside it, refused, carried over and asked again by another attempt; what is sent
    to another run; a step that ends elsewhere."""
    seen = []

    @total.handle
    async def count() -> int:
        if len(seen) > 2:
            raise Refused("too many")
        return len(seen) + await fetch("base")

    async for request in rename:
        seen.append(request.payload)
        await wf.send("another", "renamed", request.payload)
        if request.payload == "next":
            request.answer("goes on")
            wf.continue_as_new(generation + 1)
        if not request.payload:
            request.refuse("give a name")
        elif request.payload == "end":
            request.answer("over")
            break
        else:
            request.answer(f"{request.payload} of {generation}")
    if wf.attempt == 1:
        raise Refused("again")
    return seen, wf.history_length, await fetch("elsewhere")
