"""The order process with a conductor: one workflow says what happens next, and its history shows all of it."""

from __future__ import annotations

from work import Declined, Order, charge_card, hand_to_carrier, reserve_stock

from holdfast import App

app = App("orchestrated")


@app.step(no_retry_for=(Declined,))
def charge(order: Order) -> str:
    return charge_card(order)


@app.step
def reserve(order: Order) -> str:
    return reserve_stock(order)


@app.step
def ship(order: Order, shelf: str) -> str:
    return hand_to_carrier(order, shelf)


@app.workflow
def process_order(order: Order) -> str:
    try:
        charge(order)
    except Declined:
        return "cancelled: declined"
    shelf = reserve(order)
    return f"shipped as {ship(order, shelf)}"
