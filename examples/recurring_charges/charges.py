"""All subscribers are charged at once; one mail tells how it went."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

from holdfast import App, Canvas, FatalError, RetryableError, chord, this_step

log = logging.getLogger(__name__)
app = App("recurring-charges", "recurring_charges.db")


@dataclass
class Subscriber:
    name: str
    card: str
    price: Decimal


@dataclass
class Receipt:
    subscriber: str
    amount: Decimal
    key: str


class CardExpired(FatalError):
    """Trying again won't help."""


SUBSCRIBERS = [
    Subscriber(
        f"subscriber-{number}", "expired" if number % 7 == 0 else "slow" if number % 5 == 0 else "good", Decimal("9.90")
    )
    for number in range(1, 31)
]


@app.step(max_retries=3, retry_delay="50ms")
async def charge(subscriber: Subscriber) -> Receipt:
    """Stands for a call to a payment service, which is given the key."""
    if subscriber.card == "expired":
        raise CardExpired(f"the card of {subscriber.name} has expired")
    if subscriber.card == "slow" and this_step.attempt == 1:
        raise RetryableError("the bank doesn't answer")
    return Receipt(subscriber.name, subscriber.price, this_step.idempotency_key)


@app.step
def summarize(outcomes: list[Receipt | Exception], night: str) -> str:
    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    failures = Counter(type(outcome).__name__ for outcome in outcomes if isinstance(outcome, Exception))
    total = sum((receipt.amount for receipt in receipts), Decimal(0))
    reasons = ", ".join(f"{count} × {reason}" for reason, count in failures.items()) or "none"
    return f"{night}: {len(receipts)} charged ({total} EUR), {failures.total()} failed: {reasons}"


@app.step
def send_mail(text: str) -> str:
    log.info("to the accountants: %s", text)
    return text


def nightly(night: str, subscribers: list[Subscriber]) -> Canvas:
    """One night's work. The mail is sent once, whatever happens to the workers."""
    charges = [charge.s(subscriber) for subscriber in subscribers]
    return chord(charges, summarize.s(night), on_failure="collect") | send_mail.s()
