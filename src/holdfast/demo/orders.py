"""Order fulfilment: validate, reserve, charge, ship (a workflow of its own), confirm; undone where it has to be.

Steps do the work, and count what they do to the outside world in a file that Holdfast knows nothing of.
The workflow only coordinates. It may be killed at any line.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast import App, wf

app = App("orders", "orders.db")

STOCK = 10


class TransientFulfillmentError(Exception):
    """Something that passes if one tries again."""


@dataclass(frozen=True)
class Order:
    order_id: str
    item_count: int
    payment_token: str = "tok_visa"
    fail_after_shipping: bool = False
    pause_before_shipping: float = 0.0


@dataclass(frozen=True)
class Reservation:
    reservation_id: str
    reserved: bool
    reason: str = ""


@dataclass(frozen=True)
class Payment:
    payment_id: str
    approved: bool
    reason: str = ""


@dataclass(frozen=True)
class Shipment:
    shipment_id: str
    carrier: str
    tracking_number: str


@dataclass(frozen=True)
class Outcome:
    order_id: str
    status: str
    attempts: int
    reason: str = ""
    payment_id: str = ""
    tracking_number: str = ""


def count(effect: str) -> None:
    """One line per effect on the outside world; a line is appended whole or not at all."""
    line = json.dumps({"order": wf.get_data("order_id"), "effect": effect})
    with Path(os.environ.get("ORDERS_EFFECTS", "effects.jsonl")).open("a") as file:
        file.write(line + "\n")


@app.step
def validate_order(order: Order) -> bool:
    count("validated")
    return order.item_count > 0


@app.step
def reserve_inventory(order: Order, reservation_id: str) -> Reservation:
    if order.item_count > STOCK:
        return Reservation(reservation_id, False, "not_enough_stock")
    count("inventory reserved")
    wf.set_data("reservation_id", reservation_id)
    return Reservation(reservation_id, True)


@app.step
def release_inventory(reservation_id: str, reason: str) -> str:
    count("inventory released")
    return f"released {reservation_id}: {reason}"


@app.step(max_retries=5, retry_delay="exponential")
def charge_payment(order: Order, payment_id: str) -> Payment:
    if order.payment_token == "decline":
        return Payment(payment_id, False, "card_declined")
    count("card charged")
    wf.set_data("payment_id", payment_id)
    return Payment(payment_id, True)


@app.step
async def choose_carrier(order: Order) -> str:
    return "Northwind" if order.item_count < 5 else "Heavy Haul"


@app.step
async def create_shipping_label(order: Order, carrier: str, shipment_id: str, tracking_number: str) -> Shipment:
    count("label created")
    return Shipment(shipment_id, carrier, tracking_number)


@app.step
async def send_confirmation(order: Order, tracking_number: str) -> None:
    count("confirmation sent")


@app.workflow
async def ship(order: Order, payment_id: str) -> Shipment:
    wf.set_data("order_id", order.order_id)
    carrier = await choose_carrier(order)
    tracking = f"{carrier[:3].upper()}-{int(wf.random() * 1_000_000):06d}"
    return await create_shipping_label(order, carrier, f"SHP-{wf.uuid().hex[:8]}", tracking)


@app.workflow(max_retries=1, retry_for=[TransientFulfillmentError])
def fulfil(order: Order) -> Outcome:
    attempt = wf.attempt
    wf.set_data("order_id", order.order_id)
    wf.set_data("status", "started")

    if not validate_order(order):
        return Outcome(order.order_id, "rejected", attempt, "no items")

    reservation = reserve_inventory(order, f"RSV-{wf.uuid().hex[:8]}")
    if not reservation.reserved:
        return Outcome(order.order_id, "rejected", attempt, reservation.reason)

    payment = charge_payment(order, f"PAY-{wf.uuid().hex[:8]}")
    if not payment.approved:
        release_inventory(reservation.reservation_id, payment.reason)
        wf.set_data("status", "payment_failed")
        return Outcome(order.order_id, "payment_failed", attempt, payment.reason)

    if order.pause_before_shipping:
        wf.set_data("status", "paid")
        wf.sleep(order.pause_before_shipping)

    shipment: Shipment = wf.wait(ship(order, payment.payment_id))
    if order.fail_after_shipping and attempt == 1:
        wf.set_data("status", "retrying")
        raise TransientFulfillmentError("the mail server was away for a moment")

    wf.wait(send_confirmation(order, shipment.tracking_number))
    wf.set_data("status", "fulfilled")
    return Outcome(order.order_id, "fulfilled", attempt, "", payment.payment_id, shipment.tracking_number)
