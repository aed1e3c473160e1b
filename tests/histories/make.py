"""Makes golden histories, for workflows that have none yet: `python tests/histories/make.py [--again NAME]`.

A history that is there stays as it is: it is the memory of how an older version behaved.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "core")]

from core_world import CANCELLED, SECOND, World  # noqa: E402
from golden_workflows import Order, Refused, Size, app  # noqa: E402
from msgspec import Raw  # noqa: E402

from holdfast.core import events as ev  # noqa: E402

SCRIPTS: dict[str, tuple[tuple[Any, ...], Callable[[World], None]]] = {}


def script(*args: Any) -> Callable[[Callable[[World], None]], None]:
    """Says what happens to the workflow of this name."""

    def add(function: Callable[[World], None]) -> None:
        SCRIPTS[function.__name__] = (args, function)

    return add


def completes(run: World, name: str, result: Any, nth: int = 0) -> None:
    run.now += 1500
    run.complete(run.step(name, nth), result)


@script(Order("o-17", Decimal("19.90"), Size.LARGE, [("tea", 2), ("cup", 1)]))
def fulfilment(run: World) -> None:
    order = Order("o-17", Decimal("18.00"), Size.SMALL, [("tea", 1)])
    cmd = run.step("reserve")
    run.note(ev.StepStarted(**run._about(cmd)))
    error = Raw(app.codec.encode_error(Refused("busy")))
    run.note(ev.StepRetrying(**run._about(cmd), error=error, retry_at=run.now + SECOND))
    run.crash()
    completes(run, "reserve", order)
    completes(run, "charge", Decimal("18.00"))
    run.fire()
    run.send("approval", {"by": "ann", "at": dt.datetime(2030, 1, 2, tzinfo=dt.UTC)})
    (cmd,) = run.wake().children.pending
    run.child(cmd, dt.date(2030, 1, 3))
    completes(run, "fetch", "mail", 2)
    completes(run, "fetch", "second label", 1)
    run.crash()
    completes(run, "fetch", "first label")


@script()
def racing(run: World) -> None:
    completes(run, "fetch", "two", 2)
    for _ in range(3):
        run.fire()
    for n in (2, 0, 1, 0):
        completes(run, "fetch", f"c{n}", n)


@script()
def napping(run: World) -> None:
    for _ in range(3):
        run.fire()
    completes(run, "fetch", 1, 1)
    for _ in range(3):
        run.fire()
    for n in range(5):
        completes(run, "fetch", n)


@script()
def grouped(run: World) -> None:
    completes(run, "note", "one", 1)
    run.fail(run.step("fetch"), Refused("no"))
    while not run.is_over():
        completes(run, "note", len(run.committed))


@script()
def family(run: World) -> None:
    children = {run.argument(child.args): cmd for cmd, child in run.wake().children.pending.items()}
    run.child(children["submitted"], dt.date(2030, 1, 1))
    run.child(children["first"], dt.date(2030, 1, 2))
    children = {run.argument(child.args): cmd for cmd, child in run.wake().children.pending.items()}
    run.child(children["cancelled"], CANCELLED)
    run.child(children["failing"], Refused("no"))
    (cmd,) = run.wake().children.pending
    run.child(cmd, {"paid": True})


@script()
def chances(run: World) -> None:
    completes(run, "fetch", 1)
    completes(run, "fetch", 2)


@script()
def stubborn(run: World) -> None:
    completes(run, "fetch", None, 1)
    completes(run, "fetch", 1, 1)
    completes(run, "fetch", None)
    completes(run, "fetch", 2)
    run.fire()
    run.send("answer", "yes")
    (cmd,) = run.wake().children.pending
    run.child(cmd, dt.date(2030, 1, 1))
    (cmd,) = run.wake().children.pending
    run.child(cmd, Refused("first"))
    (cmd,) = run.wake().children.pending
    run.child(cmd, "billed")
    run.fail(run.step("note"), Refused("second"))
    run.fail(run.step("note"), Refused("third"))
    run.crash()
    run.now += SECOND
    run._commit([ev.AttemptStarted(seq=len(run.committed) + 1, ts=run.now, attempt=4)])
    completes(run, "note", "at last")


@script()
def endless(run: World) -> None:
    run.send("left", 1)
    completes(run, "fetch", None)
    run.send("left", 2)
    completes(run, "fetch", None)
    completes(run, "fetch", None)


@script()
def unwanted(run: World) -> None:
    run.wake()
    run.cancel("nobody wants it")
    run.crash()
    completes(run, "fetch", None)
    completes(run, "note", None)


@script()
def spared(run: World) -> None:
    run.wake()
    run.cancel()
    completes(run, "fetch", "saved")


@script()
def troubled(run: World) -> None:
    cmd = run.step("fetch")
    run.note(ev.StepStarted(**run._about(cmd)))
    run.note(ev.StepLost(**run._about(cmd)))
    run.note(ev.RunPaused(reason="a look inside"))
    run.note(ev.RunResumed())
    completes(run, "fetch", 1)
    run.note(ev.RunStuck(reason="the code had changed", error=Raw(app.codec.encode_error(Refused("both sides")))))
    run.note(ev.RunResumed())
    cmd = run.step("fetch")
    cause = run.wake().steps.pending[cmd].cause
    changed = Raw(app.codec.encode_call(("changed",), {}))
    run.note(ev.ArgumentsChanged(cmd=cmd, cause=cause, name="fetch", args=changed))
    completes(run, "fetch", 2)


@script()
def suspected(run: World) -> None:
    run.note(ev.RunProbed(worker="1-aa"))
    cmd = run.step("fetch")
    run.note(ev.StepStarted(**run._about(cmd)))
    run.note(ev.StepWithdrawn(**run._about(cmd)))
    run.crash()
    run.note(ev.MessageDropped(message="hook", reason="it can't be read"))
    completes(run, "fetch", 1)


@script()
def misled(run: World) -> None:
    run.wake()
    began = run.now
    run.now -= 400 * 86_400 * SECOND
    run.note(ev.ClockSetBack(by=began - run.now))
    run.now += 3_600 * SECOND
    run.fire()
    run.crash()
    run.fire()
    completes(run, "fetch", 1)


@script(3)
def plain(run: World) -> None:
    completes(run, "note", "zero")
    run.fail(run.step("note"), Refused("one"))
    completes(run, "note", "two")
    run.fire()
    completes(run, "fetch", "submitted")
    run.send("plain", [1, 2])
    children = {child.name: cmd for cmd, child in run.wake().children.pending.items()}
    run.child(children["billing"], None)
    completes(run, "fetch", "waited")
    run.child(children["shipping"], dt.date(2030, 1, 1))


@script()
def workers(run: World) -> None:
    n = 0
    while not run.is_over():
        n += 1
        name = next(iter(run.pending().values()))
        completes(run, name, n, (n * 7) % len(run.pending()) if name == "fetch" else 0)


@script()
def talkative(run: World) -> None:
    for nth in (2, 2, 1, 0):
        completes(run, "fetch", nth, nth)


@script({"what": "shop", "things": ["a" * 120, "b"]})
def errands(run: World) -> None:
    completes(run, "fetch", "all of it")
    completes(run, "fetch", {"id": 17, "note": "x" * 150})
    completes(run, "note", "second", 1)
    run.crash()
    completes(run, "note", "first")
    (cmd,) = run.wake().children.pending
    run.child(cmd, dt.date(2030, 1, 5))
    completes(run, "note", "swept")


@script({"what": "Rome"})
def travel(run: World) -> None:
    completes(run, "fetch", "an order")
    (cmd,) = run.wake().children.pending
    run.child(cmd, dt.date(2030, 1, 6))
    run.fail(run.step("note"), Refused("no funds"))
    (cmd,) = run.wake().children.pending
    run.child(cmd, None)
    run.crash()
    completes(run, "note", "undone")


@script()
def hasty(run: World) -> None:
    completes(run, "note", "a bed")
    completes(run, "fetch", "a boat", 1)
    run.cancel()
    run.crash()
    completes(run, "fetch", "a car")
    run.fail(run.step("fetch"), Refused("it is gone"))
    completes(run, "fetch", None)
    completes(run, "note", None)


@script()
def eventful(run: World) -> None:
    for where in ('{"n": 1, "order": "o-1"}', "{}"):
        run.send("Paid", {"order": "o-1", "n": 1}, key=f"event {where}")
    run.crash()
    run.wake()
    run.fire()
    completes(run, "fetch", "fetched")


@script()
def late(run: World) -> None:
    run.now += 3600 * SECOND
    run._commit([ev.RunTakenUp(seq=2, ts=run.now)])
    run.fire()


@script()
def composed(run: World) -> None:
    completes(run, "fetch", "y" * 20_000, 1)
    run.fail(run.step("fetch", 1), Refused("no third"))
    run.crash()
    completes(run, "note", "one")
    completes(run, "fetch", Order("o-1", Decimal("1.50"), Size.SMALL, []), 1)
    completes(run, "fetch", "first")
    (cmd,) = run.wake().children.pending
    run.child(cmd, Refused("no ship"))
    run.crash()
    completes(run, "note", "collected")
    completes(run, "note", "told")
    completes(run, "fetch", "z" * 20_000)
    completes(run, "note", "n" * 20_000)
    run.crash()
    completes(run, "note", "end")


@script()
def answering(run: World) -> None:
    def ask(name: str, payload: Any = None) -> None:
        request = f"{name}-{len(run.committed)}"
        encoded = Raw(app.codec.encode(payload))
        run.now += 1500
        run.deliver(ev.RequestReceived(name=f"golden.{name}", request=request, payload=encoded))

    ask("rename", "ann")
    ask("total")
    run.crash()
    ask("rename", "")
    completes(run, "fetch", 10)
    ask("total")
    ask("rename", "next")
    run.crash()
    ask("rename", "bob")
    completes(run, "fetch", 20)
    ask("rename", "cid")
    ask("rename", "dan")
    ask("total")
    ask("rename", "end")
    run.crash()
    cmd = run.step("fetch", -1)
    run.note(ev.StepHandedOver(**run._about(cmd), until=run.now + 15 * SECOND, limit=run.now + 60 * SECOND))
    run.crash()
    completes(run, "fetch", "done elsewhere", -1)


def main() -> None:
    again = sys.argv[sys.argv.index("--again") + 1 :] if "--again" in sys.argv else []
    for name, (args, happens) in SCRIPTS.items():
        path = HERE / f"{name}.jsonl"
        if path.exists() and name not in again:
            continue
        run = World(app, name, *args, seed=len(name), run_id=name)
        happens(run)
        assert run.is_over(), f"{name} has not ended: {run.kinds()}"
        run.crash()
        here = f"{HERE.parent.parent}/".encode()  # tracebacks must not tell where this was made
        path.write_bytes(b"".join(line.replace(here, b"") + b"\n" for line in run.committed))
        print(f"{path.name}: {len(run.committed)} events, {type(run.history[-1]).__name__}")


if __name__ == "__main__":
    main()
