"""What stands, in an exception that was raised elsewhere, for something that hung on it and could not be recorded."""

from __future__ import annotations

from typing import Any, NoReturn

from holdfast.codec.paths import name_of
from holdfast.codec.values import REMEDIES
from holdfast.printing import show


class Unrecorded:
    """Shows as the repr of what it stands for. Whoever asks it for more is told why it isn't there."""

    __slots__ = ("_place", "_text", "_type")

    def __init__(self, text: str, place: str, type: str) -> None:
        self._text, self._place, self._type = text, place, type

    def __repr__(self) -> str:
        return self._text

    def __format__(self, form: str) -> str:
        return format(self._text, form)

    def __eq__(self, other: object) -> bool:
        return type(other) is Unrecorded and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self.__reduce__())

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"no {name!r} here: {self._place} ({self._type}) could not be recorded; read what you need of it in the step, "
            "and raise an exception that has it"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Unrecorded, (self._text, self._place, self._type)


REMEDIES[Unrecorded] = "it stands for a part of an exception that could not be recorded; read what you need in the step"


def write_unrecorded(value: object, place: str) -> dict[str, str]:
    """Never raises, whatever the value is."""
    try:
        kind = name_of(type(value))
    except BaseException:  # a metaclass of the user's
        kind = "unknown"
    return {"$": "unrecorded", "v": show(value), "place": place, "type": kind}


def write_again(part: Unrecorded) -> dict[str, str]:
    return {"$": "unrecorded", "v": part._text, "place": part._place, "type": part._type}


def read_unrecorded(data: dict[str, Any]) -> Unrecorded:
    return Unrecorded(data["v"], data["place"], data["type"])
