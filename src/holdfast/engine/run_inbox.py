"""What has arrived for one run, and is yet to be delivered: outcomes of its steps, and messages from others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from holdfast.engine.records import MESSAGES, ControlMessage, OutcomeMessage
from holdfast.ports import InboxRow, Outcome

Delivery = Outcome | InboxRow


def is_order(delivery: Delivery) -> bool:
    """Whether it is a message that says what is to become of the run. One that can't be read is taken for one."""
    return isinstance(delivery, InboxRow) and MESSAGES.get(delivery.kind, ControlMessage) is ControlMessage


class RunInbox:
    """In the order of their arrival. `orders` are those that a change consumes which is not committed yet, `cancel` is one
    that was read and is not committed yet, `termination` one that comes before all else."""

    __slots__ = ("_seen", "cancel", "deliveries", "orders", "termination")

    def __init__(self, messages: Iterable[InboxRow]) -> None:
        self.deliveries: deque[Delivery] = deque()
        self.orders: list[int] = []
        self.cancel: InboxRow | None = None
        self.termination: InboxRow | None = None
        self._seen: set[int] = set()
        for message in messages:
            self.add(message)

    def add(self, message: InboxRow) -> bool:
        """Whether it is a new one."""
        if message.id in self._seen:
            return False
        self._seen.add(message.id)
        self.deliveries.append(message)
        if message.kind == "terminate":
            self.termination = message
        return True

    def messages(self, *kinds: str) -> list[InboxRow]:
        return [each for each in self.deliveries if isinstance(each, InboxRow) and (not kinds or each.kind in kinds)]

    def steps_at_hand(self, run_no: int) -> set[str]:
        """The steps whose outcomes wait to be delivered."""
        return {_outcome_of(each, run_no) for each in self.deliveries} if self.deliveries else set()


def _outcome_of(arrival: Delivery, run_no: int) -> str:
    """The step whose outcome it is, empty if it is something else."""
    if isinstance(arrival, Outcome):
        return arrival.attempt.cmd
    if arrival.kind != "outcome":
        return ""
    try:
        body: OutcomeMessage = msgspec.json.decode(arrival.body, type=OutcomeMessage)
    except msgspec.DecodeError:
        return ""
    return body.cmd if body.run_no == run_no else ""
