"""What has to be done for an order, whoever says when: both versions of the process use these functions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Order:
    id: str
    amount: int
    card: str = "visa"

    def facts(self) -> dict[str, Any]:
        """For the payload of an event: plain values, which every app can read without this class."""
        return asdict(self)


class Declined(Exception):
    """The bank says no."""


def charge_card(order: Order) -> str:
    if order.card == "stolen":
        raise Declined(f"order {order.id}: the card was declined")
    return f"PAY-{order.id}"


def reserve_stock(order: Order) -> str:
    return f"SHELF-{len(order.id)}"


def hand_to_carrier(order: Order, shelf: str) -> str:
    return f"NW-{order.id}-{shelf}"
