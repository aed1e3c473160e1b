"""Steps that executors have a hard time with. A process of its own has to find them by importing this module."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from holdfast import App, RetryableError, use
from holdfast.errors import Suspended

app = App("executor_steps", ":memory:")
opened: list[str] = []
"""What happened to the resource, in order: only in the process of the test."""


def begin(gate: str) -> Path:
    """Leave a mark for the test, and say what to wait for."""
    with Path(gate + ".begun").open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Path(gate)


@app.step
def plain(n: int) -> int:
    return n + 1


@app.step
async def on_loop(n: int) -> int:
    return n + 1


@app.step
def thread_name() -> str:
    return threading.current_thread().name


@app.step
async def loop_thread_name() -> str:
    return threading.current_thread().name


@app.step
def waits(gate: str) -> str:
    path = begin(gate)
    while not path.exists():
        time.sleep(0.005)
    return "done"


@app.step
async def awaits(gate: str) -> str:
    path = begin(gate)
    while not path.exists():
        await asyncio.sleep(0.005)
    return "done"


@app.step
async def swallows(gate: str) -> str:
    path = begin(gate)
    while not path.exists():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            continue
    return "done"


@app.step
async def cleans_up_slowly(gate: str) -> None:
    path = begin(gate)
    try:
        await asyncio.sleep(600)
    finally:
        while not path.exists():
            await asyncio.sleep(0.005)


@app.step
async def blocks(gate: str) -> str:
    path = begin(gate)
    while not path.exists():
        time.sleep(0.005)
    return "done"


@app.step
async def blocks_in_a_task(gate: str) -> str:
    async def inner() -> str:
        path = begin(gate)
        while not path.exists():
            time.sleep(0.005)
        return "done"

    return await asyncio.create_task(inner())


@app.step
def computes(gate: str) -> bool:
    """In native code, which lets no other thread of its process run."""
    begin(gate)
    return re.match(r"(a+)+$", "a" * 50 + "b") is None


@app.step
async def computes_on_loop(gate: str) -> bool:
    begin(gate)
    return re.match(r"(a+)+$", "a" * 50 + "b") is None


@app.step
async def busy_in_pieces(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        piece = time.monotonic() + 0.01
        while time.monotonic() < piece:
            pass
        await asyncio.sleep(0)


# -- processes of processes


@app.step
def forks(gate: str) -> None:
    """What it forks has a copy of all that is open."""
    process = multiprocessing.get_context("fork").Process(target=_linger, args=(gate,))
    process.start()
    process.join()


def _linger(gate: str) -> None:
    begin(gate)
    time.sleep(600)


@app.step
def spawns(gate: str) -> int:
    code = f"import time; open({gate + '.begun'!r}, 'a').write(str(__import__('os').getpid()) + '\\n'); time.sleep(600)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


@app.step
def dies_and_leaves_a_child(gate: str) -> None:
    multiprocessing.get_context("fork").Process(target=_linger, args=(gate,)).start()
    mark = Path(gate + ".begun")
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.005)
    os._exit(1)


# -- a resource on the loop


@app.resource
async def connection() -> AsyncIterator[str]:
    name = threading.current_thread().name
    opened.append(f"opened on {name}")
    yield name
    opened.append(f"closed on {threading.current_thread().name}")


@app.step
async def connected(line: str = use(connection)) -> list[str]:
    return [line, threading.current_thread().name]


@app.step
async def blocks_connected(gate: str, line: str = use(connection)) -> list[str]:
    path = begin(gate)
    while not path.exists():
        time.sleep(0.005)
    return [line, threading.current_thread().name]


# -- what can be raised, and what can't be recorded


class Harm(BaseException):
    """What no `except Exception` holds."""


def _harm(*_: Any) -> NoReturn:
    raise Harm


class TextRaises(Exception):
    __str__ = _harm
    __repr__ = _harm


class ClassRaises(Exception):
    __class__ = property(_harm)  # type: ignore[assignment]


class AttributesRaise(Exception):
    __cause__ = property(_harm)  # type: ignore[assignment]
    __context__ = property(_harm)  # type: ignore[assignment]
    __notes__ = property(_harm)  # type: ignore[assignment]
    args = property(_harm)  # type: ignore[assignment]
    __dict__ = property(_harm)  # type: ignore[assignment]


class AllRaises(Exception):
    def __getattribute__(self, name: str) -> NoReturn:
        raise Harm


class ArgumentRaises(Exception):
    def __init__(self) -> None:
        super().__init__(Unprintable())


class Unprintable:
    __repr__ = _harm
    __reduce__ = _harm  # type: ignore[assignment]


class DelayRaises(RetryableError):
    retry_after_us = property(_harm, lambda self, value: None)  # type: ignore[assignment]


class Forgetful(RetryableError):
    def __init__(self, code: int) -> None:  # and calls nothing of its base
        self.code = code


class Nameless(Exception):
    pass


Nameless.__module__ = None  # type: ignore[assignment]

RAISED: dict[str, Any] = {
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "Suspended": Suspended,
    "Harm": Harm,
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "TextRaises": TextRaises,
    "ClassRaises": ClassRaises,
    "AttributesRaise": AttributesRaise,
    "AllRaises": AllRaises,
    "ArgumentRaises": ArgumentRaises,
    "DelayRaises": lambda: DelayRaises("later"),
    "Forgetful": lambda: Forgetful(3),
    "Nameless": Nameless,
    "ExceptionGroup": lambda: ExceptionGroup("several", [TextRaises(), ClassRaises()]),
}


@app.step
def raises(kind: str) -> None:
    raise RAISED[kind]()


@app.step
async def araises(kind: str) -> None:
    await asyncio.sleep(0)
    raise RAISED[kind]()


@dataclass
class Secretive:
    name: str

    def __getattribute__(self, name: str) -> Any:
        if name == "name":
            raise Harm
        return super().__getattribute__(name)


app.codec.types.register(Secretive)

RETURNED: dict[str, Any] = {
    "Secretive": lambda: Secretive.__new__(Secretive),
    "Unprintable": Unprintable,
    "surrogate": lambda: {"\ud800": object()},
    "deep": lambda: _deep(),
    "TextRaises": TextRaises,
}


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@app.step
def returns(kind: str) -> Any:
    return RETURNED[kind]()


@app.step
async def areturns(kind: str) -> Any:
    return RETURNED[kind]()


@app.step
async def ends_the_loop(how: str) -> str:
    """What other code on the loop does is asyncio's to tell, and asyncio lets some of it end the loop."""
    loop = asyncio.get_running_loop()
    if how == "stop":
        loop.stop()
    elif how == "callback":
        loop.call_soon(sys.exit, 3)
    else:
        asyncio.create_task(_exit())
    await asyncio.sleep(0.05)
    return "done"


async def _exit() -> None:
    sys.exit(3)
