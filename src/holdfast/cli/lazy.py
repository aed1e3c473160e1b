"""A group whose commands are imported when they are used, so that help and completion cost nothing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import click


@dataclass(frozen=True)
class Entry:
    """Where a command is (`module:name`), and the line that stands for it in its group's help."""

    target: str
    help: str
    commands: dict[str, Entry] = field(default_factory=dict)


class LazyGroup(click.Group):
    def __init__(self, *args: Any, entries: dict[str, Entry] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.entries = entries or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        if entry.commands:
            return LazyGroup(cmd_name, help=entry.help, entries=entry.commands, no_args_is_help=True)
        module, _, name = entry.target.partition(":")
        found: click.Command = getattr(importlib.import_module(f"holdfast.cli.{module}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if args[0].startswith("-"):
                raise
            known = ", ".join(self.entries)
            raise click.UsageError(
                f"{ctx.command_path} has no command {args[0]!r}; known: {known}", error.ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Like click's own, from the table instead of from the commands."""
        rows = [(name, entry.help) for name, entry in self.entries.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [name for name, entry in self.entries.items() if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self.entries[name].help) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)
