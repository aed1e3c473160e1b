"""A process that executes steps for an engine: `python -m holdfast.executors.child FD`."""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import importlib
import importlib.util
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core.context import StepContext
from holdfast.core.definitions import StepDefinition
from holdfast.core.registry import DefinedApp, Definitions, find_app, importing_for_steps
from holdfast.errors import UnknownNameError, WrongContextError
from holdfast.executors.loops import keep_running
from holdfast.executors.process import GOODBYE, receive, send
from holdfast.executors.runner import Runner
from holdfast.executors.runner import to_frame as outcome_to_frame
from holdfast.executors.surroundings import Surroundings
from holdfast.logs import install, set_levels
from holdfast.logs import to_frame as record_to_frame
from holdfast.ports import Attempt, Outcome

THREADS = 16
"""For plain steps that share this process."""


def load(frame: dict[str, Any]) -> DefinedApp:
    """Import what defines the app, as the engine's process did."""
    if frame["main_file"]:
        _import_script(frame["main_file"])
    for module in frame["modules"]:
        importlib.import_module(module)
    app = find_app(frame["app"])
    if app is None:
        raise WrongContextError(
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
        raise WrongContextError(
            f"{file} can't be imported; define app and steps in a module, in a file that ends in .py"
        )
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


class Running:
    """An async step under way."""

    def __init__(self, future: Future[Outcome]) -> None:
        self.future = future

    def __call__(self) -> Outcome:
        return self.future.result()


class Executing:
    """Executes the attempts that arrive, for as long as the process lives."""

    def __init__(self, app: DefinedApp, sources: str) -> None:
        self._definitions = known = app.definitions
        self._sources = sources
        self._surroundings = Surroundings(known.arounds, known.replaced, lambda: app.store.secret(), known.instruments)
        self._runner = Runner(known.codec, self._surroundings)
        self._loop: asyncio.AbstractEventLoop | None = None

    def execute(self, context: RemoteContext) -> None:
        """Execute an attempt, and finish it."""
        begun = self._begin(context)
        context.finish(begun if isinstance(begun, Outcome) else begun())

    def execute_all(self, contexts: list[RemoteContext]) -> None:
        """The same for several at a time."""
        with ThreadPoolExecutor(THREADS) as threads:
            waiting: list[Future[Outcome]] = []
            for context in contexts:
                begun = self._begin(context)
                if isinstance(begun, Outcome):
                    context.finish(begun)
                elif isinstance(begun, Running):
                    begun.future.add_done_callback(context.finish_with)
                    waiting.append(begun.future)
                else:
                    future = threads.submit(begun)
                    future.add_done_callback(context.finish_with)
                    waiting.append(future)
            wait(waiting)

    def _begin(self, context: StepContext) -> Outcome | Callable[[], Outcome]:
        """An async step runs from now on; a plain one when what is given is called."""
        try:
            definition = _find(self._definitions, context.attempt.step, self._sources)
        except UnknownNameError as error:
            return self._runner.failed(context, error)
        if not definition.is_async:
            return lambda: contextvars.Context().run(self._runner.run, definition, context)
        if self._loop is None:
            self._loop = self._start_loop()
        # Its task gets the context of this thread, where there is no step.
        return Running(asyncio.run_coroutine_threadsafe(self._runner.arun(definition, context), self._loop))

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        """On a thread: async resources live on between the attempts too."""
        loop = asyncio.new_event_loop()
        self._surroundings.loops.add(loop)
        threading.Thread(target=keep_running, args=(loop, lambda: False), name="holdfast-async", daemon=True).start()
        return loop

    def close(self) -> None:
        self._surroundings.close()


def _find(known: Definitions, step: str, sources: str) -> StepDefinition:
    try:
        return known.find_step(step)
    except UnknownNameError as error:
        raise UnknownNameError(
            f"a process for step {step!r} has imported {sources} and found {error}; define the step at the top of a module"
        ) from None


def _sources(frame: dict[str, Any]) -> str:
    return ", ".join(filter(None, [frame["main_file"], *frame["modules"]]))


class Channel:
    """This process's side of the pipe to the engine's, for all threads of the process."""

    def __init__(self, pipe: socket.socket) -> None:
        self.pipe = pipe
        self.lock = threading.Lock()
        self._pid = os.getpid()
        # What a step forks must not keep the pipe open, nor write into it.
        os.register_at_fork(after_in_child=pipe.close)

    def is_here(self) -> bool:
        """Whether this is the process that the engine has started, and not one that a step has forked."""
        return os.getpid() == self._pid

    def send(self, frame: dict[str, Any]) -> None:
        try:
            send(self.pipe, frame)
        except OSError:  # the engine's process is gone
            end_with_all()

    def report(self, attempt: Attempt, kind: str, value: Any) -> None:
        if not self.is_here():
            raise WrongContextError(
                f"step {attempt.step!r} reports from a process that it has forked, and nobody listens there; report from "
                "the step itself"
            )
        with self.lock:
            self.send({"heard": kind, "value": value, "token": attempt.token})


class RemoteContext(StepContext):
    """An attempt whose engine is in another process. That one handles what is logged: there is one set of handlers, and
    one place to read."""

    __slots__ = ("_channel", "_is_over")

    def __init__(self, attempt: Attempt, codec: Codec, channel: Channel) -> None:
        super().__init__(attempt, codec, channel.report)
        self._channel = channel
        self._is_over = False

    def hear(self, record: logging.LogRecord) -> bool:
        if not self._channel.is_here():
            return False
        frame = {"heard": "log", "value": record_to_frame(record), "token": self.attempt.token}
        with self._channel.lock:
            if self._is_over:  # a thread that the step has left behind; the engine hears the next one's
                return False
            self._channel.send(frame)
        return True

    def sign_of_life(self) -> None:
        self.report("alive", None)

    def finish_with(self, outcome: Future[Outcome]) -> None:
        self.finish(outcome.result())

    def finish(self, outcome: Outcome) -> None:
        frame = {**outcome_to_frame(outcome), "token": self.attempt.token, "thread": f"process {os.getpid()}"}
        with self._channel.lock:
            self._is_over = True
            self._channel.send(frame)


def _context(frame: dict[str, Any], codec: Codec, channel: Channel) -> RemoteContext:
    frame["data"] = {key: Raw(value) for key, value in frame["data"].items()}
    return RemoteContext(Attempt(**frame), codec, channel)


def end_with_all() -> NoReturn:
    """End this process and all that its steps have started. Nobody waits for the step of an engine that is gone, and
    another one will execute it anew."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def die_with_the_engine(life: int) -> None:
    """End when the other side of a pipe is gone, in which nothing is ever written."""
    engine = os.getppid()
    if hasattr(fcntl, "F_SETSIG") and os.getpgrp() == os.getpid():
        # Linux kills the group by itself: native code that holds the interpreter can't keep us from noticing.
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)

    def watch() -> None:
        poll = select.poll()
        poll.register(life, 0)  # it is told of nothing but its end
        while not poll.poll(1_000) and os.getppid() == engine:  # what the engine's process has forked keeps it open
            pass
        end_with_all()

    threading.Thread(target=watch, name="holdfast-life", daemon=True).start()


def main() -> None:
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    die_with_the_engine(int(sys.argv[2]))
    setup = receive(channel.pipe)
    if setup is None:
        return
    install()
    set_levels(setup["log_levels"])
    try:
        with importing_for_steps(_sources(setup)):
            app = load(setup)
    except WrongContextError as error:  # it has to be written in another way, and says how
        channel.send({"problem": str(error), "is_final": True})
        return
    except BaseException:  # told to the parent, which tells the user
        channel.send({"problem": traceback.format_exc(limit=-3), "is_final": False})
        return
    channel.send({"ready": True})
    executing, codec = Executing(app, _sources(setup)), app.definitions.codec
    while (frame := receive(channel.pipe)) is not None and frame != GOODBYE:
        if "group" in frame:
            executing.execute_all([_context(each, codec, channel) for each in frame["group"]])
        else:
            executing.execute(_context(frame, codec, channel))
    executing.close()


if __name__ == "__main__":
    main()
