"""The order process without one: four services that share a store and nothing else. Each reacts to events of the
others and emits its own, and none knows who listens."""

from __future__ import annotations

from typing import Any

from work import Declined, Order, charge_card, hand_to_carrier, reserve_stock

from holdfast import App, emit, wait_for_event, wf

orders = App("orders")
payments = App("payments")
inventory = App("inventory")
shipping = App("shipping")
SERVICES = (orders, payments, inventory, shipping)


# -- orders: takes them, and waits for how they end


@orders.workflow
async def place_order(order: Order) -> str:
    await emit("OrderCreated", order.facts(), key=order.id)
    end = await wait_for_event("OrderClosed", where={"id": order.id}, timeout="7d")
    return str(end["outcome"])


@orders.on("ShipmentCreated")
@orders.step
def close(shipment: dict[str, str]) -> None:
    wf.emit("OrderClosed", {"id": shipment["id"], "outcome": f"shipped as {shipment['tracking']}"})


@orders.on("PaymentFailed")
@orders.step
def cancel(payment: dict[str, str]) -> None:
    wf.emit("OrderClosed", {"id": payment["id"], "outcome": f"cancelled: {payment['why']}"})


# -- payments


@payments.on("OrderCreated")
@payments.step
def charge(order: Order) -> None:
    try:
        payment = charge_card(order)
    except Declined:
        wf.emit("PaymentFailed", {"id": order.id, "why": "declined"})
    else:
        wf.emit("PaymentCompleted", {"payment": payment, "order": order.facts()})


# -- inventory


@inventory.on("PaymentCompleted")
@inventory.step
def reserve(payment: dict[str, Any]) -> None:
    order = Order(**payment["order"])
    wf.emit("InventoryReserved", {"shelf": reserve_stock(order), "order": order.facts()})


# -- shipping


@shipping.on("InventoryReserved")
@shipping.step
def ship(reservation: dict[str, Any]) -> None:
    order = Order(**reservation["order"])
    tracking = hand_to_carrier(order, reservation["shelf"])
    wf.emit("ShipmentCreated", {"id": order.id, "tracking": tracking})
