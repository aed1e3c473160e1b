"""Plays the scenarios of the order process: a worker process, this client, and a file that counts effects."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.api.handles import Run
from holdfast.demo.orders import Order, Outcome, app, fulfil

Say = Callable[[str], None]

SCENARIOS: dict[str, tuple[str, Order]] = {
    "happy": ("the order goes straight through", Order("happy", 2)),
    "replay": (
        "something fails after shipping; the workflow is tried again, and nothing that was done is done again",
        Order("replay", 3, fail_after_shipping=True),
    ),
    "payment_failure": (
        "the card is declined; the inventory is released, and that is a result, not a crash",
        Order("payment_failure", 1, payment_token="decline"),
    ),
    "crash": (
        "kill -9 takes the worker between payment and shipping; another takes over, the card is charged once",
        Order("crash", 7, pause_before_shipping=1.0),
    ),
}


class Worker:
    """`holdfast -A holdfast.demo.orders worker`, in a process of its own, which is made once that works: who waits for a
    run before is told that no worker is alive."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "holdfast", "-A", "holdfast.demo.orders", "worker", "--log-level", "error"]
        self._process = subprocess.Popen(command, env=_environment(folder), cwd=folder)
        while all(worker.pid != self.pid for worker in app.store.workers()):
            if self._process.poll() is not None:
                raise ChildProcessError(
                    f"the demo's worker ended with exit code {self._process.returncode} at its start"
                )
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOLDFAST_STORE": str(folder / "orders.db"),
        "ORDERS_EFFECTS": str(folder / "effects.jsonl"),
    }


def play(names: list[str], folder: Path | None, purge: bool, say: Say) -> bool:
    """Play scenarios one after another; whether each ended as it should. Without a folder nothing is kept."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as temporary:
            return _play(names, Path(temporary), purge, say)
    good = _play(names, folder, purge, say)
    say("\nlook at these runs in a browser:")
    python = os.path.relpath(sys.executable)
    say(f"  {python} -m holdfast -A holdfast.demo.orders --store {folder / 'orders.db'} monitor")
    return good


def _play(names: list[str], folder: Path, purge: bool, say: Say) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    if purge:
        for file in [*folder.glob("orders.db*"), folder / "effects.jsonl"]:
            file.unlink(missing_ok=True)
    app.use_store(str(folder / "orders.db"))
    worker = Worker(folder)
    say(f"worker {worker.pid} works on {folder / 'orders.db'}")
    good = True
    try:
        for name in names:
            title, order = SCENARIOS[name]
            say(f"\n{name}: {title}")
            started = time.perf_counter()
            run = fulfil.options(id=f"order-{name}-{time.time_ns()}").start(order)
            if name == "crash":
                worker = _crash(run, worker, folder, say)
            outcome = run.result(timeout=30)
            good &= _tell(run, outcome, folder, time.perf_counter() - started, say)
    finally:
        worker.stop()
        app.close()
    return good


def _crash(run: Run[Outcome], worker: Worker, folder: Path, say: Say) -> Worker:
    while run.data.get("status") != "paid":
        time.sleep(0.01)
    say(f"  the card is charged; kill -9 {worker.pid}")
    worker.kill()
    fresh = Worker(folder)
    say(f"  worker {fresh.pid} takes over")
    return fresh


def _tell(run: Run[Outcome], outcome: Outcome, folder: Path, seconds: float, say: Say) -> bool:
    effects: collections.Counter[str] = collections.Counter()
    for line in (folder / "effects.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["order"] == outcome.order_id:
            effects[record["effect"]] += 1
    history = " → ".join(entry.status for entry in run.status_history())
    # What an earlier attempt had completed, or a worker that is gone.
    last = run.steps[-1].worker
    names = [step.name for step in run.steps if step.reused or (step.worker and step.worker != last)]
    replayed = ", ".join(names) or "nothing"
    say(
        f"  outcome   {outcome.status}" + (f" ({outcome.reason})" if outcome.reason else f", {outcome.tracking_number}")
    )
    say(f"  attempts  {outcome.attempts}: {history}")
    say(f"  replayed  {replayed}")
    say(f"  effects   {', '.join(f'{name} × {times}' for name, times in effects.items())}")
    say(f"  time      {seconds:.2f} s")
    if any(times > 1 for times in effects.values()):
        say("  something was done twice: this must not happen")
        return False
    return True
