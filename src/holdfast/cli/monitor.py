"""`holdfast monitor`: pages that show runs and act on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from holdfast.cli.failures import Misuse, usage
from holdfast.cli.output import note, say
from holdfast.cli.target import open_target

if TYPE_CHECKING:
    from holdfast.monitor.serving import Serving


def load_serving() -> Callable[..., Serving]:
    """What serves a monitor: an extra."""
    try:
        from holdfast.monitor.serving import serving
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise Misuse("the monitor needs a web server: pip install starlette uvicorn") from None
    return serving


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="The port to listen at.")
@click.option(
    "--token", envvar="HOLDFAST_MONITOR_TOKEN", show_envvar=True, metavar="TEXT",
    help="Who has it may use the monitor.  [default: a new one each time]",
)  # fmt: skip
@click.option(
    "--operator-token", envvar="HOLDFAST_MONITOR_OPERATOR_TOKEN", show_envvar=True, metavar="TEXT",
    help="Who has it may do all but terminate and delete runs.",
)  # fmt: skip
@click.option(
    "--viewer-token", envvar="HOLDFAST_MONITOR_VIEWER_TOKEN", show_envvar=True, metavar="TEXT",
    help="Who has it may look.",
)  # fmt: skip
@click.option("--no-token", is_flag=True, help="Let everybody on this machine in.")
@click.option("--read-only", is_flag=True, help="Show, and let nobody act.")
@click.option("--base-path", default="", metavar="/PATH", help="Serve below this path, behind a proxy.")
@click.pass_context
def monitor(
    context: click.Context,
    host: str,
    port: int,
    token: str | None,
    operator_token: str | None,
    viewer_token: str | None,
    no_token: bool,
    read_only: bool,
    base_path: str,
) -> None:
    """Pages that show runs and act on them, at http://127.0.0.1:8000. Exit code 5 if the store was deleted or replaced
    meanwhile."""
    serving = load_serving()
    if no_token and (token or operator_token or viewer_token):
        usage("--no-token and a token: say one of them")
    target = open_target(context, may_create=True)
    server = serving(
        target.app, host, port, token=token, operator_token=operator_token, viewer_token=viewer_token,
        no_token=no_token, read_only=read_only, base_path=base_path,
    )  # fmt: skip
    say(server.url)
    note(f"shows app {target.app.name!r} on {target.store.url}; Ctrl+C ends it")
    server.serve_until_stopped()
    if server.lost is not None:
        raise server.lost
