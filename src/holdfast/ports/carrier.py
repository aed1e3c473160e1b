"""Who tells workers elsewhere of attempts that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.ports.attempts import NewAttempt
from holdfast.ports.store import Store


class Carrier(Protocol):
    """Tells workers elsewhere of attempts that wait for them, through a broker. The rows are the truth: what a carrier
    loses it tells again, and what it tells twice is executed once."""

    def start(self, store: Store) -> None:
        """Begin. Attempts in `store` that nobody claims are told again."""

    def carry(self, attempts: Sequence[NewAttempt]) -> None:
        """Tell of attempts whose rows are committed. Never blocks, never raises: whether there is a broker is not the
        engine's concern."""

    def stop(self) -> None:
        """Tell what is to be told, if that takes no longer than a moment, and end."""
