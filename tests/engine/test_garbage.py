"""What is let go has no cycles: memory is given back at once, whatever the collector's settings."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until

from holdfast import App, FatalError, hook, sleep, wf
from holdfast.engine.settings import Settings

RUNS = 30
app = App("garbage")


@app.step
async def add(a: int, b: int) -> int:
    return a + b


@app.step
def double(n: int) -> int:
    wf.set_data("seen", n)
    return 2 * n


@app.step(max_retries=0)
async def fail() -> None:
    raise FatalError("no")


@app.workflow
async def nothing() -> None: ...


@app.workflow
async def steps() -> int:
    return double(await add(1, 2))


@app.workflow
def plainly() -> int:
    return double(double(1))


@app.workflow
async def wide() -> list[int]:
    return list(await asyncio.gather(*(add(i, i) for i in range(5))))


@app.workflow
async def naps() -> int:
    await sleep(0.05)
    return await add(1, 1)


@app.workflow
async def asks() -> str:
    return str(await hook("answer"))


@app.workflow
async def parent() -> int:
    return await steps()


@app.workflow
async def again(left: int = 2) -> None:
    if left:
        wf.continue_as_new(left - 1)


@app.workflow
async def fails() -> None:
    await fail()


@contextmanager
def collected() -> Iterator[Counter[str]]:
    """What only the collector of cycles can free of what is made in the block."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.freeze()  # what other tests have left is looked at no more
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found.update(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("name", ["nothing", "steps", "plainly", "wide", "naps", "asks", "parent", "again", "fails"])
def test_a_run_that_has_ended_or_is_parked_leaves_nothing_to_the_collector(name: str, tmp_path: Path) -> None:
    app.use_store(str(tmp_path / "garbage.db"))
    workflow = app.definitions.find_workflow(name)
    try:
        with app.worker(settings=Settings(park_after=0.01)) as host:
            app.start(workflow.name).id  # what is made once is not counted

            def run_all() -> None:
                runs = [app.start(name) for _ in range(RUNS)]
                if name == "asks":
                    wait_until(lambda: not host.engine.runs and all(run.status == "WAITING" for run in runs))
                    for run in runs:
                        run.send("answer", "yes")
                wait_until(lambda: all(run.status.is_final for run in runs) and not host.engine.runs)

            run_all()
            with collected() as found:
                run_all()
        # Threads that other tests have left may leave something, too: what runs leave is there for each of them.
        assert not {name: count for name, count in found.items() if count >= RUNS}
    finally:
        app.close()
