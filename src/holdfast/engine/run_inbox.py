"""What has arrived for one run, and is yet to be delivered: outcomes of its steps, and messages from others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from holdfast.engine.records import LETTERS, ControlLetter, OutcomeLetter
from holdfast.ports import Letter, Outcome

Delivery = Outcome | Letter


def is_order(delivery: Delivery) -> bool:
    """Whether it is a message that says what is to become of the run. One that nobody can read is taken for one."""
    return isinstance(delivery, Letter) and LETTERS.get(delivery.kind, ControlLetter) is ControlLetter


class RunInbox:
    """In the order of their arrival. `orders` are those that a change consumes which is not committed yet, `cancel` is one
    that was read and is not committed yet, `termination` one that comes before all else."""

    __slots__ = ("_seen", "cancel", "deliveries", "orders", "termination")

    def __init__(self, letters: Iterable[Letter]) -> None:
        self.deliveries: deque[Delivery] = deque()
        self.orders: list[int] = []
        self.cancel: Letter | None = None
        self.termination: Letter | None = None
        self._seen: set[int] = set()
        for letter in letters:
            self.add(letter)

    def add(self, letter: Letter) -> bool:
        """Whether it is a new one."""
        if letter.id in self._seen:
            return False
        self._seen.add(letter.id)
        self.deliveries.append(letter)
        if letter.kind == "terminate":
            self.termination = letter
        return True

    def letters(self, *kinds: str) -> list[Letter]:
        return [each for each in self.deliveries if isinstance(each, Letter) and (not kinds or each.kind in kinds)]

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
        body: OutcomeLetter = msgspec.json.decode(arrival.body, type=OutcomeLetter)
    except msgspec.DecodeError:
        return ""
    return body.cmd if body.run_no == run_no else ""
