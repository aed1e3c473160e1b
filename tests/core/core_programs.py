"""Random workflow programs: a small tree of operations, drawn by hypothesis, run by one generic workflow.

A program is plain data and is the workflow's input, so that it comes back from the history like any other.
What the code sees on its way goes to `execution.trace`: two executions that saw the same have equal traces. What it
sees for the first time goes to `execution.said`, as a log would have it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import strategies as st
from msgspec import Raw

from holdfast import App, hook, shield, sleep, wf
from holdfast.core.greenlets import wait_plainly
from holdfast.core.loop import running

app = App("laws")
Op = list[Any]


class Broken(Exception):
    """How steps and programs of these tests fail."""


@app.step
async def work(job: Any) -> Any: ...


@app.step
def plain_work(job: Any) -> Any: ...


@app.workflow
async def child(job: Any) -> Any: ...


@app.workflow
def plain_child(job: Any) -> Any: ...


@app.workflow
async def program(op: Op, generation: int = 0) -> Any:
    return await interpret(op, generation)


@app.workflow
def plain_program(op: Op, generation: int = 0) -> Any:
    return interpret_plainly(op, generation)


@app.workflow(max_retries=2, retry_for=(Broken,))
async def retried(op: Op, generation: int = 0) -> Any:
    return await interpret(op, generation)


def reply(name: str, job: Any, attempt: int) -> Any:
    """A job says itself how it ends: well, badly, or well from some attempt of the run on."""
    how = job["how"]
    if how == "fails" or (how == "fails once" and attempt == 1):
        return Broken(f"{name} {job['id']}")
    return f"{name} {job['id']}"


# -- interpreting


def saw(*what: Any) -> None:
    loop = running()
    assert loop is not None
    loop.execution.trace.append(what)
    if not (loop.execution.journal.is_repeating or loop.closed):
        loop.execution.said.append(what)


async def interpret(op: Op, generation: int) -> Any:
    kind, *rest = op
    found = await OPERATIONS[kind](generation, *rest)
    saw(kind, repr(found))
    return found


async def _step(generation: int, job: Any) -> Any:
    return await work(job)


async def _plain_step(generation: int, job: Any) -> Any:
    return plain_work(job)


async def _submitted_step(generation: int, job: Any, body: Op) -> Any:
    future = work.submit(job)
    return [await interpret(body, generation), await future]


async def _keyed_step(generation: int, job: Any, key: str) -> Any:
    loop = running()
    assert loop is not None
    args = Raw(app.codec.encode_call((job,), {}))
    return await loop.execution.steps.ask("work", args, key=f"{key}-{generation}")


async def _child(generation: int, job: Any) -> Any:
    return await child(job)


async def _plain_child(generation: int, job: Any) -> Any:
    return plain_child(job)


async def _submitted_child(generation: int, job: Any, body: Op) -> Any:
    handle = child.submit(job)
    return [await interpret(body, generation), await handle]


async def _detached_child(generation: int, job: Any) -> Any:
    return child.start(job).child_run_id  # type: ignore[attr-defined]


async def _child_awaited_later(generation: int, job: Any, body: Op) -> Any:
    handle: Any = child.start(job)
    return [await interpret(body, generation), await handle]


async def _seq(generation: int, *ops: Op) -> Any:
    return [await interpret(op, generation) for op in ops]


async def _gather(generation: int, keep: bool, *ops: Op) -> Any:
    found = await asyncio.gather(*(interpret(op, generation) for op in ops), return_exceptions=keep)
    return [repr(each) if isinstance(each, BaseException) else each for each in found]


async def _gather_steps(generation: int, *jobs: Any) -> Any:
    found = await asyncio.gather(*(work(job) for job in jobs), return_exceptions=True)
    return [repr(each) if isinstance(each, BaseException) else each for each in found]


async def _group(generation: int, *ops: Op) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(interpret(op, generation)) for op in ops]
    except* Broken as broken:
        saw("group", [str(each) for each in broken.exceptions])
    return [task.result() if task.done() and not task.cancelled() and not task.exception() else None for task in tasks]


async def _first(generation: int, *ops: Op) -> Any:
    tasks = [asyncio.ensure_future(interpret(op, generation)) for op in ops]
    try:
        done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in late:
        saw("late", task.get_name())
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return [str(task.exception()) if task.exception() else task.result() for task in done if not task.cancelled()]


async def _as_completed(generation: int, *ops: Op) -> Any:
    found = []
    for each in asyncio.as_completed([interpret(op, generation) for op in ops]):
        try:
            found.append(await each)
        except Broken as broken:
            found.append(str(broken))
    return found


async def _timeout(generation: int, seconds: float, op: Op) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await interpret(op, generation)
    except TimeoutError:
        return "took too long"


async def _wait_for(generation: int, seconds: float, op: Op) -> Any:
    try:
        return await asyncio.wait_for(interpret(op, generation), seconds)
    except TimeoutError:
        return "took too long"


async def _sleep(generation: int, seconds: float) -> Any:
    await sleep(seconds)
    return asyncio.get_running_loop().time()


async def _asyncio_sleep(generation: int, seconds: float) -> Any:
    await asyncio.sleep(seconds)
    return asyncio.get_running_loop().time()


async def _plain_sleep(generation: int, seconds: float) -> Any:
    wf.sleep(seconds)
    return asyncio.get_running_loop().time()


async def _hook(generation: int, name: str, timeout: float | None) -> Any:
    try:
        return await hook(name, timeout=timeout)
    except TimeoutError:
        return "nobody answered"


async def _plain_hook(generation: int, name: str) -> Any:
    return wf.hook(name)


async def _set(generation: int, key: str, value: Any) -> Any:
    wf.set_data(key, value)


async def _get(generation: int, key: str) -> Any:
    return wf.get_data(key, "nothing")


async def _stream(generation: int, item: Any) -> Any:
    wf.stream(item)


async def _random(generation: int) -> Any:
    return wf.random()


async def _uuid(generation: int) -> Any:
    return str(wf.uuid())


async def _now(generation: int) -> Any:
    return wf.utc_now().isoformat()


async def _patched(generation: int, change: str) -> Any:
    return wf.patched(change)


async def _try(generation: int, op: Op, handler: Op) -> Any:
    try:
        return await interpret(op, generation)
    except Exception as error:
        saw("caught", type(error).__name__, str(error))
        return await interpret(handler, generation)


async def _finally(generation: int, op: Op, cleanup: Op) -> Any:
    try:
        return await interpret(op, generation)
    finally:
        await interpret(cleanup, generation)


async def _swallow(generation: int, op: Op) -> Any:
    try:
        return await interpret(op, generation)
    except asyncio.CancelledError:
        return "goes on"


async def _shield(generation: int, op: Op) -> Any:
    async with shield():
        return await interpret(op, generation)


async def _asyncio_shield(generation: int, op: Op) -> Any:
    return await asyncio.shield(interpret(op, generation))


async def _fail(generation: int, text: str) -> Any:
    raise Broken(text)


async def _queue(generation: int, *jobs: Any) -> Any:
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=2)
    found: list[Any] = []

    async def consume() -> None:
        while True:
            job = await queue.get()
            with contextlib.suppress(Broken):
                found.append(await work(job))
            queue.task_done()

    consumers = [asyncio.create_task(consume()) for _ in range(2)]
    try:
        for job in jobs:
            await queue.put(job)
        await queue.join()
    finally:
        for consumer in consumers:
            consumer.cancel()
    return found


async def _generator(generation: int, leave_after: int, *ops: Op) -> Any:
    async def generate() -> Any:
        for op in ops:
            yield await interpret(op, generation)

    found = []
    async with contextlib.aclosing(generate()) as generator:
        async for each in generator:
            found.append(each)
            if len(found) == leave_after:
                break
    return found


async def _continue(generation: int, op: Op) -> Any:
    if generation < 2:
        wf.continue_as_new(op, generation + 1)
    return generation


OPERATIONS: dict[str, Any] = {
    "step": _step, "plain step": _plain_step, "submitted step": _submitted_step, "keyed step": _keyed_step,
    "child": _child, "plain child": _plain_child, "submitted child": _submitted_child,
    "detached child": _detached_child, "child awaited later": _child_awaited_later,
    "seq": _seq, "gather": _gather, "gather steps": _gather_steps, "group": _group, "first": _first,
    "as_completed": _as_completed, "timeout": _timeout, "wait_for": _wait_for, "sleep": _sleep,
    "asyncio sleep": _asyncio_sleep, "plain sleep": _plain_sleep, "hook": _hook, "plain hook": _plain_hook,
    "set": _set, "stream": _stream, "get": _get, "random": _random, "uuid": _uuid, "now": _now, "patched": _patched, "try": _try,
    "finally": _finally, "swallow": _swallow, "shield": _shield, "asyncio shield": _asyncio_shield, "fail": _fail,
    "queue": _queue, "generator": _generator, "continue": _continue,
}  # fmt: skip


def interpret_plainly(op: Op, generation: int) -> Any:
    """The same for a `def` workflow: plain calls where there is a plain form, `wf.wait` for the rest."""
    kind, *rest = op
    found: Any
    if kind == "step":
        found = plain_work(rest[0])
    elif kind == "submitted step":
        future = work.submit(rest[0])
        found = [interpret_plainly(rest[1], generation), future.result()]
    elif kind == "child":
        found = plain_child(rest[0])
    elif kind == "submitted child":
        handle = child.submit(rest[0])
        found = [interpret_plainly(rest[1], generation), handle.result()]
    elif kind == "keyed step":
        loop = running()
        assert loop is not None
        args = Raw(app.codec.encode_call((rest[0],), {}))
        found = wait_plainly(loop.execution.steps.ask("work", args, key=f"{rest[1]}-{generation}"))
    elif kind == "sleep":
        found = wf.sleep(rest[0])
    elif kind == "hook":
        try:
            found = wf.hook(rest[0], timeout=rest[1])
        except TimeoutError:
            found = "nobody answered"
    elif kind == "seq":
        found = [interpret_plainly(each, generation) for each in rest]
    elif kind == "try":
        try:
            found = interpret_plainly(rest[0], generation)
        except Exception as error:
            saw("caught", type(error).__name__, str(error))
            found = interpret_plainly(rest[1], generation)
    elif kind == "finally":
        try:
            found = interpret_plainly(rest[0], generation)
        finally:
            interpret_plainly(rest[1], generation)
    elif kind == "shield":
        with shield():
            found = interpret_plainly(rest[0], generation)
    elif kind == "continue" and generation < 2:
        wf.continue_as_new(rest[0], generation + 1)
    else:
        found = wf.wait(interpret(op, generation))
    saw(kind, repr(found))
    return found


# -- drawing

NAMES = st.sampled_from("ab")
SECONDS = st.sampled_from([0, 0.5, 1, 1, 5])


def jobs(hows: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Few different jobs, so that identical calls are common."""
    return st.fixed_dictionaries(
        {"id": st.integers(0, 1), "how": st.sampled_from(hows)},
        optional={"writes": st.dictionaries(NAMES, st.integers(0, 3), max_size=1)},
    )


def op(kind: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Op]:
    return st.tuples(st.just(kind), *arguments).map(list)


def ops(
    kind: str, *arguments: st.SearchStrategy[Any], of: st.SearchStrategy[Any], least: int = 1, most: int = 4
) -> st.SearchStrategy[Op]:
    many = st.lists(of, min_size=least, max_size=most)
    return st.tuples(st.tuples(*arguments), many).map(lambda drawn: [kind, *drawn[0], *drawn[1]])


def programs(hows: tuple[str, ...] = ("ends", "ends", "ends", "fails"), *, again: bool = True) -> st.SearchStrategy[Op]:
    """Programs of every operation. `again` allows them to continue as new."""
    job = jobs(hows)
    leaves = st.one_of(
        op("step", job), op("step", job), op("step", job), op("plain step", job), op("plain step", job),
        op("keyed step", job, st.just("k")), ops("gather steps", of=job), ops("queue", of=job), op("child", job),
        op("plain child", job),
        op("detached child", job), op("sleep", SECONDS), op("asyncio sleep", SECONDS), op("plain sleep", SECONDS),
        op("hook", NAMES, st.none() | SECONDS), op("plain hook", NAMES), op("set", NAMES, st.integers(0, 3)),
        op("stream", NAMES), op("get", NAMES), op("random"), op("uuid"), op("now"), op("patched", NAMES), op("fail", NAMES),
    )  # fmt: skip

    def branches(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
        kinds = [
            ops("seq", of=inner), ops("seq", of=inner), ops("gather", st.booleans(), of=inner, least=2),
            ops("group", of=inner, least=2), ops("first", of=inner, least=2), ops("as_completed", of=inner, least=2),
            op("timeout", SECONDS, inner), op("wait_for", SECONDS, inner), op("try", inner, inner),
            op("finally", inner, inner), op("swallow", inner), op("shield", inner), op("asyncio shield", inner),
            op("submitted step", job, inner), op("submitted child", job, inner), op("child awaited later", job, inner),
            ops("generator", st.integers(0, 2), of=inner),
        ]  # fmt: skip
        if again:
            kinds.append(op("continue", inner))
        return st.one_of(kinds)

    tree = st.recursive(leaves, branches, max_leaves=8)
    return ops("seq", of=tree, least=2).map(with_own_keys)


def straight_programs() -> st.SearchStrategy[Op]:
    """Programs in which no failure is caught and nothing races: each call is made once, in whatever order."""
    job = jobs(("ends", "ends", "fails once"))
    leaves = st.one_of(
        op("step", job), op("plain step", job), op("child", job), op("plain child", job), op("sleep", SECONDS),
        op("plain sleep", SECONDS), op("plain hook", NAMES), op("set", NAMES, st.integers(0, 3)), op("random"), op("now"),
    )  # fmt: skip

    def branches(inner: st.SearchStrategy[Op]) -> st.SearchStrategy[Op]:
        return st.one_of(
            ops("seq", of=inner), ops("gather", st.just(False), of=inner, least=2), op("submitted step", job, inner),
            op("submitted child", job, inner), op("shield", inner), ops("generator", st.just(9), of=inner),
        )  # fmt: skip

    return st.recursive(leaves, branches, max_leaves=8)


def sequences() -> st.SearchStrategy[Op]:
    """One thing after the other: values, and steps that fail at first."""
    job = jobs(("ends", "fails once"))
    values = st.one_of(op("random"), op("uuid"), op("now"))
    steps = st.one_of(op("step", job), op("plain step", job), op("sleep", SECONDS))
    return ops("seq", of=st.one_of(values, values, steps), least=2, most=10)


def with_own_keys(op: Op) -> Op:
    """Give each keyed step a key of its own: keys are unique in a run."""
    count = 0

    def visit(node: Any) -> Any:
        nonlocal count
        if not isinstance(node, list):
            return node
        if node and node[0] == "keyed step":
            count += 1
            return [*node[:2], f"k{count}"]
        return [visit(each) for each in node]

    return visit(op)
