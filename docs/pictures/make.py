"""Draw docs/pictures/tree.svg: what `holdfast runs tree` really shows of a run whose worker was killed meanwhile.

`.venv/bin/python docs/pictures/make.py`
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

from orders import app, fulfil
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

HERE = Path(__file__).parent
WIDTH = 100
HOLDFAST = [sys.executable, "-m", "holdfast", "-A", "orders"]
THEME = TerminalTheme(
    (16, 24, 32),
    (222, 230, 233),
    [
        (16, 24, 32), (255, 123, 114), (87, 209, 146), (240, 190, 90),
        (110, 170, 255), (200, 150, 255), (94, 214, 214), (222, 230, 233),
    ],
)  # fmt: skip
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def on_a_terminal(command: list[str]) -> str:
    """What a command shows on a terminal of its own, colours included."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, WIDTH, 0, 0))
    subprocess.run(command, cwd=HERE, stdin=theirs, stdout=theirs, stderr=theirs, check=True)
    os.close(theirs)
    seen = os.read(ours, 65536)
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the run didn't come to the point that is to be drawn")
        time.sleep(0.02)


def session() -> Text:
    """Start, kill -9, start again, look."""
    worker = subprocess.Popen([*HOLDFAST, "worker", "--log-level", "error"], cwd=HERE)
    run = fulfil.options(id="order-17").start("order-17")
    packed = lambda: next((step.progress for step in run.steps if step.name == "pack"), None)
    until(lambda: (packed() or {}).get("done", 0) >= 3)
    text = Text()
    prompt(text, f"kill -9 {worker.pid}", "the worker, while it packs order-17")
    worker.kill()
    worker.wait()
    worker = subprocess.Popen([*HOLDFAST, "worker", "--log-level", "error"], cwd=HERE)
    prompt(text, "holdfast -A orders worker &", "another one")
    until(lambda: (packed() or {}).get("done", 0) >= 7 and any(step.retry_at for step in run.steps))
    prompt(text, "holdfast -A orders runs tree order-17")
    text.append_text(Text.from_ansi(on_a_terminal([*HOLDFAST, "runs", "tree", "order-17"]).rstrip("\n")))
    run.cancel()
    worker.kill()
    worker.wait()
    app.close()
    return text


def prompt(text: Text, command: str, comment: str = "") -> None:
    text.append("$ ", "bold cyan").append(command, "bold").append(f"  # {comment}\n" if comment else "\n", "dim")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_STORE"] = f"{folder}/orders.db"
        app.use_store(os.environ["HOLDFAST_STORE"])
        text = session()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    frame = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # fonts of other hosts
    svg = console.export_svg(title="order-17", theme=THEME, code_format=frame, unique_id="tree")
    svg = re.sub(r"font-family: [^;]+;", f"font-family: {FONT};", svg)
    (HERE / "tree.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


if __name__ == "__main__":
    main()
