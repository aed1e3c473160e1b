from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "order_events"

EXPECTED = """\
orchestrated: one workflow, one history
  order 17: shipped as NW-17-SHELF-2
    step: charge SUCCESS
    step: reserve SUCCESS
    step: ship SUCCESS
  order 18: cancelled: declined
    step: charge FAILURE
choreographed: four services, and one tree of what led to what
  order 17: shipped as NW-17-SHELF-2
    orders: place_order SUCCESS
      event: OrderCreated
        payments: charge SUCCESS
          event: PaymentCompleted
            inventory: reserve SUCCESS
              event: InventoryReserved
                shipping: ship SUCCESS
                  event: ShipmentCreated
                    orders: close SUCCESS
                      event: OrderClosed
  order 18: cancelled: declined
    orders: place_order SUCCESS
      event: OrderCreated
        payments: charge SUCCESS
          event: PaymentFailed
            orders: cancel SUCCESS
              event: OrderClosed
"""


def test_the_order_process_ends_the_same_both_ways_and_is_shown_as_one_tree() -> None:
    ran = subprocess.run([sys.executable, str(FOLDER)], capture_output=True, text=True, check=True)
    assert ran.stdout == EXPECTED
