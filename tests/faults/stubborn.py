"""An app whose steps don't let their worker end, for whole processes. What they wait for is a gate of the world."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

from effects import effect, gate

from holdfast import App, use

if "STUBBORN_SLOW_IMPORT" in os.environ and "worker" not in sys.argv:  # in a process for steps
    gate("importing").write_text(str(os.getpid()))
    time.sleep(2)

app = App("stubborn", version="1")


@app.step
async def blocks_loop() -> None:
    effect("blocks_loop")
    while not gate("end").exists():
        time.sleep(0.01)


@app.step
async def swallows() -> None:
    effect("swallows")
    while not gate("end").exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


@app.step
def blocks_thread() -> str:
    effect("blocks_thread")
    while not gate("end").exists():
        time.sleep(0.01)
    return "done"


@app.step
async def leaves_a_thread() -> None:
    effect("leaves_a_thread")
    await asyncio.to_thread(threading.Event().wait)


@app.resource
def never_closes() -> Iterator[str]:
    yield "open"
    gate("closing").touch()
    threading.Event().wait()


@app.resource
async def never_closes_on_loop() -> AsyncIterator[str]:
    yield "open"
    gate("closing").touch()
    threading.Event().wait()


@app.step
def takes(it: str = use(never_closes)) -> str:
    effect("takes")
    return it


@app.step
async def takes_on_loop(it: str = use(never_closes_on_loop)) -> str:
    effect("takes_on_loop")
    return it


# -- in processes


@app.step(pool="process")
def quick_in_process() -> int:
    return os.getpid()


@app.step(pool="process")
def computes_in_process() -> None:
    """In native code, which lets no other thread of its process run."""
    effect("computes_in_process")
    re.match(r"(a+)+$", "a" * 50 + "b")


@app.step(pool="process")
def spawns_in_process() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    effect("spawns_in_process", child.pid)
    child.wait()


@app.step(pool="process")
def forks_in_process() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    effect("forks_in_process", pid)
    os.waitpid(pid, 0)
