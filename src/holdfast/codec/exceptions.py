"""Exceptions as data. What was raised elsewhere is raised here as the same class where that is safe, else as
StepError; its traceback's text always comes along."""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any, TypeGuard
from weakref import WeakValueDictionary

from holdfast.codec import validation
from holdfast.codec.types import home_of
from holdfast.codec.unrecorded import Unrecorded, write_again, write_unrecorded
from holdfast.codec.values import Tagger, refusal, refuse
from holdfast.errors import StepError
from holdfast.printing import show

MAX_TEXT = 32_000
MAX_CHAIN = 16

_OURS = re.compile(
    r'  File "[^"\n]*/holdfast/(?:api|core|engine|executors|codec|compose|testing)/[^\n]*\n(?:    [^\n]*\n?)*'
)
_REMOTE = re.compile(r'^holdfast\.[\w.]*RemoteTraceback: ?\n?"""\n(.*?)^"""\n?', re.M | re.S)


def own_frames(traceback: str) -> str:
    """A traceback without the lines that are not the user's own. What is recorded is the whole of it."""
    return _OURS.sub("", _REMOTE.sub(r"\1", traceback)).rstrip()


class RemoteTraceback(Exception):
    """Shows, as the cause of a rebuilt exception, the traceback of where it was raised: the user's lines, if there are
    any. `text` has all of them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        own = own_frames(self.text)
        shown = own if "  File " in own else self.text.rstrip()
        return f'\n"""\n{shown}\n"""'


class _Nobody(Exception):
    """No exception is one of these: asking whether one is makes `isinstance` look at its `__class__`."""


def check_harmless(exc: BaseException) -> None:
    """Raise whatever looking at an exception raises: its class is the user's, and may do anything."""
    str(exc)
    isinstance(exc, _Nobody)


class ErrorWriter:
    """Writes one exception with all that hangs on it. Never fails: of what can't be written its repr is."""

    def __init__(self, tagger: Tagger) -> None:
        self._tagger = copy.copy(tagger)
        self._tagger.other = self._write_other
        self._seen: set[int] = set()  # exceptions refer to each other in circles, by context or by attribute

    def write(self, exc: BaseException) -> dict[str, Any]:
        try:
            return {**self._link(exc, 0), "traceback": clip(_format(exc))}
        finally:
            self._tagger.other = refuse  # else the two would keep each other in memory

    def _link(self, exc: BaseException, depth: int) -> dict[str, Any]:
        self._seen.add(id(exc))
        data: dict[str, Any] = {"type": type_name(exc), "message": message_of(exc)}
        name = data["type"].rpartition(":")[2].rpartition(".")[2]
        if data["type"].startswith("__main__:"):
            data["main"] = home_of("__main__")
        if _is_group(exc):
            data["group"] = [self._link(e, depth + 1) for e in exc.exceptions if self._is_new(e, depth)]
        cause, context = exc.__cause__, exc.__context__
        if cause is not None and not isinstance(cause, RemoteTraceback):
            if self._is_new(cause, depth):
                data["cause"] = self._link(cause, depth + 1)
        elif context is not None and not exc.__suppress_context__ and self._is_new(context, depth):
            data["context"] = self._link(context, depth + 1)
        if validation.is_validation_error(type(exc)):
            with contextlib.suppress(Exception):  # then its text is what is left of it
                data["validation"] = validation.facts_of(exc, lambda value: self._part(value, f"{name}.input"))
        elif exc.args and "group" not in data:
            data["args"] = [self._part(arg, f"{name}.args[{i}]") for i, arg in enumerate(exc.args)]
        state = {key: self._part(value, f"{name}.{key}") for key, value in _state(exc)}
        if state:
            data["state"] = state
        notes = vars(exc).get("__notes__")
        if isinstance(notes, list):
            data["notes"] = [note if isinstance(note, str) else show(note) for note in notes]
        return data

    def _is_new(self, exc: BaseException, depth: int) -> bool:
        return depth < MAX_CHAIN and id(exc) not in self._seen

    def _part(self, value: object, place: str) -> Any:
        try:
            return self._tagger.tag(value)
        except BaseException:  # the promise of this class; the repr is what is left of it
            return write_unrecorded(value, place)

    def _write_other(self, value: object) -> Any:
        if type(value) is Unrecorded:
            return write_again(value)
        if isinstance(value, BaseException):
            return {"$": "exc", "v": self._link(value, 0)} if id(value) not in self._seen else show(value)
        raise refusal(value)


def rebuild(data: dict[str, Any]) -> BaseException:
    text = str(data.get("traceback", ""))
    exc = _rebuild_link(data, text)
    exc.__dict__["__holdfast_traceback__"] = text  # `_revive` has seen that there is such a dict
    return exc


def stand_in(data: dict[str, Any]) -> StepError:
    message, type_name, text = (str(data.get(key, "")) for key in ("message", "type", "traceback"))
    return StepError(message, type_name=type_name, traceback=text)


def _rebuild_link(data: dict[str, Any], text: str) -> BaseException:
    exc = _revive(data)
    if exc is not None:
        try:
            return _hang_on(exc, data, text)
        except BaseException:  # a class that refuses attributes; StepError tells of it instead
            pass
    return _hang_on(stand_in(data), data, text)


def _hang_on(exc: BaseException, data: dict[str, Any], text: str) -> BaseException:
    """The exception with all that hung on it."""
    if isinstance(data.get("notes"), list):
        exc.__dict__["__notes__"] = data["notes"]
    if isinstance(data.get("context"), dict):
        exc.__context__ = _rebuild_link(data["context"], "")
    if isinstance(data.get("cause"), dict):
        exc.__cause__ = _rebuild_link(data["cause"], text)
    elif text:
        exc.__cause__ = RemoteTraceback(text)  # at the end of the chain; the text tells the whole of it
    return exc


def _revive(data: dict[str, Any]) -> BaseException | None:
    cls = _find_class(str(data.get("type", "")), data.get("main"))
    if cls is None:
        return None
    try:
        # The constructor is the class's own affair and may ask for anything, so it isn't called. A builtin
        # __new__ refuses classes that it can't make safely.
        base: Any = next(b for b in cls.__mro__ if isinstance(vars(b).get("__new__"), types.BuiltinFunctionType))
        if validation.is_validation_error(cls):
            exc: BaseException = validation.rebuild(cls, data["validation"])
        elif issubclass(cls, ExceptionGroup):
            members = [_rebuild_link(member, "") for member in data["group"]]
            exc = base.__new__(cls, data["message"], members)
        else:
            exc = base.__new__(cls)
            exc.args = tuple(data.get("args", ()))
        state = dict(data.get("state", {}))
        for name, slot in _slots(cls):
            if name in state:
                with contextlib.suppress(AttributeError, TypeError):  # read-only, or not of the slot's type
                    slot.__set__(exc, state.pop(name))
        exc.__dict__.update(state)
        check_harmless(exc)  # one that can't even be printed would hide the failure it stands for
    except BaseException:  # whatever keeps it from being rebuilt, StepError tells of it instead
        return None
    return exc


def _find_class(name: str, main: str | None) -> type[Exception] | None:
    """The class, if its module is loaded already. Nothing is imported, nor any module `__getattr__` asked."""
    module, _, qualname = name.partition(":")
    own = home_of("__main__")
    if module == "__main__" and main != own:
        module = str(main)
    elif module == own and module not in sys.modules:
        module = "__main__"
    if "<locals>" in qualname:
        local = _made_in_functions.get(name)
        return None if local is None or issubclass(local, StopIteration | StopAsyncIteration) else local
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        if not isinstance(found, types.ModuleType | type):
            return None
        found = object.__getattribute__(found, "__dict__").get(part)  # even a lazy module stays unloaded
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    # Raised into a generator or coroutine, these would end it silently or turn into a RuntimeError.
    return None if issubclass(found, StopIteration | StopAsyncIteration) else found


def _slots(cls: type) -> Iterator[tuple[str, Any]]:
    """Fields outside `__dict__`: those of the builtin classes (errno, start, lineno), and `__slots__`."""
    for base in cls.__mro__:
        if base in (BaseException, BaseExceptionGroup):
            continue
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType | types.GetSetDescriptorType) and name[:2] != "__":
                yield name, slot


def _state(exc: BaseException) -> Iterator[tuple[str, object]]:
    for name, slot in _slots(type(exc)):
        if isinstance(exc, AttributeError) and name == "obj":
            continue  # it only serves "did you mean", and could be anything
        try:
            value = slot.__get__(exc)
        except BaseException:  # not set
            continue
        if value is not None or slot.__objclass__.__module__ != "builtins":
            yield name, value
    for name, value in vars(exc).items():
        if name.isidentifier() and name not in ("__notes__", "__holdfast_traceback__"):
            yield name, value


def _is_group(exc: BaseException) -> TypeGuard[BaseExceptionGroup[Any]]:
    return issubclass(type(exc), BaseExceptionGroup)  # isinstance would ask its `__class__`, which may raise


_made_in_functions: WeakValueDictionary[str, type[Exception]] = WeakValueDictionary()


def learn_errors(fn: Any) -> None:
    """Exceptions that were made in a function are found by the steps and workflows that name them: these are the same in
    every process that has the code, so that a replay finds what was found before."""
    for cell in getattr(inspect.unwrap(fn), "__closure__", None) or ():
        with contextlib.suppress(Exception):  # an empty cell, or a metaclass of the user's
            cls = cell.cell_contents
            if isinstance(cls, type) and issubclass(cls, Exception) and "<locals>" in cls.__qualname__:
                _made_in_functions[f"{cls.__module__}:{cls.__qualname__}"] = cls


def type_name(exc: BaseException) -> str:
    try:
        module = str(type(exc).__module__).replace("__mp_main__", "__main__")  # as multiprocessing calls a script
        return f"{module}:{type(exc).__qualname__}"
    except BaseException:  # a metaclass of the user's
        return "builtins:Exception"


def message_of(exc: BaseException) -> str:
    """Its text. Never raises, whatever its class does."""
    try:
        return str(exc.message) if _is_group(exc) else str(exc)
    except BaseException:
        return f"<{type(exc).__name__} whose text can't be made>"


def _format(exc: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(exc))
    except BaseException as why:  # a class that breaks the traceback module
        return f"{type(exc).__qualname__}: {message_of(exc)} (its traceback can't be shown: {show(why)})"


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """The first quarter and the last three: a traceback's end says most."""
    if len(text) <= limit:
        return text
    return f"{text[: limit // 4]}\n… {len(text) - limit} characters left out …\n{text[-(limit * 3 // 4) :]}"
