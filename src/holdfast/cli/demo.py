"""`holdfast demo`."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.failures import OK, RUN_FAILED
from holdfast.cli.output import say
from holdfast.demo.play import SCENARIOS, play


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice([*SCENARIOS]), metavar=f"[{'|'.join(SCENARIOS)}]...")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the store here.  [default: a temporary folder]")
@click.option("--purge", is_flag=True, help="Begin with an empty store.")
@click.pass_context
def demo(context: click.Context, scenarios: tuple[str, ...], folder: Path | None, purge: bool) -> None:
    """Play the order process: all scenarios, or those that are named."""
    context.exit(OK if play(list(scenarios or SCENARIOS), folder, purge, say) else RUN_FAILED)
