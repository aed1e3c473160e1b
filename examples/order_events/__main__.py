"""Run the order process both ways, and show what happened: `python examples/order_events`."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from choreographed import SERVICES, orders, place_order
from orchestrated import app, process_order
from work import Order

from holdfast import TraceNode

ORDERS = (Order("17", 40), Order("18", 90, card="stolen"))


def show(node: TraceNode, indent: str = "    ") -> None:
    mark = "event" if node.kind == "event" else node.app
    print(f"{indent}{mark}: {node.name} {node.status}".rstrip())
    for child in node.children:
        show(child, indent + "  ")


def orchestrated() -> None:
    print("orchestrated: one workflow, one history")
    with app.worker():
        for order in ORDERS:
            run = process_order.options(id=f"order-{order.id}").start(order)
            print(f"  order {order.id}: {run.result(timeout=30)}")
            for step in run.steps:
                print(f"    step: {step.name} {step.state}")


def choreographed() -> None:
    print("choreographed: four services, and one tree of what led to what")
    with contextlib.ExitStack() as workers:
        for service in SERVICES:
            workers.enter_context(service.worker())
        for order in ORDERS:
            run = place_order.options(id=f"order-{order.id}").start(order)
            print(f"  order {order.id}: {run.result(timeout=30)}")
            show(run.trace())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-order-events-") as folder:
        app.use_store(str(Path(folder) / "orchestrated.db"))
        for service in SERVICES:
            service.use_store(str(Path(folder) / "services.db"))
        try:
            orchestrated()
            choreographed()
        finally:
            for each in (app, orders, *SERVICES):
                each.close()


if __name__ == "__main__":
    main()
