"""A process that executes steps for an engine: `python -m holdfast.executors.child FD`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import importlib
import importlib.util
import logging
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw

from holdfast.core.context import StepContext
from holdfast.core.definitions import StepDefinition
from holdfast.core.registry import Definitions, find_app
from holdfast.errors import RetryableError, UnknownNameError
from holdfast.executors.process import GOODBYE, receive, send
from holdfast.executors.surroundings import Surroundings
from holdfast.logs import install, set_levels, to_frame
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


class Executing:
    """Executes the attempts that arrive, one at a time, for as long as the process lives."""

    def __init__(self, app: Definitions, sources: str) -> None:
        self._app = app
        self._sources = sources
        self._surroundings = Surroundings(app.arounds, app.replaced)
        self._loop: asyncio.AbstractEventLoop | None = None

    def execute(self, context: StepContext) -> dict[str, Any]:
        codec, step = context.codec, context.attempt.step
        try:
            definition = _find(self._app, step, self._sources)
            result = contextvars.Context().run(self._call, definition, context)
            encoded = codec.encode(result, f"the result of step {step!r}")
        except BaseException as error:  # whatever a step raises is its outcome
            after = error.retry_after_us if isinstance(error, RetryableError) else None
            return {"error": codec.encode_error(error), "retry_after": after}
        data = {key: bytes(value) for key, value in context.writes.items()}
        return {"result": encoded, "data": data, "emitted": context.emitted}

    def _call(self, definition: StepDefinition, context: StepContext) -> Any:
        if not definition.is_async:
            return self._surroundings.execute(definition, context)
        if self._loop is None:  # on a thread: async resources live on between the attempts too
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="holdfast-async", daemon=True).start()
        attempt = self._surroundings.aexecute(definition, context)
        try:
            return asyncio.run_coroutine_threadsafe(attempt, self._loop).result()
        except concurrent.futures.CancelledError:  # what the step raised, in the words of another module
            raise asyncio.CancelledError from None

    def close(self) -> None:
        self._surroundings.close()


def _find(app: Definitions, step: str, sources: str) -> StepDefinition:
    try:
        return app.find_step(step)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"a process for step {step!r} has imported {sources} and found {error}; define the step at the top of a module"
        ) from None


def _sources(frame: dict[str, Any]) -> str:
    return ", ".join(filter(None, [frame["main_file"], *frame["modules"]]))


def _log_of(context: StepContext, pipe: socket.socket, lock: threading.Lock) -> Callable[[logging.LogRecord], bool]:
    """The engine's process handles what a step logs: there is one set of handlers, and one place to read."""

    def log(record: logging.LogRecord) -> bool:
        frame = {"heard": "log", "value": to_frame(record)}
        with lock:
            if context.on_log is None:  # a thread that the step has left behind; the engine hears the next one's
                return False
            send(pipe, frame)
        return True

    return log


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
    install()
    set_levels(setup["log_levels"])
    try:
        app = load(setup)
    except BaseException:  # told to the parent, which tells the user
        send(pipe, {"problem": traceback.format_exc(limit=-3)})
        return
    threading.Thread(target=_die_with_the_engine, args=(pipe,), daemon=True).start()
    send(pipe, {"ready": True})
    executing = Executing(app, _sources(setup))
    lock = threading.Lock()

    def report(kind: str, value: Any) -> None:
        with lock:
            send(pipe, {"heard": kind, "value": value})

    while (frame := receive(pipe)) is not None and frame != GOODBYE:
        frame["data"] = {key: Raw(value) for key, value in frame["data"].items()}
        context = StepContext(Attempt(**frame), app.codec, report)
        context.on_progress = lambda: report("alive", None)
        context.on_log = _log_of(context, pipe, lock)
        reply = executing.execute(context)
        with lock:
            context.on_log = None
            send(pipe, reply)
    executing.close()


if __name__ == "__main__":
    main()
