"""Values to JSON data with type tags, and back. msgspec reads and writes the bytes; it never sees a type that
JSON doesn't have, as it would flatten it silently: a tuple to a list, NaN to null, a Decimal to a string.

A tag is `{"$": name, "v": data}`. A dict that has a key "$" of its own is written as pairs, like one whose
keys aren't strings.

Types are matched exactly. A subclass of a builtin type is refused unless it is registered, defaultdict and
Counter too: read back as its base it would be another thing.
"""

from __future__ import annotations

import datetime as dt
import io
from base64 import b64decode, b64encode
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from math import isfinite
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from holdfast.codec.paths import Misfit, key_step, name_of
from holdfast.codec.pydantic_fields import FieldForms, is_secret
from holdfast.codec.shapes import describe
from holdfast.codec.types import TypeRegistry
from holdfast.errors import TransformError
from holdfast.printing import show, show_error

MAX_DEPTH = 100
MIN_INT, MAX_INT = -(2**63), 2**64 - 1  # beyond, a JSON reader may give a float

Tagged = dict[str, Any]
Writer = Callable[["Tagger", Any, int], Any]
Reader = Callable[[Tagged], Any]


class Tagger:
    """Walks values. What needs no tag is returned as it is, not copied."""

    def __init__(self, types: TypeRegistry) -> None:
        self.types = types
        self.readers: dict[str, Reader] = dict(READERS)
        self.other: Callable[[Any], Any] = refuse

    def tag(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return value if MIN_INT <= value <= MAX_INT else {"$": "int", "v": _digits(value)}
        if kind is float:
            return value if isfinite(value) else {"$": "float", "v": str(value)}
        if depth > MAX_DEPTH:
            raise Misfit(f"is nested deeper than {MAX_DEPTH} levels; record it flat")
        if kind is dict:
            return self.tag_dict(value, depth + 1)
        if kind is list:
            return self.tag_list(value, depth + 1)
        writer = WRITERS.get(kind)
        if writer is not None:
            return writer(self, value, depth + 1)
        return self._tag_object(value, depth)

    def tag_dict(self, value: dict[Any, Any], depth: int) -> Any:
        changed: dict[str, Any] | None = None
        key: Any = None
        try:
            for key, item in value.items():
                if type(key) is not str or key == "$":
                    break
                kind = type(item)
                if kind is str or (kind is int and MIN_INT <= item <= MAX_INT):  # most are, so spare the call
                    continue
                tagged = self.tag(item, depth)
                if tagged is not item:
                    if changed is None:
                        changed = value.copy()
                    changed[key] = tagged
            else:
                return value if changed is None else changed
        except Misfit as exc:
            raise exc.within(key_step(key), value)
        return {"$": "map", "v": self.tag_pairs(value, depth)}

    def tag_pairs(self, value: dict[Any, Any], depth: int) -> list[list[Any]]:
        key: Any = None
        pairs = []
        try:
            for key, item in value.items():
                pairs.append([self.tag(key, depth), self.tag(item, depth)])
        except Misfit as exc:
            raise exc.within(key_step(key), value)
        return pairs

    def tag_list(self, value: Any, depth: int) -> list[Any]:
        """For any sequence: the list itself if nothing in it needs a tag, else a new list."""
        changed: list[Any] | None = None
        i = 0
        try:
            for i, item in enumerate(value):
                kind = type(item)
                if kind is str or (kind is int and MIN_INT <= item <= MAX_INT):
                    continue
                tagged = self.tag(item, depth)
                if tagged is not item:
                    if changed is None:
                        changed = list(value)
                    changed[i] = tagged
        except Misfit as exc:
            raise exc.within(f"[{i}]", value)
        if changed is not None:
            return changed
        return value if type(value) is list else list(value)

    def _tag_object(self, value: Any, depth: int) -> Any:
        cls = type(value)
        shape = self.types.shape_of(cls)
        if shape is None:
            return self.other(value)
        try:
            taken = shape.take(value)
        except (Misfit, RecursionError):
            raise
        except BaseException as exc:  # a field that isn't set, a property or a user's encode= that raises anything
            raise Misfit(f"{show(value)} of type {name_of(cls)} can't be recorded: {show_error(exc)}") from exc
        try:
            return {"$": shape.tag, "v": self.tag(taken, depth)}
        except Misfit as exc:
            if shape.forms is not None and not exc.is_final:
                return {"$": shape.tag, "v": self._tag_fields(shape.forms, value, taken, depth)}
            if exc.holders:
                exc.holders[-1] = id(value)  # it was the dict that `take` made, a new one each time
            raise

    def _tag_fields(self, forms: FieldForms, model: Any, taken: dict[str, Any], depth: int) -> Any:
        """The fields of a model of which some can't be recorded as they are: those in the form that the model has for them.
        Where there is none, that is not tried again around it, as each level would double the work."""
        state, formed = dict(taken), []
        for name, value in taken.items():
            try:
                self.tag(value, depth + 1)
            except Misfit as exc:
                if not forms.can_write(name, value):
                    exc.is_final = True
                    raise exc.within(key_step(name), model)
                state[name] = forms.write(name, value)
                formed.append(name)
        state["*"] = {**taken.get("*", {}), "json": formed}
        return self.tag(state, depth)

    def untag(self, data: Any) -> Any:
        """Rebuild in place what `tag` wrote. `data` must be fresh from the JSON reader."""
        step: Any = None
        try:
            if type(data) is dict:
                for step, item in data.items():
                    if type(item) is dict or type(item) is list:
                        data[step] = self.untag(item)
                if "$" not in data:
                    return data
                step = "$"
                return self._rebuild(data)
            if type(data) is list:
                for step, item in enumerate(data):
                    if type(item) is dict or type(item) is list:
                        data[step] = self.untag(item)
        except Misfit as exc:
            if type(data) is list:
                exc.within(f"[{step}]")
            elif "$" not in data:
                exc.within(key_step(step))
            raise
        return data

    def _rebuild(self, data: Tagged) -> Any:
        tag = data["$"]
        if type(tag) is not str:
            raise Misfit(f"{show(tag)} isn't a type tag")
        try:
            reader = self.readers.get(tag)
            return reader(data) if reader is not None else self.types.shape_named(tag).make(data["v"])
        except (Misfit, RecursionError):
            raise
        except TransformError:
            raise
        except BaseException as exc:  # a damaged tag, or a user's own decode=, which may raise anything
            raise Misfit(f"{tag!r} can't be rebuilt from {show(data.get('v'))}: {show_error(exc)}") from exc


class LooseTagger(Tagger):
    """Classes that are unknown here become the data that they hold. For those who look at what other code has recorded."""

    def _rebuild(self, data: Tagged) -> Any:
        try:
            return super()._rebuild(data)
        except Misfit:
            if data["$"] in self.readers or "v" not in data:
                raise
            return data["v"]


def mend_text(data: Any) -> Any:
    """Tag the strings that UTF-8 can't hold: those with half of a surrogate pair, as in odd file names."""
    if type(data) is str:
        return data if _encodable(data) else {"$": "str", "v": data.encode("unicode_escape").decode("ascii")}
    if type(data) is list:
        return [mend_text(item) for item in data]
    if type(data) is not dict:
        return data
    if all(map(_encodable, data)):
        return {key: mend_text(item) for key, item in data.items()}
    return {"$": "map", "v": [[mend_text(key), mend_text(item)] for key, item in data.items()]}


def refuse(value: object) -> Any:
    raise refusal(value)


REMEDIES: dict[type, str] = {}
"""What to do instead of recording instances of classes that other frameworks make."""


def refusal(value: object, types: TypeRegistry | None = None) -> Misfit:
    """Why it can't be recorded, and what to do; `types` knows of annotations that could not be evaluated."""
    cls = type(value)
    for base in cls.__mro__:
        if base in REMEDIES:
            return Misfit(f"{show(value)} of type {name_of(cls)} can't be recorded; {REMEDIES[base]}")
    if is_secret(value):
        remedy = (
            "as it would stand open in the store; let the step read the secret where it is kept, or encrypt values with "
            f"Codec(transforms=...) and app.codec.types.register({cls.__name__}, encode=..., decode={cls.__name__})"
        )
        return Misfit(f"{show(value)} of type {name_of(cls)} can't be recorded, {remedy}")
    if describe(cls) is not None:
        name = cls.__name__
        unclear = [] if types is None else types.unresolved(name)
        if unclear:
            remedy = f"import {name} at run time, not under TYPE_CHECKING, or app.codec.types.register({name})"
            return Misfit(f"{show(value)} of type {name_of(cls)} can't be recorded: {unclear[0]}; {remedy}")
        remedy = f"annotate the parameter or result with {name}, or app.codec.types.register({name})"
        return Misfit(f"{show(value)} of type {name_of(cls)} can't be recorded, as its class isn't known; {remedy}")
    remedy = "give data instead, or register a codec with app.codec.types.register(...)"
    if isinstance(value, Awaitable):
        remedy = (
            "await it (in `def` code: wf.wait(...)), and record what it gives; a lambda can't await, so give the async "
            "function itself"
        )
    elif isinstance(value, io.StringIO | io.BytesIO):
        remedy = "record value.getvalue()"
    elif isinstance(value, io.IOBase):
        remedy = "record its path, and open it in the step that reads it"
    elif isinstance(value, Iterator):
        remedy = "record list(value)"
    for base in (str, bytes, int, float, dict, list, tuple, set):
        if isinstance(value, base):
            remedy = f"record {base.__name__}(value), or register a codec with app.codec.types.register(...)"
    return Misfit(f"{show(value)} of type {name_of(cls)} can't be recorded; {remedy}")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _digits(value: int) -> str:
    # Python refuses to write or read thousands of decimal digits, as that is slow; hex has no limit.
    return str(value) if value.bit_length() < 4096 else hex(value)


def _text(tag: str, write: Callable[[Any], str] = str) -> Writer:
    return lambda tagger, value, depth: {"$": tag, "v": write(value)}


def _read_text(read: Callable[[str], Any]) -> Reader:
    return lambda data: read(data["v"])


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


def _unbase64(data: Tagged) -> bytes:
    return b64decode(data["v"], validate=True)


def _write_time(tagger: Tagger, value: Any, depth: int) -> Tagged:
    """A datetime or a time. ISO text says neither the zone's name nor which of two equal hours is meant."""
    data: Tagged = {"$": type(value).__name__, "v": value.isoformat()}
    zone = value.tzinfo
    if type(zone) is ZoneInfo and zone.key is not None:
        data["zone"] = zone.key
    elif type(zone) is dt.timezone:
        offset, name = zone.utcoffset(None), zone.tzname(None)
        if offset.microseconds:  # Python's own reader takes an offset below a second for none
            data["offset"] = offset // dt.timedelta(microseconds=1)
        if name != dt.timezone(offset).tzname(None):
            data["name"] = name
    elif zone is not None:
        raise Misfit(
            f"{show(value)} has a tzinfo of type {name_of(type(zone))}, which can't be recorded; "
            "use zoneinfo.ZoneInfo or datetime.timezone"
        )
    if value.fold:
        data["fold"] = 1
    return data


def _read_time(read: Callable[[str], Any]) -> Reader:
    def reader(data: Tagged) -> Any:
        value = read(data["v"])
        if "zone" in data:
            value = value.replace(tzinfo=ZoneInfo(data["zone"]))
        elif "offset" in data or "name" in data:
            offset = dt.timedelta(microseconds=data["offset"]) if "offset" in data else value.utcoffset()
            value = value.replace(tzinfo=dt.timezone(offset, *filter(None, [data.get("name")])))
        return value.replace(fold=1) if data.get("fold") else value

    return reader


def _items(tag: str) -> Writer:
    return lambda tagger, value, depth: {"$": tag, "v": tagger.tag_list(value, depth)}


def _unordered(tag: str) -> Writer:
    # Sorted, so that equal sets give equal bytes in every process: string hashes are random per process.
    return lambda tagger, value, depth: {"$": tag, "v": sorted(tagger.tag_list(value, depth), key=repr)}


def _write_deque(tagger: Tagger, value: deque[Any], depth: int) -> Tagged:
    data = {"$": "deque", "v": tagger.tag_list(value, depth)}
    return data if value.maxlen is None else {**data, "max": value.maxlen}


ADDRESSES = {
    cls.__name__.lower(): cls  # their own names may be those of an app that has registered them itself
    for cls in (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network)
}

WRITERS: dict[type, Writer] = {
    bytes: _text("bytes", _base64),
    bytearray: _text("bytearray", _base64),
    Decimal: _text("Decimal"),
    UUID: _text("UUID"),
    dt.date: _text("date"),
    dt.datetime: _write_time,
    dt.time: _write_time,
    dt.timedelta: lambda tagger, v, depth: {"$": "timedelta", "v": [v.days, v.seconds, v.microseconds]},
    complex: lambda tagger, v, depth: {"$": "complex", "v": [tagger.tag(v.real), tagger.tag(v.imag)]},
    Fraction: lambda tagger, v, depth: {
        "$": "Fraction",
        "v": [tagger.tag(v.numerator), tagger.tag(v.denominator)],
    },
    **{cls: _text(tag) for tag, cls in ADDRESSES.items()},
    PosixPath: _text("Path"),
    WindowsPath: _text("Path"),
    PurePosixPath: _text("PurePosixPath"),
    PureWindowsPath: _text("PureWindowsPath"),
    tuple: _items("tuple"),
    set: _unordered("set"),
    frozenset: _unordered("frozenset"),
    deque: _write_deque,
    OrderedDict: lambda tagger, v, depth: {"$": "OrderedDict", "v": tagger.tag_pairs(v, depth)},
    msgspec.UnsetType: lambda tagger, v, depth: {"$": "unset"},
}

READERS: dict[str, Reader] = {
    "int": lambda data: int(data["v"], 0),
    "float": lambda data: float(data["v"]),
    "str": lambda data: data["v"].encode("ascii").decode("unicode_escape"),
    "map": lambda data: {key: item for key, item in data["v"]},
    "bytes": _unbase64,
    "bytearray": lambda data: bytearray(_unbase64(data)),
    "Decimal": lambda data: Decimal(data["v"]),
    "UUID": lambda data: UUID(data["v"]),
    "date": lambda data: dt.date.fromisoformat(data["v"]),
    "datetime": _read_time(dt.datetime.fromisoformat),
    "time": _read_time(dt.time.fromisoformat),
    "timedelta": lambda data: dt.timedelta(*data["v"]),
    "complex": lambda data: complex(*data["v"]),
    "Fraction": lambda data: Fraction(*data["v"]),
    "Path": lambda data: Path(data["v"]),
    "PurePosixPath": lambda data: PurePosixPath(data["v"]),
    "PureWindowsPath": lambda data: PureWindowsPath(data["v"]),
    **{tag: _read_text(cls) for tag, cls in ADDRESSES.items()},
    "tuple": lambda data: tuple(data["v"]),
    "set": lambda data: set(data["v"]),
    "frozenset": lambda data: frozenset(data["v"]),
    "deque": lambda data: deque(data["v"], data.get("max")),
    "OrderedDict": lambda data: OrderedDict(data["v"]),
    "unset": lambda data: msgspec.UNSET,
}
