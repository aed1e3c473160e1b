"""Where a command works: which app, with or without its code, and which store."""

from __future__ import annotations

import getpass
import importlib
import logging
import os
import re
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from click.shell_completion import CompletionItem

from holdfast.api.functions import Step, Workflow
from holdfast.api.handles import Run
from holdfast.app import App, SystemClock
from holdfast.cli.failures import Failure, Misuse, NotFound, Unreachable, command, usage
from holdfast.cli.output import note
from holdfast.core.registry import importing_for_a_command
from holdfast.default_app import default_app
from holdfast.errors import HoldfastError, RunNotFoundError
from holdfast.ports import RunQuery, RunRow, Store, WorkerKind, WorkerRow
from holdfast.printing import without_password
from holdfast.wiring import open_store

CANDIDATES = 10
SHORTENED = 10_000  # looked through for an id of which a part is left out


@dataclass(frozen=True)
class Target:
    """An app on a store. Without the app's code it is an app that defines nothing."""

    app: App
    has_code: bool

    @property
    def store(self) -> Store:
        return self.app.store

    def run(self, run_id: str) -> Run[Any]:
        """To act on, as the user of this terminal."""
        return self.app.client.acting_as(_user()).get(run_id)

    def find(self, prefix: str) -> RunRow:
        """The run of that id, or the only one whose id begins so. Children, whose ids begin with their parent's, don't
        count beside it."""
        exact = self.store.get(prefix)
        if exact is not None:
            return exact
        beginning, *rest = re.split(r"…|\.\.", prefix)  # as trees and tables shorten ids
        found = self._beginning_with(beginning, SHORTENED if rest else CANDIDATES + 1)
        if not rest and len(found) > CANDIDATES:  # the parent of many children is the oldest
            found = self._beginning_with(beginning, SHORTENED)
        if rest:
            form = re.compile(".*".join(map(re.escape, [beginning, *rest])))
            found = [row for row in found if form.fullmatch(row.id)]
        if parent := _parent_of_all(found):
            return parent
        if not found:
            where = f"in app {self.app.name!r} on {self.store.url}"
            raise RunNotFoundError(f"no run has the id {prefix!r}, or one that begins so, {where}", run_id=prefix)
        names = [f"{row.id} ({row.workflow}, {row.status})" for row in found[:CANDIDATES]]
        more = ["..."] if len(found) > CANDIDATES else []
        raise Misuse("\n  ".join([f"{prefix!r} may be any of these runs; give more of the id:", *names, *more]))

    def _beginning_with(self, beginning: str, most: int) -> list[RunRow]:
        return self.store.runs(RunQuery(prefix=beginning, limit=most)) if beginning else []

    def live_workers(self) -> list[WorkerRow]:
        """Workers whose lease runs. One that was killed stays in the table until another worker looks."""
        now = self.store.now()
        return [worker for worker in self.store.workers() if worker.lease_until >= now]

    def live_engines(self) -> list[WorkerRow]:
        """Those without which no run goes on."""
        return [worker for worker in self.live_workers() if worker.kind == WorkerKind.ENGINE]

    def note_if_nobody_works(self, consequence: str) -> None:
        if not self.live_engines():
            note(
                f"no worker of app {self.app.name!r} is alive on {self.store.url}; {consequence}: {self.start_a_worker()}"
            )

    def start_a_worker(self) -> str:
        if self.has_code:
            return command("worker")
        return command("worker").replace("holdfast", "holdfast -A MODULE", 1)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process of a user without a name
        return f"user {os.getuid()}"


def _parent_of_all(rows: list[RunRow]) -> RunRow | None:
    """The one of these runs that the others are children of, and theirs; it may be alone."""
    if not 0 < len(rows) < SHORTENED:  # there may be others
        return None
    first = min(rows, key=lambda row: len(row.id))
    others = (row for row in rows if row is not first)
    return first if all(row.parent_id and row.id.startswith(f"{first.id}.") for row in others) else None


def open_target(context: click.Context, *, needs_code: str = "", may_create: bool = False) -> Target:
    """The target that the options say. `needs_code` says what the app's code is needed for."""
    logging.getLogger("holdfast").addHandler(logging.NullHandler())  # a command says itself what there is to say
    target = _choose(context.find_root(), needs_code)
    if not may_create:
        must_exist(target.app.store_url, target)
    return target


def _choose(root: click.Context, needs_code: str = "") -> Target:
    module, store, name = (root.params.get(key) for key in ("target", "store", "app_name"))
    if module:
        app = find_app(module)
        if store:
            app.use_store(store)
        root.call_on_close(app.close)
        return Target(app, True)
    if needs_code:
        usage(f"{needs_code} needs the app's code: say `holdfast -A MODULE ...`, or set HOLDFAST_APP")
    if not store:
        usage(
            "which app? Say `holdfast -A MODULE ...` or `holdfast --store URL ...`; HOLDFAST_APP and HOLDFAST_STORE do too"
        )
    app = App(_known_app(name, store) if name else _only_app(store), store)
    root.call_on_close(app.close)
    return Target(app, False)


def _known_app(name: str, url: str) -> str:
    """A name with a typo must not look like an app that has done nothing yet."""
    names = _apps_in(url)
    if names and name not in names:
        raise NotFound(f"no app {name!r} in {without_password(url)}; there are {', '.join(names)}")
    return name


def _apps_in(url: str) -> list[str]:
    must_exist(url)
    store, notifier = open_store("", url, SystemClock())
    try:
        return store.apps()
    finally:
        notifier.close()
        store.close()


def _only_app(url: str) -> str:
    names = _apps_in(url)
    if len(names) == 1:
        return names[0]
    shown = without_password(url)
    if not names:
        raise NotFound(f"{shown} holds no runs and no workers yet; name the app with --app-name, or -A MODULE")
    usage(f"{shown} holds the apps {', '.join(names)}; choose one: holdfast --store {shown} --app-name {names[0]} ...")


def must_exist(url: str, target: Target | None = None) -> None:
    """Looking must not leave an empty store behind in a folder where there is none."""
    if "://" in url and not url.startswith("sqlite:///"):
        return
    path = url.removeprefix("sqlite:///").partition("?")[0]
    if path == ":memory:":
        usage("a store in memory lives in one process, so there is nothing to see from here; use a file")
    if not Path(path).expanduser().is_file():
        remedy = f"; `{target.start_a_worker()}` makes it" if target is not None and target.has_code else ""
        raise Unreachable(
            f"there is no store at {Path(path).expanduser().absolute()}{remedy}; name another with --store URL"
        )


# -- the app's code


def find_app(target: str) -> App:
    """The App in a module: `orders`, or `orders:app` if it has several."""
    module_name, _, attribute = target.partition(":")
    if module_name.endswith(".py"):
        module_name = module_name.removesuffix(".py").strip("./").replace("/", ".")
    module = _import(module_name)
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)}
    names = ", ".join(f"{module_name}:{name}" for name, _ in apps.values()) or "none"
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, App):
            what = f"{attribute!r} is no App" if hasattr(module, attribute) else f"there is no {attribute!r}"
            usage(f"{what} in module {module_name!r}; its apps: {names}")
        return found
    if not apps and any(_is_on_default_app(value) for value in vars(module).values()):
        return default_app
    if len(apps) != 1:
        usage(f"module {module_name!r} has {len(apps)} apps ({names}); name one with -A module:app")
    return next(iter(apps.values()))[1]


def _is_on_default_app(value: object) -> bool:
    """Whether a module's name is a step or workflow made with `from holdfast import step, workflow`."""
    return isinstance(value, Step | Workflow) and value._app is default_app


def _import(module_name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if module_name in sys.modules:
        return sys.modules[module_name]
    try:
        with importing_for_a_command(module_name):
            return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            usage(
                f"no module named {module_name!r} here; run this where {module_name.replace('.', '/')}.py is, or name "
                "another with -A module[:app]"
            )
        raise _import_failure(module_name, error) from error
    except Exception as error:
        raise _import_failure(module_name, error) from error


def _import_failure(module_name: str, error: Exception) -> Failure:
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().params.get("debug"):
        traceback.print_exception(error, file=sys.stderr)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    if isinstance(error, HoldfastError):  # the line that asked for it says more than the one that refused
        frames = [frames[0], *(f for f in frames if f.name == "<module>")]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames[1:] else ""
    what = f"{type(error).__name__}: {error}"
    return Misuse(f"importing {module_name!r} failed: {what}{where}; `holdfast --debug ...` shows the traceback")


# -- what can be completed


def run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        target = open_target(ctx)
        rows = target.store.runs(RunQuery(prefix=incomplete or None, limit=50))
        target.app.close()  # click has left the context already
    except Exception:  # a shell that completes must never print an error
        return []
    return [CompletionItem(row.id, help=f"{row.workflow} {row.status}") for row in rows]


def startable_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = _choose(ctx.find_root()).app.definitions.startable_names()
    except Exception:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


one_run = click.argument("run", shell_complete=run_ids)
