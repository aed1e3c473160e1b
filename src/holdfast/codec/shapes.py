"""How objects are taken apart into plain data and put together again, for each kind of class that says what
it consists of: enum, dataclass, attrs, NamedTuple, msgspec and pydantic.

Putting together doesn't go through `__init__` where that can be helped: what was recorded is the state that
`__init__` and `__post_init__` left, and they must not work on it twice. Fields that the data has and the
class doesn't are ignored, and those it lacks take their default, so a class may change while runs are open.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import msgspec

from holdfast.codec.paths import Misfit
from holdfast.codec.pydantic_fields import FieldForms


class Field(NamedTuple):
    name: str
    key: str  # what __init__ calls it
    init: bool
    default: Callable[[Any], Any] | None  # given the half-built object, as attrs' factories may ask for it


class Shape:
    """How one class is written: `take` gives plain data, `make` rebuilds from it, `tag` names the class. `forms` writes
    fields that can't be recorded as they are."""

    __slots__ = ("by_hand", "cls", "forms", "make", "name", "tag", "take")

    def __init__(
        self, cls: type, take: Callable[[Any], Any], make: Callable[[Any], Any], *, by_hand: bool = False
    ) -> None:
        self.cls, self.take, self.make, self.by_hand = cls, take, make, by_hand
        self.name: str | None = None
        self.tag = ""
        self.forms: FieldForms | None = None


def describe(cls: type) -> Shape | None:
    """The shape of a class of the kinds above, else None."""
    if issubclass(cls, BaseException):
        return None
    if issubclass(cls, enum.Flag):
        return Shape(cls, lambda member: member.value, cls)
    if issubclass(cls, enum.Enum):
        # By name, as values made by auto() shift when a member is added, and would be read as its neighbour.
        return Shape(cls, lambda member: member._name_, lambda name: _member(cls, name))
    if is_pydantic(cls):
        return _pydantic(cls)
    if issubclass(cls, msgspec.Struct):
        return _struct(cls)
    fields = fields_of(cls)
    if fields is None:
        return None
    if issubclass(cls, tuple):
        return _named_tuple(cls, fields)
    own_new = [vars(base).get("__new__") for base in cls.__mro__[:-1]]
    if any(isinstance(new, types.BuiltinFunctionType) for new in own_new):
        return None  # it also is a dict, an int, ..., whose content the fields don't tell
    if "_attrs_cached_hash" in getattr(getattr(cls.__hash__, "__code__", None), "co_names", ()):
        return None  # attrs keeps a hash beside the fields, which is another one in each process
    return _record(cls, fields)


def is_pydantic(cls: type) -> bool:
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and issubclass(cls, base)


def fields_of(cls: Any) -> list[Field] | None:
    """The fields of a dataclass, an attrs class or a NamedTuple."""
    if hasattr(cls, "__attrs_attrs__"):
        return [Field(a.name, a.alias, a.init, _attrs_default(a.default)) for a in cls.__attrs_attrs__]
    if dataclasses.is_dataclass(cls):
        return [Field(f.name, f.name, f.init, _dataclass_default(f)) for f in dataclasses.fields(cls)]
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        defaults = cls._field_defaults
        return [Field(n, n, True, _constant(defaults[n]) if n in defaults else None) for n in cls._fields]
    return None


def missing(cls: type, name: str) -> Misfit:
    return Misfit(f"{cls.__name__} needs {name!r}, which isn't there", if_recorded="give the field a default")


def field_names(cls: Any) -> list[str]:
    """What data for a class of the kinds above consists of, as `__init__` calls it."""
    if typing.is_typeddict(cls):
        return list(cls.__annotations__)
    if not isinstance(cls, type):
        return []
    if is_pydantic(cls):
        fields = cls.model_fields.items()  # type: ignore[attr-defined]
        return [field.alias or name for name, field in fields]
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_encode_fields__)
    return [field.key for field in fields_of(cls) or () if field.init]


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda obj: value


def _attrs_default(default: Any) -> Callable[[Any], Any] | None:
    if default is sys.modules["attr"].NOTHING:
        return None
    if not hasattr(default, "takes_self"):
        return _constant(default)
    return default.factory if default.takes_self else lambda obj: default.factory()


def _dataclass_default(field: dataclasses.Field[Any]) -> Callable[[Any], Any] | None:
    if field.default is not dataclasses.MISSING:
        return _constant(field.default)
    factory = field.default_factory
    return None if factory is dataclasses.MISSING else lambda obj: factory()


def _member(cls: type[enum.Enum], name: str) -> enum.Enum:
    if name not in cls.__members__:
        raise Misfit(f"{cls.__name__} has no member {name!r}; it has {', '.join(cls.__members__)}")
    return cls[name]


def _refuse_strays(obj: Any, fields: Collection[str]) -> None:
    for name in getattr(obj, "__dict__", {}).keys() - fields:
        if not isinstance(getattr(type(obj), name, None), functools.cached_property):
            raise Misfit(f"its attribute {name!r} isn't a field, so it would be lost; make it a field")


def _fill(cls: type, fields: list[Field], state: dict[str, Any], put: Callable[[Any, str, Any], None], obj: Any) -> Any:
    for name, _, _, default in fields:
        if name in state:
            put(obj, name, state[name])
        elif default is None:
            raise missing(cls, name)
        else:
            put(obj, name, default(obj))
    return obj


def _record(cls: type, fields: list[Field]) -> Shape:
    names = dict.fromkeys(field.name for field in fields)

    def take(obj: Any) -> dict[str, Any]:
        _refuse_strays(obj, names.keys())
        return {name: getattr(obj, name) for name in names}

    def make(state: dict[str, Any]) -> Any:
        return _fill(cls, fields, state, object.__setattr__, object.__new__(cls))

    return Shape(cls, take, make)


def _named_tuple(cls: Any, fields: list[Field]) -> Shape:
    def take(obj: Any) -> dict[str, Any]:
        _refuse_strays(obj, ())
        return dict(zip(cls._fields, obj, strict=True))

    def make(state: dict[str, Any]) -> Any:
        return tuple.__new__(cls, _fill(cls, fields, state, dict.__setitem__, {}).values())

    return Shape(cls, take, make)


def _struct(cls: Any) -> Shape:
    names: tuple[str, ...] = cls.__struct_fields__

    def take(obj: Any) -> dict[str, Any]:
        _refuse_strays(obj, ())
        return {name: getattr(obj, name) for name in names}

    def make(state: dict[str, Any]) -> Any:
        values = {name: state[name] for name in names if name in state}
        obj = cls(**values)  # the only way to make one; what its __post_init__ did is undone
        for name, value in values.items():
            if getattr(obj, name) is not value:
                msgspec.structs.force_setattr(obj, name, value)
        return obj

    return Shape(cls, take, make)


def _pydantic(cls: Any) -> Shape:
    # "*" can't be a field's name. It holds what a model has besides its fields, if it has any, and the names of fields
    # that are in pydantic's own form.
    forms = FieldForms(cls)

    def take(obj: Any) -> dict[str, Any]:
        names, given = cls.model_fields.keys(), obj.__pydantic_fields_set__
        rest: dict[str, Any] = {} if given == names else {"set": sorted(given)}
        if obj.__pydantic_extra__:
            rest["extra"] = obj.__pydantic_extra__
        if obj.__pydantic_private__:
            rest["private"] = obj.__pydantic_private__
        values = {name: value for name, value in vars(obj).items() if name in names}
        return {**values, "*": rest} if rest else values

    def make(state: dict[str, Any]) -> Any:
        rest = state.pop("*", {})
        values = {}
        for name, field in cls.model_fields.items():
            if name not in state and field.is_required():
                raise missing(cls, name)
            if name in rest.get("json", ()):
                state[name] = forms.read(name, state[name])
            values[name] = state[name] if name in state else field.get_default(call_default_factory=True)
        obj = cls.__new__(cls)
        obj.__setstate__(
            {
                "__dict__": values,
                "__pydantic_fields_set__": set(rest.get("set", values.keys() & state.keys())),
                "__pydantic_extra__": rest.get("extra", {} if cls.model_config.get("extra") == "allow" else None),
                "__pydantic_private__": rest.get("private", {} if cls.__private_attributes__ else None),
            }
        )
        return obj

    shape = Shape(cls, take, make)
    shape.forms = forms
    return shape
