"""A generator function that yields once, as something that surrounds a piece of code."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from holdfast.errors import DefinitionError


class Span(contextlib.AbstractContextManager[Any, None]):
    """A generator from its one yield to its end. What was raised in between it may see and replace, not swallow."""

    def __init__(self, generator: Generator[Any, None, None], who: str) -> None:
        self._generator = generator
        self._who = who

    def __enter__(self) -> Any:
        try:
            return next(self._generator)
        except StopIteration:
            raise never_yields(self._who) from None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            if error is None:
                next(self._generator)
            else:
                self._generator.throw(error)
        except StopIteration:
            return
        self._generator.close()
        raise yields_again(self._who)


def never_yields(who: str) -> DefinitionError:
    return DefinitionError(f"{who} ended before its yield; let it yield exactly once")


def yields_again(who: str) -> DefinitionError:
    return DefinitionError(f"{who} yields more than once; let it yield exactly once")
