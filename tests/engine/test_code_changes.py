"""Code that changes while steps of it are under way, of which nothing is recorded yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_until

from holdfast import App, RunStuckError, Workflow, wf


class Shop:
    """The first version charges; the second looks at the address before, for new runs if it is `patched`."""

    def __init__(self, folder: Path, patched: bool = True) -> None:
        self.url = str(folder / "shop.db")
        self.patched = patched
        self.executed: list[str] = []
        self.began = threading.Event()
        self.may_end = threading.Event()

    def version(self, number: int, queue: str = "default") -> tuple[App, Workflow[[], list[str]]]:
        app = App("shop", self.url, version=str(number))

        @app.step(queue=queue)
        def charge() -> str:
            self.executed.append(f"charge {number}")
            self.began.set()
            self.may_end.wait(20)
            return "paid"

        @app.step
        def check_address() -> str:
            self.executed.append(f"check_address {number}")
            return "fine"

        @app.workflow
        def fulfil() -> list[str]:
            is_new = number == 2 and (not self.patched or wf.patched("check the address first"))
            found = [f"address {check_address()}"] if is_new else []
            return [*found, f"payment {charge()}"]

        return app, fulfil


def queued(shop: Shop) -> None:
    """A run whose step waits in a queue that nobody serves."""
    shop.may_end.set()
    app, fulfil = shop.version(1, "bank")
    with app.worker():
        fulfil.options(id="r").start()
        wait_until(lambda: "queue" in app.get_run("r").reason)
    app.close()


def test_a_step_that_waits_in_a_queue_was_asked_for_by_the_old_code(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    queued(shop)
    app, _ = shop.version(2, "bank")
    with app.worker(), app.executor(["bank"]):
        assert app.get_run("r").result(timeout=20) == ["payment paid"]
        assert app.start("fulfil").result(timeout=20) == ["address fine", "payment paid"]
    assert shop.executed == ["charge 2", "check_address 2", "charge 2"]
    app.close()


def test_one_that_nobody_has_begun_is_dropped_if_the_code_asks_for_another_in_its_place(tmp_path: Path) -> None:
    shop = Shop(tmp_path, patched=False)
    queued(shop)
    app, _ = shop.version(2, "bank")
    with app.worker(), app.executor(["bank"]):
        assert app.get_run("r").result(timeout=20) == ["address fine", "payment paid"]
    assert shop.executed == ["check_address 2", "charge 2"]
    app.close()


def paused(shop: Shop) -> None:
    """A run that was paused before its step was shown as started; the outcome is in its inbox."""
    app, fulfil = shop.version(1)
    with app.worker():
        run = fulfil.options(id="r").start()
        shop.began.wait(10)
        run.pause()
        wait_until(lambda: run.status == "PAUSED")
        shop.may_end.set()
    assert [event.kind for event in run.history()] == ["RunStarted", "RunPaused"]
    app.close()


def begun_elsewhere(shop: Shop) -> Callable[[], None]:
    """A step that a worker elsewhere has begun, and ends when that is said."""
    app, fulfil = shop.version(1, "bank")
    helper = app.executor(["bank"])
    helper.__enter__()
    with app.worker():
        fulfil.options(id="r").start()
        shop.began.wait(10)

    def end() -> None:
        shop.may_end.set()
        helper.__exit__(None, None, None)
        app.close()

    return end


def test_an_outcome_that_came_meanwhile_is_for_the_step_that_was_asked_for(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    paused(shop)
    app, _ = shop.version(2)
    with app.worker():
        app.get_run("r").resume()
        assert app.get_run("r").result(timeout=20) == ["payment paid"]
    assert shop.executed == ["charge 1"]
    app.close()


def test_an_outcome_is_never_given_to_another_step(tmp_path: Path) -> None:
    shop = Shop(tmp_path, patched=False)
    paused(shop)
    app, _ = shop.version(2)
    with app.worker():
        app.get_run("r").resume()
        with pytest.raises(
            RunStuckError, match=r"has step 'charge', which has begun, the code asks for .*check_address"
        ):
            app.get_run("r").result(timeout=20)
    app.close()
    app, _ = shop.version(1)
    with app.worker():  # nothing is lost: the old code goes on
        assert app.get_run("r").result(timeout=20) == ["payment paid"]
    assert shop.executed == ["charge 1"]
    app.close()


def test_a_step_that_has_begun_elsewhere_is_not_left_for_another(tmp_path: Path) -> None:
    shop = Shop(tmp_path, patched=False)
    end = begun_elsewhere(shop)
    app, _ = shop.version(2, "bank")
    with app.worker():
        with pytest.raises(RunStuckError, match=r"has step 'charge', which has begun"):
            app.get_run("r").result(timeout=20)
    end()
    assert shop.executed == ["charge 1"]
    app.close()
