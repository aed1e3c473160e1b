"""Processes beside the engine that execute attempts, and can be killed with all that they have started.

Frames of msgpack over a socket pair, each with its length before it. The parent's side is here, the child's in
`child.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import FatalError, WrongContextError
from holdfast.logs import levels
from holdfast.ports import Attempt

START_TIMEOUT = 30.0
CLOSE_TIMEOUT = 10.0
REAP_TIMEOUT = 5.0  # for the kernel to end what was killed
GOODBYE: dict[str, Any] = {"goodbye": True}


def send(pipe: socket.socket, frame: dict[str, Any]) -> None:
    data = msgspec.msgpack.encode(frame)
    pipe.sendall(len(data).to_bytes(4, "big") + data)


def receive(pipe: socket.socket) -> dict[str, Any] | None:
    """The next frame, None when the other side is gone."""
    head = _exactly(pipe, 4)
    body = _exactly(pipe, int.from_bytes(head, "big")) if head is not None else None
    return None if body is None else msgspec.msgpack.decode(body)


def _exactly(pipe: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        try:
            part = pipe.recv(min(count, 1 << 20))
        except OSError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _to_frame(attempt: Attempt) -> dict[str, Any]:
    frame = msgspec.structs.asdict(attempt)
    frame["args"] = bytes(frame["args"])
    frame["data"] = {key: bytes(value) for key, value in attempt.data.items()}
    return frame


class ProcessPool:
    """Keeps idle processes for the next attempt."""

    def __init__(self, describe_app: Callable[[], dict[str, Any]] | None) -> None:
        self._describe_app = describe_app
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._is_stopping = False
        self._lock = threading.Lock()

    def take(self) -> Process:
        """A process that is ready. It has to be given back."""
        ended = []
        with self._lock:
            process = None
            while self._idle and process is None:
                process = self._idle.pop()
                if not process.is_alive():
                    ended.append(process)
                    process = None
            if process is None:
                process = self._new()
            self._busy.add(process)
        for one in ended:
            one.reap()
        try:
            process.start()
        except BaseException:
            self.give_back(process, is_usable=False)
            raise
        return process

    def _new(self) -> Process:
        if self._is_stopping:
            raise WrongContextError("this executor ends, and starts no more processes")
        if self._describe_app is None:
            raise FatalError(
                "pool='process' needs steps that another process can import, and this app is defined interactively; put it "
                "into a file"
            )
        return Process(self._describe_app())

    def give_back(self, process: Process, is_usable: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            if is_usable and not self._is_stopping and process.is_alive():
                self._idle.append(process)
                return
        process.reap()

    def interrupt(self) -> None:
        """Kill what executes, and start nothing more."""
        with self._lock:
            self._is_stopping = True
            busy = list(self._busy)
        for process in busy:
            process.kill()

    def close(self) -> None:
        """Let idle ones close what their steps have shared."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.say_goodbye()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for process in idle:
            process.wait(deadline)
            process.reap()


class Process:
    """A process for steps, the first of a process group: what its steps start belongs to it, and is killed with it."""

    def __init__(self, app: dict[str, Any]) -> None:
        self._app = app
        self._is_ready = self._is_over = False
        self._killing = threading.Lock()
        ours, theirs = socket.socketpair()
        # Nothing is ever written there: it ends when this process does, however that happens.
        their_life, self._life = os.pipe()
        self._pipe = ours
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "holdfast.executors.child", str(theirs.fileno()), str(their_life)],
                    pass_fds=(theirs.fileno(), their_life),
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                    process_group=0,
                )
            except BaseException:
                os.close(self._life)
                ours.close()
                raise
            finally:
                os.close(their_life)

    def start(self) -> None:
        """Wait until it has imported the app."""
        if self._is_ready:
            return
        name = self._app["app"]
        try:
            send(self._pipe, {**self._app, "log_levels": levels()})
        except OSError:
            raise WrongContextError(f"a process for steps of app {name!r} could not start: it ended at once") from None
        self._pipe.settimeout(START_TIMEOUT)
        ready = receive(self._pipe)
        self._pipe.settimeout(None)
        if ready is None or "problem" in ready:
            late = f"it has not imported the app within {START_TIMEOUT:g} s" if self.is_alive() else "it ended at once"
            problem = ready["problem"] if ready else late
            kind = FatalError if ready and ready["is_final"] else WrongContextError
            raise kind(f"a process for steps of app {name!r} could not start: {problem}")
        self._is_ready = True

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def execute(self, attempt: Attempt, heard: Callable[[str, Any], None]) -> dict[str, Any] | None:
        """The reply to an attempt; None if the process died first."""
        try:
            send(self._pipe, _to_frame(attempt))
        except OSError:
            return None
        while (reply := receive(self._pipe)) is not None:
            if "heard" not in reply:
                return reply
            heard(reply["heard"], reply["value"])
        return None

    def execute_all(
        self,
        attempts: list[Attempt],
        heard: Callable[[int, str, Any], None],
        replied: Callable[[int, dict[str, Any]], object],
    ) -> int:
        """Execute attempts at the same time; how many were replied to before it died, if it did."""
        count = 0
        try:
            send(self._pipe, {"group": [_to_frame(attempt) for attempt in attempts]})
        except OSError:
            return 0
        while count < len(attempts) and (reply := receive(self._pipe)) is not None:
            if "heard" in reply:
                heard(reply["token"], reply["heard"], reply["value"])
            else:
                count += 1
                replied(reply["token"], reply)
        return count

    def say_goodbye(self) -> None:
        """Let it close what its steps have shared."""
        with contextlib.suppress(OSError):
            send(self._pipe, GOODBYE)

    def wait(self, deadline: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Kill it with all that its steps have started. From any thread, and without waiting for its end."""
        with self._killing:
            if not self._is_over:
                # As long as one of the group is there nobody else gets its number.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):  # what the group has passed on to others may keep the other side open
                self._pipe.shutdown(socket.SHUT_RDWR)

    def reap(self) -> None:
        """Kill it and wait for its end. Whoever has taken it calls this, and nobody uses it afterwards."""
        self.kill()
        self.wait(time.monotonic() + REAP_TIMEOUT)
        with self._killing:
            if not self._is_over:
                self._is_over = True
                self._pipe.close()
                os.close(self._life)
