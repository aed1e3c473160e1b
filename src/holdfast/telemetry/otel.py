"""OpenTelemetry spans as an instrument: one trace per process of runs, with a span for each run and each attempt of a
step.

The ids of traces and spans follow from the ids of runs and steps. So every process that takes part in a run, days
apart and after any crash, adds to the same trace without having been told of it; and a span is made when its run or
attempt ends, by whoever sees the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from holdfast.telemetry.instruments import TRACEPARENT, Instrument, RunReport, StepReport

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, attach
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        TracerProvider,
        set_span_in_context,
    )
except ImportError as error:
    raise ImportError("holdfast.telemetry.otel needs OpenTelemetry: pip install opentelemetry-sdk") from error


class OpenTelemetryInstrument(Instrument):
    """Makes a span of each run and each attempt of a step when it ends, with the tracer provider given or the global
    one. A run that was started with a `traceparent`, or within a span, goes on in that trace. Spans that are made while a
    step executes lie within that of its attempt.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._provider = tracer_provider
        self._tracer: trace.Tracer | None = None
        self._ids = _Ids()
        self._lock = threading.Lock()

    def run_finished(self, run: RunReport) -> None:
        """Make the run's span."""
        attributes = {
            "holdfast.run.id": run.id, "holdfast.workflow": run.workflow, "holdfast.run.status": run.status,
            "holdfast.attempt": run.attempt, "holdfast.worker": run.worker, "holdfast.parent.id": run.parent_id,
        }  # fmt: skip
        parent = self._parent_of_run(run)
        self._span(run.workflow, parent, _trace_id(run), run_span_id(run.id), run, attributes, run.status)

    def step_entered(self, step: StepReport) -> None:
        """Let spans that the step makes lie within that of its attempt."""
        attach(self.context_of(step))

    def current_trace(self) -> str | None:
        """The current span, which a run that is started now goes on from."""
        current = trace.get_current_span().get_span_context()
        if not current.is_valid:
            return None
        return f"00-{current.trace_id:032x}-{current.span_id:016x}-{int(current.trace_flags):02x}"

    def step_retrying(self, step: StepReport) -> None:
        """Make the span of an attempt that failed."""
        self._attempt(step, "RETRY")

    def step_finished(self, step: StepReport) -> None:
        """Make the span of the last attempt."""
        self._attempt(step, step.state)

    def _attempt(self, step: StepReport, state: str) -> None:
        attributes = {
            "holdfast.run.id": step.run_id, "holdfast.workflow": step.workflow or None, "holdfast.step": step.name,
            "holdfast.step.id": step.id, "holdfast.step.state": state, "holdfast.attempt": step.attempt,
            "holdfast.queue": step.queue, "holdfast.worker": step.worker, "holdfast.wait_seconds": step.waited,
            "holdfast.retry_delay_seconds": step.delay,
        }  # fmt: skip
        trace_id = _trace_id(step)
        parent = self._context(trace_id, run_span_id(step.run_id), step.trace)
        self._span(step.name, parent, trace_id, step_span_id(step.id, step.attempt), step, attributes, state)

    def _span(
        self,
        name: str,
        parent: Context,
        trace_id: int,
        span_id: int,
        report: RunReport | StepReport,
        attributes: dict[str, Any],
        state: str,
    ) -> None:
        end = time.time_ns()
        known = {key: value for key, value in attributes.items() if value is not None}
        with self._ids.next_are(trace_id, span_id):
            span = self._get_tracer().start_span(
                name, parent, SpanKind.INTERNAL, known, start_time=end - round((report.seconds or 0) * 1e9)
            )
        if state == "SUCCESS":
            span.set_status(Status(StatusCode.OK))
        elif state in ("FAILURE", "RETRY"):
            span.set_status(Status(StatusCode.ERROR, report.error or state))
        span.end(end)

    def _get_tracer(self) -> trace.Tracer:
        """Asked for when it is first needed: a program may set its provider after it has made its app."""
        with self._lock:
            if self._tracer is None:
                self._provider = self._provider or trace.get_tracer_provider()
                self._tracer = self._provider.get_tracer("holdfast")
                if hasattr(self._tracer, "id_generator"):  # the SDK's; whatever else there is records nothing
                    self._ids.others = self._tracer.id_generator
                    self._tracer.id_generator = self._ids
            return self._tracer

    # -- where spans hang

    def context_of(self, step: StepReport) -> Context:
        """A context in which the attempt's span is the current one."""
        return self._context(_trace_id(step), step_span_id(step.id, step.attempt), step.trace)

    def traceparent_of(self, run: RunReport) -> str:
        """The run's span as a `traceparent`, for what is asked of others in its name."""
        trace_id = _trace_id(run)
        flags = self._flags(trace_id, run.trace)
        return f"00-{trace_id:032x}-{run_span_id(run.id):016x}-{flags:02x}"

    def _parent_of_run(self, run: RunReport) -> Context:
        incoming = _read(run.trace)
        if run.parent_id is not None:
            return self._context(_trace_id(run), run_span_id(run.parent_id), run.trace)
        return Context() if incoming is None else self._context(incoming[0], incoming[1], run.trace)

    def _context(self, trace_id: int, span_id: int, traceparent: str | None) -> Context:
        flags = TraceFlags(self._flags(trace_id, traceparent))
        span = NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags))
        return set_span_in_context(span, Context())

    def _flags(self, trace_id: int, traceparent: str | None) -> int:
        """Whether the trace is sampled: as who began it has decided, else as our own sampler does, by the trace's id,
        in every process alike."""
        if (incoming := _read(traceparent)) is not None:
            return incoming[2] & TraceFlags.SAMPLED
        self._get_tracer()
        sampler = getattr(self._provider, "sampler", None)
        if sampler is None or sampler.should_sample(None, trace_id, "holdfast").decision.is_sampled():
            return TraceFlags.SAMPLED
        return TraceFlags.DEFAULT


class _Ids:
    """Gives a tracer the ids that are meant for its next span, and others to whoever else asks."""

    def __init__(self) -> None:
        self.others: Any = None
        self._next = threading.local()

    @contextlib.contextmanager
    def next_are(self, trace_id: int, span_id: int) -> Iterator[None]:
        self._next.ids = (trace_id, span_id)
        try:
            yield
        finally:
            self._next.ids = None

    def generate_trace_id(self) -> int:
        ids = getattr(self._next, "ids", None)
        return int(ids[0] if ids else self.others.generate_trace_id())

    def generate_span_id(self) -> int:
        ids = getattr(self._next, "ids", None)
        return int(ids[1] if ids else self.others.generate_span_id())

    def is_trace_id_random(self) -> bool:
        return False


def _trace_id(report: RunReport | StepReport) -> int:
    """That of the `traceparent`, else it follows from the id of the run that all began with."""
    if (incoming := _read(report.trace)) is not None:
        return incoming[0]
    run_id = report.run_id if isinstance(report, StepReport) else report.id
    return _derived(16, "trace", report.root_id or run_id)


def run_span_id(run_id: str) -> int:
    """The id of the span of a run."""
    return _derived(8, "run", run_id)


def step_span_id(step_id: str, attempt: int) -> int:
    """The id of the span of an attempt."""
    return _derived(8, "step", step_id, str(attempt))


def _derived(size: int, *parts: str) -> int:
    digest = hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=size).digest()
    return int.from_bytes(digest) or 1  # 0 is no id


def _read(traceparent: str | None) -> tuple[int, int, int] | None:
    """Trace, span and flags of a `traceparent`; None if it is none."""
    found = TRACEPARENT.fullmatch(traceparent or "")
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return trace_id, span_id, flags
