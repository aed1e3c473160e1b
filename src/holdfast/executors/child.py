"""A process that executes steps for an engine: `python -m holdfast.executors.child FD`."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import importlib.util
import os
import select
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast.core.context import StepContext, current_step
from holdfast.core.definitions import StepDefinition
from holdfast.core.registry import Definitions, find_app
from holdfast.errors import RetryableError, UnknownNameError
from holdfast.executors.process import receive, send
from holdfast.ports import Attempt


def load(frame: dict[str, Any]) -> Definitions:
    """Import what defines the app, as the engine's process did."""
    if frame["main_file"]:
        _import_script(frame["main_file"])
    for module in frame["modules"]:
        importlib.import_module(module)
    app = find_app(frame["app"])
    if app is None:
        raise LookupError(
            f"importing {_sources(frame)} made no app {frame['app']!r}; define app and steps at the top of a module"
        )
    if frame["store"]:
        app.use_store(frame["store"])
    return app


def _import_script(file: str) -> None:
    """Import the file that the engine's process runs as `__main__`, by the name that others would import it by."""
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} can't be imported")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def execute(
    app: Definitions, attempt: Attempt, loop: asyncio.AbstractEventLoop, context: StepContext, sources: str
) -> dict[str, Any]:
    codec = app.codec
    try:
        definition = _find(app, attempt.step, sources)
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


def _find(app: Definitions, step: str, sources: str) -> StepDefinition:
    try:
        return app.find_step(step)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"a process for step {step!r} has imported {sources} and found {error}; define the step at the top of a module"
        ) from None


def _sources(frame: dict[str, Any]) -> str:
    return ", ".join(filter(None, [frame["main_file"], *frame["modules"]]))


def _die_with_the_engine(pipe: socket.socket) -> None:
    """Nobody waits for the step of an engine that is gone, and another one will execute it anew."""
    poll = select.poll()
    poll.register(pipe, 0)
    poll.poll()
    os._exit(1)


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
    threading.Thread(target=_die_with_the_engine, args=(pipe,), daemon=True).start()
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
        reply = execute(app, attempt, loop, context, _sources(setup))
        with lock:
            send(pipe, reply)


if __name__ == "__main__":
    main()
