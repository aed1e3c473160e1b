"""Whatever is recorded comes back equal and of exactly the same types."""

from __future__ import annotations

import datetime as dt
import json
import math
import sys
from collections import OrderedDict, deque
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from codec_models import (
    CLASSES,
    Attrs,
    Color,
    Frozen,
    FrozenAttrs,
    FrozenStruct,
    Handle,
    IntPerm,
    KwOnly,
    Level,
    Line,
    Mode,
    Model,
    OldPoint,
    OpenModel,
    Order,
    Page,
    Perm,
    Point,
    PydanticData,
    Root,
    Struct,
    Tree,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.codec import Codec


def make_codec(**options: Any) -> Codec:
    codec = Codec(**options)
    for cls in CLASSES:
        codec.types.register(cls)
    return codec


CODEC = make_codec()


def anatomy(value: Any) -> Any:
    """A value with all its types spelled out, so that 1, 1.0, True and Level.LOW differ, and NaN is NaN."""
    kind = type(value)
    if kind is float:
        return kind, "nan" if math.isnan(value) else value.hex()
    if kind is complex:
        return kind, anatomy(value.real), anatomy(value.imag)
    if kind in (dt.datetime, dt.time):
        zone = value.tzinfo
        return kind, value.replace(tzinfo=None), value.fold, repr(zone)
    if isinstance(value, dict):
        return kind, [(anatomy(k), anatomy(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return kind, [anatomy(item) for item in value]
    if isinstance(value, deque):
        return kind, value.maxlen, [anatomy(item) for item in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(anatomy(item)) for item in value)
    if isinstance(value, pydantic.BaseModel):
        return kind, {k: anatomy(v) for k, v in value.__getstate__().items()}
    if isinstance(value, msgspec.Struct):
        return kind, [anatomy(getattr(value, name)) for name in value.__struct_fields__]
    if attrs.has(kind):
        return kind, [anatomy(getattr(value, field.name)) for field in attrs.fields(kind)]
    if hasattr(kind, "__dataclass_fields__"):
        return kind, [anatomy(getattr(value, name)) for name in kind.__dataclass_fields__]
    if isinstance(value, Decimal):
        return kind, value.as_tuple()
    return kind, value


def assert_survives(value: Any, codec: Codec = CODEC) -> None:
    data = codec.encode(value)
    assert anatomy(codec.decode(data)) == anatomy(value)
    assert codec.encode(codec.decode(data)) == data
    assert anatomy(codec.decode(memoryview(data))) == anatomy(codec.decode(msgspec.Raw(data)))


zones = st.sampled_from([None, dt.UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("UTC"), ZoneInfo("America/St_Johns")])
zones |= st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23)).map(dt.timezone)
zones |= st.just(dt.timezone(dt.timedelta(hours=1), "CET"))
folds = st.integers(0, 1)
text = st.text(st.characters(exclude_categories=()), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | text
    | st.sampled_from(["$", "v", "", "\0", "\ud800", "\ud83d\ude00", "😀", "\\ud800", '"$"'])
    | st.binary(max_size=8)
    | st.decimals().filter(lambda number: not number.is_snan())  # which has no hash; it is in SPECIAL
    | st.fractions()
    | st.complex_numbers()
    | st.uuids()
    | st.dates()
    | st.builds(lambda d, z, f: d.replace(tzinfo=z, fold=f), st.datetimes(), zones, folds)
    | st.builds(lambda t, z, f: t.replace(tzinfo=z, fold=f), st.times(), zones, folds)
    | st.timedeltas()
    | st.sampled_from([PurePosixPath("/a/b"), PureWindowsPath("C:\\x"), Path("a/ü"), Path("caf\udce9")])
    | st.ip_addresses()
    | st.sampled_from(["10.0.0.0/8", "::/0"]).map(ip_network)
    | st.sampled_from(["10.0.0.1/8", "fe80::1%eth0/64"]).map(ip_interface)
    | st.sampled_from([*Color, *Level, *Mode, Perm(0), Perm.R, Perm.R | Perm.W, IntPerm(7), IntPerm.R])
)
hashables = st.recursive(
    scalars,
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3) | st.builds(Point, inner, inner),
    max_leaves=4,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    pairs = st.lists(st.tuples(hashables, inner), max_size=4)
    return (
        lists
        | lists.map(tuple)
        | st.builds(deque, lists, st.none() | st.integers(4, 9))
        | st.sets(hashables, max_size=4)
        | st.dictionaries(text | st.just("$"), inner, max_size=4)
        | pairs.map(dict)
        | pairs.map(OrderedDict)
        | st.binary().map(bytearray)
        | st.builds(Frozen, inner, inner)
        | st.builds(KwOnly, a=inner, tail=inner)
        | st.builds(lambda a, b: Tree(a, [Tree(b)]), inner, inner)
        | st.builds(Page, lists, inner)
        | st.builds(Point, inner, inner)
        | st.builds(OldPoint, inner, inner)
        | st.builds(Struct, inner, inner)
        | st.builds(Attrs, inner, inner)
        | st.builds(FrozenAttrs, inner, lists)
        | st.builds(lambda a: Model(a=a), inner)
    )


values = st.recursive(scalars, containers, max_leaves=12)


@settings(max_examples=200, deadline=None)
@given(values)
def test_every_value_comes_back_exactly(value: Any) -> None:
    assert_survives(value)


@settings(max_examples=150, deadline=None)
@given(st.lists(values, max_size=3), st.dictionaries(text, values, max_size=3))
def test_every_call_comes_back_exactly(args: list[Any], kwargs: dict[str, Any]) -> None:
    data = CODEC.encode_call(tuple(args), kwargs)
    assert anatomy(CODEC.decode_call(data)) == anatomy((tuple(args), kwargs))


@settings(max_examples=150, deadline=None)
@given(values)
def test_encoding_leaves_the_value_as_it_was(value: Any) -> None:
    before = anatomy(value)
    CODEC.encode(value)
    assert anatomy(value) == before


SPECIAL = [
    0.0, -0.0, 1.0, 1e16, 1e22, 5e-324, sys.float_info.max, math.inf, -math.inf, math.nan,
    2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, -(10**5000),
    complex(-0.0, math.nan), Fraction(10**5000, 3), Decimal("NaN"), Decimal("-sNaN12"), Decimal("-0E+5"),
    Decimal("1.10"), dt.timedelta.max, dt.timedelta.min, dt.timedelta(microseconds=-1),
    dt.datetime.min, dt.datetime.max, dt.datetime(2020, 10, 25, 2, 30, fold=1),
    dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    dt.datetime(1850, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
    dt.time(1, 2, fold=1, tzinfo=ZoneInfo("Asia/Tokyo")), UUID(int=0), b"", bytearray(b"\xff"),
    {"$": 1}, {"$": "tuple", "v": [1]}, {"$": {"$": "$"}}, {1: "a", "1": "b", 1.5: None, None: 2, (1, 2): 3},
    {"a\ud800": "\udfff", "b": ("\ud800",)}, {True: 1}, (), [()], set(), frozenset([frozenset([1])]), {"v": ()},
    OrderedDict([("b", 1), ("a", 2)]), deque([1, 2, 3], 3), {math.nan: 1}, Path("."), msgspec.UNSET,
]  # fmt: skip


@pytest.mark.parametrize("value", SPECIAL, ids=lambda value: type(value).__name__)
def test_a_difficult_value_comes_back_exactly(value: Any) -> None:
    assert_survives(value)
    assert_survives([{"deep": (value,)}])


def rich_objects() -> list[Any]:
    order = Order(7, [Line("x", Decimal("1.10"))], Color.BLUE)
    model = Model(a=(1, {2}), lines=[Line("y", Decimal(1))])
    model._secret = {"token": b"x"}
    return [
        order,
        Frozen(order, Frozen(1)),
        Attrs(1, private=(2,)),
        FrozenStruct(first_name="Ada", tags=["a"]),
        Struct(msgspec.UNSET, {"x": Struct(1)}),
        model,
        Model.model_construct(a=1),
        OpenModel(a=1, more=(1, 2)),
        OpenModel(),
        Root([1, 2]),
        PydanticData(3),
        Page([order], first=order),
    ]


@pytest.mark.parametrize("value", rich_objects(), ids=lambda value: type(value).__name__)
def test_an_object_comes_back_exactly_and_without_running_its_init_again(value: Any) -> None:
    assert_survives(value)
    assert_survives({"nested": [value]})


def test_a_model_knows_which_fields_were_set() -> None:
    again = CODEC.decode(CODEC.encode(Model(a=1)))
    assert again.model_dump(exclude_unset=True) == {"a": 1}


def test_a_computed_cached_property_does_not_keep_an_object_from_being_recorded() -> None:
    order = Order(1)
    assert order.label == "order 1"
    again = CODEC.decode(CODEC.encode(order))
    assert "label" not in vars(again)
    assert again.label == "order 1"


def test_what_json_can_say_is_written_as_plain_json() -> None:
    assert CODEC.encode({"a": [1, 2.5, None, True, "x"]}) == b'{"a":[1,2.5,null,true,"x"]}'


def test_recorded_values_are_readable() -> None:
    order = Order(7, [Line("x", Decimal("1.10"))])
    assert CODEC.encode({"when": dt.date(2024, 1, 2), "order": order}) == (
        b'{"when":{"$":"date","v":"2024-01-02"},"order":{"$":"Order","v":{"id":7,"lines":[{"$":"Line","v":'
        b'{"sku":"x","price":{"$":"Decimal","v":"1.10"},"count":1}}],"color":null,"total":1}}}'
    )


def test_equal_sets_give_equal_bytes() -> None:
    names = [f"name{i}" for i in range(50)]
    assert CODEC.encode(set(names)) == CODEC.encode(set(reversed(names)))
    assert CODEC.encode({1, 9, 17, 25, "a"}) == CODEC.encode({"a", 25, 17, 9, 1})


def test_a_class_written_by_hand_comes_back() -> None:
    codec = make_codec()
    codec.types.register(Handle, encode=lambda handle: (handle.fd,), decode=lambda data: Handle(*data))
    assert codec.encode(Handle(3)) == b'{"$":"Handle","v":{"$":"tuple","v":[3]}}'
    assert codec.decode(codec.encode([Handle(3)])) == [Handle(3)]


def test_whole_numbers_of_any_size_can_be_looked_at() -> None:
    codec = Codec()
    shown = codec.plain(codec.encode([2**70, 10**5_000, {10**5_000: 1}]))
    assert shown == [2**70, hex(10**5_000), {hex(10**5_000): 1}]
    assert json.loads(json.dumps(shown)) == shown
