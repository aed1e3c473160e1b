"""Take the pictures of the monitor: a store full of runs, a worker, the monitor, and a browser that looks at all pages.

`.venv/bin/python docs/pictures/monitor.py [FOLDER]`; without a folder it takes the two that docs/ shows. Needs Chromium.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from shop import (
    Order,
    app,
    approve_expense,
    book_trip,
    collect,
    fulfil_order,
    import_photos,
    onboarding,
    refund,
    render,
    report,
    train_model,
    update_rates,
)

from holdfast import group

HERE = Path(__file__).parent


def fill() -> dict[str, Any]:
    """Runs of every kind; those that the pictures show by name."""
    old = [
        fulfil_order.options(id=f"order-{1001 + i}").start(Order(f"{1001 + i}", i % 2 * 2, 20 + 7.5 * i))
        for i in range(14)
    ]
    refund.options(id="refund-1003").start("1003", 35.0)
    refund.options(id="refund-1007").start("1007", 65.0)
    import_photos.options(id="album-5").start(60)
    book_trip.options(id="trip-88").start("Oslo")
    report.options(id="report-46").start({})
    (group(render.s(page) for page in range(30)) | collect.s()).options(id="pages-46").start()
    for i in range(8):
        refund.options(id=f"refund-20{i}").start(f"20{i}", 5.5 * i)
    for run in old:
        run.result(timeout=60)
    for who, amount in (("ann", 120), ("bob", 890), ("eve", 45)):
        approve_expense.options(id=f"expense-{who}").start(who, amount)
    for user in ("mia", "tom"):
        onboarding.options(id=f"welcome-{user}").start(user)
    update_rates.options(id="rates-ecb").start("ECB")
    held = onboarding.options(id="welcome-lee").start("lee")
    held.pause("asked by support")
    train_model.options(id="model-7").start("prices")
    gone = approve_expense.options(id="expense-old").start("old", 1)
    time.sleep(1.5)
    gone.cancel("asked for twice")
    onboarding.options(id="welcome-later", delay="3h").start("later")
    time.sleep(1.5)
    return {"order": "order-1012", "failed": "refund-1003"}


def pictures(page: Page, url: str, runs: dict[str, Any], take: Any) -> None:
    base = url.partition("?")[0]
    page.goto(url)
    page.get_by_role("row").nth(3).wait_for()
    take("runs")
    page.goto(f"{base}workflows/runs/{runs['order']}")
    page.get_by_role("button", name=re.compile("^charge_card")).click()
    take("run")
    for name, path, shown in (
        ("graph", "workflows/runs/trip-88?view=graph", ".node"),
        ("failures", "failures", ".group"),
        ("workflow", "workflows/?name=fulfil_order", ".square"),
        ("dag", "workflows/runs/report-46?view=graph", ".node"),
        ("workers", "timeline?seconds=60", ".bar.at-row"),
    ):
        page.goto(base + path)
        page.locator(shown).first.wait_for()
        if name == "workers":
            page.get_by_role("button", name="Fit").click()
        take(name)


def charged(page: Page, base: str) -> str:
    """The command of the step that was retried."""
    steps = page.request.get(f"{base}api/run?id=order-1012").json()["steps"]
    return next(str(step["cmd"]) for step in steps if step["name"] == "charge_card")


def everything(page: Page, url: str, runs: dict[str, Any], take: Any) -> None:
    base = url.partition("?")[0]
    page.goto(url)
    for name, path in {
        "runs": "workflows/runs", "none": "workflows/runs?q=workflow%3Anone", "wrong": "workflows/runs?q=statuss%3Ax",
        "run": "workflows/runs/order-1012", "failed": "workflows/runs/refund-1003", "trip": "workflows/runs/trip-88",
        "photos": "workflows/runs/album-5", "sleeping": "workflows/runs/welcome-mia", "hook": "workflows/runs/expense-bob",
        "training": "workflows/runs/model-7", "rates": "workflows/runs/rates-ecb",
        "events": "workflows/runs/order-1012?view=events", "values": "workflows/runs/order-1012?view=values",
        "family": "workflows/runs/order-1012?view=family", "logs": "workflows/runs/order-1012?view=logs",
        "graph": "workflows/runs/order-1012?view=graph", "graph-trip": "workflows/runs/trip-88?view=graph",
        "graph-dag": "workflows/runs/report-46?view=graph", "graph-canvas": "workflows/runs/pages-46?view=graph",
        "graph-photos": "workflows/runs/album-5?view=graph", "statuses": "workflows/runs/welcome-lee?view=statuses",
        "event": "workflows/runs/order-1012?view=events&event=4", "failures": "failures", "steps": "invocations",
        "step": "invocations/order-1012/STEP", "timeline": "timeline?seconds=60", "import": "import",
        "workflow": "workflows/?name=fulfil_order", "filtered": "workflows/runs?q=status%3Afailed",
        "workflows": "workflows/", "workers": "workers", "schedules": "schedules", "hooks": "hooks",
    }.items():  # fmt: skip
        page.goto(base + path.replace("STEP", charged(page, base) if "STEP" in path else ""))
        page.wait_for_timeout(500)
        take(name)
    page.goto(f"{base}workflows/runs/expense-bob")
    page.get_by_role("button", name="Answer hook").click()
    take("dialog-send")
    page.goto(f"{base}workflows/runs/refund-1003")
    page.get_by_role("button", name="Retry").click()
    take("dialog-retry")
    page.goto(f"{base}workflows/runs/order-1012")
    page.get_by_role("button", name=re.compile("^charge_card")).click()
    take("panel")


def main(folder: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        store = str(Path(temporary, "shop.db"))
        app.use_store(store)
        command = [sys.executable, "-m", "holdfast", "-A", "shop", "--store", store, "monitor", "--port", "0"]
        with app.worker(concurrency=6):
            runs = fill()
            server = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            try:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
                    looks = [("light", 1280), ("dark", 1280), ("light", 360)] if folder else [("light", 1280)]
                    for theme, width in looks:
                        page = browser.new_page(
                            viewport={"width": width, "height": 780}, color_scheme=theme, device_scale_factor=1,
                        )  # fmt: skip

                        def take(name: str, page: Page = page, theme: str = theme, width: int = width) -> None:
                            page.wait_for_timeout(300)
                            to = (
                                HERE / f"monitor-{name}.png"
                                if folder is None
                                else folder / f"{name}-{theme}-{width}.png"
                            )
                            page.screenshot(path=to)

                        (everything if folder else pictures)(page, url, runs, take)
                    browser.close()
            finally:
                server.terminate()
                server.wait(10)
        app.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
