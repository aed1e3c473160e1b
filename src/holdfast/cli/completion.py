"""`holdfast completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": 'eval "$(holdfast completion bash)"  in ~/.bashrc',
    "zsh": 'eval "$(holdfast completion zsh)"  in ~/.zshrc',
    "fish": "holdfast completion fish | source  in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\nTo have it always:\n" + "\n".join(f"  {line}" for line in SHELLS.values()))
@click.argument("shell", type=click.Choice([*SHELLS]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell: commands, options, ids of runs, names of workflows."""
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "holdfast", "_HOLDFAST_COMPLETE").source())
