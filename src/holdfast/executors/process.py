"""Processes beside the engine that execute one attempt at a time, and can be killed.

Frames of msgpack over a socket pair, each with its length before it. The parent's side is here, the child's in
`child.py`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.errors import WrongContextError
from holdfast.logs import levels
from holdfast.ports import Attempt

START_TIMEOUT = 30.0
CLOSE_TIMEOUT = 10.0
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


class ProcessPool:
    """Keeps idle processes for the next attempt."""

    def __init__(self, describe_app: Callable[[], dict[str, Any]] | None) -> None:
        self._describe_app = describe_app
        self._idle: list[Process] = []
        self._lock = threading.Lock()

    def take(self) -> Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive():
                    return process
                process.kill()
        if self._describe_app is None:
            raise WrongContextError(
                "pool='process' needs steps that another process can import, and this app is defined interactively; put it "
                "into a file"
            )
        return Process(self._describe_app())

    def give_back(self, process: Process, alive: bool) -> None:
        if alive and process.is_alive():
            with self._lock:
                self._idle.append(process)
        else:
            process.kill()

    def stop(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.say_goodbye()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for process in idle:
            process.end(deadline)


class Process:
    def __init__(self, app: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        self._pipe = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.executors.child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
        send(ours, {**app, "log_levels": levels()})
        ours.settimeout(START_TIMEOUT)
        ready = receive(ours)
        ours.settimeout(None)
        if ready is None or "problem" in ready:
            self.kill()
            problem = ready["problem"] if ready else "it ended at once"
            raise WrongContextError(f"a process for steps of app {app['app']!r} could not start: {problem}")

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def execute(self, attempt: Attempt, heard: Callable[[str, Any], None]) -> dict[str, Any] | None:
        """The reply to an attempt; None if the process died first."""
        frame = msgspec.structs.asdict(attempt)
        frame["args"] = bytes(frame["args"])
        frame["data"] = {key: bytes(value) for key, value in attempt.data.items()}
        try:
            send(self._pipe, frame)
        except OSError:
            return None
        while (reply := receive(self._pipe)) is not None:
            if "heard" not in reply:
                return reply
            heard(reply["heard"], reply["value"])
        return None

    def say_goodbye(self) -> None:
        """Let it close what its steps have shared."""
        with contextlib.suppress(OSError):
            send(self._pipe, GOODBYE)

    def end(self, deadline: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        self._pipe.close()
