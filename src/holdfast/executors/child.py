"""A process that executes steps for an engine: `python -m holdfast.executors.child FD`."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import runpy
import socket
import sys
import threading
import traceback
from typing import Any

from msgspec import Raw

from holdfast.core.context import StepContext, current_step
from holdfast.core.registry import Definitions, find_app
from holdfast.errors import RetryableError
from holdfast.executors.process import receive, send
from holdfast.ports import Attempt


def load(frame: dict[str, Any]) -> Definitions:
    """Import what defines the app, as the engine's process did."""
    if frame["main_file"]:
        runpy.run_path(frame["main_file"], run_name="__holdfast__")
    for module in frame["modules"]:
        importlib.import_module(module)
    app = find_app(frame["app"])
    if app is None:
        raise LookupError(f"importing {', '.join(frame['modules']) or frame['main_file']} made no app {frame['app']!r}")
    if frame["store"]:
        app.use_store(frame["store"])
    return app


def execute(
    app: Definitions, attempt: Attempt, loop: asyncio.AbstractEventLoop, context: StepContext
) -> dict[str, Any]:
    definition = app.find_step(attempt.step)
    codec = app.codec
    try:
        args, kwargs = codec.decode_call(attempt.args, definition.hints)

        def call() -> Any:
            current_step.set(context)
            if definition.is_async:
                return loop.run_until_complete(definition.function(*args, **kwargs))
            return definition.function(*args, **kwargs)

        result = codec.encode(contextvars.Context().run(call), f"the result of step {attempt.step!r}")
    except BaseException as error:  # whatever a step raises is its outcome
        after = error.retry_after_us if isinstance(error, RetryableError) else None
        return {"error": codec.encode_error(error), "retry_after": after}
    return {"result": result, "data": {key: bytes(value) for key, value in context.writes.items()}}


def main() -> None:
    pipe = socket.socket(fileno=int(sys.argv[1]))
    setup = receive(pipe)
    if setup is None:
        return
    try:
        app = load(setup)
    except BaseException:  # told to the parent, which tells the user
        send(pipe, {"problem": traceback.format_exc(limit=-3)})
        return
    send(pipe, {"ready": True})
    loop = asyncio.new_event_loop()
    lock = threading.Lock()

    def report(kind: str, value: Any) -> None:
        with lock:
            send(pipe, {"heard": kind, "value": value})

    while (frame := receive(pipe)) is not None:
        frame["data"] = {key: Raw(value) for key, value in frame["data"].items()}
        attempt = Attempt(**frame)
        context = StepContext(attempt, app.codec, report)
        context.on_progress = lambda: report("alive", None)
        reply = execute(app, attempt, loop, context)
        with lock:
            send(pipe, reply)


if __name__ == "__main__":
    main()
