"""Values and texts in messages. Whatever they are, showing them never fails."""

from __future__ import annotations

import re
import reprlib

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def show(value: object) -> str:
    """A short repr, whatever the value's own `__repr__` does: it may even raise what is no Exception."""
    try:
        return printable(_short.repr(value))
    except BaseException:
        return f"<unprintable {type(value).__name__}>"


def show_error(error: BaseException) -> str:
    """The repr of an exception, whole where that can be had: its text says most."""
    try:
        return printable(repr(error)[:1_000])
    except BaseException:
        return f"<unprintable {type(error).__name__}>"


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its own `__str__` does."""
    try:
        return str(error)
    except BaseException:
        return f"<{type(error).__name__} whose text can't be made>"


def printable(text: str) -> str:
    """A text that every store and terminal takes: NULs and halves of surrogate pairs are written as their escapes."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def without_password(url: str) -> str:
    """The address of a store or a broker as it may be shown."""
    url = re.sub(r"(://[^/@:?]*):[^?]*@", r"\1:***@", url)
    return re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", url, flags=re.IGNORECASE)
