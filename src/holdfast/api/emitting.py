"""Domain events that no run causes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from holdfast.api.domain_events import emit_in_step, encode_event
from holdfast.core.context import current_step
from holdfast.core.domain_events import check_event_key, check_event_name, event_id
from holdfast.core.registry import Definitions
from holdfast.engine.domain_events import subscription_of
from holdfast.ports import Emission, Notifier, Store, Topic


@dataclass(slots=True)
class Emitter:
    """Emits domain events from outside of runs."""

    definitions: Definitions
    store: Store
    notifier: Notifier

    def emit(self, name: str, payload: object, key: str | None) -> str:
        """Its id. One that a step of this app emits is held by it."""
        check_event_name(name, emitting=True)
        check_event_key(name, key)
        app = self.definitions.name
        step = current_step.get()
        if step is not None and step.attempt.app == app:
            return emit_in_step(step, name, payload, key)
        # In a step of another app the next attempt finds it again.
        key = key or (str(uuid.uuid4()) if step is None else step.next_child_id(name))
        event = event_id(app, name, key)
        self.store.emit(
            Emission(
                id=event, name=name, key=key, payload=encode_event(self.definitions.codec, name, payload),
                ts=self.store.now(), correlation=event if step is None else step.attempt.correlation,
            ),
            # A worker would make these known; there may not have been one yet.
            [subscription_of(each) for each in self.definitions.subscribers() if each.event == name],
        )  # fmt: skip
        self.notifier.ring(Topic.EVENTS, everyone=True)
        return event
