"""What is asked of a broker: take messages that name attempts, and say how many messages nobody has taken yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery, signals
from kombu import Connection, Queue
from kombu.serialization import dumps as serialize
from kombu.utils.json import dumps

logger = logging.getLogger("holdfast.celery")
HEADER = "holdfast"
"""In the headers of a message: the app whose attempt it is about."""
AT_ONCE = 500
"""How many messages are sent with one command."""
LOWEST, HIGHEST = 0, 9
TaskName = Callable[[str], str]
"""The name of the task of a step."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """An attempt as a message tells of it: the id of the message's task is its token."""

    token: str
    task: str
    queue: str
    priority: int


class Broker:
    """One connection, for one thread. What goes wrong with it is raised, and `close` makes way for another."""

    def __init__(self, celery: Celery, app: str) -> None:
        self._celery = celery
        self._app = app
        self._connection: Connection | None = None
        self._producer: Any = None

    def _open(self) -> Any:
        if self._producer is None:
            self._connection = self._celery.connection_for_write()
            self._connection.ensure_connection(max_retries=0, timeout=5)
            self._producer = self._celery.amqp.Producer(self._connection)
        return self._producer

    def close(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.release()

    # -- where messages go

    def route(self, task: str, queue: str) -> dict[str, Any]:
        """What Celery's settings say about a task; the queue that a step names comes before them."""
        options: dict[str, Any] = {"queue": queue} if queue else {}
        registered = self._celery.tasks.get(task)
        route: dict[str, Any] = self._celery.amqp.router.route(options, task, (), {}, registered)
        return route

    def ready(self, queue: str) -> int:
        """How many messages wait in a queue of the broker. Those that a worker has taken and not begun are not among
        them: it may be gone."""
        producer = self._open()
        with producer.connection.channel() as channel:
            try:
                count: int = channel.queue_declare(queue=queue, passive=True).message_count
            except producer.connection.channel_errors:  # there is no such queue
                return 0
        return count

    # -- sending

    def publish(self, parcels: Sequence[Parcel]) -> None:
        producer = self._open()
        groups: dict[tuple[str, str], list[Parcel]] = {}
        for parcel in parcels:
            groups.setdefault((parcel.task, parcel.queue), []).append(parcel)
        for (task, queue), group in groups.items():
            try:
                route = self.route(task, queue)
            except Exception as error:  # of a router of the user's; the others have their own
                logger.error("no route for task %r, its steps wait: %s", task, error)
                continue
            target = route.get("queue")
            if self._may_batch(producer, target, route):
                self._publish_batch(producer, target, group)
            else:
                for parcel in group:
                    self._publish_one(producer, route, parcel)

    def message(self, parcel: Parcel) -> Any:
        """The task message as Celery makes it. Nothing of an attempt is in it but its token."""
        made = self._celery.amqp.as_task_v2(
            parcel.token, parcel.task, (), {}, ignore_result=True, argsrepr="", kwargsrepr="", origin=self._app
        )
        made.headers[HEADER] = self._app
        return made

    def _publish_one(self, producer: Any, route: dict[str, Any], parcel: Parcel) -> None:
        priority = self._priority(producer, parcel.priority)
        if priority is not None:
            route = {**route, "priority": priority}
        route = {key: value for key, value in route.items() if value is not None}
        self._celery.amqp.send_task_message(producer, parcel.task, self.message(parcel), retry=False, **route)

    def _priority(self, producer: Any, priority: int) -> int | None:
        """Celery's number for it, by the setting `task_default_priority`; None without that setting. For people more is
        sooner. That is so in RabbitMQ too; in Redis less is sooner."""
        default: int | None = self._celery.conf.task_default_priority
        if default is None:
            return None
        return max(LOWEST, min(HIGHEST, default - priority if _is_redis(producer) else default + priority))

    # -- many at once

    def _may_batch(self, producer: Any, queue: Any, route: dict[str, Any]) -> bool:
        """Whether Redis can be given many messages with one command, which costs a tenth. Not if something else is to
        happen with each of them."""
        return (
            _is_redis(producer)
            and isinstance(queue, Queue)
            and queue.exchange.type in (None, "", "direct")
            and not queue.expires
            and not queue.queue_arguments
            and not set(route) - {"queue"}
            and not self._celery.conf.task_send_sent_event
            and not self._celery.conf.task_compression
            and not signals.before_task_publish.receivers
            and not signals.after_task_publish.receivers
        )

    def _publish_batch(self, producer: Any, queue: Queue, parcels: Sequence[Parcel]) -> None:
        by_key: dict[str, list[str]] = {}
        for parcel in parcels:
            priority = self._priority(producer, parcel.priority)
            key = producer.channel._q_for_pri(queue.name, priority or 0)
            by_key.setdefault(key, []).append(self.encoded(producer, queue, parcel, priority))
        with producer.channel.conn_or_acquire() as client:
            for key, messages in by_key.items():
                for at in range(0, len(messages), AT_ONCE):
                    client.lpush(key, *messages[at : at + AT_ONCE])

    def encoded(self, producer: Any, queue: Queue, parcel: Parcel, priority: int | None) -> str:
        """A message as kombu writes it into a list of Redis."""
        headers, properties, body, _ = self.message(parcel)
        content_type, encoding, payload = serialize(body, serializer=self._celery.conf.task_serializer)
        mode = queue.exchange.delivery_mode or self._celery.conf.task_default_delivery_mode
        properties = {**properties, "delivery_mode": 2 if mode in ("persistent", 2) else 1}
        channel = producer.channel
        message = channel.prepare_message(payload, priority, content_type, encoding, headers, properties)
        channel._inplace_augment_message(message, "", queue.name)
        text: str = dumps(message)
        return text


def _is_redis(producer: Any) -> bool:
    """By name: without a driver for Redis its class can't be imported."""
    channel = type(producer.channel)
    return (channel.__module__, channel.__name__) == ("kombu.transport.redis", "Channel")
