"""Draw docs/pictures/parts.svg: the parts of Holdfast, and what flows between them.

`.venv/bin/python docs/pictures/parts.py`
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "holdfast"
WIDTH, HEIGHT = 940, 716
ALT = "What flows between programs that start runs, a worker with its host, engine and executor, the store, and views"
STYLE = """
.ground { fill: #f7faf9; stroke: #b8c8c6 } .frame { fill: #eaf2f1; stroke: #8fb0ac; stroke-dasharray: 6 4 }
.box { fill: #ffffff; stroke: #0f766e } .inner { fill: #e3f4f1; stroke: #6bb3aa } .store { fill: #fdf3dd; stroke: #b98518 }
text { fill: #16302e; font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif }
.title { font-weight: 650; font-size: 15.5px }
.file { fill: #0b625b; font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }
.flow { fill: #7a3b00; font-size: 13.5px } .line { stroke: #a65300; fill: none; stroke-width: 1.8 } .tip { fill: #a65300 }
.hint { stroke-dasharray: 3 4 }
@media (prefers-color-scheme: dark) {
  .ground { fill: #101820; stroke: #35474a } .frame { fill: #16222a; stroke: #4d6c6a }
  .box { fill: #1c2b33; stroke: #2fa99c } .inner { fill: #20403f; stroke: #3f8f86 } .store { fill: #33290f; stroke: #c99a35 }
  text { fill: #dee6e9 } .file { fill: #7fe3d6 } .flow { fill: #ffc98a } .line { stroke: #f0a04b } .tip { fill: #f0a04b }
}
"""

drawn: list[str] = []


def check(folder: str, file: str) -> None:
    if not (SOURCE / folder / file).exists():
        raise FileNotFoundError(f"the picture names {folder}{file}, which is not there; correct {Path(__file__).name}")


def box(kind: str, x: int, y: int, width: int, height: int) -> None:
    drawn.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="7"/>')


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> None:
    drawn.append(f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')


def line(x: int, y: int, *words: str) -> None:
    """Words, where those that end in `/` or `.py` are files of the store or folders."""
    for word in words:
        if word.endswith((".py", "/")):
            check("" if "/" in word else "stores/", word)
    spans = "".join(
        f'<tspan class="{"file" if word.endswith(("/", ".py")) else ""}" dx="{8 if number else 0}">{escape(word)}</tspan>'
        for number, word in enumerate(words)
    )
    drawn.append(f'<text x="{x}" y="{y}">{spans}</text>')


def part(x: int, y: int, width: int, height: int, title: str, files: str, *lines: str, kind: str = "box") -> None:
    """A box with its title, the files that it stands for, and what it does."""
    for file in files.split():
        if not (SOURCE / file).exists():
            raise FileNotFoundError(
                f"the picture names {file}, which is not in {SOURCE}; correct {Path(__file__).name}"
            )
    box(kind, x, y, width, height)
    text("title", x + 12, y + 23, title)
    text("file", x + 12, y + 41, files)
    for number, line in enumerate(lines):
        text("", x + 12, y + 61 + 18 * number, line)


def flow(x1: int, y1: int, x2: int, y2: int, kind: str = "", both: bool = False) -> None:
    """An arrow: what is given to whom."""
    start = ' marker-start="url(#tip)"' if both else ""
    drawn.append(f'<line class="line {kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" marker-end="url(#tip)"{start}/>')


def draw() -> str:
    drawn.clear()
    box("ground", 1, 1, WIDTH - 2, HEIGHT - 2)
    box("frame", 254, 18, 670, 530)
    text("title", 268, 42, "A worker: one process, any number of them")

    part(16, 58, 184, 104, "Programs", "api/ compose/", "start, send, cancel;", "wait for results")
    part(66, 236, 158, 92, "Who looks", "cli/ api/", "runs, their trees,", "why they wait")
    part(66, 384, 158, 128, "Views", "views/", "histories and rows", "as steps, waits,", "timelines, trees")

    part(270, 58, 360, 104, "Host: waits", "engine/host.py",
         "queue of what arrives; threads for the", "heartbeat and against code that hangs")  # fmt: skip
    part(270, 216, 360, 318, "Engine: decides", "engine/engine.py", "a turn: take, deliver, commit, act")
    small = [
        ("sources.py", "new work"),
        ("agenda.py", "what is due"),
        ("membership.py", "alive?"),
        ("committer.py", "doubt"),
        ("live_runs.py", "ready?"),
        ("handover.py", "attempts"),
    ]
    for number, (file, words) in enumerate(small):
        check("engine/", file)
        x, y = (282, 456)[number % 2], 288 + 36 * (number // 2)
        box("inner", x, y, (166, 162)[number % 2], 28)
        text("file", x + 8, y + 18, file)
        text("", x + 14 + 7.3 * len(file), y + 18, words)
    part(282, 400, 336, 124, "Runs in memory", "engine/run.py engine/steps.py",
         "what arrives becomes events, what the", "code asks for becomes the next commit", kind="inner")  # fmt: skip
    line(294, 497, "engine/probation.py", "suspects one by one")
    line(294, 516, "core/", "replays workflow code, without I/O")

    part(744, 58, 168, 476, "Executor", "executors/local.py", "executes steps")
    ways = [
        ("loops.py", "async steps"),
        ("threads.py", "def steps"),
        ("process.py", "in processes;"),
    ]
    for number, (file, words) in enumerate(ways):
        check("executors/", file)
        box("inner", 756, 138 + 68 * number, 144, 50 if number < 2 else 68)
        text("file", 766, 158 + 68 * number, file)
        text("", 766, 177 + 68 * number, words)
    text("", 766, 331, "suspects, too")
    part(
        756, 384, 144, 138, "Runner", "", "one way from", "attempt to", "outcome: calls", "your function", kind="inner"
    )
    text("file", 768, 425, "runner.py")
    flow(828, 343, 828, 380)

    box("store", 16, 622, 908, 78)
    text("title", 30, 645, "Store: runs, histories, inboxes, workers, schedules, domain events")
    line(30, 668, "stores/sql/", "queries for all databases,", "dialect.py", "their differences,",
         "sqlite.py", "postgres.py", "connections, locks, errors")  # fmt: skip
    line(30, 690, "Hints between processes, which may be lost:", "doorbell.py", "postgres_notifier.py")

    flow(40, 164, 40, 618)
    text("flow", 48, 190, "runs, messages: one")
    text("flow", 48, 208, "transaction each")
    flow(145, 618, 145, 516)
    text("flow", 153, 574, "reads")
    flow(145, 380, 145, 332)
    text("flow", 153, 361, "answers")
    flow(204, 110, 266, 110, "hint", both=True)
    text("flow", 235, 100, "hints", "middle")
    flow(340, 164, 340, 212)
    text("flow", 348, 193, "what has arrived")
    flow(500, 214, 500, 166)
    text("flow", 508, 193, "when to turn again")
    flow(740, 104, 634, 104)
    text("flow", 687, 95, "outcomes,", "middle")
    text("flow", 687, 122, "progress", "middle")
    flow(634, 306, 740, 306)
    text("flow", 687, 278, "attempts,", "middle")
    text("flow", 687, 296, "after the", "middle")
    text("flow", 687, 326, "commit", "middle")
    flow(340, 536, 340, 618)
    text("flow", 348, 572, "commit: the changes of all")
    text("flow", 348, 590, "runs in one transaction")
    flow(560, 618, 560, 538)
    text("flow", 568, 572, "claimed runs, messages,")
    text("flow", 568, 590, "domain events, ticks")

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{ALT}">\n'
        f"<title>{ALT}</title>\n<style>{STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0 L10 5 L0 10 z"/></marker></defs>\n'
    )
    return head + "\n".join(drawn) + "\n</svg>\n"


if __name__ == "__main__":
    (HERE / "parts.svg").write_text(draw())
