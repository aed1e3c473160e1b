"""An app and Celery: whether its steps execute in the pools of Celery workers, and through which Celery app."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.errors import DefinitionError
from holdfast.registry import Registry
from holdfast.workers import Workers

if TYPE_CHECKING:
    from holdfast.engine.carried import CarriedHost
    from holdfast.executors.celery.attachment import Attachment


class OnCelery:
    """Joins an app to a Celery app: the one that was given, or one that is made for its broker when it is needed."""

    def __init__(self, definitions: Registry, workers: Workers, broker: str | None, celery: Any) -> None:
        if broker is not None and celery is not None:
            raise DefinitionError("broker= and celery= both say where steps execute; a Celery app has its own broker")
        self._definitions = definitions
        self._workers = workers
        self._broker = broker
        self._attachment: Attachment | None = None if celery is None else self._attach(celery)

    @property
    def is_used(self) -> bool:
        return self._attachment is not None or bool(self._broker_url)

    @property
    def broker_url(self) -> str | None:
        """Where its messages go; a Celery app that was given has a broker of its own."""
        if self._attachment is None:
            return self._broker_url
        url = self._attachment.celery.conf.broker_url or None  # Celery takes several, too
        return ";".join(url) if isinstance(url, list | tuple) else url

    @property
    def _broker_url(self) -> str | None:
        return os.environ.get("HOLDFAST_BROKER") or self._broker

    @property
    def attachment(self) -> Attachment:
        if self._attachment is None:
            name = self._definitions.name
            if not self._broker_url:
                raise DefinitionError(
                    f"app {name!r} has no Celery app; make it with App(..., broker='redis://...') or App(..., celery=...), or "
                    "set HOLDFAST_BROKER"
                )
            self._attachment = self._attach(_parts().make_celery(name, self._broker_url))
        return self._attachment

    def _attach(self, celery: Any) -> Attachment:
        attachment: Attachment = _parts().Attachment(
            self._definitions.name, celery, list(self._definitions.steps.values()), make_host=self._make_host,
            load=self._workers.load_for_pool, describe=self._workers.description_of_engine,
        )  # fmt: skip
        self._definitions.on_step = attachment.add
        return attachment

    def _make_host(self, is_apart: bool, is_ending: Callable[[], bool]) -> CarriedHost:
        return self._workers.carried(self._queues(), is_apart, is_ending)

    def _queues(self) -> list[str]:
        """What is shown of a worker: the queues of its broker that it takes messages from."""
        celery = self.attachment.celery
        names = {"" if name == celery.conf.task_default_queue else name for name in celery.amqp.queues.consume_from}
        return sorted(names)


def not_of_celery(app: object) -> str:
    """What to tell Celery's command, which has found an app of ours in a module."""
    modules = [name for name, module in list(sys.modules.items()) if getattr(module, "__dict__", {}).get("app") is app]
    module = modules[0] if modules else "MODULE"
    return (
        f"{app!r} is Holdfast's, and no Celery app; put `celery = app.celery` at the end of the module, and say "
        f"`celery -A {module}:celery worker`"
    )


def _parts() -> Any:
    try:
        from holdfast.executors.celery import attachment  # not at the top: few need Celery
    except ImportError as error:
        raise DefinitionError(
            f"steps on Celery need Celery ({error}); install it with: pip install 'celery[redis]'"
        ) from error
    return attachment
