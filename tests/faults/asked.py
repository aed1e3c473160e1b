"""An app whose runs are asked, while workers and those who ask are killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import App, RequestRefusedError, define_request, failpoints, hook, this_step, wf

app = App("asked", version="1")
add = define_request("asked.add", int, int)


@app.step
async def check(n: int) -> int:
    this_step.progress(1, 1)
    return n


@app.workflow
async def counter() -> int:
    """Adds up what it is asked to, beside its main flow."""
    total = 0

    @add.handle
    async def _(n: int) -> int:
        nonlocal total
        if n < 0:
            raise RequestRefusedError("only upwards")
        total += await check(n)
        wf.set_data("total", total)
        return total

    await hook("end")
    return total


@app.step(timeout="1h", pool="process")
def elsewhere() -> int:
    Path(os.environ["EFFECTS_LEDGER"]).with_name("token").write_text(this_step.hand_over())
    return 0


@app.workflow
async def delegates() -> int:
    return elsewhere()


@app.workflow
async def forwarder(to: str) -> None:
    await wf.send(to, "end")


if __name__ == "__main__":  # `python asked.py RUN NUMBER ID`
    failpoints.arm_from_environment()
    run_id, number, request = sys.argv[1:]
    print("answer", app.get_run(run_id).ask(add, int(number), id=request, timeout="20s"), flush=True)
