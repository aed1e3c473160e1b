"""The `holdfast` command: its commands by name, and the options that say which app and which store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.cli.failures import INTERRUPTED, Misuse, drop_what_is_unwritten, told_in_a_sentence, usage
from holdfast.cli.lazy import Entry, LazyGroup
from holdfast.cli.output import print_in_any_encoding

RUNS = {
    "list": Entry("runs:list_runs", "List runs, newest first."),
    "show": Entry("runs:show", "All about one run: why it waits, input, result, data, steps."),
    "history": Entry("runs:history", "The events of a run, numbered."),
    "tree": Entry("runs:tree", "A run's steps and child runs."),
    "logs": Entry("logs:show_logs", "What the steps of a run have logged."),
    "trace": Entry("events:trace", "The process a run belongs to: runs, events, and what those led to."),
    "failures": Entry("failed:failures", "Failures that are alike, as one."),
    "watch": Entry("watch:watch", "Follow a run until it ends."),
    "send": Entry("actions:send", "Answer a hook that a run waits for."),
    "cancel": Entry("actions:cancel", "Cancel runs; their clean-up still happens."),
    "terminate": Entry("actions:terminate", "End runs for good, without their clean-up."),
    "pause": Entry("actions:pause", "Let nothing new begin in runs."),
    "resume": Entry("actions:resume", "Let PAUSED or STUCK runs go on."),
    "retry": Entry("actions:retry", "Try failed or cancelled runs again; what they completed is kept."),
    "fork": Entry("actions:fork", "Start a new run from a point in the history of another."),
    "delete": Entry("actions:delete", "Forget runs that have ended or are held."),
    "export": Entry("runs:export", "A run's whole history as JSON lines."),
}

SCHEDULES = {
    "list": Entry("schedules:list_schedules", "List schedules, with their next ticks."),
    "show": Entry("schedules:show", "All about one schedule: next ticks, what is queued, last runs."),
    "pause": Entry("schedules:pause", "Let a schedule start nothing by itself."),
    "resume": Entry("schedules:resume", "Let a paused schedule go on."),
    "trigger": Entry("schedules:trigger", "Start a run of a schedule now."),
    "backfill": Entry("schedules:backfill", "Start a run for each tick of a range that has none."),
    "delete": Entry("schedules:delete", "Forget a schedule that was made at run time."),
}

DB = {
    "status": Entry("db:status", "The store's schema, its apps and runs, and where they were moved."),
    "upgrade": Entry("db:upgrade", "Bring the store's schema up to date."),
    "copy": Entry("db:copy", "Move all runs to another store, where they go on."),
}

COMMANDS = {
    "dev": Entry("dev:dev", "A worker and the monitor in one process, begun anew when code changes."),
    "worker": Entry("worker:worker", "Run an engine: claim runs, execute their steps; or only execute steps."),
    "start": Entry("start:start", "Start a workflow or a step; prints the run's id."),
    "run": Entry("start:run", "Start a workflow or a step, and watch it until it ends."),
    "ask": Entry("actions:ask", "Ask a run something, and print its answer."),
    "emit": Entry("events:emit", "Emit a domain event; prints its id."),
    "runs": Entry("", "Look at runs and act on them.", commands=RUNS),
    "schedules": Entry("", "Look at schedules and act on them.", commands=SCHEDULES),
    "events": Entry("stream:events", "What workers do, as it happens."),
    "top": Entry("top:top", "Workers, queues, rates and the last events, live."),
    "workers": Entry("workers:workers", "List workers: engines and executors, and the queues they serve."),
    "limits": Entry("limits:limits", "Limits: how much of each is in use, and how many wait."),
    "monitor": Entry("monitor:monitor", "Pages that show runs and act on them, in a browser."),
    "gc": Entry("upkeep:gc", "Delete runs whose time of retention has passed."),
    "db": Entry("", "Look at a store, upgrade it, move it.", commands=DB),
    "config": Entry("config:config", "Each setting, and where it comes from."),
    "health": Entry("upkeep:health", "Whether the store answers and a worker is alive; for probes."),
    "doctor": Entry("doctor:doctor", "Look for what keeps runs from going on, and say what to do."),
    "check": Entry("check:check", "Replay open runs with this code, before it is deployed."),
    "demo": Entry("demo:demo", "Play the order process, with a crash in it."),
    "completion": Entry("completion:completion", "Print the completion script of a shell."),
}

WORKER_KEYS = (
    "queues", "executor-only", "engine-only", "concurrency", "processes", "grace", "log-level", "log-format", "health",
    "version",
)  # fmt: skip
PYPROJECT_KEYS = ("app", "store", "app-name", *WORKER_KEYS)


class Main(LazyGroup):
    def main(self, *args: Any, **extra: Any) -> Any:
        """Like click's own, but the exit code of a failure holds even if its sentence can't be written to stderr."""
        do: Callable[..., Any] = super().main
        if not extra.pop("standalone_mode", True):
            return do(*args, standalone_mode=False, **extra)
        try:
            code = do(*args, standalone_mode=False, **extra)
        except click.Abort:
            code = INTERRUPTED
        except click.ClickException as failure:
            code = failure.exit_code
            try:
                failure.show()
            except OSError:
                drop_what_is_unwritten()
        sys.exit(code)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        print_in_any_encoding()
        try:
            extra.setdefault("default_map", defaults_from_pyproject())
        except Misuse:
            if not extra.get("resilient_parsing"):  # a shell that completes
                raise
        with told_in_a_sentence():  # --help and --version are printed here
            return super().make_context(info_name, args, *more, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with told_in_a_sentence(ctx):
            return super().invoke(ctx)


def defaults_from_pyproject() -> dict[str, Any]:
    """`[tool.holdfast]` of ./pyproject.toml, in the shape that click looks defaults up in."""
    file = Path("pyproject.toml")
    if not file.is_file():
        return {}
    import tomllib

    try:
        settings: dict[str, Any] = tomllib.loads(file.read_text()).get("tool", {}).get("holdfast", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        usage(f"pyproject.toml can't be read: {error}")
    unknown = [key for key in settings if key not in PYPROJECT_KEYS]
    if unknown:
        usage(f"pyproject.toml: [tool.holdfast] has no setting {unknown[0]!r}; known: {', '.join(PYPROJECT_KEYS)}")
    worker = {key.replace("-", "_"): settings[key] for key in WORKER_KEYS if key in settings}
    own = {"app": "target", "store": "store", "app-name": "app_name"}
    return {"worker": worker} | {own[key]: value for key, value in settings.items() if key in own}


EPILOG = """\
Say -A and --store once: HOLDFAST_APP and HOLDFAST_STORE, or `app` and `store` in [tool.holdfast] of
./pyproject.toml. A run is named by its id, or by the beginning of it that no other has.

Exit codes: 0 ok, 1 run failed, 2 usage, 3 not found, 4 conflict, 5 store unreachable, 6 declined, 70 a fault of
Holdfast, 74 the output can't be written, 130 interrupted, 141 nobody reads the output."""


@click.group(
    cls=Main, entries=COMMANDS, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)  # fmt: skip
@click.option(
    "-A", "--app", "target", metavar="MODULE[:APP]", envvar="HOLDFAST_APP", help="The module that defines the app."
)
@click.option("--store", metavar="URL", envvar="HOLDFAST_STORE", help="The store, instead of the app's own.")
@click.option("--app-name", metavar="NAME", help="Without the app's code: which app, if the store holds several.")
@click.option("--debug", is_flag=True, envvar="HOLDFAST_DEBUG", help="Show the traceback of an error.")
@click.version_option(package_name="holdfast")
def main(target: str | None, store: str | None, app_name: str | None, debug: bool) -> None:
    """Durable workflows in plain Python."""
