"""A parameter annotated `Order` gets an `Order`, also from plain JSON; what doesn't fit is refused by name."""

from __future__ import annotations

import datetime as dt
import enum
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NewType, Optional, Protocol, TypeVar, Union
from uuid import UUID

import codec_models as m
import pydantic
import pytest

from holdfast.codec import Codec
from holdfast.errors import DecodeError

UserId = NewType("UserId", int)
T = TypeVar("T")


class Speaks(Protocol):
    def speak(self) -> None: ...


ORDER = {"id": 1, "lines": [{"sku": "x", "price": "1.10"}], "color": "red", "unknown": 1}
EXPECTED = m.Order(1, [m.Line("x", Decimal("1.10"))], m.Color.RED)

CONVERSIONS: list[tuple[Any, Any, Any]] = [
    (m.Order, ORDER, EXPECTED),
    (list[m.Order], [ORDER], [EXPECTED]),
    (dict[str, m.Order], {"a": ORDER}, {"a": EXPECTED}),
    (m.Order | None, ORDER, EXPECTED),
    (Optional[m.Order], None, None),  # noqa: UP045
    (Union[int, m.Order], ORDER, EXPECTED),  # noqa: UP007
    (tuple[m.Order, int], [ORDER, 2], (EXPECTED, 2)),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple, [1, 2], (1, 2)),
    (set[int], [1, 2], {1, 2}),
    (frozenset[m.Mode], ["fast"], frozenset([m.Mode.FAST])),
    (deque[int], [1], deque([1])),
    (Sequence[Decimal], ["1.5"], [Decimal("1.5")]),
    (MutableSequence[int], [1], [1]),
    (Iterable[Decimal], ["1.5"], [Decimal("1.5")]),
    (Set[int], [1], frozenset([1])),
    (Mapping[str, Decimal], {"a": "1"}, {"a": Decimal(1)}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (dict[UUID, int], {str(UUID(int=1)): 1}, {UUID(int=1): 1}),
    (dict[m.Mode, int], {"fast": 1}, {m.Mode.FAST: 1}),
    (OrderedDict[str, int], {"a": 1}, OrderedDict(a=1)),
    (float, 1, 1.0),
    (complex, 2, complex(2)),
    (Decimal, 1.1, Decimal("1.1")),
    (Decimal, "1.10", Decimal("1.10")),
    (Decimal, 3, Decimal(3)),
    (Fraction, "1/3", Fraction(1, 3)),
    (dt.datetime, "2024-01-02T03:04:05Z", dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
    (dt.datetime, "2024-01-02T03:04:05", dt.datetime(2024, 1, 2, 3, 4, 5)),
    (dt.date, "2024-01-02", dt.date(2024, 1, 2)),
    (dt.time, "03:04:05", dt.time(3, 4, 5)),
    (dt.timedelta, "PT90S", dt.timedelta(seconds=90)),
    (UUID, str(UUID(int=5)), UUID(int=5)),
    (bytes, "YWI=", b"ab"),
    (Path, "/a", Path("/a")),
    (PurePosixPath, "a", PurePosixPath("a")),
    (IPv4Address, "10.0.0.1", IPv4Address("10.0.0.1")),
    (IPv4Address | IPv6Address, "::1", IPv6Address("::1")),
    (IPv4Network, "10.0.0.0/8", IPv4Network("10.0.0.0/8")),
    (m.Color, "red", m.Color.RED),
    (m.Color, "BLUE", m.Color.BLUE),
    (m.Level, 2, m.Level.HIGH),
    (m.Perm, 3, m.Perm.R | m.Perm.W),
    (m.Point, {"x": 1}, m.Point(1)),
    (m.Point, [1, 2], m.Point(1, 2)),
    (m.Attrs, {"a": 1, "private": 2}, m.Attrs(1, 2)),
    (m.Attrs, {"a": 1, "_private": 2}, m.Attrs(1, 2)),
    (m.FrozenStruct, {"type": "FrozenStruct", "firstName": "Ada"}, m.FrozenStruct(first_name="Ada")),
    (m.Model, {"a": 1, "lines": [{"sku": "x", "price": "2"}]}, m.Model(a=1, lines=[m.Line("x", Decimal(2))])),
    (m.Tree, {"value": 1, "children": [{"value": 2}]}, m.Tree(1, [m.Tree(2)])),
    (m.Page[m.Line], {"items": [{"sku": "x", "price": 1}]}, m.Page([m.Line("x", Decimal(1))])),
    (m.Page[Decimal], {"items": [], "first": "1"}, m.Page([], Decimal(1))),
    (m.Options, {"color": "red", "more": 1}, {"color": m.Color.RED, "more": 1}),
    (Literal["a", 1], "a", "a"),
    (Literal[m.Color.RED], "red", m.Color.RED),
    (Annotated[Decimal, "money"], "1", Decimal(1)),
    (Annotated[Decimal, ["unhashable"]], "1", Decimal(1)),
    (Final[Decimal], "1", Decimal(1)),
    (UserId, 5, 5),
    (T, [1], [1]),
    (Any, [1], [1]),
    (object, [1], [1]),
    (None, None, None),
    (Speaks, 5, 5),
    ("Missing", 5, 5),
]


@pytest.mark.parametrize(("hint", "plain", "wanted"), CONVERSIONS, ids=str)
def test_plain_json_becomes_what_the_annotation_says(hint: Any, plain: Any, wanted: Any) -> None:
    codec = Codec()
    got = codec.from_plain(plain, hint)
    assert got == wanted
    assert type(got) is type(wanted)
    assert codec.decode(codec.encode(plain), hint) == wanted


@pytest.mark.parametrize(("hint", "plain", "wanted"), CONVERSIONS, ids=str)
def test_what_already_fits_is_left_as_it_is(hint: Any, plain: Any, wanted: Any) -> None:
    codec = Codec()
    codec.types.learn_hint(hint)
    again = codec.decode(codec.encode(wanted), hint)
    assert again == wanted
    assert type(again) is type(wanted)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, "1", r"^value: expected int, got '1' of type str"),
        (int, 1.0, "expected int, got 1.0 of type float"),
        (str, 1, "expected str, got 1 of type int"),
        (bool, 1, "expected bool"),
        (None, 1, "expected NoneType"),
        (float, True, "expected float"),
        (Decimal, "x", "expected decimal.Decimal, got 'x'"),
        (dt.datetime, "yesterday", "expected datetime.datetime, got 'yesterday'"),
        (list[int], [1, "2"], r"^value: \$\[1\]: expected int"),
        (list[int], "12", r"expected list\[int\], got '12'"),
        (list[int], {"a": 1}, r"expected list\[int\]"),
        (list[int], None, r"expected list\[int\], got None"),
        (tuple[int, str], [1], r"expected tuple\[int, str\]"),
        (dict[int, int], {"x": 1}, r"^value: \$\.x: expected int, got 'x'"),
        (dict[str, int], {"a": {}}, r"^value: \$\.a: expected int"),
        (dict[str, int], [1], "expected dict"),
        (m.Order, {"lines": []}, r"^value: Order needs 'id', which isn't there$"),
        (m.Order, {"id": 1, "lines": [{"sku": 1, "price": 1}]}, r"^value: \$\.lines\[0\]\.sku: expected str"),
        (m.Order, 5, r"expected codec_models.Order, got 5 of type int; Order has the fields id, lines"),
        (m.Order | int, "x", r"expected codec_models.Order \| int, got 'x'"),
        (m.Color, "pink", "'pink' isn't one of Color: RED, BLUE"),
        (m.Color, [], "isn't one of Color"),
        (m.Model, {}, r"(?s)expected codec_models.Model.*Field required"),
        (m.FrozenStruct, {"type": "FrozenStruct"}, "missing required field `firstName`"),
        (Literal["a"], "b", "expected typing.Literal"),
        (Literal[1], True, "expected typing.Literal"),
        (m.Options, {"color": "pink"}, r"\$\.color: 'pink' isn't one of"),
        (m.Handle, {"fd": 1}, "expected codec_models.Handle"),
        (Callable[[], int], 1, "expected collections.abc.Callable"),
        (set[Any], [[]], "expected set"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_its_place(hint: Any, value: Any, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        Codec().from_plain(value, hint)


def test_a_union_keeps_a_value_that_fits_one_member_already() -> None:
    codec = Codec()
    assert codec.from_plain("2024-01-02", dt.date | str) == "2024-01-02"
    assert codec.from_plain(1, float | int) == 1
    assert type(codec.from_plain(1, float | int)) is int
    assert codec.from_plain({"id": 1}, m.Order | dict[str, Any]) == {"id": 1}
    codec.types.register(m.Point)
    codec.types.register(m.Order)
    for value in (m.Point(1), m.Order(1)):
        assert codec.decode(codec.encode([value]), list[m.Order | m.Point]) == [value]


def test_pydantic_tells_the_members_of_a_union_apart() -> None:
    class Cat(pydantic.BaseModel):
        kind: Literal["cat"]

    class Dog(pydantic.BaseModel):
        kind: Literal["dog"]

    hint = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    assert type(Codec().from_plain({"kind": "dog"}, hint)) is Dog


def test_plain_data_goes_through_the_checks_of_the_class() -> None:
    import dataclasses

    @dataclasses.dataclass
    class Positive:
        x: int

        def __post_init__(self) -> None:
            if self.x <= 0:
                raise ValueError("must be positive")

    with pytest.raises(DecodeError, match="must be positive"):
        Codec().from_plain([{"x": -1}], list[Positive])


def test_a_class_written_by_hand_is_made_from_plain_data_by_its_decode() -> None:
    codec = Codec()
    codec.types.register(m.Handle, encode=lambda handle: handle.fd, decode=m.Handle)
    assert codec.from_plain([3], list[m.Handle]) == [m.Handle(3)]


def test_tags_in_plain_data_mean_nothing() -> None:
    codec = Codec()
    tagged = b'{"$":"tuple","v":[1]}'
    assert codec.decode(tagged) == (1,)
    assert codec.from_plain(tagged) == {"$": "tuple", "v": [1]}
    assert codec.from_plain(tagged, dict[str, Any]) == {"$": "tuple", "v": [1]}
    with pytest.raises(DecodeError):
        codec.from_plain(tagged, tuple[int, ...])


def test_each_argument_is_made_to_fit_its_parameter() -> None:
    def fn(
        a: Decimal,
        /,
        b: m.Color,
        *rest: Decimal,
        c: m.Point,
        d: int = None,  # type: ignore[assignment]  # noqa: RUF013
        **more: m.Level,
    ) -> m.Order: ...

    codec = Codec()
    hints = codec.hints_for(fn)
    data = b'{"args":["1","red","2","3"],"kwargs":{"c":{"x":1},"d":null,"z":2}}'
    assert codec.decode_call(data, hints) == (
        (Decimal(1), m.Color.RED, Decimal(2), Decimal(3)),
        {"c": m.Point(1), "d": None, "z": m.Level.HIGH},
    )
    assert codec.decode_call(b"{}", hints) == ((), {})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"args":["x"]}', "^arguments: price: expected decimal.Decimal"),
        (
            b'{"args":[1],"kwargs":{"lines":[{"sku":"x"}]}}',
            r"^arguments: lines\[0\]: Line needs 'price', .* a default$",
        ),
        (b'{"args":5}', r'^arguments: expected {"args": \[\.\.\.\]'),
        (b"[]", "^arguments: expected"),
        (b'{"kwargs":[]}', "^arguments: expected"),
        (b"{", "^arguments: isn't JSON"),
    ],
)
def test_a_call_that_does_not_fit_names_the_parameter(data: bytes, text: str) -> None:
    def fn(price: Decimal, lines: list[m.Line]) -> None: ...

    codec = Codec()
    with pytest.raises(DecodeError, match=text):
        codec.decode_call(data, codec.hints_for(fn))


def test_empty_parts_of_a_call_are_left_out() -> None:
    codec = Codec()
    assert codec.encode_call((), {}) == b"{}"
    assert codec.encode_call((1,), {}) == b'{"args":[1]}'
    assert codec.encode_call((), {"a": 1}) == b'{"kwargs":{"a":1}}'


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type statements")
def test_type_aliases_are_seen_through_even_recursive_ones() -> None:
    names: dict[str, Any] = {"m": m, "Decimal": Decimal}
    exec("type Nested = Decimal | list[Nested]\ntype Pair[T] = tuple[T, T]", names)
    codec = Codec()
    assert codec.from_plain([["1"], "2"], names["Nested"]) == [[Decimal(1)], Decimal(2)]
    assert codec.from_plain(["1", "2"], names["Pair"][Decimal]) == (Decimal(1), Decimal(2))


def test_an_enum_of_plain_values_prefers_its_values_to_its_names() -> None:
    class Swap(enum.Enum):
        A = "B"
        B = "A"

    assert Codec().from_plain("A", Swap) is Swap.B
