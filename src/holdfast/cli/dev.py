"""`holdfast dev`: a worker and the monitor in one process, begun anew whenever the code changes."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import click

from holdfast.cli.failures import OK, UNREACHABLE, Failure, told_in_a_sentence
from holdfast.cli.monitor import load_serving
from holdfast.cli.output import note, say
from holdfast.cli.target import Target, open_target
from holdfast.cli.worker import Stopping, set_up_logging
from holdfast.errors import ArgumentError

AGAIN = "HOLDFAST_DEV_AGAIN"
"""Set for the process that follows after a change: its token and port, so that open pages go on."""
LOOK_EVERY = 0.4
GRACE = 5.0
FILES_WATCHED = 5_000


def sources(folder: Path) -> Iterator[Path]:
    """The Python files of a project: not those of its virtual environment, nor what is hidden."""
    found = 0
    for at, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "__pycache__", "node_modules")) and not Path(at, name, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py") and found < FILES_WATCHED:
                found += 1
                yield Path(at, name)


def state_of(folder: Path) -> dict[Path, tuple[int, int]]:
    """What each file looks like, so far as to know it again."""
    found = {}
    for path in sources(folder):
        try:
            status = path.stat()
        except OSError:  # it was just removed
            continue
        found[path] = (status.st_mtime_ns, status.st_size)
    return found


def wait_for_change(folder: Path, before: dict[Path, tuple[int, int]]) -> list[str]:
    """The files that are not as they were, once there are some."""
    while (now := state_of(folder)) == before:
        time.sleep(LOOK_EVERY)
    changed = [path for path in now | before if now.get(path) != before.get(path)]
    return sorted(str(path.relative_to(folder)) for path in changed)


def begin_anew(token: str, port: int, changed: list[str]) -> NoReturn:
    """This process becomes a new one, with the code as it is now. What it held is let go of by that."""
    shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    note(f"{shown} changed: beginning anew")
    os.environ[AGAIN] = f"{token} {port}"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def watch(folder: Path, before: dict[Path, tuple[int, int]], on_change: Callable[[list[str]], None]) -> None:
    threading.Thread(
        target=lambda: on_change(wait_for_change(folder, before)), name="holdfast-reload", daemon=True
    ).start()


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen at.  [default: 8000, or a free one]")
@click.option("--no-reload", is_flag=True, help="Keep the code as it was at the start.")
@click.option("--open", "opens", is_flag=True, help="Open the monitor in a browser.")
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@click.pass_context
def dev(context: click.Context, port: int | None, no_reload: bool, opens: bool, log_level: str) -> None:
    """A worker and the monitor in one process, for the time of writing code: prints the monitor's address, and begins
    anew when a Python file in this folder or below it changes. Runs carry on with the new code."""
    serving = load_serving()
    set_up_logging(log_level, "text")
    token, _, known = os.environ.pop(AGAIN, "").partition(" ")
    again = bool(token)
    token = token or secrets.token_urlsafe(24)
    folder = Path.cwd()
    before = {} if no_reload else state_of(folder)

    def opened() -> Target:
        with told_in_a_sentence(context.find_root()):
            found = open_target(context, needs_code="dev", may_create=True)
            found.app.load()
            return found

    try:
        target = opened()
    except Failure as failure:
        if not again:
            raise
        note(f"Error: {failure.format_message()}; waiting for a change")
        begin_anew(token, int(known), wait_for_change(folder, before))
    app = target.app
    try:
        server = serving(app, "127.0.0.1", int(known or (8000 if port is None else port)), token=token)
    except ArgumentError:
        if port is not None or again:
            raise
        server = serving(app, "127.0.0.1", 0, token=token)
    number = server.socket.getsockname()[1]
    host = app.make_engine(queues=None)
    stopping = Stopping([host], GRACE)
    stopping.listen()
    host.start()
    thread = threading.Thread(target=server.serve_until_stopped, name="holdfast-monitor", daemon=True)
    thread.start()
    if not again:
        say(server.url)
        note(f"app {app.name!r} on {host.store.url}, with a worker; Ctrl+C ends both")
        if opens:
            webbrowser.open(server.url)
    logging.getLogger("holdfast").info("knows: %s", ", ".join(app.definitions.startable_names()))
    changed: list[str] = []

    def on_change(files: list[str]) -> None:
        changed.extend(files)
        host.stop(GRACE)

    if not no_reload:
        watch(folder, before, on_change)
    host.run()
    server.should_exit = True
    thread.join(5)
    server.socket.close()
    if changed and host.failure is None and not stopping.asked:
        begin_anew(token, number, changed)
    code = OK if host.failure is None else UNREACHABLE
    stopping.is_over(code)
    context.exit(code)
