"""Classes of every kind that the codec knows, for its tests."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from decimal import Decimal
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import msgspec
import pydantic

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = ("b", 1)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()


class IntPerm(enum.IntFlag):
    R = 1
    W = 2


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal
    count: int = 1


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Line] = dataclasses.field(default_factory=list)
    color: Color | None = None
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.total += len(self.lines)  # not idempotent on purpose: it must not run again when rebuilt

    @cached_property
    def label(self) -> str:
        return f"order {self.id}"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any = None


@dataclasses.dataclass(kw_only=True)
class KwOnly:
    a: Any
    tail: Any = ()


@dataclasses.dataclass
class Tree:
    value: Any
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]
    first: T | None = None


class Point(NamedTuple):
    x: Any
    y: Any = 0


OldPoint = namedtuple("OldPoint", "x y")


class Struct(msgspec.Struct):
    a: Any
    b: Any = None


class FrozenStruct(msgspec.Struct, frozen=True, kw_only=True, tag=True, rename="camel"):
    first_name: str
    tags: list[str] = []

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "first_name", self.first_name + "!")


@attrs.define
class Attrs:
    a: Any
    _private: Any = None
    derived: Any = attrs.field(init=False, default=attrs.Factory(lambda self: [self.a], takes_self=True))


@attrs.frozen(slots=False)
class FrozenAttrs:
    a: Any
    b: list[Any] = attrs.Factory(list)


class Model(pydantic.BaseModel):
    a: Any
    when: Any = None
    lines: list[Line] = []
    _secret: Any = pydantic.PrivateAttr(default=None)


class OpenModel(pydantic.BaseModel, extra="allow", frozen=True):
    a: int = 0


class Root(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class PydanticData:
    a: int


class Options(TypedDict, total=False):
    color: Color
    lines: list[Line]


class Handle:
    """Says nothing of what it consists of."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.fd == self.fd


ENUMS = [Color, Level, Mode, Perm, IntPerm]
CLASSES = [
    *ENUMS, Line, Order, Frozen, KwOnly, Tree, Page, Point, OldPoint, Struct, FrozenStruct, Attrs,
    FrozenAttrs, Model, OpenModel, Root, PydanticData,
]  # fmt: skip


class AppError(Exception):
    """Asks for keywords, like many in the wild."""

    def __init__(self, *, code: int, order: Order | None = None) -> None:
        super().__init__(f"app error {code}")
        self.code = code
        self.order = order


class SlotError(Exception):
    __slots__ = ("where",)

    def __init__(self, message: str, where: str | None) -> None:
        super().__init__(message)
        self.where = where


class OwnNewError(Exception):
    def __new__(cls, a: int, b: int) -> OwnNewError:
        return super().__new__(cls, a, b)

    def __init__(self, a: int, b: int) -> None:
        self.sum = a + b

    class InnerError(Exception):
        pass


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class BrokenOnceRebuiltError(Exception):
    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def __str__(self) -> str:
        return f"handle {self.handle.fd}"


class Bag(list[Any]):
    pass


class Text(str):
    pass
