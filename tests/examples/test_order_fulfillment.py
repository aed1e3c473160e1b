from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.demo.orders import app
from holdfast.demo.play import Worker


def test_all_scenarios_of_the_demo_end_as_they_should() -> None:
    ran = subprocess.run([sys.executable, "-m", "holdfast.demo"], capture_output=True, text=True, check=True)
    assert ran.stdout.count("outcome   fulfilled") == 3
    assert "kill -9" in ran.stdout
    assert "replayed  validate_order, reserve_inventory, charge_payment, ship" in ran.stdout
    assert "replayed  validate_order, reserve_inventory, charge_payment\n" in ran.stdout, (
        "what the killed worker had done"
    )
    assert "outcome   payment_failed (card_declined)" in ran.stdout


def test_a_worker_of_the_demo_works_before_anything_is_asked_of_it(tmp_path: Path) -> None:
    app.use_store(str(tmp_path / "orders.db"))
    worker = Worker(tmp_path)
    try:
        assert [found.pid for found in app.store.workers()] == [worker.pid]
    finally:
        worker.stop()
        app.close()


def test_a_worker_of_the_demo_that_can_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app.use_store(str(tmp_path / "orders.db"))
    monkeypatch.setattr("holdfast.demo.play._environment", lambda folder: {"HOLDFAST_STORE": "nosuch://"})
    with pytest.raises(ChildProcessError, match="ended with exit code"):
        Worker(tmp_path)
    app.close()
