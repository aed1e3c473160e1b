"""What keeps runs from going on, from what was read."""

from __future__ import annotations

from typing import Any

from view_histories import SECOND, T0, numbered, row_of, worker

from holdfast.core import events as ev
from holdfast.ports import QueueRow, RunRow, ScheduleRow, Status
from holdfast.views.findings import Finding, Snapshot, findings_of

NOW = T0 + 60 * SECOND


def run(id: str, **fields: Any) -> RunRow:
    history = numbered(ev.RunStarted(ts=T0, workflow="buy"))
    return row_of(history, **{"id": id, "status": Status.PENDING, "owner": None, "wake_at": T0, **fields})


def bad(**seen: Any) -> list[Finding]:
    return [finding for finding in findings_of(Snapshot(now=NOW, **seen)) if finding.level == "bad"]


def test_nothing_is_wrong_where_a_worker_knows_what_waits() -> None:
    waiting = run("r1", status=Status.WAITING, wake_at=None)
    assert bad(workers=[worker(names=("buy",))], unfinished=[waiting]) == []


def test_without_a_worker_nothing_goes_on() -> None:
    first, second = bad(workers=[worker(lease_until=NOW - 1)], unfinished=[run("r1")])
    assert (first.check, first.command) == ("workers", ("worker",))
    assert second.text == "1 unfinished, and nobody to go on with them"


def test_runs_that_are_stuck_for_one_reason_are_told_together() -> None:
    stuck = [run(f"r{i}", status=Status.STUCK, reason="code diverged") for i in range(12)]
    (found,) = bad(workers=[worker(names=("buy",))], stuck=stuck)
    assert found.text == "12 runs are stuck: code diverged"
    assert found.command == ("runs", "resume", "r0")
    assert list(found.items)[-1] == "and 2 more"


def test_a_workflow_that_no_worker_knows_is_told_with_what_the_code_here_knows() -> None:
    unfinished = [run("r1")]
    (found,) = bad(workers=[worker(names=("sell",))], unfinished=unfinished)
    assert (found.text, found.remedy) == (
        "no live worker knows 'buy', which 1 run needs", "start a worker whose code defines it",
    )  # fmt: skip
    (found,) = bad(workers=[worker(names=("sell",))], unfinished=unfinished, defines=["buy"])
    assert found.remedy == "the code here defines it: restart the workers"


def test_what_is_due_and_not_claimed_is_told_after_a_while() -> None:
    (found,) = bad(workers=[worker(names=("buy",))], unfinished=[run("r1"), run("r2", wake_at=NOW)])
    assert found.text == "1 due and not claimed, the oldest for 1m00s"


def test_a_schedule_that_no_worker_serves_is_told() -> None:
    schedule = ScheduleRow(name="nightly", workflow="report", spec=b"{}", next_at=T0)
    (found,) = bad(workers=[worker(names=("buy",))], schedules=[schedule])
    assert "schedule 'nightly' is due for 1m00s" in found.text


def test_builds_that_differ_are_noted() -> None:
    seen = Snapshot(now=NOW, workers=[worker(names=("buy",))], build="c")
    assert [finding.text for finding in findings_of(seen) if finding.level == "note"] == [
        "the code here is build c, which no worker runs"
    ]


def test_a_queue_that_no_worker_serves_is_told_with_the_command_that_starts_one() -> None:
    engine, executor = worker(names=("buy",)), worker("x1", names=())
    executor.kind, executor.queues, executor.steps = "executor", ["gpu"], ["train"]
    queues = [
        QueueRow(queue="", waiting=1, since=T0, claimed=0), QueueRow(queue="gpu", waiting=9, since=T0, claimed=2),
        QueueRow(queue="mail", waiting=2, since=T0, claimed=0), QueueRow(queue="ftp", waiting=0, since=None, claimed=1),
    ]  # fmt: skip
    first, second = bad(workers=[engine, executor], queues=queues)
    assert first.text == "no worker serves queue 'default': 1 step waits, the first for 1m00s"
    assert second.text == "no worker serves queue 'mail': 2 steps wait, the first for 1m00s"
    assert second.command == ("worker", "--executor-only", "--queues", "mail")


def test_steps_that_wait_for_long_in_a_queue_that_is_served_are_noted() -> None:
    executor = worker("x1", names=())
    executor.kind, executor.queues = "executor", ["gpu", "mail", "ftp"]
    early = NOW - 301_000_000
    queues = [
        QueueRow(queue="ftp", waiting=1, since=NOW - 299_000_000, claimed=0),
        QueueRow(queue="gpu", waiting=1, since=early, claimed=0),
        QueueRow(queue="mail", waiting=7, since=early, claimed=2),
    ]
    seen = Snapshot(now=NOW, workers=[worker(names=("buy",)), executor], queues=queues)
    idle, busy = [finding for finding in findings_of(seen) if finding.check == "queues"]
    assert (idle.level, busy.level) == ("note", "note"), "it may be what they can do"
    assert idle.text == "1 step waits in queue 'gpu', the first for 5m01s; serving it: 1 worker"
    assert "execute none" in idle.remedy
    assert busy.text.startswith("7 steps wait in queue 'mail', the first for 5m01s")
    assert "execute 2" in busy.remedy


def test_engines_and_executors_are_told_apart() -> None:
    executor = worker("x1", names=())
    executor.kind, executor.queues = "executor", ["gpu", ""]
    (alive, *_) = findings_of(Snapshot(now=NOW, workers=[worker(names=("buy",)), executor]))
    assert alive.text == "1 engine and 1 executor alive"
    assert [item.rpartition(", ")[2] for item in alive.items] == ["knows buy", "default"]
    assert "executes steps of: gpu, default" in alive.items[1]
    (nobody,) = bad(workers=[executor])
    assert nobody.text == "no engine is alive, so no run goes on; alive: 1 executor"
