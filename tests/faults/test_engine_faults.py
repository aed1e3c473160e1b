"""What random calls have found in the engine, each in its smallest form. The mark goes when the fault does."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import App, Status, wf


@pytest.mark.xfail(strict=True, reason="a cancellation is delivered only once the code has come to a wait")
def test_a_workflow_that_continues_as_new_for_ever_can_be_cancelled(tmp_path: Path) -> None:
    app = App("endless", str(tmp_path / "endless.db"))

    @app.workflow
    async def endless() -> None:
        wf.continue_as_new()

    with app.worker(grace=0.1):
        run = endless.start()
        run.cancel()
        with pytest.raises(Exception, match="was cancelled"):
            run.result(timeout=3)
        assert run.status == Status.CANCELLED
    app.close()
