"""One trace per run, whichever processes execute it, as the real SDK exports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import telemetry_traced
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from telemetry_traced import app, provider, tracer

from holdfast.errors import DefinitionError, WrongContextError
from holdfast.telemetry.otel import OpenTelemetryInstrument

HERE = Path(__file__).parent
PATIENCE = 20.0
INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(tmp_path: Path) -> Iterator[InMemorySpanExporter]:
    app.use_store(str(tmp_path / "traced.db"))
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert len(app.instruments) == 1
    yield exporter
    exporter.shutdown()
    assert len(app.instruments) == 1, "the instrument failed and was removed"
    app.close()


@contextmanager
def worker(folder: Path, name: str) -> Iterator[Path]:
    """A worker process, and the file of its spans."""
    file = folder / f"{name}.jsonl"
    environment = {
        **os.environ,
        "TRACED_STORE": str(folder / "traced.db"),
        "SPANS": str(file),
        "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, "-m", "holdfast", "-A", "telemetry_traced", "worker", "--log-level", "error"]
    process = subprocess.Popen(command, cwd=HERE, env=environment)
    try:
        yield file
    finally:
        process.terminate()
        process.wait(PATIENCE)


def read(*files: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len({span["context"]["span_id"] for span in found}) == len(found), "each span is made once"
    assert len({span["name"] for span in found}) == len(found)
    return {span["name"]: span for span in found}


def test_a_run_is_one_trace_over_all_processes_that_execute_it(tmp_path: Path, spans: InMemorySpanExporter) -> None:
    with tracer.start_as_current_span("request") as request:
        run = telemetry_traced.ship.start(7)
    context = request.get_span_context()
    with worker(tmp_path, "one") as one:
        watch = app.notifier.watch(run.id)
        while not any(event.kind == "HookOpened" for event in run.history()):
            watch.wait(0.05)
        watch.close()
    run.send("go on")
    with worker(tmp_path, "two") as two:
        label, trace_in_step = run.result(timeout=PATIENCE)
    assert label == "label 7"
    found = read(one, two)
    assert {"load", "query"} == set(read(one))
    assert {"render", "draw", "notify", "tell", "ship"} == set(read(two))
    assert {span["context"]["trace_id"] for span in found.values()} == {f"0x{context.trace_id:032x}"}
    assert trace_in_step == f"{context.trace_id:032x}"

    def parent(name: str) -> str:
        return str(found[name]["parent_id"])

    def id_of(name: str) -> str:
        return str(found[name]["context"]["span_id"])

    assert parent("ship") == f"0x{context.span_id:016x}", "the run goes on from what started it"
    assert parent("load") == parent("render") == parent("tell") == id_of("ship")
    assert parent("notify") == id_of("tell"), "a child run"
    assert parent("query") == id_of("load"), "what a step does lies within its attempt"
    assert parent("draw") == id_of("render"), "in a process of its own too"
    assert found["ship"]["attributes"]["holdfast.run.id"] == run.id


def test_an_incoming_traceparent_is_continued(spans: InMemorySpanExporter) -> None:
    with app.worker():
        run = telemetry_traced.tell.options(traceparent=INCOMING).start(1)
        assert run.result(timeout=PATIENCE) == INCOMING[3:35]
    found = {span.name: span for span in spans.get_finished_spans()}
    assert f"{found['tell'].context.trace_id:032x}" == INCOMING[3:35]
    assert found["tell"].parent is not None
    assert f"{found['tell'].parent.span_id:016x}" == INCOMING[36:52]


def test_a_run_that_nothing_led_to_begins_a_trace(spans: InMemorySpanExporter) -> None:
    with app.worker():
        telemetry_traced.load.start(1).result(timeout=PATIENCE)
    by_name = {(span.name, span.attributes.get("holdfast.step")): span for span in spans.get_finished_spans()}
    run, step = by_name["load", None], by_name["load", "load"]
    assert run.parent is None
    assert step.parent is not None
    assert step.parent.span_id == run.context.span_id


@pytest.mark.parametrize(
    "wrong", ["", "00-1-2-01", INCOMING.replace("0af7", "0AF7"), "00-" + "0" * 32 + INCOMING[35:], 7]
)
def test_what_is_no_traceparent_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="traceparent"):
        telemetry_traced.tell.options(traceparent=wrong)


def test_a_child_is_in_the_trace_of_its_parent_and_no_other(spans: InMemorySpanExporter) -> None:
    @app.workflow
    async def asks_for_another(order: int) -> str:
        return await telemetry_traced.tell.options(traceparent=INCOMING).submit(order)

    with app.worker(), pytest.raises(WrongContextError, match="traceparent"):
        asks_for_another.start(1).result(timeout=PATIENCE)


def test_without_a_current_span_there_is_no_trace_to_go_on_from() -> None:
    assert OpenTelemetryInstrument(provider).current_trace() is None
