"""`holdfast -A orders worker`."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.app import App


def find_app(target: str) -> App:
    """The App in a module: `orders`, or `orders:app` if it has several."""
    from holdfast.app import App

    module_name, _, attribute = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise click.UsageError(
                f"no module named {module_name!r} here; run this where {module_name.replace('.', '/')}.py is, or name another "
                "with -A module[:app]"
            ) from None
        raise
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, App):
            raise click.UsageError(f"{module_name}.{attribute} is {found!r}, not an App")
        return found
    apps = {id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)}
    if len(apps) != 1:
        names = ", ".join(f"{module_name}:{name}" for name, _ in apps.values()) or "none"
        raise click.UsageError(f"module {module_name!r} has {len(apps)} apps ({names}); name one with -A module:app")
    return next(iter(apps.values()))[1]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-A",
    "--app",
    "target",
    envvar="HOLDFAST_APP",
    help="The module that defines the app: orders, or orders:app.",
)
@click.option("--store", envvar="HOLDFAST_STORE", help="The store, instead of the app's own.")
@click.version_option(package_name="holdfast")
@click.pass_context
def main(context: click.Context, target: str | None, store: str | None) -> None:
    """Durable workflows in plain Python."""
    context.obj = {"target": target, "store": store}


def the_app(context: click.Context) -> App:
    target, store = context.obj["target"], context.obj["store"]
    if not target:
        raise click.UsageError("which app? Say `holdfast -A module ...`, or set HOLDFAST_APP")
    app = find_app(target)
    if store:
        app.use_store(store)
    return app


@main.command()
@click.option("--concurrency", default=16, show_default=True, help="Threads for steps made from plain functions.")
@click.option("--processes", default=None, type=int, help="Processes for steps with pool='process'. [default: cores]")
@click.option("--grace", default=10.0, show_default=True, help="Seconds that steps may take to end on shutdown.")
@click.option(
    "--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]), show_default=True
)
@click.pass_context
def worker(context: click.Context, concurrency: int, processes: int | None, grace: float, log_level: str) -> None:
    """Run an engine: claim runs, execute their steps. Stop it with Ctrl-C or SIGTERM."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    app = the_app(context)
    # One CPU-bound step must not hold up the engine's commits.
    sys.setswitchinterval(0.0005)
    engine = app.make_engine(concurrency=concurrency, processes=processes)
    engine.start()
    count = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        engine.stop(grace if count == 1 else 0)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, stop)
    names = ", ".join(engine.names)
    logging.getLogger("holdfast").info(
        "worker %s of app %r on %s knows: %s", engine.me.worker, app.name, engine.store.url, names
    )
    engine.run()
