"""Annotations honoured: plain JSON data becomes what a parameter's annotation asks for. A value that already
fits is returned as it is. As strict as msgspec: "1" isn't taken for 1, but text becomes a date."""

from __future__ import annotations

import collections.abc as abc
import datetime as dt
import enum
import inspect
import types
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import repeat
from operator import is_
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import msgspec

from holdfast.codec.paths import Misfit, key_step, name_of
from holdfast.codec.shapes import Field, field_names, fields_of, is_pydantic, missing
from holdfast.codec.types import TypeRegistry
from holdfast.codec.values import ADDRESSES
from holdfast.printing import show, text_of

Convert = Callable[[Any], Any]

_WRAPPERS = (typing.Annotated, typing.Final, typing.ClassVar, typing.Required, typing.NotRequired)
_BY_MSGSPEC = {int, float, str, bool, bytes, bytearray, type(None), Decimal, UUID}
_BY_MSGSPEC |= {dt.datetime, dt.date, dt.time, dt.timedelta}
_MADE_OF: dict[type, Any] = dict.fromkeys((Path, PurePath, PurePosixPath, PureWindowsPath, *ADDRESSES.values()), str)
_MADE_OF |= {Fraction: int | str, complex: int | float}
_ORDERED = (list, tuple, deque)
SCALARS = frozenset({str, int, float, bool, type(None), bytes})
MAX_DEPTH = 100
_LISTS: dict[Any, Any] = {cls: cls for cls in (*_ORDERED, set, frozenset)}
_LISTS |= dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list)
_LISTS |= {abc.Set: frozenset, abc.MutableSet: set}
_DICTS: dict[Any, Any] = {dict: dict, OrderedDict: OrderedDict, abc.Mapping: dict, abc.MutableMapping: dict}


def _as_is(value: Any) -> Any:
    return value


class Conformer:
    """Turns annotations into converters, each made once."""

    def __init__(self, types: TypeRegistry) -> None:
        self._types = types
        self._converters: dict[Any, Convert] = {Any: _as_is, inspect.Parameter.empty: _as_is}
        self._checked: dict[Any, list[tuple[str, Any, bool]]] = {}

    def converter(self, hint: Any) -> Convert:
        try:
            convert = self._converters.get(hint)
        except TypeError:  # an unhashable annotation, e.g. Annotated[int, []]
            return self._compile(hint)
        if convert is None:
            self._types.learn_hint(hint)
            convert = self._converters[hint] = self._compile(hint)
        return convert

    def _compile(self, hint: Any) -> Convert:
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin in _WRAPPERS:
            return self.converter(args[0])
        if origin in (typing.Union, types.UnionType):
            return self._union(hint, args)
        if origin is typing.Literal:
            return _literal(hint, args)
        if isinstance(hint, typing.NewType):
            return self.converter(hint.__supertype__)
        if isinstance(hint, typing.TypeVar):
            return self.converter(hint.__bound__ or Any)
        cls = type(None) if hint is None else origin or hint
        if not isinstance(cls, type):
            return self._alias(cls, args)
        if cls is tuple and args and args[-1] is not Ellipsis:
            return self._fixed_tuple(hint, args)
        if cls in _LISTS:
            return self._list(hint, cls, self.converter(args[0]) if args else _as_is)
        if cls in _DICTS:
            return self._dict(hint, cls, *(args or (Any, Any)))
        if typing.is_typeddict(cls):
            return self._typed_dict(cls)
        return self._class(cls, hint, args)

    def _alias(self, alias: Any, args: tuple[Any, ...]) -> Convert:
        """`type X = ...`, which may refer to itself, so it is looked into only when used."""
        value = getattr(alias, "__value__", None)
        if value is None:
            return _as_is
        target = value[args] if args else value
        return lambda item: self.converter(target)(item)

    def _union(self, hint: Any, args: tuple[Any, ...]) -> Convert:
        classes = [typing.get_origin(arg) or arg for arg in args]
        members = [
            (cls if isinstance(cls, type) else (), self.converter(arg)) for cls, arg in zip(classes, args, strict=True)
        ]

        def convert(value: Any) -> Any:
            if type(value) in args:
                return value
            # Stable: members that the value is an instance of come first, the others in the order given.
            for _, converter in sorted(members, key=lambda member: not _is_a(value, member[0])):
                try:
                    return converter(value)
                except Misfit:
                    continue
            raise expected(hint, value)

        return convert

    def _list(self, hint: Any, cls: Any, converter: Convert) -> Convert:
        build = _LISTS[cls]
        sources = (*_ORDERED, set, frozenset) if build in (set, frozenset) else _ORDERED

        def convert(value: Any) -> Any:
            fits = isinstance(value, cls)
            if fits and (converter is _as_is or type(value) not in _LISTS):
                return value
            if not fits and not isinstance(value, sources):
                raise expected(hint, value)
            done = _each(repeat(converter), value)
            if fits and all(map(is_, done, value)):
                return value
            try:
                return (_LISTS[type(value)] if fits else build)(done)
            except TypeError:  # unhashable, in a set
                raise expected(hint, value) from None

        return convert

    def _fixed_tuple(self, hint: Any, args: tuple[Any, ...]) -> Convert:
        converters = [self.converter(arg) for arg in args]

        def convert(value: Any) -> Any:
            if not isinstance(value, list | tuple) or len(value) != len(args):
                raise expected(hint, value)
            done = tuple(_each(converters, value))
            return value if isinstance(value, tuple) and all(map(is_, done, value)) else done

        return convert

    def _dict(self, hint: Any, cls: Any, key_hint: Any, item_hint: Any) -> Convert:
        build, to_key, to_item = _DICTS[cls], self.converter(key_hint), self.converter(item_hint)
        if key_hint in (int, float, bool):  # JSON has no other keys than strings
            strict, to_key = (
                to_key,
                lambda key: _by_msgspec(key, key_hint, strict=False) if type(key) is str else strict(key),
            )

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                raise expected(hint, value)
            done, same = {}, isinstance(value, cls)
            for key, item in value.items():
                try:
                    new_key, new = to_key(key), to_item(item)
                    done[new_key] = new
                except Misfit as exc:
                    raise exc.within(key_step(key))
                except TypeError:  # unhashable
                    raise expected(hint, value).within(key_step(key)) from None
                same = same and new_key is key and new is item
            return value if same else build(done)

        return convert

    def _typed_dict(self, cls: Any) -> Convert:
        hints = self._types.hints(cls)

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                raise expected(cls, value)
            for name in cls.__required_keys__ - value.keys():
                raise missing(cls, name)
            return {key: self._field(key, item, hints.get(key, Any)) for key, item in value.items()}

        return convert

    def _class(self, cls: Any, hint: Any, args: tuple[Any, ...]) -> Convert:
        try:
            isinstance(None, cls)
        except TypeError:  # a protocol: nothing to check it by
            return _as_is
        build = self._builder(cls, hint, args)

        def convert(value: Any) -> Any:
            if isinstance(value, cls):
                return value
            try:
                return build(value)
            except (Misfit, RecursionError):
                raise
            except BaseException as exc:  # the class's own checks: __post_init__, validators, a decode= function
                raise Misfit(f"{expected(cls, value).reason}: {text_of(exc)}") from exc

        return convert

    def _builder(self, cls: Any, hint: Any, args: tuple[Any, ...]) -> Convert:
        """How to make a `cls` of something that isn't one."""
        shape = self._types.shapes.get(cls)
        if shape is not None and shape.by_hand:
            return shape.make
        if cls in _BY_MSGSPEC:
            return lambda value: _by_msgspec(value, cls)
        if issubclass(cls, enum.Enum):
            return lambda value: _enum(cls, value)
        if is_pydantic(cls):
            return lambda value: cls.model_validate(value)
        if issubclass(cls, msgspec.Struct):
            hook = lambda inner, value: self.converter(inner)(value)
            return lambda value: msgspec.convert(value, hint, dec_hook=hook)
        fields = fields_of(cls)
        if fields is not None:
            return self._record(cls, [field for field in fields if field.init], args)

        source = _MADE_OF.get(cls, ())

        def build(value: Any) -> Any:
            if isinstance(value, source):
                return cls(value)
            raise expected(cls, value)

        return build

    def _record(self, cls: Any, fields: list[Field], args: tuple[Any, ...]) -> Convert:
        bound = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
        hints = {name: _bind(hint, bound) for name, hint in self._types.hints(cls).items()}

        def build(value: Any) -> Any:
            if isinstance(value, list) and issubclass(cls, tuple):
                value = dict(zip((field.name for field in fields), value, strict=False))
            if not isinstance(value, dict):
                raise expected(cls, value)
            given = {}
            for name, key, _, default in fields:
                found = name if name in value else key
                if found in value:
                    given[key] = self._field(found, value[found], hints.get(name, Any))
                elif default is None:
                    raise missing(cls, name)
            return cls(**given)  # through __init__, whose checks are meant for data from outside

        return build

    def _field(self, key: Any, item: Any, hint: Any) -> Any:
        try:
            return self.converter(hint)(item)
        except Misfit as exc:
            raise exc.within(key_step(key))

    def check(self, value: Any, depth: int = 0) -> None:
        """Refuse objects whose fields are not what their class says, as a dict in their place would be. Nothing is
        converted: an object is what it is."""
        kind = type(value)
        if kind in SCALARS or depth > MAX_DEPTH:
            return
        if kind is dict:
            for key, item in value.items():
                self.check_at(key_step(key), item, depth)
            return
        if kind in (list, tuple, set, frozenset):
            for i, item in enumerate(value):
                self.check_at(f"[{i}]", item, depth)
            return
        for name, hint, has_default in self._fields_to_check(kind):
            item = getattr(value, name, None)
            if item is None and has_default:  # `x: int = None` is common
                continue
            try:
                new = self.converter(hint)(item)
            except Misfit as exc:
                raise exc.within(key_step(name))
            if type(new) is not type(item) and not (type(new) is float and type(item) is int):
                raise expected(hint, item).within(key_step(name))
            self.check_at(key_step(name), item, depth)

    def check_at(self, step: str, item: Any, depth: int) -> None:
        try:
            self.check(item, depth + 1)
        except Misfit as exc:
            raise exc.within(step)

    def _fields_to_check(self, cls: Any) -> list[tuple[str, Any, bool]]:
        found = self._checked.get(cls)
        if found is None:
            shape = self._types.shapes.get(cls)
            fields = fields_of(cls) if shape is not None and not shape.by_hand and not is_pydantic(cls) else None
            hints = self._types.hints(cls) if fields else {}
            found = self._checked[cls] = [
                (field.name, hints[field.name], field.default is not None)
                for field in fields or ()
                if field.name in hints
            ]
        return found


class CallHints:
    """What one function's annotations ask of its arguments. Each is looked up when first needed, as a class
    may be defined after the function that names it."""

    def __init__(
        self, fn: Callable[..., Any], types: TypeRegistry, conformer: Conformer, without: Collection[str] = ()
    ) -> None:
        types.learn(fn, without)
        self._fn, self._types, self._conformer = inspect.unwrap(fn), types, conformer
        self._converters: dict[str | None, Convert] = {}
        parameters = [p for p in inspect.signature(fn).parameters.values() if p.name not in without]
        self._defaults = {p.name: p.default for p in parameters}
        by_kind: dict[Any, list[str]] = {}
        for parameter in parameters:
            by_kind.setdefault(parameter.kind, []).append(parameter.name)
        kind = inspect.Parameter
        either = by_kind.get(kind.POSITIONAL_OR_KEYWORD, [])
        self._positional = by_kind.get(kind.POSITIONAL_ONLY, []) + either
        self._named = {*either, *by_kind.get(kind.KEYWORD_ONLY, [])}
        self._rest = by_kind.get(kind.VAR_POSITIONAL, [None])[0]
        self._named_rest = by_kind.get(kind.VAR_KEYWORD, [None])[0]

    def position(self, index: int) -> str:
        """What to call the positional argument at `index`."""
        beyond = index - len(self._positional)
        if beyond < 0:
            return self._positional[index]
        return f"args[{index}]" if self._rest is None else f"{self._rest}[{beyond}]"

    def positional(self, index: int) -> Convert:
        return self._converter(self._positional[index] if index < len(self._positional) else self._rest)

    def named(self, name: str) -> Convert:
        return self._converter(name if name in self._named else self._named_rest)

    def annotation(self, name: str) -> Any:
        """What a parameter takes; Any if it has no annotation."""
        return self._types.hints(self._fn).get(name, Any)

    def fit(self, args: list[Any], kwargs: dict[str, Any], after: int = 0) -> None:
        """Put what its annotation asks for in the place of each argument. `after` so many others come before them."""
        at = after
        try:
            for i, arg in enumerate(args):
                at = after + i
                args[i] = self.positional(at)(arg)
        except Misfit as exc:
            raise exc.within(self.position(at))
        name = ""
        try:
            for name, arg in kwargs.items():
                kwargs[name] = self.named(name)(arg)
        except Misfit as exc:
            raise exc.within(name)

    def check(self, args: Iterable[Any], kwargs: Mapping[str, Any], after: int = 0) -> None:
        """Refuse objects among the arguments whose fields are not what their classes say."""
        for i, arg in enumerate(args):
            if type(arg) not in SCALARS:
                self._conformer.check_at(self.position(after + i), arg, 0)
        for name, arg in kwargs.items():
            self._conformer.check_at(name, arg, 0)

    def _converter(self, name: str | None) -> Convert:
        found = self._converters.get(name)
        if found is None:
            hint = Any if name is None else self.annotation(name)
            if name is not None and self._defaults[name] is None:
                hint = typing.Optional[hint]  # noqa: UP045  # `x: int = None` is common, and means this
            found = self._converters[name] = self._conformer.converter(hint)
        return found


def expected(hint: Any, value: object) -> Misfit:
    wanted = name_of(hint) if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    fields = [] if isinstance(value, dict) else field_names(hint)
    remedy = f"; {hint.__name__} has the fields {', '.join(fields)}" if fields else ""
    return Misfit(f"expected {wanted}, got {show(value)} of type {name_of(type(value))}{remedy}")


def _is_a(value: object, cls: Any) -> bool:
    try:
        return isinstance(value, cls)
    except TypeError:  # a protocol
        return False


def _each(converters: Iterable[Convert], items: Iterable[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        for converter, item in zip(converters, items, strict=False):
            done.append(converter(item))  # its length is the path's step if one fails
    except Misfit as exc:
        raise exc.within(f"[{len(done)}]")
    return done


def _by_msgspec(value: Any, cls: type, strict: bool = True) -> Any:
    try:
        return msgspec.convert(value, cls, strict=strict)
    except msgspec.ValidationError:
        raise expected(cls, value) from None


def _bind(hint: Any, bound: dict[Any, Any]) -> Any:
    """Put a generic class's arguments in place of its type variables."""
    if isinstance(hint, typing.TypeVar):
        return bound.get(hint, hint)
    variables = getattr(hint, "__parameters__", ())
    return hint[tuple(bound.get(v, v) for v in variables)] if variables and bound else hint


def _literal(hint: Any, args: tuple[Any, ...]) -> Convert:
    def convert(value: Any) -> Any:
        for arg in args:
            if type(value) is type(arg) and value == arg:
                return value
        for arg in args:
            if isinstance(arg, enum.Enum) and value == arg.value:
                return arg
        raise expected(hint, value)

    return convert


def _enum(cls: type[enum.Enum], value: Any) -> enum.Enum:
    try:
        return cls(value)
    except (ValueError, TypeError):
        if isinstance(value, str) and value in cls.__members__:
            return cls[value]
        raise Misfit(f"{show(value)} isn't one of {cls.__name__}: {', '.join(cls.__members__)}") from None
