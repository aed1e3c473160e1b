"""`python examples/agent`: talk to the agent, allow or refuse what it asks for, and crash it."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from assistant import app, assist
from model import ToolCall

from holdfast import Run

HERE = Path(__file__).parent


class Worker:
    """`holdfast -A assistant worker`, in a process of its own."""

    def __init__(self) -> None:
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", "-A", "assistant", "worker", "--log-level", "error"]
        return subprocess.Popen(command, cwd=HERE)

    def crash(self) -> None:
        print(f"\n  -- kill -9 {self._process.pid}, in the middle of a sentence; another worker takes over")
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = self._begin()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def follow(run: Run[str], worker: Worker, options: argparse.Namespace) -> None:
    """Show what the run streams. A crash comes with the third token of the second turn, after the first tool."""
    turns: dict[str, int] = {}
    tokens: collections.Counter[str] = collections.Counter()
    crash = options.crash
    for streamed in run.stream():
        if isinstance(streamed.item, ToolCall):
            decide(run, streamed.item, options)
            continue
        if streamed.cmd not in turns:
            print(f"\nagent: {streamed.item}", end="", flush=True)
        elif streamed.attempt > turns[streamed.cmd]:
            print(
                f"  -- what was said is said again, as attempt {streamed.attempt}\nagent: {streamed.item}",
                end="",
                flush=True,
            )
        else:
            print(streamed.item, end="", flush=True)
        turns[streamed.cmd] = streamed.attempt
        tokens[streamed.cmd] += 1
        if crash and len(turns) == 2 and tokens[streamed.cmd] == 3:
            crash = False
            worker.crash()
    print()


def decide(run: Run[str], call: ToolCall, options: argparse.Namespace) -> None:
    what = ", ".join(f"{name}={value}" for name, value in call.arguments.items())
    print(f"\n  -- the agent asks to use {call.tool}({what})")
    if options.yes:
        print("  -- allowed, by --yes")
        run.send("approval", {"ok": True, "by": "--yes"}, key=call.id)
    elif sys.stdin.isatty() and not options.elsewhere:
        ok = input("  -- allow it? [y/N] ").strip().lower() in ("y", "yes")
        run.send("approval", {"ok": ok, "by": os.environ.get("USER", "you")}, key=call.id)
    else:
        answer = '{"ok": true, "by": "Ada"}'
        print(f"holdfast --store {app.store_url} runs send {run.id} approval '{answer}' --key {call.id}", flush=True)


def effects() -> str:
    file = Path(os.environ["AGENT_EFFECTS"])
    lines = file.read_text().splitlines() if file.exists() else []
    counted = collections.Counter(json.loads(line)["effect"] for line in lines)
    return ", ".join(f"{effect} × {times}" for effect, times in counted.items()) or "none"


@contextlib.contextmanager
def place(folder: Path | None) -> Iterator[Path]:
    with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory(prefix="agent-") as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python examples/agent", description="An agent that survives a crash.")
    parser.add_argument("request", nargs="?", default="My lamp, order 17, came in pieces.")
    parser.add_argument("--yes", action="store_true", help="allow everything that the agent asks for")
    parser.add_argument(
        "--elsewhere", action="store_true", help="answer from another terminal, by `holdfast runs send`"
    )
    parser.add_argument("--crash", action="store_true", help="kill the worker in the middle of the second answer")
    parser.add_argument("--folder", type=Path, help="keep store and effects here; otherwise they are thrown away")
    options = parser.parse_args()
    with place(options.folder) as folder:
        os.environ["HOLDFAST_STORE"] = str(folder / "agent.db")  # for the worker, too
        os.environ["AGENT_EFFECTS"] = str(folder / "effects.jsonl")
        app.use_store(os.environ["HOLDFAST_STORE"])
        worker = Worker()
        try:
            print(f"you: {options.request}")
            run = assist.start(options.request)
            follow(run, worker, options)
            print(f"\nresult:  {run.result()}")
            print(f"steps:   {', '.join(step.name for step in run.steps)}")
            print(f"effects: {effects()}")
        finally:
            worker.stop()
            app.close()


if __name__ == "__main__":
    main()
