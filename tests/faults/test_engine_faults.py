"""What random calls have found in the engine, each in its smallest form."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import wait_until

from holdfast import App, Status, wf


def test_a_workflow_that_continues_as_new_for_ever_can_be_cancelled(tmp_path: Path) -> None:
    app = App("endless", str(tmp_path / "endless.db"))

    @app.workflow
    async def endless() -> None:
        wf.continue_as_new()

    with app.worker(grace=0.1):
        run = endless.start()
        run.cancel()
        with pytest.raises(Exception, match="was cancelled"):
            run.result(timeout=20)
        assert run.status == Status.CANCELLED
    app.close()


def test_a_workflow_that_continues_as_new_for_ever_can_be_paused_and_goes_on(tmp_path: Path) -> None:
    app = App("endless", str(tmp_path / "endless.db"))

    @app.workflow
    async def counts(n: int) -> int:
        if n < 1_000_000:
            wf.continue_as_new(n + 1)
        return n

    with app.worker(grace=0.1):
        run = counts.start(0)
        run.pause("enough for now")
        wait_until(lambda: run.status == Status.PAUSED)
        run.resume()
        wait_until(lambda: run.status == Status.RUNNING)
        run.cancel()
        wait_until(lambda: run.status == Status.CANCELLED)
    app.close()
