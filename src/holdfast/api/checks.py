"""What people hand over, checked where they do: one check for each kind of value. An error names the argument, what was
given and what is expected, and nothing has been written by then."""

from __future__ import annotations

import datetime as dt
import math
import types
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core.definitions import DEFAULT_QUEUE, Errors
from holdfast.durations import to_us
from holdfast.errors import ArgumentError, DefinitionError, FatalError, HoldfastError
from holdfast.printing import show, show_error

NAME_LIMIT = 200
KEY_LIMIT = 200  # what the store keeps of a value to find runs by
ID_LIMIT = 255
LARGEST = 2**31 - 1  # counts and numbers of rows fit any database, and any sum of them too

Kind = type[HoldfastError]


# -- texts


def is_storable(text: str) -> bool:
    """Whether every database can hold it: UTF-8 has no half of a surrogate pair, and PostgreSQL no NUL."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def check_text(what: str, value: Any, *, empty: bool = False, kind: Kind = ArgumentError) -> None:
    """Words of any length, or the name of something that is looked for."""
    if type(value) is not str or not (value or empty):
        raise kind(f"{what}={show(value)}: give a text{'' if empty else ' that is not empty'}")
    if not is_storable(value):
        raise kind(
            f"{what}={show(value)} has a NUL or half of a surrogate pair in it, which a store can't keep; clean it with "
            "text.encode(errors='replace').decode().replace('\\0', '')"
        )


def check_key(what: str, value: Any, kind: Kind = ArgumentError) -> None:
    """By which something is found again."""
    if type(value) is not str or not 0 < len(value) <= KEY_LIMIT or not is_storable(value):
        raise kind(
            f"{what}={show(value)}: a key is a text of 1 to {KEY_LIMIT} characters, without NUL and halves of surrogate pairs"
        )


def check_id(run_id: Any, what: str = "id") -> None:
    if type(run_id) is not str or not 0 < len(run_id) <= ID_LIMIT or not _is_one_word(run_id):
        raise ArgumentError(
            f"{what}={show(run_id)}: an id is a text of 1 to {ID_LIMIT} printable characters without spaces"
        )


def check_name(what: str, name: Any) -> None:
    """A name is part of the ids of children, and is shown in lists."""
    if type(name) is not str or not 0 < len(name) <= NAME_LIMIT or not _is_one_word(name):
        raise DefinitionError(
            f"{what} name={show(name)}: a name is a text of 1 to {NAME_LIMIT} printable characters without spaces"
        )


def check_hook(name: Any, key: Any = None, kind: Kind = ArgumentError, what: str = "hook") -> None:
    """The address of a hook. Payloads for names that no code asks for yet are kept, so any text is one."""
    if type(name) is not str or not name or not is_storable(name):
        raise kind(f"{what}({show(name)}): give the hook a name, as a text")
    if key is not None:
        check_key(f"{what}({show(name)}): key", key, kind)


def check_queue(value: Any) -> str:
    """The name of a queue as it is recorded: that of steps which name none is empty, and "default" for people."""
    if type(value) is not str or (value and not _is_one_word(value)) or "," in value:
        raise DefinitionError(f"queue={show(value)}: give a name, as a text without spaces or commas")
    return "" if value == DEFAULT_QUEUE else value


def _is_one_word(text: str) -> bool:
    return text.isprintable() and " " not in text  # what is printable can be stored


# -- types, and arguments that are given as data


def check_model(what: str, payload: Any) -> None:
    """The type of a payload, as an annotation says it."""
    if isinstance(payload, type | types.UnionType | types.GenericAlias) or type(payload).__module__ == "typing":
        return
    raise DefinitionError(f"{what}={show(payload)}: give a type, such as a model, dict[str, int] or str")


def check_arguments(args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Of a call, as `apply_async` and `clone` take them. Other iterables than lists may be gone before they are read."""
    if not isinstance(args, list | tuple):
        raise ArgumentError(f"args={show(args)}: give a list or tuple of arguments")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(type(name) is str for name in kwargs)):
        raise ArgumentError(f"kwargs={show(kwargs)}: give a dict of arguments by name")
    return tuple(args), dict(kwargs or {})


def check_data(what: str, data: Any) -> None:
    """What a run is published with, by key."""
    if not isinstance(data, Mapping):
        raise ArgumentError(f"{what}={show(data)}: give a dict of values by key, as wf.set_data takes them")
    for key in data:
        check_text(f"a key of {what}", key)


def check_headers(headers: Any) -> None:
    """What comes along with a run."""
    for name, value in headers.items():
        check_text("a header", name)
        check_text(f"header {name!r}", value, empty=True)


# -- numbers, times, choices


def check_number(what: str, value: Any, least: int = 0, kind: Kind = ArgumentError, why: str = "") -> int:
    """A whole number that counts something."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise kind(f"{what}={show(value)}: give a number of {least} or more, up to {LARGEST:,}{why}")
    return value


def progress_of(what: str, done: Any, total: Any, note: Any) -> bytes:
    """How far a step is, as it is kept."""
    for name, value in (("done", done), ("total", total)):
        if not (value is None and name == "total") and not _is_amount(value):
            raise ArgumentError(f"{what}: {name}={show(value)}: give a number")
    check_text(f"{what}: note", note, empty=True)
    return msgspec.json.encode({"done": done, "total": total, "note": note})


def _is_amount(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63


def check_priority(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise DefinitionError(
            f"priority={show(value)}: give a whole number from 0, which is the default; higher goes first, up to 1,000,000"
        )


def check_flag(what: str, value: Any, kind: Kind = DefinitionError) -> bool:
    if not isinstance(value, bool):
        raise kind(f"{what}={show(value)}: give True or False")
    return value


def duration_of(what: str, value: Any, kind: Kind = DefinitionError) -> int:
    """Microseconds."""
    try:
        return to_us(value, what)
    except (TypeError, ValueError) as error:
        raise kind(str(error)) from None


def timeout_of(what: str, value: Any) -> int | None:
    if value is None:
        return None
    us = duration_of(what, value)
    if us == 0:
        raise DefinitionError(f"{what}={show(value)} leaves no time at all; give more, or None for no limit")
    return us


def to_epoch(moment: Any, what: str = "at") -> int:
    """Microseconds since the epoch."""
    if not isinstance(moment, dt.datetime):
        raise ArgumentError(f"{what}={show(moment)}: give a datetime with a time zone")
    try:
        if moment.utcoffset() is None:
            raise ArgumentError(f"{what}={show(moment)} has no time zone; give e.g. datetime(..., tzinfo=timezone.utc)")
        return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    except (ArgumentError, RecursionError):
        raise
    except Exception as error:  # a time zone of the user's own
        raise ArgumentError(f"{what}: its time zone fails with {show_error(error)}; give e.g. timezone.utc") from error


def one_of(what: str, value: Any, choices: tuple[str, ...], kind: Kind = DefinitionError) -> Any:
    if type(value) is not str or value not in choices:
        *first, last = map(repr, choices)
        raise kind(f"{what}={show(value)}: give {', '.join(first)} or {last}")
    return value


def error_classes(what: str, value: Any) -> Errors | None:
    if value is None:
        return None
    if not isinstance(value, type | Iterable):
        raise DefinitionError(f"{what}={show(value)}: give an exception class, or a list of them")
    classes = (value,) if isinstance(value, type) else tuple(value)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise DefinitionError(f"{what}: {show(cls)} is not an exception class")
        if what == "retry_for" and not (issubclass(cls, Exception) or issubclass(Exception, cls)):
            raise DefinitionError(f"{what}: {cls.__name__} is never retried, as it is no Exception; leave it out")
        if what == "retry_for" and issubclass(cls, FatalError):
            raise DefinitionError(f"{what}: {cls.__name__} is a FatalError, which is never retried; leave it out")
    return classes


def refuse_local_errors(what: str, classes: Errors | None) -> None:
    """A process of its own tells of an exception by name, and no name leads to a class that was made in a function."""
    for cls in classes or ():
        if "<locals>" in cls.__qualname__:
            raise DefinitionError(
                f"{what}: {cls.__qualname__} is made in a function, where a step with pool='process' can't find it; "
                "define it at the top of a module"
            )
