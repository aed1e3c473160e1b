"""Limits as people say them: how many at once, how often, for each key or in total; and as a function is under them.

Nothing here counts: who has a slot and who waits for one is in the store.
"""

from __future__ import annotations

import datetime as dt
import enum
import hashlib
import inspect
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from typing import Any, Literal

from holdfast.durations import to_us
from holdfast.errors import ArgumentError, DefinitionError
from holdfast.printing import show

WhenFull = Literal["queue", "skip", "cancel"]
Key = str | Callable[..., object]

WHEN_FULL = ("queue", "skip", "cancel")
MOST = 1_000_000
NAME_LIMIT = 200
KEY_LIMIT = 200
_RATE = re.compile(r"\s*(\d+)\s*/\s*(\S.*?)\s*")
_UNIT = re.compile(r"us|ms|s|m|h|d|w")
_PLAIN = (str, int, float, Decimal, uuid.UUID, dt.date, dt.time, type(None))


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in each period, in microseconds, one after the other."""

    count: int
    period: int

    @classmethod
    def read(cls, given: Any) -> Rate:
        found = _RATE.fullmatch(given) if isinstance(given, str) else None
        try:
            if found is None:
                raise ValueError
            unit = f"1{found[2]}" if _UNIT.fullmatch(found[2]) else found[2]
            rate = cls(int(found[1]), to_us(unit))
            if not (0 < rate.count <= MOST and rate.period >= rate.count):
                raise ValueError
        except ValueError:
            raise DefinitionError(
                f"rate_limit={show(given)}: say how many in which time, such as '100/m', '5/s' or '10/30s', not more than one "
                "in a microsecond"
            ) from None
        return rate


@dataclass(frozen=True, slots=True)
class Limit:
    """How many at once, and how often, over all workers of a store.

    With a `key` each key has a limit of its own: the name of an argument, or a function that names the arguments it
    takes. One with a name is shared by all that use that name. `burst` is how many may begin at once after a quiet time;
    `when_full` is for workflows: a run waits for its turn, is skipped, or has the oldest one cancelled.
    """

    name: str = ""
    _: KW_ONLY
    concurrency: int | None = None
    rate_limit: str | None = None
    key: Key | None = None
    burst: int = 1
    when_full: WhenFull = "queue"

    def __post_init__(self) -> None:
        if type(self.name) is not str or len(self.name) > NAME_LIMIT or not self.name.isprintable() or " " in self.name:
            raise DefinitionError(
                f"Limit({show(self.name)}): a name is a text of 1 to {NAME_LIMIT} printable characters without spaces"
            )
        if self.concurrency is None and self.rate_limit is None:
            what = f"key={show(self.key)}" if self.key is not None else f"Limit({show(self.name)})"
            raise DefinitionError(f"{what} limits nothing yet; add concurrency=5 or rate_limit='100/m'")
        if self.concurrency is not None:
            _check_count("concurrency", self.concurrency, "how many may be under way at once")
        if self.rate_limit is not None:
            Rate.read(self.rate_limit)
        _check_count("burst", self.burst, "how many may begin at once after a quiet time")
        if self.burst > 1 and self.rate_limit is None:
            raise DefinitionError(f"burst={self.burst} is about a rate; add rate_limit='100/m', or leave it out")
        if self.key is not None and not (type(self.key) is str and self.key) and not callable(self.key):
            raise DefinitionError(f"key={show(self.key)}: give the name of an argument, or a function of arguments")
        if self.when_full not in WHEN_FULL:
            raise DefinitionError(f"when_full={show(self.when_full)}: give 'queue', 'skip' or 'cancel'")
        if self.when_full == "cancel" and self.concurrency is None:
            raise DefinitionError(
                "when_full='cancel' makes room by ending the oldest run, which a rate_limit has no use for; add concurrency="
            )

    @property
    def rate(self) -> Rate | None:
        """`rate_limit`, as numbers."""
        return None if self.rate_limit is None else Rate.read(self.rate_limit)


@dataclass(frozen=True, slots=True)
class BoundLimit:
    """A limit as one function is under it; `takes` are the arguments that its key is made of."""

    name: str
    limit: Limit
    takes: tuple[str, ...] = ()

    @property
    def is_keyed(self) -> bool:
        return self.limit.key is not None

    def key_of(self, arguments: Mapping[str, Any]) -> str:
        """Which line a call stands in; '' if there is one for all."""
        key = self.limit.key
        if key is None:
            return ""
        value = arguments[key] if isinstance(key, str) else key(**{name: arguments[name] for name in self.takes})
        if isinstance(value, enum.Enum):
            value = value.value
        if not isinstance(value, _PLAIN):
            raise ArgumentError(
                f"limit {self.name!r}: its key is {show(value)}; let key= give a text, a number or something as plain"
            )
        return _as_key(str(value))


def lines_of(limits: Sequence[BoundLimit], arguments: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The lines of a call, in the order in which it stands in them: the limit, the key, and by what those that wait in
    that line take turns."""
    keys = [limit.key_of(arguments) for limit in limits]
    parts = "\n".join(key for limit, key in zip(limits, keys, strict=True) if limit.is_keyed)
    return [
        (limit.name, key, "" if limit.is_keyed else _as_key(parts)) for limit, key in zip(limits, keys, strict=True)
    ]


def bind(what: str, name: str, limits: Iterable[Limit], signature: inspect.Signature) -> tuple[BoundLimit, ...]:
    """The limits of a function in the order of their lines. Those per key come first: whoever waits for one of a few
    slots of a key must not keep others from what all share. One order for all functions, so none waits in a circle."""
    bound: list[BoundLimit] = []
    for limit in limits:
        takes = _arguments_of(what, name, limit, signature)
        own = limit.name or _own_name(name, limit, takes)
        number = sum(each.name == own or each.name.startswith(f"{own}#") for each in bound)
        if number and limit.name:
            raise DefinitionError(f"{what} {name!r} is under limit {own!r} twice; name it once")
        bound.append(BoundLimit(f"{own}#{number + 1}" if number else own, limit, takes))
    return tuple(sorted(bound, key=lambda each: (not each.is_keyed, each.name)))


def _own_name(name: str, limit: Limit, takes: tuple[str, ...]) -> str:
    """What a limit without a name of its own is called: after its function, and what its keys are."""
    return f"{name}/{'+'.join(takes) or 'key'}" if limit.key is not None else name


def _arguments_of(what: str, name: str, limit: Limit, signature: inspect.Signature) -> tuple[str, ...]:
    key = limit.key
    if key is None:
        return ()
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [each.name for each in signature.parameters.values() if each.kind not in kinds]
    if isinstance(key, str):
        wanted = [key]
    else:
        try:
            parameters = inspect.signature(key).parameters.values()
        except (TypeError, ValueError):
            raise DefinitionError(
                f"{what} {name!r}: of key={show(key)} nobody can tell which arguments it takes; give a function of your own"
            ) from None
        wanted = [each.name for each in parameters if each.default is each.empty]
    for each in wanted:
        if each not in known:
            raise DefinitionError(
                f"{what} {name}{signature}: key= asks for {each!r}, which is none of its arguments; a function for key= names "
                f"the arguments it takes, as here: key=lambda {known[0] if known else 'order'}: ..."
            )
    return tuple(wanted)


def _check_count(what: str, value: Any, meaning: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise DefinitionError(f"{what}={show(value)}: give {meaning}, as a number from 1 to {MOST:,}")


def _as_key(text: str) -> str:
    """A text that every database can hold, and find by an index; different ones stay different."""
    if len(text) <= KEY_LIMIT and "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]
    return f"{text[:100].encode(errors='replace').decode()}...{digest}".replace("\0", "?")
