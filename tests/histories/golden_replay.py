"""Replays the golden histories, strictly and from every prefix. As a script it does so on any Python that has
Holdfast's dependencies: `PYTHONPATH=src python tests/histories/golden_replay.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from golden_workflows import app

from holdfast.core import events as ev
from holdfast.core.execution import Execution
from holdfast.core.greenlets import Greenlets
from holdfast.core.run_info import RunInfo
from holdfast.engine.programs import program_for
from holdfast.engine.records import RunOptions

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.jsonl"))


def read(name: str) -> list[ev.AnyEvent]:
    return [ev.from_json(line) for line in (HERE / f"{name}.jsonl").read_bytes().splitlines()]


def replay(name: str, history: list[ev.AnyEvent]) -> list[ev.Event]:
    """Feed a history to the code as it is now; the events that it would add at the end."""
    first = next(event for event in history if isinstance(event, ev.RunStarted))
    info = RunInfo(run_id=name, app=app.name, strict=True)
    execution = Execution(info, program_for(app.definitions, first.workflow, RunOptions()), app.codec, Greenlets())
    try:
        for _ in execution.replay(history):
            pass
        if not isinstance(history[-1], ev.AttemptFailed):
            execution.settle(history[-1].ts)
        return execution.journal.take()[0]
    finally:
        execution.evict()


def replay_all(name: str) -> int:
    """Every prefix replays, and the code of the whole has nothing to add; the number of events."""
    history = read(name)
    for length in range(1, len(history)):
        replay(name, history[:length])
    added = replay(name, history)
    assert added == [], f"{name}: the code goes on with {added}"
    ends_without = [event for event in history if not isinstance(event, ev.RunEnded)]
    again = replay(name, ends_without) if isinstance(history[-1], ev.RunEnded) else []
    if isinstance(history[-1], ev.RunEnded):
        end = again[-1]
        assert (end.kind, outcome(end)) == (history[-1].kind, outcome(history[-1])), f"{name} ends otherwise: {end}"
    return len(history)


def outcome(end: ev.Event) -> object:
    if isinstance(end, ev.RunCompleted):
        return bytes(end.result)
    if isinstance(end, ev.RunFailed):
        error = app.codec.decode_error(end.error)
        return type(error), str(error)
    return getattr(end, "reason", "")


if __name__ == "__main__":
    for each in NAMES:
        print(each, replay_all(each))
