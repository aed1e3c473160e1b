"""An app joined to a Celery app: its steps are tasks there, and a worker of it has an engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from celery import Celery

from holdfast.core.definitions import StepDefinition
from holdfast.errors import DefinitionError
from holdfast.executors.celery.broker import Broker
from holdfast.executors.celery.carrier import CeleryCarrier
from holdfast.executors.celery.durable import divert
from holdfast.executors.celery.events import CeleryTransport, carries_events
from holdfast.executors.celery.pool import EngineStep, Hosting, Pool, add_task
from holdfast.printing import show
from holdfast.telemetry.clock import LamportClock
from holdfast.telemetry.dispatcher import EventDispatcher

logger = logging.getLogger("holdfast.celery")


def make_celery(app: str, broker: str) -> Celery:
    """A Celery app for one that has none. It has a queue of its own, so that workers of others on the same broker don't
    take messages that mean nothing to them."""
    celery = Celery(app, broker=broker, set_as_current=False)
    celery.conf.update(task_ignore_result=True, task_default_queue=app, broker_connection_retry_on_startup=True)
    return celery


class Attachment:
    """Joins them. `make_host` makes what executes attempts in a process of the pool."""

    def __init__(
        self,
        app: str,
        celery: Any,
        steps: Iterable[StepDefinition],
        *,
        make_host: Callable[[bool, Callable[[], bool]], Hosting],
        load: Callable[[], None],
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        if not isinstance(celery, Celery):
            raise DefinitionError(f"celery={show(celery)}: give a Celery app, or broker='redis://...'")
        self.celery = celery
        self._app = app
        self._pool = Pool(make_host)
        self._names: dict[str, str] = {}
        self._exchange: EventDispatcher | None = None
        self._knows_exchange = False
        for step in steps:
            self.add(step)
        self._pool.come_and_go_with_the_worker()
        # A class of its own: those of several apps may be parts of the same worker.
        given = {"load": staticmethod(load), "describe": staticmethod(describe), "pool": self._pool}
        celery.steps["worker"].add(type(f"Holdfast_{app}", (EngineStep,), given))

    def add(self, step: StepDefinition) -> None:
        """Make a step a task, by the name of the app and its own; a task that became a step keeps its name."""
        task = getattr(step.function, "celery_task", None)
        if task is not None and (task.app is self.celery or task.name in self.celery.tasks):
            self._names[step.name] = task.name
            divert(task, self._app, self._pool.perform)
            return
        self._names[step.name] = name = f"{self._app}.{step.name}"
        add_task(self.celery, name, self._pool.perform)

    def task_name(self, step: str) -> str:
        return self._names.get(step) or f"{self._app}.{step}"

    def event_exchange(self, clock: LamportClock) -> EventDispatcher | None:
        """What sends telemetry events through the broker; None if it can't carry any. There is one in each process."""
        if not self._knows_exchange:
            self._knows_exchange = True
            try:
                if carries_events(self.celery):
                    self._exchange = EventDispatcher(CeleryTransport(self.celery, self._app), clock)
            except Exception as error:  # whatever a driver raises: the store tells it all the same
                logger.warning("telemetry goes through the store alone, as the broker can't be used: %r", error)
        return self._exchange

    def carrier(self) -> CeleryCarrier:
        return CeleryCarrier(Broker(self.celery, self._app), self.task_name)
