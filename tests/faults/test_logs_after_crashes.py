"""What is logged and what is kept, whatever happens to the workers."""

from __future__ import annotations

import json
from typing import Any

import effects
from world import World


def said(world: World) -> list[dict[str, Any]]:
    """What workers have logged in the app's name, over all of their processes."""
    lines = [json.loads(line) for line in world.log().splitlines()]
    return [line for line in lines if line["logger"] == "effects"]


def test_after_a_kill_a_workflow_is_heard_from_where_it_was(world: World) -> None:
    run = effects.talks.options(id="t1").start("one", "two")

    def executions(gate: str) -> int:
        return sum(entry.note == gate for entry in world.ledger("wait_at_gate"))

    worker = world.worker(HOLDFAST_LOG_FORMAT="json")
    for gate in ("one", "two"):
        world.until(lambda gate=gate: executions(gate) == 1, what=f"gate {gate}")
        world.kill(worker)
        worker = world.worker(HOLDFAST_LOG_FORMAT="json")
        world.until(lambda gate=gate: executions(gate) == 2, what=f"gate {gate} again")
        world.open_gate(gate)
    run.result(timeout=20)
    of_workflow = [line for line in said(world) if "step" not in line]
    assert [line["message"] for line in of_workflow] == ["begin", "after gate one", "after gate two"]
    assert {(line["run_id"], line["workflow"], line["attempt"]) for line in of_workflow} == {("t1", "talks", 1)}
    of_steps = [line["message"] for line in said(world) if line.get("step") == "wait_at_gate"]
    assert of_steps == ["at gate one", "at gate one", "at gate two", "at gate two"]
    assert [[line.message for line in kept.lines] for kept in run.logs()] == [["at gate one"], ["at gate two"]]
