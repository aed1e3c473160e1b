"""The side of a Celery worker: in its pool attempts are executed, and beside it an engine lives in a process of its own.

The engine is started by exec, and not on threads of the worker: the pool forks while they run, and a child that was forked
while a thread held a lock waits for it for ever.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from billiard import common, current_process
from celery import bootsteps, signals
from celery.app.task import Task
from celery.exceptions import Ignore, ImproperlyConfigured

from holdfast.errors import RetryableError, RunCancelledError, StepError
from holdfast.executors.celery.durable import TaskRetry
from holdfast.ports import Outcome

logger = logging.getLogger("holdfast.celery")
LOOK = 1.0
GRACE = 20.0
"""Seconds that the engine gets to end."""
ENGINE = "HOLDFAST_ENGINE"
GREEN = ("gevent", "eventlet")


class Hosting(Protocol):
    """Executes attempts by token, on the thread that asks."""

    def execute(self, token: str) -> Outcome | None: ...

    def is_over(self) -> bool: ...

    def leave(self) -> None: ...


class Pool:
    """What executes attempts in this process. In a pool of processes each has its own, made when it is first needed."""

    def __init__(self, make: Callable[[bool, Callable[[], bool]], Hosting]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._host: Hosting | None = None
        self._pid = 0

    def perform(self, task: Task) -> None:
        """Execute the attempt that a message names. What becomes of it is in the store by then; Celery is told so that
        those who watch it see the same."""
        outcome = self._here().execute(task.request.id)
        if outcome is None or not outcome.started:
            raise Ignore  # another message was first
        if outcome.cancelled:
            attempt = outcome.attempt
            raise RunCancelledError(
                f"run {attempt.run_id} doesn't want its step {attempt.step!r} any more", run_id=attempt.run_id
            )
        error = outcome.error
        if isinstance(error, TaskRetry) and error.retry is not None:
            raise error.retry
        if isinstance(error, Exception):
            raise error
        if error is not None:  # what ends processes is an outcome of the step, and ends none here
            raise StepError(str(error), type_name=type(error).__name__)

    def _here(self) -> Hosting:
        if self._pid != os.getpid():
            self._lock, self._host, self._pid = threading.Lock(), None, os.getpid()
        with self._lock:
            if self._host is None or self._host.is_over():
                is_apart = current_process().name != "MainProcess"
                self._host = self._make(is_apart, _is_told_to_end)
            return self._host

    def prepare(self, **_: Any) -> None:
        """Become a worker before there is something to do: others see that there is one, and the first step doesn't wait
        for it."""
        threading.Thread(target=self._prepare, name="holdfast-prepare", daemon=True).start()

    def _prepare(self) -> None:
        try:
            self._here()
        except Exception as error:  # the next message tries again, and its failure is seen
            logger.warning("not ready for steps yet: %s", error)

    def leave(self, **_: Any) -> None:
        if self._host is not None and self._pid == os.getpid():
            self._host.leave()
            self._host = None

    def come_and_go_with_the_worker(self) -> None:
        signals.worker_process_init.connect(self.prepare, weak=False)
        signals.worker_process_shutdown.connect(self.leave, weak=False)
        signals.worker_shutdown.connect(self.leave, weak=False)


def _is_told_to_end() -> bool:
    """Whether this process was told to end by a signal, which is raised as SystemExit in whatever its code does."""
    return bool(common._should_have_exited[0])


def add_task(celery: Any, name: str, perform: Callable[[Task], None]) -> None:
    """Make a task for a step, when Celery first needs it. Only what concerns our own messages is set; what a user's
    settings say about the task by its name (routes, time limits, rates) holds, also if they are made after the step."""

    def run(self: Task) -> None:
        perform(self)

    celery.task(
        run, name=name, bind=True, shared=False, typing=False, ignore_result=True, acks_late=False,
        reject_on_worker_lost=False, max_retries=0, throws=(RetryableError, RunCancelledError),
    )  # fmt: skip


class EngineStep(bootsteps.StartStopStep):
    """A part of a Celery worker: the process in which the engine lives, started anew whenever it ends by itself."""

    requires = ("celery.worker.components:Pool", "celery.worker.components:Timer")
    describe: Callable[[], dict[str, Any]]
    load: Callable[[], None]
    pool: Pool

    def __init__(self, worker: Any, **options: Any) -> None:
        super().__init__(worker, **options)
        pool = worker.pool_cls if isinstance(worker.pool_cls, str) else worker.pool_cls.__module__
        if pool.rpartition(".")[2] in GREEN:
            raise ImproperlyConfigured(
                f"steps can't execute in Celery's pool {pool.rpartition('.')[2]!r}: it replaces the threads that Holdfast "
                "works with; use --pool prefork, threads or solo"
            )
        self._has_threads = pool.rpartition(".")[2].startswith("thread")
        self.load()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._is_stopping = False

    def start(self, worker: Any) -> None:
        if self._has_threads:  # they have no signal of their own
            self.pool.prepare()
        if os.environ.get(ENGINE, "on").lower() in ("off", "0", "no", "false"):
            return
        self._spawn()
        worker.timer.call_repeatedly(LOOK, self._look, (worker,))

    def _spawn(self) -> None:
        self._started = time.monotonic()
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel()).lower()
        self._process = subprocess.Popen([sys.executable, "-m", "holdfast.cli.engine"], stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        frame = {**self.describe(), "log_level": level, "parent": os.getpid()}
        with self._process.stdin as pipe:
            pipe.write(json.dumps(frame).encode())

    def _look(self, worker: Any) -> None:
        process = self._process
        if process is None or self._is_stopping or process.poll() is None:
            return
        if time.monotonic() - self._started < 5 * LOOK:  # it can't work: not again at once
            return
        logger.error("the engine's process has ended with code %s, starting another", process.returncode)
        self._spawn()

    def stop(self, worker: Any) -> None:
        self._end(GRACE)

    def terminate(self, worker: Any) -> None:
        self._end(GRACE / 10)

    def _end(self, seconds: float) -> None:
        self._is_stopping = True
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            logger.warning("the engine's process doesn't end, killing it; others go on with its runs")
            process.kill()
            process.wait()
