"""How things are printed: with colour on a terminal, plain lines otherwise, JSON where it is asked for. Data goes
to stdout and notes to stderr."""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.failures import DECLINED, usage

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
    stream = sys.stderr if err else sys.stdout
    return stream is not None and stream.isatty()  # None if it was closed before we began


def speaks_unicode(*, err: bool = False) -> bool:
    stream = sys.stderr if err else sys.stdout
    encoding = (stream is not None and stream.encoding) or "ascii"
    return encoding.lower().replace("-", "").startswith("utf")


PLAINER = {"→": "->", "…": "..", "×": "x", "–": "-", "━": "#", "─": "-"}
"""What we write ourselves, for encodings that have no character for it."""


def print_in_any_encoding() -> None:
    """Have what a stream's encoding can't say replaced, instead of an error in the middle of a list."""
    codecs.register_error("holdfast", _replaced)
    for stream, err in ((sys.stdout, False), (sys.stderr, True)):
        if isinstance(stream, io.TextIOWrapper) and not speaks_unicode(err=err):
            stream.reconfigure(errors="holdfast")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAINER.get(c, "?") for c in error.object[error.start : error.end]), error.end


def console(*, err: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False, emoji=False)


def say(text: str) -> None:
    click.echo(clean(text))


def note(text: str) -> None:
    """For the person, not for the pipe."""
    click.echo(clean(text), err=True)


def confirm_for_good(question: str) -> None:
    """Ask before something that can't be undone."""
    if not on_terminal():
        usage("this can't be undone; say --yes")
    confirm(question)


def confirm(question: str) -> None:
    """Go on only if the answer is yes."""
    if not click.confirm(question, err=True):
        note("nothing was done")
        raise click.exceptions.Exit(DECLINED)


def print_json(value: Any) -> None:
    """One document: indented for eyes, on one line for programs."""
    click.echo(json_text(value, indent=2 if on_terminal() else None))


def json_text(value: Any, indent: int | None = None, *, err: bool = False) -> str:
    """Escaped where the stream would have to replace characters: data stays what it is. On a terminal so is what would
    move its cursor or turn its text around."""
    text = json.dumps(value, ensure_ascii=not speaks_unicode(err=err), indent=indent)
    if not on_terminal(err=err) or text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


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
    before = sum(cells(span.text) for span in line[:-1])
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


LAST_COLUMN = 24
"""Less than this tells too little, so that other columns are left out before."""
NARROWEST = 10


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[Styled | str]], *, left_out_first: Sequence[str] = ()
) -> None:
    """Aligned under heads on a terminal; tab-separated and nothing cut off otherwise. The first column, which names the
    rows, is never cut: names are pasted. On a narrow terminal columns are left out, if it is said which."""
    spans = [[cell if isinstance(cell, Styled) else Styled(cell) for cell in row] for row in rows]
    if not on_terminal():
        for row in spans:
            click.echo("\t".join(" ".join(clean(cell.text).split()) for cell in row))
        return
    out = console()
    grid = [[Styled(head, "dim") for head in heads]]
    grid += [[Styled(clean(cell.text), cell.style) for cell in row] for row in spans]  # as wide as it will be
    widths = _widths(grid, out.width)
    for head in left_out_first:
        if widths[-1] >= LAST_COLUMN:
            break
        at = [cell.text for cell in grid[0]].index(head)
        grid = [[*row[:at], *row[at + 1 :]] for row in grid]
        widths = _widths(grid, out.width)
    for row in grid if spans else []:
        shown = [
            Styled(padded(cut(cell.text, width), width), cell.style) for cell, width in zip(row, widths, strict=True)
        ]
        line = [part for cell in shown for part in (cell, Styled("  "))][:-1]
        text = styled(line)
        text.rstrip()
        out.print(text, soft_wrap=True)


def _widths(grid: list[list[Styled]], width: int) -> list[int]:
    """Of the columns. The last one takes what is left; if that is little, those in the middle give some."""
    widths = [
        max(cells(cut(row[i].text, width // 2 if i else 10_000)) for row in grid) for i in range(len(grid[0]) - 1)
    ]
    left = width - sum(widths) - 2 * len(widths)
    while left < NARROWEST and max(widths[1:], default=0) > NARROWEST:
        widths[widths.index(max(widths[1:]), 1)] -= 1
        left += 1
    return [*widths, max(NARROWEST, left)]


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


def short_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """What is enough to tell these runs apart, as `Target.find` takes it: of ids that nobody chose, and of those of their
    children."""
    alike = Counter(run_id[:8] for run_id in run_ids)
    forms = {run_id: _short_among(run_id, alike[run_id[:8]] > 1) for run_id in run_ids}
    meant = Counter(forms.values())
    return {run_id: form if meant[form] == 1 else run_id for run_id, form in forms.items()}


def _short_among(run_id: str, has_kin: bool) -> str:
    found = _UUID.match(run_id)
    if found is None or (found.end() == len(run_id) and not has_kin):
        return short_id(run_id)
    return f"{run_id[:8]}…{run_id[found.end() :] or run_id[-4:]}"


def cells(text: str) -> int:
    """How many columns of a terminal a text takes: those of East Asia take two, accents none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def cut(text: str, width: int) -> str:
    """On one line, and no wider than that."""
    text = " ".join(text.split())
    kept = text[: 4 * width]  # more isn't worth measuring
    if len(kept) == len(text) and cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(kept, width - 1).rstrip() + "…"
