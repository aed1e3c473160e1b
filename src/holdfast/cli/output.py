"""How things are printed: with colour on a terminal, plain lines otherwise, JSON where it is asked for. Data goes
to stdout and notes to stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Look(NamedTuple):
    """How a status or a step's state looks: never by colour alone."""

    icon: str
    ascii: str
    style: str


LOOKS = {
    "PENDING": Look("◌", ".", "dim"),
    "RECEIVED": Look("◌", ".", "dim"),
    "STARTED": Look("●", "*", "blue"),
    "RUNNING": Look("●", "*", "blue"),
    "WAITING": Look("◷", "~", "cyan"),
    "RETRY": Look("↻", "r", "yellow"),
    "PAUSED": Look("‖", "=", "magenta"),
    "STUCK": Look("!", "!", "bold red"),
    "SUCCESS": Look("✓", "+", "green"),
    "FAILURE": Look("✗", "x", "red"),
    "CANCELLED": Look("⊘", "-", "dim"),
    "SKIPPED": Look("–", "-", "dim"),
    "EVENT": Look("◆", "@", "cyan"),
    "GONE": Look("?", "?", "dim"),
}


class Styled(NamedTuple):
    """A piece of a line."""

    text: str
    style: str = ""


Line = list[Styled]


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def on_terminal(*, err: bool = False) -> bool:
    return (sys.stderr if err else sys.stdout).isatty()


def speaks_unicode(*, err: bool = False) -> bool:
    encoding = (sys.stderr if err else sys.stdout).encoding or "ascii"
    return encoding.lower().replace("-", "").startswith("utf")


def console(*, err: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    click.echo(clean(text))


def note(text: str) -> None:
    """For the person, not for the pipe."""
    click.echo(clean(text), err=True)


def print_json(value: Any) -> None:
    """One document: indented for eyes, on one line for programs."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2 if on_terminal() else None))


def print_lines(lines: Iterable[Line]) -> None:
    if not on_terminal():
        for line in lines:
            say("".join(span.text for span in line).rstrip())
        return
    out = console()
    for line in lines:
        for part in _wrapped(line, out):
            out.print(part, soft_wrap=True)


def _wrapped(line: Line, out: Console) -> Iterator[Text]:
    """Broken between words, and what goes on below stands under the last span's beginning."""
    text = styled(line)
    if text.cell_len <= out.width:
        yield text
        return
    before = sum(len(span.text) for span in line[:-1])
    indent = before if before <= out.width // 2 else 8
    first, *_ = text.wrap(out, out.width)
    yield first
    rest = text[len(first.plain) :]
    for part in rest.wrap(out, out.width - indent):
        part.plain = part.plain.strip()
        if part.plain:
            part.pad_left(indent)
            yield part


def styled(line: Line) -> Text:
    from rich.text import Text

    return Text.assemble(*((clean(span.text), span.style) for span in line))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[Styled | str]]) -> None:
    """Aligned under heads on a terminal; tab-separated and nothing cut off otherwise. The first column, which names the
    rows, is never cut: names are pasted."""
    spans = [[cell if isinstance(cell, Styled) else Styled(cell) for cell in row] for row in rows]
    if not on_terminal():
        for row in spans:
            click.echo("\t".join(" ".join(clean(cell.text).split()) for cell in row))
        return
    out = console()
    grid = [[Styled(head, "dim") for head in heads], *spans]
    widths = [
        max(len(cut(row[i].text, out.width // 2 if i else 10_000)) for row in grid) for i in range(len(heads) - 1)
    ]
    widths.append(max(10, out.width - sum(widths) - 2 * len(widths)))  # the last one takes what is left
    for row in grid if spans else []:
        cells = [
            Styled(f"{cut(cell.text, width):<{width}}", cell.style) for cell, width in zip(row, widths, strict=True)
        ]
        line = [part for cell in cells for part in (cell, Styled("  "))][:-1]
        text = styled(line)
        text.rstrip()
        out.print(text, soft_wrap=True)


def status_span(status: str) -> Styled:
    look = LOOKS.get(status, Look("?", "?", ""))
    if not on_terminal():
        return Styled(status)
    return Styled(f"{look.icon if speaks_unicode() else look.ascii} {status}", look.style)


def clean(text: str) -> str:
    """Without what would move a terminal's cursor or change its colours."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def short_id(run_id: str) -> str:
    """The first part of an id that nobody chose; enough to name the run, as a rule."""
    return run_id[:8] if _UUID.fullmatch(run_id) else run_id


def cut(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
