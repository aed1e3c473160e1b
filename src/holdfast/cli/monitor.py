"""`holdfast monitor`: pages that show runs and act on them."""

from __future__ import annotations

import importlib
import secrets
from typing import Any

import click

from holdfast.cli.failures import Misuse, usage
from holdfast.cli.output import note, say
from holdfast.cli.target import open_target

EXTRA = "the monitor needs an extra: pip install 'holdfast[monitor]'"


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("starlette", "uvicorn"):
            raise Misuse(EXTRA) from None
        raise


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="The port to listen at.")
@click.option(
    "--token", envvar="HOLDFAST_MONITOR_TOKEN", show_envvar=True, metavar="TEXT",
    help="Who has it may use the monitor.  [default: a new one each time]",
)  # fmt: skip
@click.option("--no-token", is_flag=True, help="Let everybody on this machine in.")
@click.option("--read-only", is_flag=True, help="Show, and let nobody act.")
@click.option("--base-path", default="", metavar="/PATH", help="Serve below this path, behind a proxy.")
@click.pass_context
def monitor(
    context: click.Context, host: str, port: int, token: str | None, no_token: bool, read_only: bool, base_path: str
) -> None:
    """Pages that show runs and act on them, at http://127.0.0.1:8000."""
    uvicorn = _needed("uvicorn")
    routing = _needed("starlette.routing")
    applications = _needed("starlette.applications")
    pages = _needed("holdfast.monitor")
    safety = _needed("holdfast.monitor.safety")
    target = open_target(context, may_create=True)
    if no_token and token:
        usage("--no-token and --token: say one of them")
    if no_token and not safety.is_loopback(host):
        usage(f"--host {host} lets other machines in, so a token is needed; leave --no-token out")
    base_path = "/" + base_path.strip("/") if base_path.strip("/") else ""
    if no_token:
        web = pages.monitor(target.app, authorize=safety.from_this_machine, read_only=read_only)
    else:
        token = token or secrets.token_urlsafe(24)
        web = pages.monitor(target.app, token=token, read_only=read_only)
    if base_path:
        web = applications.Starlette(routes=[routing.Mount(base_path, web)])
    _ = target.store  # one that can't be reached says so now
    config = uvicorn.Config(
        web, host=host, port=port, log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=1, lifespan="off",
    )  # fmt: skip
    try:
        socket = config.bind_socket()
    except (OSError, SystemExit):
        raise Misuse(f"can't listen at {host}:{port}; another process may: choose another --port") from None
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{socket.getsockname()[1]}{base_path}/"
    say(where + ("" if no_token else f"?token={token}"))
    note(f"shows app {target.app.name!r} on {target.store.url}; Ctrl+C ends it")
    uvicorn.Server(config).run(sockets=[socket])
