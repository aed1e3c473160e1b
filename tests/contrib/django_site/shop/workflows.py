from __future__ import annotations

from shop.flows import app
from shop.steps import has_connection, has_connection_async, pack, ship, weigh


@app.workflow
async def fulfil(order_id: int) -> dict[str, object]:
    pack(order_id)
    weighed_by = weigh(order_id)
    item = await ship(order_id)
    return {
        "item": item,
        "weighed_by": weighed_by,
        "open": [has_connection(), await has_connection_async()],
    }
