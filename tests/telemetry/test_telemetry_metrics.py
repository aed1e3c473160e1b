"""Metrics, read by Prometheus's own parser."""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.app import SystemClock
from holdfast.ports import Change, LimitRow, NewAttempt, NewRun, Record, WorkerRow
from holdfast.stores.sqlite import SqliteStore
from holdfast.telemetry import (
    ClaimReport,
    CommitReport,
    Instruments,
    MessageReport,
    RunReport,
    StepReport,
    WorkerReport,
)
from holdfast.telemetry.instruments import HOOKS
from holdfast.telemetry.metrics import MAX_SERIES, SECONDS, Metrics
from holdfast.views.gauges import add_store_gauges, metrics_of, store_gauges


def values(metrics: Metrics) -> dict[str, float]:
    """Each value by its name and labels."""
    found = {}
    for family in text_string_to_metric_families(metrics.render()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def step(**fields: object) -> StepReport:
    return StepReport(id="s", run_id="r", name="charge", **fields)  # type: ignore[arg-type]


def run(**fields: object) -> RunReport:
    return RunReport(id="r", workflow="fulfil", **fields)  # type: ignore[arg-type]


def test_runs_and_steps_are_counted_by_what_became_of_them() -> None:
    metrics = Metrics()
    metrics.run_started(run(waited=0.2))
    metrics.run_finished(run(status="SUCCESS", seconds=30))
    metrics.run_held(run(status="STUCK"))
    metrics.run_retrying(run())
    metrics.step_scheduled(step())
    metrics.step_started(step(waited=0.003, queue="gpu"))
    metrics.step_retrying(step(seconds=0.5))
    metrics.step_finished(step(state="SUCCESS", seconds=0.01))
    metrics.step_finished(step(state="FAILURE"))
    found = values(metrics)
    assert {name: found[name] for name in found if "_total" in name} == {
        "holdfast_runs_started_total{workflow=fulfil}": 1,
        "holdfast_runs_finished_total{status=SUCCESS,workflow=fulfil}": 1,
        "holdfast_runs_held_total{status=STUCK,workflow=fulfil}": 1,
        "holdfast_runs_retried_total{workflow=fulfil}": 1,
        "holdfast_steps_scheduled_total{step=charge}": 1,
        "holdfast_steps_started_total{step=charge}": 1,
        "holdfast_steps_retried_total{step=charge}": 1,
        "holdfast_steps_finished_total{state=SUCCESS,step=charge}": 1,
        "holdfast_steps_finished_total{state=FAILURE,step=charge}": 1,
    }
    assert found["holdfast_step_seconds_count{step=charge}"] == 2
    assert found["holdfast_step_seconds_sum{step=charge}"] == 0.51
    assert found["holdfast_step_wait_seconds_sum{queue=gpu}"] == 0.003
    assert found["holdfast_run_seconds_sum{workflow=fulfil}"] == 30
    assert found["holdfast_run_wait_seconds_count{workflow=fulfil}"] == 1


def test_a_histogram_counts_what_is_at_most_its_bound() -> None:
    metrics = Metrics()
    for seconds in (0.0, 0.0005, 0.0006, 1000.0):
        metrics.committed(CommitReport(events=5, seconds=seconds))
    found = values(metrics)
    assert found["holdfast_commit_seconds_bucket{le=0.0005}"] == 2
    assert found["holdfast_commit_seconds_bucket{le=0.001}"] == 3
    assert found[f"holdfast_commit_seconds_bucket{{le={int(SECONDS[-1])}}}"] == 3
    assert found["holdfast_commit_seconds_bucket{le=+Inf}"] == 4
    assert found["holdfast_commit_events_sum"] == 20


def test_claims_and_messages_are_counted() -> None:
    metrics = Metrics()
    metrics.claimed(ClaimReport(count=7))
    metrics.claimed(ClaimReport(count=2, queue="gpu"))
    metrics.message_received(MessageReport(run_id="r", kind="hook", waited=0.1))
    found = values(metrics)
    assert found["holdfast_claimed_total{queue=}"] == 7
    assert found["holdfast_claimed_total{queue=gpu}"] == 2
    assert found["holdfast_messages_total{kind=hook}"] == 1
    assert found["holdfast_message_wait_seconds_sum"] == 0.1


def test_what_workers_have_under_way_is_shown_until_they_stop() -> None:
    metrics = Metrics()
    metrics.worker_started(WorkerReport(id="w1"))
    metrics.worker_beat(WorkerReport(id="w1", live=3, parked=4, steps=5, inbox=6))
    found = values(metrics)
    assert [found[f"holdfast_{name}{{worker=w1}}"] for name in ("runs_live", "steps_running")] == [3, 5]
    metrics.worker_stopped(WorkerReport(id="w1"))
    assert values(metrics) == {}


def test_a_gauge_is_asked_when_somebody_looks() -> None:
    metrics = Metrics()
    depth = {("gpu",): 1.0}
    metrics.gauge("holdfast_queue_depth", "Attempts that wait.", ["queue"], lambda: depth)
    assert values(metrics) == {"holdfast_queue_depth{queue=gpu}": 1}
    depth["cpu",] = 2.5
    assert values(metrics)["holdfast_queue_depth{queue=cpu}"] == 2.5


def test_a_gauge_that_can_not_be_read_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.gauge("broken", "x", [], lambda: {("too", "many"): 1.0})
    metrics.claimed(ClaimReport(count=1))
    with caplog.at_level(logging.ERROR, "holdfast.telemetry"):
        assert list(values(metrics)) == ["holdfast_claimed_total{queue=}"]
    assert "the gauge broken can't be read" in caplog.text


def test_names_are_escaped() -> None:
    metrics = Metrics()
    name = 'a"b\\c\nd'
    metrics.run_started(RunReport(id="r", workflow=name))
    assert f"holdfast_runs_started_total{{workflow={name}}}" in values(metrics)


def test_the_number_of_series_is_bounded() -> None:
    metrics = Metrics()
    for n in range(MAX_SERIES + 10):
        metrics.step_started(StepReport(id="s", run_id="r", name=f"step{n}"))
    found = values(metrics)
    assert found["holdfast_steps_started_total{step=other}"] == 10
    assert len(found) == MAX_SERIES + 1


def test_threads_count_together() -> None:
    metrics = Metrics()
    threads = [
        threading.Thread(target=lambda: [metrics.step_started(step()) for _ in range(2000)])  # type: ignore[func-returns-value]
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(metrics)["holdfast_steps_started_total{step=charge}"] == 8000


def test_metrics_hear_of_all_that_they_measure() -> None:
    instruments = Instruments(Metrics())
    deaf = {hook for hook in HOOKS if getattr(instruments, hook) is None}
    assert deaf == {
        "run_submitted", "run_parked", "run_resumed", "step_received", "step_entered", "step_progressed", "message_sent"
    }  # fmt: skip


def test_metrics_that_listen_already_are_not_doubled() -> None:
    mine = Metrics()
    instruments = Instruments(mine)
    assert metrics_of(instruments) is mine
    assert metrics_of(fresh := Instruments()) in fresh


# -- the dashboard

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "holdfast.json").read_text())


def exercised() -> Metrics:
    """Metrics that have heard everything once."""
    metrics = Metrics()
    metrics.run_started(run(waited=1.0))
    metrics.run_retrying(run())
    metrics.run_held(run(status="STUCK"))
    metrics.run_finished(run(status="FAILURE", seconds=1.0))
    metrics.step_scheduled(step())
    metrics.step_started(step(waited=1.0, queue="gpu"))
    metrics.step_retrying(step(seconds=1.0))
    metrics.step_finished(step(state="SUCCESS"))
    metrics.committed(CommitReport(events=1, seconds=1.0))
    metrics.claimed(ClaimReport(count=1))
    metrics.message_received(MessageReport(run_id="r", kind="hook", waited=1.0))
    metrics.worker_started(WorkerReport(id="w"))
    add_store_gauges(metrics, busy_store())
    return metrics


def busy_store() -> SqliteStore:
    """A store with an attempt in a queue, which its engine has just asked for, and a limit that nobody needs."""
    store = SqliteStore("orders", ":memory:", SystemClock())
    now = store.now()
    store.register(WorkerRow(id="w", app="orders", host="h", pid=1, build="1", names=["ship"]), 10_000_000)
    record = Record(1, "RunStarted", "", "", 0, 1, "", now, b"{}")
    store.create(NewRun(id="r", workflow="ship", records=[record], wake_at=now, created_at=now, fingerprint=b"f"))
    (claimed,) = store.commit("w", [], 1, ["ship"]).claimed
    asked = NewAttempt(token="t", cmd="1s0", step="paint", number=1, queue="gpu", due=now, body=b"{}")
    store.commit("w", [Change(no=claimed.row.no, attempts=[asked])], 0, ["ship"])
    store.declare_limits([LimitRow(name="bank", concurrency=3)])
    return store


def test_what_a_store_holds_is_told() -> None:
    gauges = store_gauges(busy_store())
    found = {
        f"{s.name} {' '.join(s.labels.values())}".strip(): s.value
        for family in text_string_to_metric_families(gauges.render())
        for s in family.samples
    }
    assert (found["holdfast_queue_waiting gpu"], found["holdfast_queue_claimed gpu"]) == (1, 0)
    assert found["holdfast_queue_wait_seconds gpu"] >= 0
    assert (found["holdfast_limit_used bank"], found["holdfast_limit_waiting bank"]) == (0, 0)
    assert (found["holdfast_runs RUNNING"], found["holdfast_workers"], found["holdfast_runs_due"]) == (1, 1, 0)


def test_the_dashboard_shows_every_metric_and_none_that_does_not_exist() -> None:
    samples = {
        (sample.name, frozenset(sample.labels))
        for family in text_string_to_metric_families(exercised().render())
        for sample in family.samples
    }
    exprs = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    used = {name for expr in exprs for name in re.findall(r"holdfast_\w+", expr)}
    assert used <= {name for name, _ in samples}
    assert {base(name) for name in used} == {base(name) for name, _ in samples}


def test_the_dashboard_groups_by_labels_that_exist() -> None:
    labels = {name: set(sample_labels) for name, sample_labels in label_names().items()}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            (name,) = set(re.findall(r"holdfast_\w+?(?=_sum|_count|\W)", target["expr"]))
            known = labels[base(name)]
            for group in re.findall(r"by \(([^)]*)\)", target["expr"]):
                assert set(group.split(", ")) <= known, target["expr"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known, target["expr"]


def base(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


def label_names() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exercised().render()):
        for sample in family.samples:
            found.setdefault(base(sample.name), set()).update(sample.labels)
    return found


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
