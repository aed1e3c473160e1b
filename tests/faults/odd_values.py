"""Values that nobody means to hand over, and some that somebody does: what the odd-call test draws its arguments from.

Everything is made anew by a function of the random numbers, so that a seed repeats it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import inspect
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import FatalError, RetryableError, Suspended, WorkflowBlocked


class OddError(Exception):
    """What hostile values raise. One that comes out of a call was let through."""


class OddSignal(BaseException):
    """The same, of a kind that `except Exception` doesn't see."""


def _raise(kind: type[BaseException], name: str) -> Callable[..., Any]:
    def method(self: object, *args: object) -> Any:
        raise kind(name)

    return method


_HOSTILE = ("__repr__", "__str__", "__eq__", "__ne__", "__bool__", "__len__", "__iter__", "__getitem__", "__format__")


def _hostile(name: str, kind: type[BaseException], *bases: type, but: tuple[str, ...] = ()) -> type:
    methods = {method: _raise(kind, method) for method in (*_HOSTILE, "__hash__") if method not in but}
    return type(name, bases, {**methods, "__module__": __name__})


Hostile = _hostile("Hostile", OddError)
MoreHostile = _hostile("MoreHostile", OddSignal)
# A text has to be one where its class is looked at; what it does when it is shown is another matter.
HostileText = _hostile("HostileText", OddError, str, but=("__len__", "__iter__", "__getitem__"))
HostileFailure = _hostile("HostileFailure", OddError, Exception, but=("__eq__", "__ne__", "__hash__"))
WorseFailure = _hostile("WorseFailure", OddSignal, Exception, but=("__eq__", "__ne__", "__hash__"))


class HostileState(Exception):
    """An exception whose attributes can't be read."""

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise OddSignal

    @property
    def __notes__(self) -> Any:
        raise OddSignal


class Zone(dt.tzinfo):
    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        raise OddError


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def _numbers() -> Iterator[int]:
    yield from (1, 2)


async def _nothing() -> None: ...


TEXTS: list[Any] = [
    "", " ", "x", "a b", "a\nb", "a\0b", "\ud800", "caf\udce9", "é" * 150, "x" * 300, "'; DROP TABLE runs; --", "$", "🙂", "1",
    "%s", "run.failed", "holdfast.chain", "/", "..", "-1", "0 0 31 2 *", "* * * * *", "1h", "nan", "9" * 400 + "s", "@daily",
    "UTC",
]  # fmt: skip
NUMBERS: list[Any] = [
    0, 1, -1, 5, True, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**5_000, 0.5, -0.0, 1e308, float("nan"), float("inf"), 3 + 4j,
    decimal.Decimal("NaN"), decimal.Decimal("1e999"),
]  # fmt: skip
OTHERS: list[Callable[[], Any]] = [
    lambda: None, lambda: object(), lambda: Hostile(), lambda: MoreHostile(), lambda: HostileText("x"), lambda: b"\xff\0",
    lambda: bytearray(b"x"), lambda: [], lambda: {}, lambda: (), lambda: set(), lambda: [1, "\ud800"], lambda: {"\ud800": "\0"},
    lambda: {1: 2, None: 3}, lambda: {(): ()}, lambda: {Hostile: 1}, lambda: [Hostile()], lambda: {"k": MoreHostile()},
    lambda: nested(20), lambda: nested(150), lambda: nested(20_000), cyclic, _numbers, _nothing, lambda: _nothing,
    lambda: lambda: 1, lambda: int, lambda: inspect, lambda: threading.Lock(), lambda: msgspec.Raw(b"{"), lambda: msgspec.UNSET,
    lambda: dt.datetime(2030, 1, 1), lambda: dt.datetime.max.replace(tzinfo=dt.UTC),
    lambda: dt.datetime.min.replace(tzinfo=dt.UTC), lambda: dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
    lambda: dt.datetime(2030, 1, 1, tzinfo=Zone()), lambda: dt.timedelta.max, lambda: dt.timedelta(-1), lambda: Path("caf\udce9"),
    lambda: uuid.UUID(int=1), lambda: ValueError("\ud800\0"), lambda: HostileFailure("x"), lambda: OddSignal(),
    lambda: NotImplemented, lambda: ..., lambda: slice(1), lambda: memoryview(b"x"), lambda: iter([1]), lambda: range(3),
]  # fmt: skip

FAILURES: list[Callable[[], BaseException]] = [
    lambda: ValueError("\ud800\0"), lambda: ValueError("x" * 100_000), lambda: HostileFailure("x"), lambda: WorseFailure("x"),
    lambda: HostileState(), lambda: OddSignal("x"), lambda: KeyboardInterrupt(), lambda: SystemExit(3),
    lambda: GeneratorExit(), lambda: asyncio.CancelledError("x"), lambda: StopIteration(1), lambda: StopAsyncIteration(),
    lambda: Suspended(), lambda: WorkflowBlocked("x"), lambda: RecursionError(),
    lambda: MemoryError(), lambda: RetryableError("x", retry_after=0), lambda: FatalError(), lambda: TimeoutError(),
    lambda: ExceptionGroup("\ud800", [HostileFailure("x"), ValueError("y")]),
    lambda: BaseExceptionGroup("x", [OddSignal("x")]), lambda: _chained(), lambda: OSError(5, "\ud800", "caf\udce9"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), lambda: KeyError(Hostile()), lambda: ValueError(cyclic()),
]  # fmt: skip


def _chained() -> BaseException:
    error = ValueError("first")
    error.__cause__ = other = HostileFailure("second")
    other.__context__ = error
    return error


class Odd:
    """Draws values. What has to be ended, such as a coroutine that nobody awaits, is ended by `close`."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self._made: list[Any] = []

    def value(self) -> Any:
        made = self.chance.choice([self._text, self._number, self._other, self._other])()
        self._made.append(made)
        return made

    def failure(self) -> BaseException:
        return self.chance.choice(FAILURES)()

    def _text(self) -> Any:
        return self.chance.choice(TEXTS)

    def _number(self) -> Any:
        return self.chance.choice(NUMBERS)

    def _other(self) -> Any:
        return self.chance.choice(OTHERS)()

    def has_made(self, value: object) -> bool:
        return any(made is value for made in self._made)

    def close(self) -> None:
        for made in self._made:
            if inspect.iscoroutine(made):
                made.close()
