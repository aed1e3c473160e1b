"""Metrics as an instrument: counters, gauges and histograms, as text that Prometheus reads. Needs no library.

Labels are names of workflows, steps, queues and workers, never ids: each set of labels is kept for good, and there are
at most MAX_SERIES of one metric. What comes on top is counted under `other`.
"""

from __future__ import annotations

import bisect
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from holdfast.telemetry.instruments import (
    ClaimReport,
    CommitReport,
    Instrument,
    MessageReport,
    RunReport,
    StepReport,
    WorkerReport,
)

logger = logging.getLogger("holdfast.telemetry")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""What to serve the text as."""
MAX_SERIES = 1000
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
LONG_SECONDS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0, 604800.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0)
BYTES = (100.0, 1e3, 1e4, 1e5, 1e6, 1e7)
Labels: TypeAlias = tuple[str, ...]
Readings: TypeAlias = Mapping[Labels, float]
"""The values of a gauge, by the values of its labels."""


class Metric:
    """Values by labels, of one name."""

    kind = ""

    def __init__(self, name: str, help: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escape_help(self.help)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self.samples()

    def samples(self) -> Iterator[str]:
        """One line per value, in the order of labels."""
        raise NotImplementedError

    def _line(self, values: Labels, number: float, suffix: str = "", more: str = "") -> str:
        named = [f'{name}="{_escape(value)}"' for name, value in zip(self.labels, values, strict=True)]
        inside = ",".join([*named, more] if more else named)
        braces = f"{{{inside}}}" if inside else ""
        return f"{self.name}{suffix}{braces} {_number(number)}"


class Counter(Metric):
    """What only goes up."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels)
        self._values: dict[Labels, float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        values = _known(self._values, values)
        self._values[values] = self._values.get(values, 0) + by

    def samples(self) -> Iterator[str]:
        return (self._line(values, number) for values, number in sorted(self._values.items()))


class Histogram(Metric):
    """How numbers are spread, by buckets."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels)
        self._bounds = bounds
        self._series: dict[Labels, tuple[list[int], list[float]]] = {}  # counts per bucket; the sum

    def observe(self, number: float | None, *values: str) -> None:
        if number is None:
            return
        values = _known(self._series, values)
        if values not in self._series:
            self._series[values] = ([0] * (len(self._bounds) + 1), [0.0])
        buckets, total = self._series[values]
        buckets[bisect.bisect_left(self._bounds, number)] += 1
        total[0] += number

    def samples(self) -> Iterator[str]:
        for values, (buckets, total) in sorted(self._series.items()):
            count = 0
            for bound, within in zip((*map(_number, self._bounds), "+Inf"), buckets, strict=True):
                count += within
                yield self._line(values, count, "_bucket", f'le="{bound}"')
            yield self._line(values, total[0], "_sum")
            yield self._line(values, count, "_count")


class Gauge(Metric):
    """Values that are asked for when somebody looks."""

    kind = "gauge"

    def __init__(self, name: str, help: str, labels: Sequence[str], read: Callable[[], Readings]) -> None:
        super().__init__(name, help, labels)
        self._read = read

    def samples(self) -> Iterator[str]:
        return (self._line(values, number) for values, number in sorted(self._read().items())[:MAX_SERIES])


def _known(series: Mapping[Labels, object], values: Labels) -> Labels:
    return values if values in series or len(series) < MAX_SERIES else ("other",) * len(values)


def _number(number: float) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 2**53 else repr(float(number))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


WORKER_GAUGES = {
    "live": ("holdfast_runs_live", "Runs in memory."),
    "steps": ("holdfast_steps_running", "Attempts of steps under way."),
}


class Gauges:
    """Values that are asked for when somebody looks. `render()` is the text for Prometheus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: list[Metric] = []
        self._gauges: list[Gauge] = []

    def gauge(self, name: str, help: str, labels: Sequence[str], read: Callable[[], Readings]) -> None:
        """Add a gauge whose values are asked for when somebody looks, by the values of its labels:
        `{("gpu",): 3.0}` for `labels=["queue"]`."""
        with self._lock:
            self._gauges.append(Gauge(name, help, labels, read))

    def render(self) -> str:
        """All metrics, in Prometheus's text format. A gauge that can't be read is left out, and logged."""
        with self._lock:
            lines = [line for metric in self._metrics for line in metric.lines()]
            gauges = list(self._gauges)
        for gauge in gauges:  # they may ask a store, and nobody who works has to wait for that
            try:
                lines += list(gauge.lines())
            except Exception:
                logger.exception("the gauge %s can't be read", gauge.name)
        return "\n".join(lines) + "\n"


class Metrics(Gauges, Instrument):
    """Counts and measures what happens in this process. `render()` is the text for Prometheus."""

    def __init__(self) -> None:
        super().__init__()
        self._workers: dict[str, WorkerReport] = {}
        count, measure = self._counter, self._histogram
        self._runs_started = count("runs_started", "Runs, or attempts of runs, that began.", "workflow")
        self._runs_finished = count("runs_finished", "Runs that ended.", "workflow", "status")
        self._runs_retried = count("runs_retried", "Attempts of runs that failed, with another to follow.", "workflow")
        self._runs_held = count("runs_held", "Runs that were paused or set aside.", "workflow", "status")
        self._run_seconds = measure("run_seconds", "How long runs took, waits included.", LONG_SECONDS, "workflow")
        self._run_wait = measure("run_wait_seconds", "How long runs waited for a worker.", SECONDS, "workflow")
        self._steps_scheduled = count("steps_scheduled", "Steps that were handed over.", "step")
        self._steps_started = count("steps_started", "Attempts of steps that began.", "step")
        self._steps_finished = count("steps_finished", "Steps that ended.", "step", "state")
        self._steps_retried = count("steps_retried", "Attempts of steps that failed, with another to follow.", "step")
        self._step_seconds = measure("step_seconds", "How long attempts of steps took.", SECONDS, "step")
        self._step_wait = measure("step_wait_seconds", "How long attempts waited to begin.", SECONDS, "queue")
        self._commit_seconds = measure("commit_seconds", "How long commits took.", SECONDS)
        self._commit_events = measure("commit_events", "How many events commits held.", SIZES)
        self._commit_bytes = measure("commit_bytes", "How many bytes of events commits held.", BYTES)
        self._claimed = count("claimed", "Runs and attempts that workers claimed.", "queue")
        self._messages = count("messages", "Messages that runs received.", "kind")
        self._message_wait = measure("message_wait_seconds", "How long messages lay in inboxes.", SECONDS)
        for field, (name, help) in WORKER_GAUGES.items():
            self.gauge(name, help, ["worker"], functools.partial(self._reading, field))

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        counter = Counter(f"holdfast_{name}_total", help, labels)
        self._metrics.append(counter)
        return counter

    def _histogram(self, name: str, help: str, bounds: Sequence[float], *labels: str) -> Histogram:
        histogram = Histogram(f"holdfast_{name}", help, bounds, labels)
        self._metrics.append(histogram)
        return histogram

    def _reading(self, field: str) -> Readings:
        with self._lock:
            return {(worker.id,): getattr(worker, field) for worker in self._workers.values()}

    # -- what is heard

    def run_started(self, run: RunReport) -> None:
        with self._lock:
            self._runs_started.add(run.workflow)
            self._run_wait.observe(run.waited, run.workflow)

    def run_finished(self, run: RunReport) -> None:
        with self._lock:
            self._runs_finished.add(run.workflow, run.status)
            self._run_seconds.observe(run.seconds, run.workflow)

    def run_retrying(self, run: RunReport) -> None:
        with self._lock:
            self._runs_retried.add(run.workflow)

    def run_held(self, run: RunReport) -> None:
        with self._lock:
            self._runs_held.add(run.workflow, run.status)

    def step_scheduled(self, step: StepReport) -> None:
        with self._lock:
            self._steps_scheduled.add(step.name)

    def step_started(self, step: StepReport) -> None:
        with self._lock:
            self._steps_started.add(step.name)
            self._step_wait.observe(step.waited, step.queue or "")

    def step_retrying(self, step: StepReport) -> None:
        with self._lock:
            self._steps_retried.add(step.name)
            self._step_seconds.observe(step.seconds, step.name)

    def step_finished(self, step: StepReport) -> None:
        with self._lock:
            self._steps_finished.add(step.name, step.state)
            self._step_seconds.observe(step.seconds, step.name)

    def committed(self, commit: CommitReport) -> None:
        with self._lock:
            self._commit_seconds.observe(commit.seconds)
            self._commit_events.observe(commit.events)
            self._commit_bytes.observe(commit.size)

    def claimed(self, claim: ClaimReport) -> None:
        with self._lock:
            self._claimed.add(claim.queue or "", by=claim.count)

    def message_received(self, message: MessageReport) -> None:
        with self._lock:
            self._messages.add(message.kind)
            self._message_wait.observe(message.waited)

    def worker_started(self, worker: WorkerReport) -> None:
        with self._lock:
            self._workers[worker.id] = worker

    def worker_beat(self, worker: WorkerReport) -> None:
        with self._lock:
            self._workers[worker.id] = worker

    def worker_stopped(self, worker: WorkerReport) -> None:
        with self._lock:
            self._workers.pop(worker.id, None)
