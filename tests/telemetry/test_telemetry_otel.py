"""Spans, as the real SDK exports them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.telemetry import Instruments, RunReport, StepReport
from holdfast.telemetry.otel import OpenTelemetryInstrument

INCOMING = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = INCOMING[:-1] + "0"


class Process:
    """One process of many: an instrument and the spans that it has exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.instrument = OpenTelemetryInstrument(self.provider)
        self.instruments = Instruments(self.instrument)

    def finish_step(self, **fields: Any) -> ReadableSpan:
        tell = self.instruments.step_finished
        assert tell is not None
        tell(step(**fields))
        return self.spans()[-1]

    def finish_run(self, **fields: Any) -> ReadableSpan:
        tell = self.instruments.run_finished
        assert tell is not None
        tell(run(**fields))
        return self.spans()[-1]

    def spans(self) -> list[ReadableSpan]:
        assert len(self.instruments) == 1, "the instrument failed and was removed"
        return list(self.exporter.get_finished_spans())


def step(**fields: Any) -> StepReport:
    return StepReport(**({"id": "r/1", "run_id": "r", "name": "charge", "state": "SUCCESS"} | fields))


def run(**fields: Any) -> RunReport:
    return RunReport(**({"id": "r", "workflow": "fulfil", "status": "SUCCESS"} | fields))


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.provider.shutdown()


def test_a_run_and_its_steps_are_one_trace_although_every_process_only_knows_its_part() -> None:
    first = Process().finish_step()
    second = Process().finish_step(id="r/2", name="ship")
    whole = Process().finish_run()
    assert {span.context.trace_id for span in (first, second, whole)} == {whole.context.trace_id}
    assert whole.parent is None
    for span in (first, second):
        assert span.parent is not None
        assert span.parent.span_id == whole.context.span_id
    assert len({span.context.span_id for span in (first, second, whole)}) == 3


def test_other_runs_are_other_traces() -> None:
    one, other = Process().finish_run(), Process().finish_run(id="other")
    assert one.context.trace_id != other.context.trace_id


def test_a_child_run_lies_within_its_parent() -> None:
    parent = Process().finish_run()
    child = Process().finish_run(id="c", parent_id="r", root_id="r")
    grandchild = Process().finish_step(id="c/1", run_id="c", root_id="r")
    assert child.parent is not None
    assert grandchild.parent is not None
    assert child.parent.span_id == parent.context.span_id
    assert grandchild.parent.span_id == child.context.span_id
    assert {span.context.trace_id for span in (child, grandchild)} == {parent.context.trace_id}


def test_an_incoming_traceparent_is_continued() -> None:
    whole = Process().finish_run(trace=INCOMING)
    part = Process().finish_step(trace=INCOMING)
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == tuple(INCOMING.split("-")[1:3])
    assert part.parent is not None
    assert (part.context.trace_id, part.parent.span_id) == (whole.context.trace_id, whole.context.span_id)


@pytest.mark.parametrize(
    "junk", ["", "x", INCOMING[:-3], "00-" + "0" * 32 + "-b7ad6b7169203331-01", "ff" + INCOMING[2:]]
)
def test_a_traceparent_that_is_none_is_none(junk: str) -> None:
    assert Process().finish_run(trace=junk).context.trace_id == Process().finish_run().context.trace_id


def test_who_began_the_trace_says_whether_it_is_kept() -> None:
    process = Process()
    tell = process.instruments.step_finished
    assert tell is not None
    tell(step(trace=NOT_SAMPLED))
    assert process.spans() == []
    tell(step(trace=INCOMING))
    assert len(process.spans()) == 1


def test_a_sampler_keeps_all_of_a_run_or_nothing_in_every_process() -> None:
    kept = 0
    for n in range(60):
        counts = set()
        for _ in range(2):
            process = Process(ParentBased(TraceIdRatioBased(0.5)))
            for report in (step(run_id=f"r{n}"), step(run_id=f"r{n}", id="r/2")):
                process.instrument.step_finished(report)
            process.instrument.run_finished(run(id=f"r{n}"))
            counts.add(len(process.spans()))
        assert counts in ({0}, {3})
        kept += counts == {3}
    assert 10 < kept < 50


def test_a_span_says_what_it_is_about_and_how_long_it_took(process: Process) -> None:
    before = time.time_ns()
    span = process.finish_step(attempt=2, seconds=1.5, waited=0.25, queue="gpu", worker="w1", workflow="fulfil")
    assert span.name == "charge"
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 1_500_000_000
    assert before <= span.end_time <= time.time_ns()
    assert span.status.status_code is StatusCode.OK
    assert dict(span.attributes or {}) == {
        "holdfast.run.id": "r", "holdfast.workflow": "fulfil", "holdfast.step": "charge", "holdfast.step.id": "r/1",
        "holdfast.step.state": "SUCCESS", "holdfast.attempt": 2, "holdfast.queue": "gpu", "holdfast.worker": "w1",
        "holdfast.wait_seconds": 0.25,
    }  # fmt: skip


def test_each_attempt_has_a_span_and_failures_are_errors(process: Process) -> None:
    process.instrument.step_retrying(step(state="", error="ConnectionError: no answer", delay=2.0))
    process.instrument.step_finished(step(attempt=2, state="FAILURE", error="ConnectionError: still none"))
    first, second = process.spans()
    assert [span.status.description for span in (first, second)] == [
        "ConnectionError: no answer", "ConnectionError: still none",
    ]  # fmt: skip
    assert {span.status.status_code for span in (first, second)} == {StatusCode.ERROR}
    assert first.context.span_id != second.context.span_id
    assert (first.attributes or {})["holdfast.step.state"] == "RETRY"


def test_a_cancelled_run_is_neither_an_error_nor_a_success(process: Process) -> None:
    assert process.finish_run(status="CANCELLED").status.status_code is StatusCode.UNSET


def test_spans_that_are_made_while_a_step_executes_lie_within_its_attempt(process: Process) -> None:
    tracer = process.provider.get_tracer("the user's library")
    with tracer.start_as_current_span("GET /", context=process.instrument.context_of(step())):
        pass
    inner = process.spans()[0]
    outer = process.finish_step()
    assert inner.parent is not None
    assert (inner.parent.span_id, inner.context.trace_id) == (outer.context.span_id, outer.context.trace_id)


def test_the_users_own_spans_keep_ids_of_their_own(process: Process) -> None:
    whole = process.finish_run()
    with process.provider.get_tracer("holdfast").start_as_current_span("mine"):
        pass
    assert process.spans()[-1].context.trace_id != whole.context.trace_id


def test_a_run_hands_its_trace_on(process: Process) -> None:
    carried = TraceContextTextMapPropagator().extract({"traceparent": process.instrument.traceparent_of(run())})
    handed = trace.get_current_span(carried).get_span_context()
    whole = process.finish_run()
    assert (handed.trace_id, handed.span_id) == (whole.context.trace_id, whole.context.span_id)
    assert handed.trace_flags.sampled


PROGRAM = """
import json
from holdfast.telemetry.otel import OpenTelemetryInstrument
from holdfast.telemetry import RunReport
instrument = OpenTelemetryInstrument()
{}
instrument.run_finished(RunReport(id="r", workflow="fulfil", status="SUCCESS"))
print(json.dumps([f"{{span.context.trace_id:032x}}" for span in spans()]))
"""
WITH_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
spans = exporter.get_finished_spans
"""


@pytest.mark.parametrize(("setup", "spans"), [(WITH_PROVIDER, 1), ("spans = list", 0)])
def test_the_global_provider_is_used_if_there_is_one_even_if_it_is_set_later(setup: str, spans: int) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM.format(setup)], capture_output=True, text=True, check=True)
    assert len(json.loads(ran.stdout)) == spans


def test_without_opentelemetry_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None\nimport holdfast.telemetry.otel"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install opentelemetry-sdk" in ran.stderr
