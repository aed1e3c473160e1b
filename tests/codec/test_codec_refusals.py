"""What couldn't be rebuilt exactly is refused when it is recorded, and the message says what, where and why."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import socket
from collections import Counter, defaultdict, namedtuple
from decimal import Decimal
from typing import Any

import pytest
from codec_models import Bag, Handle, Level, Line, Model, Order, Point, Struct, Text

from holdfast.codec import Codec
from holdfast.errors import DefinitionError, EncodeError, PayloadTooLargeError


@pytest.fixture
def codec() -> Codec:
    codec = Codec()
    codec.types.register(Order)
    return codec


def refusal(codec: Codec, value: Any, what: str = "result") -> str:
    with pytest.raises(EncodeError) as caught:
        codec.encode(value, what)
    return str(caught.value)


def test_the_path_leads_to_the_value_and_the_text_ends_with_the_remedy(codec: Codec) -> None:
    with socket.socket() as sock:
        text = refusal(codec, {"items": [1, 2, 3, {"owner": sock}]})
    assert text.startswith("result: $.items[3].owner: <socket.socket")
    assert text.endswith("can't be recorded; give data instead, or register a codec with app.codec.types.register(...)")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([object()], "$[0]"),
        ((1, {"a b": object()}), "$[1]['a b']"),
        ({1: object()}, "$[1]"),
        ({(1, 2): [object()]}, "$[(1, 2)][0]"),
        ({"$": object()}, "$['$']"),
        (Order(1, [Line("x", object())]), "$.lines[0].price"),  # type: ignore[arg-type]
        (ValueError, None),
    ],
)
def test_each_kind_of_container_adds_its_step_to_the_path(codec: Codec, value: Any, path: str | None) -> None:
    text = refusal(codec, value)
    assert text.startswith(f"result: {path}: " if path else "result: <class")


@pytest.mark.parametrize("value", [Level.LOW, Point(1), Struct(1), Model(a=1)], ids=lambda v: type(v).__name__)
def test_an_unknown_class_is_refused_with_how_to_make_it_known(codec: Codec, value: Any) -> None:
    name = type(value).__name__
    text = refusal(codec, value)
    assert f"of type codec_models.{name} can't be recorded, as its class isn't known" in text
    assert text.endswith(f"annotate the parameter or result with {name}, or app.codec.types.register({name})")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Text("x"), "record str(value)"),
        (Bag([1]), "record list(value)"),
        (defaultdict(int), "record dict(value)"),
        (Counter("a"), "record dict(value)"),
        (type("Int", (int,), {})(3), "record int(value)"),
        (type("T", (tuple,), {})(), "record tuple(value)"),
        (type("When", (dt.datetime,), {})(2020, 1, 1), "give data instead"),
        ((i for i in range(3)), "record list(value)"),
        (io.BufferedReader(io.BytesIO()), "record its path, and open it in the step"),
        (io.StringIO("x"), "record value.getvalue()"),
        (Handle(1), "give data instead"),
        (len, "give data instead"),
        (memoryview(b"x"), "give data instead"),
        (..., "give data instead"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_subclass_or_stranger_is_refused_rather_than_flattened(codec: Codec, value: Any, remedy: str) -> None:
    assert remedy in refusal(codec, value)
    assert "$.x[0]" in refusal(codec, {"x": [value]})


def test_a_forgotten_await_is_named(codec: Codec) -> None:
    async def work() -> None: ...

    forgotten = work()
    assert "await it" in refusal(codec, forgotten)
    forgotten.close()


def test_a_foreign_time_zone_is_refused(codec: Codec) -> None:
    class Zone(dt.tzinfo):
        def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(0)

    assert "use zoneinfo.ZoneInfo or datetime.timezone" in refusal(codec, dt.datetime(2020, 1, 1, tzinfo=Zone()))


def test_an_attribute_that_is_no_field_is_refused_as_it_would_be_lost(codec: Codec) -> None:
    order = Order(1)
    order.cache = {}  # type: ignore[attr-defined]
    assert "'cache' isn't a field" in refusal(codec, [order])


def test_an_attribute_on_a_named_tuple_is_refused_too(codec: Codec) -> None:
    class Pair(namedtuple("Pair", "a b")):
        pass

    codec.types.register(Pair)
    pair = Pair(1, 2)
    pair.c = 3
    assert "'c' isn't a field" in refusal(codec, pair)


def test_a_field_that_was_never_set_is_refused(codec: Codec) -> None:
    order = Order.__new__(Order)
    assert "'id'" in refusal(codec, order)


def test_a_dataclass_that_also_is_a_dict_is_refused(codec: Codec) -> None:
    @dataclasses.dataclass
    class Both(dict):  # type: ignore[type-arg]
        x: int

    assert "record dict(value)" in refusal(codec, Both(1))


def test_a_failing_encode_function_is_reported_with_its_path(codec: Codec) -> None:
    codec.types.register(Handle, encode=lambda handle: 1 / 0, decode=Handle)
    assert refusal(codec, {"h": Handle(1)}).startswith("result: $.h: ")


def test_a_value_that_contains_itself_is_named_with_both_places(codec: Codec) -> None:
    inner: dict[str, Any] = {"list": []}
    inner["list"].append(inner)
    assert refusal(codec, {"a": inner}).startswith("result: $.a.list[0]: refers back to $.a; ")


def test_an_object_that_contains_itself_is_named_with_both_places(codec: Codec) -> None:
    order = Order(1)
    order.lines.append(order)  # type: ignore[arg-type]
    assert refusal(codec, [order]).startswith("result: $[0].lines[0]: refers back to $[0]; ")


@pytest.mark.parametrize("depth", [200, 5_000, 100_000])
def test_a_value_nested_too_deeply_is_refused_however_deep(codec: Codec, depth: int) -> None:
    value: Any = []
    for _ in range(depth):
        value = [value]
    text = refusal(codec, value)
    assert "nested deeper than 100 levels" in text
    assert len(text) < 300
    while value:  # or freeing it overflows the C stack of some Pythons
        value = value[0]


def test_a_hundred_levels_are_fine_in_every_container(codec: Codec) -> None:
    codec.types.register(Point)
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"$": v}, Point):
        value: Any = 1
        for _ in range(99):
            value = wrap(value)
        assert codec.decode(codec.encode(value)) == value


def test_a_call_names_the_argument(codec: Codec) -> None:
    def pay(order: Order, *more: object, note: str = "") -> None: ...

    hints = codec.hints_for(pay)
    bad = {"x": [object()]}
    for args, kwargs, path in [
        ((bad,), {}, "order.x[0]"),
        ((1, 2, bad), {}, "more[1].x[0]"),
        ((1,), {"note": object()}, "note"),
    ]:
        with pytest.raises(EncodeError, match="^arguments: " + path.replace("[", r"\[") + ": "):
            codec.encode_call(args, kwargs, signature=hints)
    with pytest.raises(EncodeError, match=r"^args of pay: args\[1\]\.x\[0\]: "):
        codec.encode_call((1, bad), {}, "args of pay")


def test_a_value_over_the_limit_is_refused_with_both_sizes() -> None:
    codec = Codec(limit=1000)
    assert len(codec.encode("x" * 998)) == 1000
    with pytest.raises(PayloadTooLargeError, match=r"^result: takes 1,001 bytes, and the limit is 1,000; keep"):
        codec.encode("x" * 999, "result")
    with pytest.raises(PayloadTooLargeError, match=r"^arguments: takes .*App\(\.\.\., codec=Codec\(limit='64MiB'\)\)$"):
        codec.encode_call(("x" * 999,), {})


def test_the_limit_is_a_number_of_bytes_or_a_text() -> None:
    assert Codec().limit == Codec(limit="8MiB").limit == 8 * 1024 * 1024
    assert Codec(limit="1KB").limit == Codec(limit=1000).limit
    wrong: Any
    for wrong in (0, -1, "much", None, 1.5):
        with pytest.raises(DefinitionError, match="limit="):
            Codec(limit=wrong)


def test_a_value_whose_repr_fails_is_refused_all_the_same(codec: Codec) -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    assert refusal(codec, [Rude()]).startswith("result: $[0]: <Rude instance at")


def test_an_annotation_that_cannot_be_evaluated_is_told_instead_of_asking_for_it() -> None:
    codec = Codec()
    module: dict[str, Any] = {"__name__": "elsewhere"}  # it has imported none of the classes
    exec("from __future__ import annotations\ndef fn(given: list[Line], other: int) -> Point: ...", module)
    codec.hints_for(module["fn"])
    text = refusal(codec, Line("a", Decimal(1)))
    assert "the annotation 'list[Line]' of parameter 'given' of fn can't be evaluated; import Line at run time" in text
    assert "not under TYPE_CHECKING, or app.codec.types.register(Line)" in text
    assert "the annotation 'Point' of the result of fn can't be evaluated" in refusal(codec, Point(1, 2))
    assert "annotate the parameter or result with Struct" in refusal(codec, Struct(1))
    codec.types.register(Line)
    assert codec.decode(codec.encode(Line("a", Decimal(1)))) == Line("a", Decimal(1))
