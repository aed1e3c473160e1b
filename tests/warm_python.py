"""Python processes that begin with Holdfast imported: each is forked from one that has imported it and done nothing else.

They are processes like others, with a memory, an environment and an end of their own. Only the imports are saved, which
take longer than most of what tests let such a process do. What says how the interpreter itself begins gets a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTED = (
    "holdfast.cli.worker", "holdfast.engine.host", "holdfast.executors.local", "holdfast.stores.sqlite",
    "holdfast.stores.doorbell", "holdfast.compose", "holdfast.testing", "concurrent.futures.thread", "sqlite3",
)  # fmt: skip
STATUS = struct.Struct("i")
_LONGEST = 200_000


class WarmProcess:
    """What tests need of `subprocess.Popen`."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.returncode: int | None = None
        (self.pid,) = STATUS.unpack(os.read(pipe, STATUS.size))

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._pipe)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._pipe], [], [], 0)[0]:
            (status,) = STATUS.unpack(os.read(self._pipe, STATUS.size))
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._pipe], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        found = self.poll()
        assert found is not None
        return found

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now, which will be told
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class _Source:
    """The process that others are forked from."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            command = [sys.executable, __file__, str(other.fileno())]
            self.process = subprocess.Popen(
                command,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def start(self, request: dict[str, Any], stdout: int, stderr: int) -> WarmProcess:
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [writing, stdout, stderr])
        finally:
            os.close(writing)
        return WarmProcess(reading)

    def close(self) -> None:
        self._socket.close()
        self.process.wait()


_sources: dict[int, _Source] = {}
"""By the process that has started it: one that was forked from there has its own."""


@atexit.register
def _close() -> None:
    source = _sources.pop(os.getpid(), None)
    if source is not None:
        source.close()


Process = subprocess.Popen[bytes] | WarmProcess


def start(arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: Any, stderr: Any) -> Process:
    """`python arguments...`: a script, or code after -c; -W error may be before it."""
    arguments = list(arguments)
    if sys.platform != "linux" or _begins_otherwise(arguments, env):
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
    source = _sources.get(os.getpid())
    if source is None:
        source = _sources[os.getpid()] = _Source()
    request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env)}
    return source.start(request, stdout.fileno(), stderr.fileno())


def _begins_otherwise(arguments: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether the interpreter itself, or the loader of libraries, is told something that this process wasn't."""
    first = arguments[2] if arguments[:2] == ["-W", "error"] else arguments[0]
    if first.startswith("-") and first != "-c":
        return True
    told = {name for name in {*env, *os.environ} if name.startswith(("PYTHON", "LD_"))} - {
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
    }
    return any(env.get(name) != os.environ.get(name) for name in told)


# -- in the process that others are forked from


def _serve(asked: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns only in the processes that are forked, with what is asked of them."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, files, _, _ = socket.recv_fds(asked, _LONGEST, 3)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup hands on that it is ignored
    told, stdout, stderr = files
    child = os.fork()
    if child:  # this one only waits, and tells of the end
        os.write(told, STATUS.pack(child))
        os.closerange(0, told)
        with contextlib.suppress(BrokenPipeError):  # nobody asks any more
            os.write(told, STATUS.pack(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for file in files:
        os.close(file)
    return json.loads(data)  # type: ignore[no-any-return]


def _run(request: dict[str, Any]) -> None:
    """As the interpreter would: as `__main__`, with its arguments and its place to import from."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    words = request["arguments"]
    if words[:2] == ["-W", "error"]:
        sys.warnoptions.append("error")
        warnings.simplefilter("error")
        words = words[2:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        sys.argv, sys.path[0], code, name = ["-c", *words[2:]], "", words[1], "<string>"
    else:
        sys.argv, sys.path[0], name = list(words), str(Path(words[0]).resolve().parent), words[0]
        code = Path(name).read_text()
        main.__file__ = str(Path(name).absolute())
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path]
    exec(compile(code, name, "exec"), vars(main))


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _asked:
        _request = _serve(_asked)
    _run(_request)
