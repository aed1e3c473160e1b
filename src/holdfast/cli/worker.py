"""`holdfast -A orders worker`."""

from __future__ import annotations

import concurrent.futures.thread
import datetime as dt
import faulthandler
import gc
import io
import json
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import click

from holdfast.app import App
from holdfast.cli.endpoint import HealthEndpoint
from holdfast.cli.failures import OK, UNREACHABLE
from holdfast.cli.target import open_target
from holdfast.core.definitions import DEFAULT_QUEUE
from holdfast.engine.host import Host
from holdfast.engine.puller import Puller
from holdfast.logs import OUTSIDE, RunFields
from holdfast.views.gauges import add_store_gauges, metrics_of

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, with everything that was said beside the message: run, step, attempt."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _OWN_FIELDS and key not in line}
        for key, nothing in OUTSIDE.items():
            if line.get(key) == nothing:
                del line[key]
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:  # made in a process for steps
            line["traceback"] = record.exc_text
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """A record as people read it, with the run and the step it was made in."""

    def format(self, record: logging.LogRecord) -> str:
        step = f" step {record.step}" if record.step else ""  # type: ignore[attr-defined]
        attempt = f" attempt {record.attempt}" if record.attempt not in (0, 1) else ""  # type: ignore[attr-defined]
        record.where = f"[{record.run_id}{step}{attempt}] " if record.run_id else ""  # type: ignore[attr-defined]
        return super().format(record)


def set_up_logging(level: str, format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RunFields())
    text = TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(where)s%(message)s")
    handler.setFormatter(JsonFormatter() if format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


FROZEN = 30.0
"""Seconds of computing without any of Python running after which a worker ends itself: three leases."""


def end_if_frozen() -> None:
    """Native code that computes without letting go of the interpreter keeps all of Python from running, the watchdog too.
    Others have taken the runs over by then, and nobody but the kernel can end this process: by a timer of its computing
    time, that a thread sets again and again. A process that is stopped, or waits for its store, computes nothing. Where
    it hangs is printed."""
    faulthandler.register(signal.SIGVTALRM, chain=True)

    def set_again() -> None:
        while True:
            signal.setitimer(signal.ITIMER_VIRTUAL, FROZEN)
            time.sleep(FROZEN / 10)

    threading.Thread(target=set_again, name="holdfast-alive", daemon=True).start()


class Stopping:
    """What signals do: the first one drains, the second one ends the process whatever it does. SIGHUP only drains: it
    says that a terminal is gone, and often comes beside another signal.

    They are read by a thread, as the main one may be busy in native code: a database that somebody else has locked.
    """

    AT_ONCE = 1.0  # seconds to hand runs over in good order; without that the next worker takes them for lost

    def __init__(self, hosts: list[Host], grace: float) -> None:
        self._hosts = hosts
        self._grace = grace
        self._count = 0
        self._arrived, self._arriving = os.pipe()

    @property
    def asked(self) -> bool:
        """Whether a signal has come that ends the process."""
        return self._count > 0

    def listen(self) -> None:
        os.set_blocking(self._arriving, False)
        signal.set_wakeup_fd(self._arriving, warn_on_full_buffer=False)
        for each in _SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup does
                signal.signal(each, lambda number, frame: None)
        threading.Thread(target=self._read, name="holdfast-signals", daemon=True).start()

    def _read(self) -> None:
        while numbers := os.read(self._arrived, 1):
            if numbers[0] in _SIGNALS:
                self._stop(numbers[0])

    def _stop(self, number: int) -> None:
        if number != signal.SIGHUP:
            self._count += 1
        if self._count <= 1:
            self._stop_all(self._grace)
        elif self._count == 2:
            self._stop_all(0)
            _end_within(self.AT_ONCE, 128 + number)
            # The same by the kernel, where native code keeps all threads of Python from running.
            signal.setitimer(signal.ITIMER_REAL, 2 * self.AT_ONCE)

    def _stop_all(self, grace: float) -> None:
        for host in self._hosts:
            host.stop(grace)

    def is_over(self, code: int) -> None:
        """All is done. Python would wait for threads that steps have left behind, however long they take."""
        signal.set_wakeup_fd(-1)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if _awaited_threads():
            _end_within(self.AT_ONCE, code)


def _awaited_threads() -> list[threading.Thread]:
    """The threads that Python waits for when it ends: those of thread pools too, though they may be daemons."""
    pooled = getattr(concurrent.futures.thread, "_threads_queues", {})
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    return [thread for thread in others if thread in pooled or not thread.daemon]


def _end_within(seconds: float, code: int) -> None:
    def end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=end, name="holdfast-end", daemon=True).start()


def prepare_process() -> None:
    """For an engine, in a process of our own."""
    # One CPU-bound step must not hold up the engine's commits.
    sys.setswitchinterval(0.0005)
    # Runs in memory are many small objects that live long: looking at all of them often costs a fifth of the speed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@click.command()
@click.option(
    "--queues", metavar="NAME,...", default=DEFAULT_QUEUE, show_default=True, envvar="HOLDFAST_QUEUES",
    help="The queues whose steps are executed here: 'default' has those that name none. Steps of other queues are left to "
    "other workers.",
)  # fmt: skip
@click.option(
    "--executor-only", is_flag=True, envvar="HOLDFAST_EXECUTOR_ONLY",
    help="Run no engine: only execute steps of these queues for engines elsewhere.",
)  # fmt: skip
@click.option(
    "--engine-only", is_flag=True, envvar="HOLDFAST_ENGINE_ONLY",
    help="Execute no steps, but those with force_local: leave all to workers with --executor-only.",
)  # fmt: skip
@click.option(
    "--concurrency", default=16, show_default=True, type=click.IntRange(1), envvar="HOLDFAST_CONCURRENCY",
    help="Threads for steps made from plain functions. Of the queues that have names, so many steps of any kind at a time.",
)  # fmt: skip
@click.option(
    "--processes", type=click.IntRange(1), envvar="HOLDFAST_PROCESSES",
    help="Processes for steps with pool='process'.  [default: cores]",
)  # fmt: skip
@click.option(
    "--grace", default=10.0, show_default=True, type=click.FloatRange(0), envvar="HOLDFAST_GRACE",
    help="Seconds that steps may take to end on shutdown.",
)  # fmt: skip
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="HOLDFAST_LOG_LEVEL",
)  # fmt: skip
@click.option(
    "--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]),
    envvar="HOLDFAST_LOG_FORMAT",
)  # fmt: skip
@click.option(
    "--health", metavar="[ADDRESS]:PORT", envvar="HOLDFAST_HEALTH",
    help="Answer GET /health over HTTP, for probes, and GET /metrics, for Prometheus. :8080 listens on this machine only, "
    "0.0.0.0:8080 on all addresses.",
)  # fmt: skip
@click.option(
    "--build", "version", metavar="NAME", envvar="HOLDFAST_VERSION",
    help="What names this build of the code, e.g. a commit.  [default: what the app says, else a digest of its code]",
)  # fmt: skip
@click.pass_context
def worker(
    context: click.Context,
    queues: str,
    executor_only: bool,
    engine_only: bool,
    concurrency: int,
    processes: int | None,
    grace: float,
    log_level: str,
    log_format: str,
    health: str | None,
    version: str | None,
) -> None:
    """Run an engine: claim runs, execute their steps. With --executor-only, execute steps for engines elsewhere. Of an app
    on Celery, run a Celery worker with an engine beside it. Stop it with Ctrl-C, SIGTERM or SIGHUP: steps may finish for
    the grace period. A second Ctrl-C or SIGTERM ends it at once. Exit code 5 if the store was deleted or replaced
    meanwhile."""
    if executor_only and engine_only:
        raise click.UsageError("--executor-only and --engine-only leave nothing to do; give one of them")
    here = [queue.strip() for queue in queues.split(",") if queue.strip()]
    endpoint = HealthEndpoint(health) if health else None
    for stream in (sys.stdout, sys.stderr):  # what steps print is seen when they do it, in a file or a pipe too
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    set_up_logging(log_level, log_format)
    app = open_target(context, needs_code="a worker", may_create=True).app
    if version:
        app.version = version
    if app.on_celery and not executor_only and not engine_only:
        _run_celery(context, app, here, concurrency, log_level)
        return
    prepare_process()
    metrics = metrics_of(app.instruments) if endpoint is not None else None
    hosts = _hosts(app, here, executor_only, engine_only, concurrency, processes)
    stopping = Stopping(hosts, grace)
    stopping.listen()
    for host in hosts:
        host.start()
    if endpoint is not None and metrics is not None:
        add_store_gauges(metrics, hosts[0].store)
        endpoint.start(hosts[0].health, metrics.render)
        logging.getLogger("holdfast").info("health at %s", endpoint.url)
    for host in hosts:
        logging.getLogger("holdfast").info("%s", _introduced(host, app))
    end_if_frozen()
    _run_all(hosts, grace)
    failed = any(host.failure is not None for host in hosts)
    code = UNREACHABLE if failed else OK
    stopping.is_over(code)
    if endpoint is not None:
        endpoint.close()
    if failed:  # whoever watches over this process starts it again, on the file that is there by then
        context.exit(code)
    for host in hosts:
        logging.getLogger("holdfast").info("worker %s has stopped", host.worker_id)


def _run_celery(context: click.Context, app: App, queues: list[str], concurrency: int, log_level: str) -> None:
    """A Celery worker, with an engine beside it. What was not said is as Celery has it."""

    def was_said(option: str) -> bool:
        return context.get_parameter_source(option) != click.core.ParameterSource.DEFAULT

    if was_said("health"):
        raise click.UsageError(
            "--health is for an engine: run that apart, with `worker --engine-only --health ...`, beside Celery workers with "
            "HOLDFAST_ENGINE=off; or ask Celery with `celery inspect ping`"
        )
    if app.version:
        os.environ["HOLDFAST_VERSION"] = app.version  # for the process of the engine
    celery = app.celery
    arguments = ["worker", "--loglevel", log_level.upper()]
    if was_said("concurrency"):
        arguments += ["--concurrency", str(concurrency)]
    if was_said("queues"):
        default = celery.conf.task_default_queue
        arguments += ["--queues", ",".join(default if queue == DEFAULT_QUEUE else queue for queue in queues)]
    celery.worker_main(arguments)


def _hosts(
    app: App, queues: list[str], executor_only: bool, engine_only: bool, concurrency: int, processes: int | None
) -> list[Host]:
    """What runs in this process: an engine, with what executes steps that have a queue beside it, or one of the two."""
    if executor_only:
        return [app.make_executor(queues, concurrency=concurrency, processes=processes)]
    local = [] if engine_only else [queue for queue in queues if queue == DEFAULT_QUEUE]
    hosts = [app.make_engine(concurrency=concurrency, processes=processes, queues=local)]
    named = [] if engine_only else [queue for queue in queues if queue != DEFAULT_QUEUE]
    if named:
        hosts.append(app.make_executor(named, concurrency=concurrency, processes=processes))
    return hosts


def _introduced(host: Host, app: App) -> str:
    queues = ", ".join(queue or DEFAULT_QUEUE for queue in sorted(host.engine.me.queues or ()))
    if isinstance(host.engine, Puller):
        return f"worker {host.worker_id} of app {app.name!r} on {host.store.url} executes steps of: {queues}"
    names = ", ".join(app.definitions.startable_names())
    return f"worker {host.worker_id} of app {app.name!r} on {host.store.url} knows: {names}"


def _run_all(hosts: list[Host], grace: float) -> None:
    """Until all have stopped. If one fails the others stop too: half a worker would be taken for a whole one."""

    def run(host: Host) -> None:
        try:
            host.run()
        finally:
            for other in hosts:
                if other is not host:
                    other.stop(grace)

    others = [threading.Thread(target=run, args=(host,), name="holdfast-executor", daemon=True) for host in hosts[1:]]
    for thread in others:
        thread.start()
    run(hosts[0])
    for thread in others:
        thread.join(grace + 10)
