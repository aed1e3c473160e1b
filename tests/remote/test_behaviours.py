"""All that steps can do, wherever they are executed: the same tests for each way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from ways import PROCESSES, Way

from holdfast import EncodeError, FatalError, RunCancelledError, StepTimeoutError, WorkerLostError

WAYS = [pytest.param(way, marks=pytest.mark.xdist_group(way)) for way in PROCESSES]


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    environment = {}
    if request.param == "celery":
        environment["HOLDFAST_BROKER"] = request.getfixturevalue("redis_databases")()
    way = Way(request.param, tmp_path_factory.mktemp(request.param), **environment)
    yield way
    way.close()


LONG = 60


def test_a_step_is_tried_again_under_the_same_key(way: Way) -> None:
    attempt, key = way.made.flaky.start(way.ledger("flaky"), 2).result(timeout=LONG)
    assert attempt == 3
    assert way.effects("flaky") == [f"{n} {key}" for n in (1, 2, 3)]


def test_after_the_last_attempt_its_error_is_the_runs(way: Way) -> None:
    from behaviour_steps import OddError

    run = way.made.flaky.start(way.ledger("in vain"), 9)
    with pytest.raises(OddError, match="odd 4") as caught:
        run.result(timeout=LONG)
    assert caught.value.code == 4
    assert len(way.effects("in vain")) == 4


def test_an_error_may_say_when_it_is_worth_trying_again(way: Way) -> None:
    assert way.made.busy.start(way.ledger("busy")).result(timeout=LONG) == 2
    first, second = map(float, way.effects("busy"))
    assert second - first >= 0.3


@pytest.mark.parametrize(("name", "kind"), [("hopeless", FatalError), ("odd", Exception)])
def test_some_errors_are_final(way: Way, name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        getattr(way.made, name).start(way.ledger(name)).result(timeout=LONG)
    assert way.effects(name) == ["once"]


def test_a_result_that_can_not_be_encoded_fails_the_step(way: Way) -> None:
    with pytest.raises(EncodeError, match="unencodable"):
        way.made.unencodable.start().result(timeout=LONG)


@pytest.mark.parametrize("name", ["hangs", "hangs_async"])
def test_a_step_that_takes_too_long_fails(way: Way, name: str) -> None:
    with pytest.raises(StepTimeoutError, match="longer than its timeout of 300ms"):
        getattr(way.made, name).start(way.ledger(name)).result(timeout=LONG)


def test_a_step_that_makes_no_progress_fails(way: Way) -> None:
    with pytest.raises(StepTimeoutError, match="no progress"):
        way.made.stalls.start(3).result(timeout=LONG)


def test_a_checkpoint_is_there_in_the_next_attempt(way: Way) -> None:
    run = way.made.in_pieces.start(4)
    assert run.result(timeout=LONG) == [0, 1, 2, 3]
    assert way.made.app.store.attributes(run.id, "checkpoint") == {}


def test_progress_is_seen_while_the_step_executes(way: Way, tmp_path: Path) -> None:
    run = way.made.shows_progress.start(str(tmp_path / "go on"))
    store = way.made.app.store
    way.until(lambda: store.attributes(run.id, "progress"))
    assert b"nearly" in next(iter(store.attributes(run.id, "progress").values()))
    (tmp_path / "go on").touch()
    assert run.result(timeout=LONG) == "done"
    assert store.attributes(run.id, "progress") == {}


def test_items_are_streamed_in_order_and_told_apart_by_attempt(way: Way) -> None:
    run = way.made.streams.start(3)
    assert run.result(timeout=LONG) == 3
    rows = way.made.app.store.stream(run.id, 0, 100)
    assert [(row.attempt, row.item) for row in rows] == [
        (attempt, b'"%d.%d"' % (attempt, n)) for attempt in (1, 2) for n in range(3)
    ]


def test_a_step_reads_the_runs_data_and_what_it_writes_comes_with_its_outcome(way: Way) -> None:
    run = way.made.with_data.start()
    assert run.result(timeout=LONG) == "blue"
    assert run.data == {"color": "blue", "seen": "blue", "tried": 2}, "what a failed attempt has written is dropped"


def test_what_a_step_logs_is_kept_attempt_by_attempt(way: Way) -> None:
    run = way.made.talks.start("boo")
    run.result(timeout=LONG)
    assert [(one.attempt, [line.message for line in one.lines]) for one in run.logs()] == [
        (n, [f"says boo in attempt {n}"]) for n in (1, 2)
    ]


def test_a_resource_is_opened_once_where_steps_execute(way: Way) -> None:
    pids: dict[int, list[int]] = {}
    for _ in range(3):
        pid, uses = way.made.use_pool.start().result(timeout=LONG)
        pids.setdefault(pid, []).append(uses)
    assert all(uses == [*range(1, len(uses) + 1)] for uses in pids.values()), pids
    assert os.getpid() not in pids


def test_a_step_starts_a_child_and_waits_for_it(way: Way) -> None:
    assert way.made.starts_child.start(20).result(timeout=LONG) == 41


def test_async_steps_execute_together(way: Way) -> None:
    names = [str(n) for n in range(50)]
    assert way.made.many.start(names).result(timeout=LONG) == [f"hello {name}" for name in names]


def test_large_values_pass(way: Way) -> None:
    value = {"text": "ü" * 500_000, "list": [*range(1_000)]}
    assert way.made.echo.start(value).result(timeout=LONG) == value


def test_a_step_may_end_elsewhere(way: Way) -> None:
    run = way.made.hands_over.start(way.ledger("handed"))
    way.until(lambda: way.effects("handed"))
    way.until(lambda: any(event.kind == "StepHandedOver" for event in run.history()))
    way.made.app.finish_step(way.effects("handed")[0], None)
    assert run.result(timeout=LONG) is None


def test_a_cancelled_run_interrupts_its_step(way: Way) -> None:
    run = way.made.hangs_long.start(way.ledger("cancelled"))
    store = way.made.app.store
    way.until(lambda: way.effects("cancelled"))
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(timeout=LONG)
    if way.name != "process":  # there it is killed
        way.until(lambda: way.effects("cancelled") == ["begun", "interrupted"])
    assert store.attempts(run.id) == []


def test_a_step_that_kills_its_process_each_time_fails_and_bystanders_do_not(way: Way) -> None:
    run = way.made.killer_in_company.start(way.ledger("killed"))
    way.until(lambda: run.status.is_final)
    assert run.result() == ["WorkerLostError", "patient", "patient", "patient"]
    kills = [line for line in way.effects("killed") if line != "patient"]
    assert 3 <= len(kills) <= 6
    assert len(set(kills)) == len(kills), "each time it was another process"


def test_a_step_that_is_executed_at_most_once_is_not_executed_again_after_a_loss(way: Way) -> None:
    run = way.made.once.start(way.ledger("once"))
    way.until(lambda: run.status.is_final)
    with pytest.raises(WorkerLostError, match="at most once"):
        run.result()
    assert len(way.effects("once")) == 1
