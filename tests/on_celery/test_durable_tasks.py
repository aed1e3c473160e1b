"""Tasks of a Celery app that was there before, as steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery_outside import Shop

from holdfast import App, DefinitionError, FatalError
from holdfast.executors.celery.broker import HEADER
from holdfast.executors.celery.pool import Pool


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tasks in this process, and an engine that executes them itself."""
    import celery_legacy

    monkeypatch.setattr(celery_legacy, "LEDGER", tmp_path / "ledger")
    app = App("here", str(tmp_path / "here.db"))
    steps = {task.name.rpartition(".")[2]: app.step(task) for task in
             (celery_legacy.charge, celery_legacy.stubborn, celery_legacy.moody, celery_legacy.changing)}  # fmt: skip
    with app.worker():
        yield lambda name, *args: steps[name].start(*args)
    app.close()


def ledger(tmp_path: Path) -> list[str]:
    return (tmp_path / "ledger").read_text().splitlines()


def test_a_task_has_an_id_that_is_the_same_over_its_retries_and_counts_them(here: Any, tmp_path: Path) -> None:
    run = here("stubborn", 2)
    assert run.result(timeout=20) == 2
    lines = [line.split() for line in ledger(tmp_path)]
    assert [line[2] for line in lines] == ["0", "1", "2"]
    assert len({line[1] for line in lines}) == 1


def test_a_task_that_has_no_retry_left_fails_with_its_own_error(here: Any, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="again"):
        here("stubborn", 9).result(timeout=20)
    assert len(ledger(tmp_path)) == 4


def test_autoretry_is_for_the_errors_that_it_names(here: Any, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="down"):
        here("moody", "passing").result(timeout=20)
    with pytest.raises(ValueError, match="wrong"):
        here("moody", "other").result(timeout=20)
    assert ledger(tmp_path) == ["moody passing"] * 3 + ["moody other"]


def test_a_retry_with_other_arguments_is_refused(here: Any) -> None:
    with pytest.raises(FatalError, match="other arguments"):
        here("changing", 1).result(timeout=20)


def test_a_task_is_still_what_it_was(here: Any, tmp_path: Path) -> None:
    import celery_legacy

    assert celery_legacy.charge("a").startswith("a:1:")
    assert celery_legacy.charge.apply(("b",)).get().startswith("b:1:")
    assert celery_legacy.charged("c", amount=2).startswith("c:2:"), "outside of runs a step is a plain call"


def test_a_task_that_is_a_step_of_two_apps_is_executed_for_the_one_that_its_message_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    celery = Celery("legacy", broker="memory://", set_as_current=False)
    monkeypatch.setattr(Pool, "perform", lambda pool, task: pool)

    @celery.task(name="charge", shared=False)  # type: ignore[untyped-decorator]
    def task() -> str:
        return "called"

    pools = {}
    for name in ("one", "two"):
        App(name, str(tmp_path / "shop.db"), celery=celery).step(task)
    for name in ("one", "two"):
        task.push_request(**{HEADER: name})
        pools[name] = task.run()
        task.pop_request()
    assert pools["one"] is not pools["two"]
    assert all(isinstance(pool, Pool) for pool in pools.values())
    assert task.run() == "called"
    task.push_request(**{HEADER: "three"})
    with pytest.raises(DefinitionError, match="from app 'three', and here it is a step of: one, two"):
        task.run()
    task.pop_request()


def test_durable_and_plain_messages_of_a_task_go_through_the_same_worker(
    shops: Callable[..., Shop], tmp_path: Path
) -> None:
    import celery_legacy

    shop = shops(str(tmp_path / "shop.db"), module="celery_legacy")
    shop.start_worker("-c", "1", "-P", "solo")
    run = shop.start("order", "a")
    result = run.result(timeout=60)
    assert result.startswith("a:3:")
    assert result.endswith(" after 2")
    assert [step.attempts for step in run.steps] == [1, 3]
    sent = celery_legacy.celery.connection_for_write(shop.broker)
    with sent as connection:
        celery_legacy.charge.apply_async(("plain",), connection=connection, ignore_result=True)
    shop.wait_for("charge plain 0 True")
    assert shop.ledger()[0] == "charge a 0 True"
