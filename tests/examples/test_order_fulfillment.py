from __future__ import annotations

import subprocess
import sys


def test_all_scenarios_of_the_demo_end_as_they_should() -> None:
    ran = subprocess.run([sys.executable, "-m", "holdfast.demo"], capture_output=True, text=True, check=True)
    assert ran.stdout.count("outcome   fulfilled") == 3
    assert "kill -9" in ran.stdout
    assert "replayed  validate_order, reserve_inventory, charge_payment, ship" in ran.stdout
    assert "replayed  validate_order, reserve_inventory, charge_payment\n" in ran.stdout, (
        "what the killed worker had done"
    )
    assert "outcome   payment_failed (card_declined)" in ran.stdout
