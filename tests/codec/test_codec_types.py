"""Classes become known by annotations or by hand, keep their names, and may change while runs are open."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import subprocess
import sys
import types
from collections.abc import Callable, Coroutine, Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar

import attrs
import codec_models as m
import msgspec
import pydantic
import pytest

from holdfast.codec import Codec
from holdfast.errors import DecodeError, DefinitionError, DuplicateNameError, EncodeError

OrderId = NewType("OrderId", m.Point)
Bound = TypeVar("Bound", bound=m.Struct)


def knows(codec: Codec, *classes: type) -> bool:
    return all(cls in codec.types.shapes for cls in classes)


@pytest.mark.parametrize(
    ("hint", "classes"),
    [
        (m.Order, [m.Order, m.Line, m.Color]),
        (list[m.Order], [m.Order]),
        (dict[str, tuple[m.Point, ...]], [m.Point]),
        (m.Order | None, [m.Order]),
        (Optional["m.Order"], [m.Order]),
        (Annotated[m.Frozen, "note"], [m.Frozen]),
        (Literal[m.Color.RED], [m.Color]),
        (OrderId, [m.Point]),
        (Bound, [m.Struct]),
        (m.Page[m.Attrs], [m.Page, m.Attrs]),
        (m.Tree, [m.Tree]),
        (m.Options, [m.Color, m.Line]),
        (m.Model, [m.Model, m.Line]),
        (Callable[[m.Point], m.Struct], [m.Point, m.Struct]),
        (Coroutine[Any, Any, m.Order], [m.Order]),
        (Mapping["m.Level", "m.Mode"], [m.Level, m.Mode]),
    ],
    ids=str,
)
def test_classes_are_learned_from_annotations(hint: Any, classes: list[type]) -> None:
    def takes(value: Any) -> None: ...
    def gives() -> Any: ...

    takes.__annotations__["value"] = hint
    gives.__annotations__["return"] = hint
    for fn in (takes, gives):
        codec = Codec()
        codec.types.learn(fn)
        assert knows(codec, *classes)


def test_classes_of_a_functions_body_are_learned_too() -> None:
    @dataclasses.dataclass
    class Inner:
        x: int

    @dataclasses.dataclass
    class Outer:
        inner: list[Inner]

    def fn(outer: Outer) -> None: ...

    codec = Codec()
    hints = codec.hints_for(fn)
    outer = Outer([Inner(1)])
    assert codec.decode_call(codec.encode_call((outer,), {}), hints) == ((outer,), {})
    assert codec.decode_call(b'{"args":[{"inner":[{"x":1}]}]}', hints) == ((outer,), {})


def test_an_annotation_that_cannot_be_resolved_hides_only_itself() -> None:
    def fn(a: Missing, b: m.Order, c: list[Missing]) -> m.Point: ...  # type: ignore[name-defined]  # noqa: F821

    codec = Codec()
    hints = codec.hints_for(fn)
    assert knows(codec, m.Order, m.Point)
    assert codec.decode_call(b'{"args":[{"x":1},{"id":2}]}', hints) == (({"x": 1}, m.Order(2)), {})


def test_a_class_may_be_defined_after_the_function_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(later: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    codec = Codec()
    hints = codec.hints_for(fn)
    later = dataclasses.make_dataclass("Later", ["x"])
    monkeypatch.setitem(globals(), "Later", later)
    data = codec.encode_call((later(1),), {})
    assert codec.decode_call(data, hints) == ((later(1),), {})
    assert codec.decode_call(b'{"args":[{"x":2}]}', hints) == ((later(2),), {})


def test_ordinary_classes_and_exceptions_in_annotations_do_no_harm() -> None:
    def fn(a: m.Handle, b: type[m.Order], c: ValueError, *d: int, e: Callable[..., Any]) -> Any: ...

    codec = Codec()
    codec.types.learn(fn)
    codec.types.learn(len)
    assert not knows(codec, m.Handle)


def test_registering_a_class_makes_those_of_its_fields_known() -> None:
    codec = Codec()
    codec.types.register(m.Order)
    assert knows(codec, m.Line, m.Color)


def test_what_has_no_visible_content_needs_encode_and_decode() -> None:
    codec = Codec()
    with pytest.raises(DefinitionError, match="give encode= and decode="):
        codec.types.register(m.Handle)
    with pytest.raises(DefinitionError, match="both"):
        codec.types.register(m.Handle, encode=lambda handle: handle.fd)


def test_an_attrs_class_that_keeps_its_hash_needs_them_too() -> None:
    @attrs.frozen(cache_hash=True, slots=False)
    class Hashed:
        x: int

    with pytest.raises(DefinitionError, match="give encode= and decode="):
        Codec().types.register(Hashed)


def test_a_name_given_by_hand_is_written_and_the_old_ones_are_read() -> None:
    old = Codec()
    old.types.register(m.Point)
    new = Codec()
    new.types.register(m.Frozen, "frozen-point", aliases=["Point", "Dot"])
    assert new.encode(m.Frozen(1)) == b'{"$":"frozen-point","v":{"a":1,"b":null}}'
    assert new.decode(b'{"$":"Dot","v":{"a":5}}') == m.Frozen(5)
    with pytest.raises(DecodeError, match=r"Frozen needs 'a', which isn't there; give the field a default$"):
        new.decode(old.encode(m.Point(1)))


def test_names_do_not_clash_with_builtin_tags_or_each_other() -> None:
    codec = Codec()
    for name in ("tuple", "x", "exc", "datetime"):
        with pytest.raises(DuplicateNameError, match=f"'{name}' is taken"):
            codec.types.register(m.Order, name)
    codec.types.register(m.Order, "order")
    with pytest.raises(DuplicateNameError, match=r"'order' is taken; choose another for codec_models.Line"):
        codec.types.register(m.Line, aliases=["order"])
    date = dataclasses.make_dataclass("date", ["x"])
    codec.types.register(date)
    assert codec.decode(codec.encode(date(1))) == date(1)


def twins() -> tuple[Any, Any]:
    classes = []
    for module in ("orders", "billing"):
        cls = dataclasses.make_dataclass("Invoice", ["x"])
        cls.__module__ = module
        classes.append(cls)
    return classes[0], classes[1]


def test_two_classes_of_one_name_are_written_qualified_whatever_the_order() -> None:
    first, second = twins()
    one, other = Codec(), Codec()
    for cls in (first, second):
        one.types.register(cls)
    for cls in (second, first):
        other.types.register(cls)
    for cls, tag in ((first, b"orders.Invoice"), (second, b"billing.Invoice")):
        assert tag in one.encode(cls(1))
        assert type(other.decode(one.encode(cls(1)))) is cls


def test_a_bare_name_that_two_classes_share_is_never_guessed() -> None:
    first, second = twins()
    codec = Codec()
    codec.types.register(first)
    written_before = codec.encode(first(1))
    assert b'"Invoice"' in written_before
    codec.types.register(second)
    with pytest.raises(DecodeError, match=r"'Invoice' may be orders.Invoice or billing.Invoice; say whose"):
        codec.decode(written_before)
    codec.types.register(first, aliases=["Invoice"])
    assert type(codec.decode(written_before)) is first
    assert type(codec.decode(codec.encode(second(1)))) is second


def test_a_class_defined_again_takes_the_place_of_its_former_self() -> None:
    codec = Codec()
    versions = []
    for fields in (["x"], ["x", ("y", int, 5)]):
        cls: Any = dataclasses.make_dataclass("Cell", fields)
        codec.types.register(cls)
        versions.append(cls)
    old, new = versions
    assert codec.decode(codec.encode(old(1))) == new(1, 5)
    assert codec.encode(new(1)) == b'{"$":"Cell","v":{"x":1,"y":5}}'


def evolving(kind: str, fields: dict[str, Any]) -> Any:
    """A class `Thing` with the given fields; a value of `...` means no default."""
    annotations = dict.fromkeys(fields, Any)
    body = {"__annotations__": annotations, "__module__": __name__} | {
        name: default for name, default in fields.items() if default is not ...
    }
    if kind == "dataclass":
        return dataclasses.dataclass(type("Thing", (), body))
    if kind == "attrs":
        return attrs.define(type("Thing", (), body))
    if kind == "struct":
        return types.new_class("Thing", (msgspec.Struct,), {}, lambda ns: ns.update(body))
    if kind == "pydantic":
        return types.new_class("Thing", (pydantic.BaseModel,), {}, lambda ns: ns.update(body))
    defaults = [default for default in fields.values() if default is not ...]
    return collections.namedtuple("Thing", fields, defaults=defaults)


@pytest.mark.parametrize("kind", ["dataclass", "attrs", "struct", "pydantic", "namedtuple"])
def test_a_class_may_gain_and_lose_fields_between_writing_and_reading(kind: str) -> None:
    old, new, strict = Codec(), Codec(), Codec()
    before, after = evolving(kind, {"a": ..., "gone": ...}), evolving(kind, {"a": ..., "added": 7})
    old.types.register(before)
    new.types.register(after)
    strict.types.register(evolving(kind, {"a": ..., "added": ...}))
    data = old.encode(before(a=1, gone=2))
    assert new.decode(data) == after(a=1, added=7)
    with pytest.raises(DecodeError, match="added"):
        strict.decode(data)


def test_a_removed_enum_member_is_named() -> None:
    codec = Codec()
    codec.types.register(m.Color)
    with pytest.raises(DecodeError, match="Color has no member 'GREEN'; it has RED, BLUE"):
        codec.decode(b'{"$":"Color","v":"GREEN"}')


def test_an_unknown_tag_says_what_to_do() -> None:
    with pytest.raises(DecodeError, match=r"^value: \$\.a\[0\]: no class is known as 'Order'; annotate"):
        Codec().decode(b'{"a":[{"$":"Order","v":{}}]}')


def test_a_hint_makes_its_class_known() -> None:
    writer = Codec()
    writer.types.register(m.Order)
    assert Codec().decode(writer.encode(m.Order(1)), m.Order) == m.Order(1)


def test_registries_are_apart() -> None:
    one = Codec()
    one.types.register(m.Order)
    with pytest.raises(EncodeError):
        Codec().encode(m.Order(1))


SCRIPT = """
import dataclasses, sys
from holdfast.codec import Codec

@dataclasses.dataclass
class Parcel:
    weight: int

class ParcelError(Exception):
    def __init__(self, *, weight):
        self.weight = weight

def ship(parcel: Parcel) -> None: ...

codec = Codec()
codec.types.learn(ship)

def show():
    print(codec.encode(Parcel(3)).decode())
    print(codec.encode_error(ParcelError(weight=3)).decode())

if __name__ == "__main__":
    show()
"""


def test_a_script_and_its_import_read_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parcels_script.py").write_text(SCRIPT)
    run = [sys.executable, "parcels_script.py"]
    out = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    value, error = out.splitlines()
    monkeypatch.syspath_prepend(tmp_path)
    import parcels_script  # type: ignore[import-not-found]

    assert parcels_script.codec.decode(value.encode()) == parcels_script.Parcel(3)
    assert type(parcels_script.codec.decode_error(error.encode())) is parcels_script.ParcelError
    reader = f"""
import runpy, sys
sys.argv = ["parcels_script.py"]
module = runpy.run_path("parcels_script.py", run_name="other")
{SCRIPT}
error = codec.decode_error({parcels_script.codec.encode_error(parcels_script.ParcelError(weight=4))!r})
assert type(error) is ParcelError, error
assert codec.decode({parcels_script.codec.encode(parcels_script.Parcel(4))!r}) == Parcel(4)
"""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "parcels_script.py").write_text(SCRIPT + reader.partition(SCRIPT)[2])
    subprocess.run([sys.executable, "parcels_script.py"], cwd=tmp_path / "elsewhere", check=True)


def test_decimal_is_untouched_by_the_callers_context() -> None:
    with decimal.localcontext(prec=3):
        assert Codec().decode(Codec().encode(decimal.Decimal("1.23456789"))) == decimal.Decimal("1.23456789")


# -- pydantic's own types of fields


class Callback(pydantic.BaseModel):
    url: pydantic.HttpUrl
    others: list[pydantic.AnyUrl] = []
    when: dt.datetime | None = None

    @pydantic.field_validator("url")
    @classmethod
    def seen(cls, url: pydantic.HttpUrl) -> pydantic.HttpUrl:
        VALIDATED.append(url)
        return url


class Order(pydantic.BaseModel):
    callbacks: dict[str, Callback]


class Login(pydantic.BaseModel):
    site: pydantic.HttpUrl
    password: pydantic.SecretStr


VALIDATED: list[object] = []


def test_fields_that_only_pydantic_can_write_come_back_as_they_were() -> None:
    codec = Codec()
    codec.types.register(Order)
    callback = Callback(url="http://a.example/x", others=["ftp://b.example/"], when=dt.datetime(2030, 1, 1))  # type: ignore[arg-type, list-item]
    order = Order(callbacks={"done": callback})
    VALIDATED.clear()
    again = codec.decode(codec.encode(order))
    assert again == order
    assert type(again.callbacks["done"].url) is pydantic.HttpUrl
    assert again.callbacks["done"].model_fields_set == callback.model_fields_set
    assert codec.encode(again) == codec.encode(order)
    assert VALIDATED == []  # what was recorded is the state that validators have left


def test_a_secret_is_not_recorded_as_stars() -> None:
    codec = Codec()
    codec.types.register(Login)
    login = Login(site="http://a.example", password="hush")  # type: ignore[arg-type]
    with pytest.raises(EncodeError) as caught:
        codec.encode([login])
    assert "$[0].password: SecretStr('**********') of type pydantic.types.SecretStr can't be recorded" in str(
        caught.value
    )
    assert "let the step read the secret where it is kept, or encrypt values" in str(caught.value)
    codec.types.register(pydantic.SecretStr, encode=pydantic.SecretStr.get_secret_value, decode=pydantic.SecretStr)
    again = codec.decode(codec.encode(login))
    assert again == login
    assert again.password.get_secret_value() == "hush"


class Chained(pydantic.BaseModel):
    next: Chained | None = None
    odd: Any = None


def test_a_model_that_cannot_be_recorded_is_refused_at_once_however_deep_it_is() -> None:
    codec = Codec()
    codec.types.register(Chained)
    chain = Chained(odd=object())
    for _ in range(40):
        chain = Chained(next=chain)
    with pytest.raises(EncodeError, match=r"next\.odd: <object object"):
        codec.encode(chain)
    chain.next = chain
    with pytest.raises(EncodeError, match="refers back to"):
        codec.encode(chain)


def test_an_app_that_has_registered_addresses_itself_still_reads_what_it_has_recorded() -> None:
    codec = Codec()
    codec.types.register(IPv4Address, encode=lambda ip: {"ip": str(ip)}, decode=lambda data: IPv4Address(data["ip"]))
    assert codec.decode(b'{"$":"IPv4Address","v":{"ip":"10.0.0.1"}}') == IPv4Address("10.0.0.1")
    assert codec.decode(codec.encode(IPv4Address("10.0.0.1"))) == IPv4Address("10.0.0.1")
