from __future__ import annotations

import os

from asgiref.sync import sync_to_async
from django.db import connection

from shop.flows import app
from shop.models import Order


@app.step
def pack(order_id: int) -> None:
    Order.objects.filter(pk=order_id).update(status="packed")


@app.step(pool="process")
def weigh(order_id: int) -> int:
    assert Order.objects.get(pk=order_id).status == "packed"
    return os.getpid()


@app.step
async def ship(order_id: int) -> str:
    order = await Order.objects.aget(pk=order_id)
    order.status = "shipped"
    await order.asave()
    return order.item


@app.step
def has_connection() -> bool:
    """Whether an earlier step has left one open on this thread."""
    return connection.connection is not None


@app.step
async def has_connection_async() -> bool:
    return await sync_to_async(lambda: connection.connection is not None)()


@app.step
def look_at(order: object) -> None:
    raise AssertionError
