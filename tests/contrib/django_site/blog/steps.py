"""An app whose name comes before all others': its steps need the models of another."""

from __future__ import annotations

from shop.flows import app
from shop.models import Order


@app.step
def count_orders() -> int:
    return Order.objects.count()
