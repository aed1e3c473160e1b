"""Steps that most tests of canvases need."""

from __future__ import annotations

import threading
from typing import Any

from holdfast import App


class Declined(Exception):
    """A failure with a name of its own."""


class Steps:
    """The steps of one app, and what they were called with."""

    def __init__(self, app: App) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.gate = threading.Event()
        calls = self.calls

        @app.step
        def add(x: int, y: int) -> int:
            calls.append(("add", x, y))
            return x + y

        @app.step
        async def double(x: int) -> int:
            calls.append(("double", x))
            return 2 * x

        @app.step
        def total(numbers: list[Any]) -> int:
            calls.append(("total", numbers))
            return sum(numbers)

        @app.step
        def echo(value: Any = None) -> Any:
            calls.append(("echo", value))
            return value

        @app.step(max_retries=0)
        def fail(value: Any = None) -> Any:
            calls.append(("fail", value))
            raise Declined(f"no {value}")

        @app.step
        def tell(error: BaseException) -> None:
            calls.append(("tell", type(error).__name__, str(error)))

        @app.step
        def wait(value: Any = None) -> Any:
            """Goes on once the gate is open."""
            calls.append(("wait", value))
            assert self.gate.wait(30)
            return value

        self.add, self.double, self.total, self.echo = add, double, total, echo
        self.fail, self.tell, self.wait = fail, tell, wait

    def called(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]
