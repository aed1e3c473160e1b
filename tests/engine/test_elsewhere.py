"""Steps that workers elsewhere execute, seen from the engine that owns their runs: the test itself is that worker, and
does by hand what one does."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from waiting import wait_until

from holdfast import App, FatalError, RetryableError, RunCancelledError, StepError, WorkerLostError, hook, wf
from holdfast.core import events as ev
from holdfast.engine.arrivals import InboxHint, Wake
from holdfast.engine.attempts import decode_attempt
from holdfast.engine.host import Host, Waiter
from holdfast.engine.records import outcome_message, stream_message
from holdfast.engine.settings import Settings
from holdfast.ports import Attempt, AttemptReport, EndedAttempt, Outcome, Store, WorkerKind, WorkerRow

QUICK = Settings(beat=0.05, sweep=0.1, park_after=0.05, show_after=0.01)
LEASE = 60_000_000


class Elsewhere:
    """A worker that executes nothing: it says what became of attempts."""

    def __init__(self, store: Store, worker: str = "gpu-1") -> None:
        self.store = store
        self.worker = worker
        self.tokens: dict[str, Attempt] = {}
        row = WorkerRow(
            id=worker, app=store.app, host="h", pid=1, build="1", names=[], kind=WorkerKind.EXECUTOR, queues=["gpu"],
            steps=["train"],
        )  # fmt: skip
        store.register(row, LEASE)

    def claim(self, count: int = 1) -> list[str]:
        """So many attempts, once they are there."""
        claimed: list[str] = []

        def get() -> bool:
            for one in self.store.claim_attempts(self.worker, ["gpu"], ["train"], count - len(claimed)):
                self.tokens[one.token] = decode_attempt(one.body, 0)
                claimed.append(one.token)
            return len(claimed) == count

        wait_until(get, 20)
        return claimed

    def end(self, token: str, codec: Any, result: Any = None, error: BaseException | None = None, **more: Any) -> bool:
        attempt = self.tokens[token]
        outcome = Outcome(attempt=attempt, started=self.store.now(), **more)
        if error is not None:
            outcome.error, outcome.encoded_error = error, codec.encode_error(error)
        elif not outcome.lost:
            outcome.result = codec.encode(result)
        message = outcome_message(attempt.run_id, outcome, self.worker, token)
        return bool(self.store.end_attempts(self.worker, [EndedAttempt(token, message)]))

    def vanish(self) -> None:
        """As if its process had died."""
        self.store.release_lock(self.worker)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What these apps leave is not found by tests that look for what others leave."""
    yield
    gc.collect()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App("elsewhere", str(tmp_path / "elsewhere.db"))
    yield app
    app.close()


@pytest.fixture
def train(app: App) -> Any:
    @app.step(queue="gpu", max_retries=2, retry_delay=0, timeout=None)
    def train(x: int) -> int:
        raise AssertionError("this engine doesn't serve the queue")

    return train


def events(app: App, run: Any) -> list[Any]:
    """What happened to the steps of a run."""
    found = [ev.from_json(payload) for payload in app.store.payloads(run.id)]
    return [event for event in found if isinstance(event, ev.StepOutcome)]


def inbox(app: App, run: Any) -> list[str]:
    """What waits for a run, whoever owns it."""
    with app.store.read() as db:
        return [
            kind
            for (kind,) in db.execute("SELECT kind FROM inbox i JOIN runs r ON r.no = i.run WHERE r.id = ?", (run.id,))
        ]


def kinds(app: App, run: Any) -> list[str]:
    return [event.kind for event in events(app, run)]


def test_a_step_of_another_queue_is_left_to_others_and_its_outcome_comes_back(app: App, train: Any) -> None:
    @app.workflow
    async def learn() -> int:
        wf.set_data("size", 7)
        return int(train(1)) + 1

    with app.worker(settings=QUICK):
        run = learn.start()
        there = Elsewhere(app.store)
        (token,) = there.claim()
        attempt = there.tokens[token]
        assert (attempt.step, attempt.number, attempt.run_id) == ("train", 1, run.id)
        assert attempt.data == {"size": msgspec.Raw(b"7")}
        assert there.end(token, app.codec, 41)
        assert run.result(timeout=20) == 42
        assert kinds(app, run) == ["StepCompleted"]
        assert run.steps[0].worker == "gpu-1"
        assert app.store.attempts(run.id) == []


def test_items_that_an_executor_tells_again_are_there_once(app: App, train: Any) -> None:
    """It had no answer, and the run has read them meanwhile. Another executor, which got the attempt after it, begins anew."""

    @app.workflow
    async def learn() -> int:
        return int(train(1))

    def streamed() -> list[tuple[str, int]]:
        return [(item.item, item.attempt) for item in run.stream()]

    with app.worker(settings=QUICK):
        run = learn.start()
        there = Elsewhere(app.store)
        (token,) = there.claim()
        items = [
            stream_message(there.tokens[token], app.store.now(), app.codec.encode(word), place)
            for place, word in enumerate(("one", "two", "three"))
        ]
        for told in (items[:2], items[:3], items[1:3], items[:1]):
            for item in told:
                app.store.post(item)
            wait_until(lambda: not inbox(app, run), 20)
        there.end(token, app.codec, 5)
        assert run.result(timeout=20) == 5
        assert streamed() == [("one", 1), ("two", 1), ("three", 1)]


def test_a_run_that_only_waits_for_a_step_elsewhere_leaves_memory(app: App, train: Any) -> None:
    @app.workflow
    async def learn() -> int:
        return int(train(1))

    with app.worker(settings=QUICK) as host:
        run = learn.start()
        there = Elsewhere(app.store)
        (token,) = there.claim()
        wait_until(lambda: not host.engine.runs, 20)
        row = app.store.get(run.id)
        assert row is not None
        assert (row.status, row.owner, row.reason) == ("WAITING", None, "step 'train' in queue 'gpu'")
        there.end(token, app.codec, 5)
        assert run.result(timeout=20) == 5
        assert kinds(app, run) == ["StepCompleted"], "it was asked for once"


@pytest.mark.parametrize("park_after", [60.0, 0.01])
def test_an_engine_that_is_told_which_run_has_a_message_reads_it_wherever_the_run_is(
    app: App, train: Any, park_after: float
) -> None:
    """In memory, or let go of in the meantime."""

    @app.workflow
    async def learn() -> int:
        return int(train(1))

    with app.worker(settings=Settings(sweep=3_600.0, park_after=park_after, park_factor=0.0)) as host:
        run = learn.start()
        there = Elsewhere(app.store)
        (token,) = there.claim()
        no = there.tokens[token].run_no
        wait_until(lambda: (no in host.engine.runs) == (park_after == 60.0), 20)
        assert there.end(token, app.codec, 41)
        host.told("another worker", [no])
        host.told(host.worker_id, [no])
        assert run.result(timeout=20) == 41


def test_a_failed_attempt_is_tried_again_after_the_delay_that_it_asks_for(app: App, train: Any) -> None:
    with app.worker(settings=QUICK):
        run = train.start(1)
        there = Elsewhere(app.store)
        (token,) = there.claim()
        there.store.report_attempts(
            "gpu-1", [AttemptReport(token, "checkpoint", b"3"), AttemptReport(token, "progress", b"1")]
        )
        there.end(token, app.codec, error=RetryableError("busy"), retry_after=10_000)
        (token,) = there.claim()
        assert there.tokens[token].number == 2
        assert there.tokens[token].checkpoint == b"3", "it is kept over attempts"
        there.end(token, app.codec, error=FatalError("no use"))
        with pytest.raises(FatalError, match="no use"):
            run.result(timeout=20)
        assert kinds(app, run) == ["StepRetrying", "StepFailed"]
        retrying = events(app, run)[0]
        assert retrying.retry_at - retrying.ts == 10_000
        assert app.store.attributes(run.id, "progress") == {}


def test_a_stopping_engine_does_not_wait_for_steps_elsewhere(app: App, train: Any) -> None:
    with app.worker(settings=QUICK, grace=30):
        run = train.start(1)
        there = Elsewhere(app.store)
        (token,) = there.claim()
        begun = time.monotonic()
    assert time.monotonic() - begun < 20
    assert there.end(token, app.codec, 3)
    with app.worker(settings=QUICK):
        assert run.result(timeout=20) == 3
    assert kinds(app, run) == ["StepCompleted"]


def test_whoever_takes_a_run_over_does_not_ask_for_its_steps_again(app: App, train: Any) -> None:
    @app.workflow
    async def learn() -> list[int]:
        return list(await asyncio.gather(*(train.submit(n) for n in range(3))))

    engine = app.make_engine(settings=QUICK)
    engine.start()
    run = learn.start()
    while len(app.store.attempts(run.id)) < 3:
        engine.engine.turn([])
    there = Elsewhere(app.store)
    first, second = there.claim(2)
    before = {row.token for row in app.store.attempts(run.id)}
    there.end(first, app.codec, 1)  # nobody has read it yet
    engine.store.release_lock(engine.worker_id)  # as if it had died
    with app.worker(settings=QUICK):
        wait_until(lambda: run.steps and run.steps[0].state == "SUCCESS", 20)
        assert {row.token for row in app.store.attempts(run.id)} == before - {first}
        there.end(second, app.codec, 2)
        (third,) = there.claim()
        there.end(third, app.codec, 3)
        assert sorted(run.result(timeout=20)) == [1, 2, 3]
    assert kinds(app, run) == ["StepCompleted"] * 3, "none of them is suspected of the engine's death"
    engine.stop(0)
    engine.run()


def ends_with_cancel(run: Any) -> None:
    run.cancel()
    with pytest.raises(RunCancelledError):
        run.result(timeout=20)


def ends_terminated(run: Any) -> None:
    run.terminate("enough")
    with pytest.raises(RunCancelledError):
        run.result(timeout=20)


@pytest.mark.parametrize("end", [ends_with_cancel, ends_terminated])
@pytest.mark.parametrize("claimed", [True, False])
def test_nobody_wants_the_steps_of_a_run_that_was_ended(
    app: App, train: Any, end: Callable[[Any], None], claimed: bool
) -> None:
    with app.worker(settings=QUICK):
        run = train.start(1)
        there = Elsewhere(app.store)
        wait_until(lambda: app.store.attempts(run.id), 20)
        tokens = there.claim() if claimed else []
        end(run)
        assert app.store.attempts(run.id) == []
        assert there.store.held_attempts("gpu-1") == set()
        assert not any(there.end(token, app.codec, 1) for token in tokens), "it is too late"


def test_a_paused_run_takes_back_what_nobody_has_begun_and_keeps_the_rest(app: App, train: Any) -> None:
    @app.workflow
    async def learn() -> list[int]:
        return list(await asyncio.gather(train.submit(1), train.submit(2)))

    with app.worker(settings=QUICK):
        run = learn.start()
        there = Elsewhere(app.store)
        wait_until(lambda: len(app.store.attempts(run.id)) == 2, 20)
        (begun,) = there.claim()
        run.pause()
        wait_until(lambda: run.status == "PAUSED", 20)
        assert [row.token for row in app.store.attempts(run.id)] == [begun]
        assert there.end(begun, app.codec, 10)
        run.resume()
        (other,) = there.claim()
        there.end(other, app.codec, 20)
        assert sorted(run.result(timeout=20)) == [10, 20]
    assert kinds(app, run) == ["StepCompleted"] * 2


def test_steps_that_the_workflow_no_longer_waits_for_are_dropped(app: App, train: Any) -> None:
    @app.workflow
    async def learn() -> str:
        future = train.submit(1)
        await hook("enough")
        future.cancel()
        await hook("done")
        return "done"

    with app.worker(settings=QUICK):
        run = learn.start()
        wait_until(lambda: app.store.attempts(run.id), 20)
        run.send("enough")
        wait_until(lambda: not app.store.attempts(run.id), 20)
        run.send("done")
        assert run.result(timeout=20) == "done"


def test_a_lost_worker_counts_on_the_attempt_and_bystanders_are_not_blamed(app: App) -> None:
    @app.step(queue="gpu", max_losses=2)
    def train(x: int) -> int:
        raise AssertionError

    @app.workflow
    async def learn() -> list[Any]:
        return list(await asyncio.gather(train.submit(1), train.submit(2), return_exceptions=True))

    with app.worker(settings=QUICK):
        run = learn.start()
        there = Elsewhere(app.store)
        there.claim(2)
        there.vanish()
        again = Elsewhere(app.store, "gpu-2")
        first, second = again.claim(2)
        assert [again.tokens[token].pool for token in (first, second)] == ["process"] * 2, "each runs apart now"
        again.end(first, app.codec, lost=True)
        (third,) = again.claim()
        again.end(third, app.codec, lost=True)
        again.end(second, app.codec, 2)
        results = run.result(timeout=20)
    assert {type(result) for result in results} == {WorkerLostError, int}
    lost = [event for event in events(app, run) if event.kind == "StepLost"]
    assert [(event.worker, event.company) for event in lost[:2]] == [("gpu-1", 1)] * 2
    assert [(event.worker, event.company) for event in lost[2:]] == [("gpu-2", 0)] * 2


def test_a_step_that_is_executed_at_most_once_is_not_begun_again_after_a_loss(app: App) -> None:
    @app.step(queue="gpu", max_retries=0, max_losses=1)
    def train(x: int) -> int:
        raise AssertionError

    with app.worker(settings=QUICK):
        run = train.start(1)
        there = Elsewhere(app.store)
        there.claim()
        there.vanish()
        with pytest.raises(WorkerLostError, match="at most once"):
            run.result(timeout=20)


def test_the_outcome_of_a_worker_that_was_given_up_comes_too_late(app: App, train: Any) -> None:
    with app.worker(settings=QUICK):
        run = train.start(1)
        frozen = Elsewhere(app.store)
        (token,) = frozen.claim()
        frozen.vanish()
        other = Elsewhere(app.store, "gpu-2")
        (again,) = other.claim()
        assert not frozen.end(token, app.codec, "zombie")
        other.end(again, app.codec, 2)
        assert run.result(timeout=20) == 2


def test_a_step_that_says_force_local_stays_here(app: App) -> None:
    @app.step(queue="gpu", force_local=True)
    def train(x: int) -> int:
        return x

    with app.worker(settings=QUICK):
        assert train.start(3).result(timeout=20) == 3


def test_default_names_the_queue_of_steps_that_name_none(app: App) -> None:
    @app.step(queue="default")
    def train(x: int) -> int:
        return x

    with app.worker(settings=QUICK):
        assert train.start(3).result(timeout=20) == 3


def test_one_call_can_name_another_queue(app: App) -> None:
    @app.step
    def train(x: int) -> int:
        return x

    @app.workflow
    async def learn() -> int:
        return int(train(1)) + await train.options(queue="gpu").submit(2)

    with app.worker(settings=QUICK):
        run = learn.start()
        there = Elsewhere(app.store)
        (token,) = there.claim()
        there.end(token, app.codec, 20)
        assert run.result(timeout=20) == 21
        single = train.options(queue="gpu").start(4)
        (token,) = there.claim()
        there.end(token, app.codec, 40)
        assert single.result(timeout=20) == 40


def test_an_unreadable_error_fails_the_step_and_not_the_run_of_others(app: App, train: Any) -> None:
    class Odd(Exception):
        pass

    with app.worker(settings=QUICK):
        run = train.options(max_retries=0).start(1)
        there = Elsewhere(app.store)
        (token,) = there.claim()
        there.end(token, app.codec, error=Odd("what"))
        with pytest.raises(StepError, match="what"):
            run.result(timeout=20)


@pytest.mark.parametrize(("gather", "came"), [(0.005, 2), (0.0, 1)])
def test_outcomes_gather_for_a_moment_while_many_runs_wait(
    app: App, monkeypatch: pytest.MonkeyPatch, gather: float, came: int
) -> None:
    class Told(Waiter):
        def wait(self, get: Callable[[float], Any], wake: Wake) -> Any:
            return InboxHint("w1", [1])

    host = Host(app.make_engine().engine, Told())
    monkeypatch.setattr("holdfast.engine.host.time", SimpleNamespace(sleep=lambda seconds: host.told("w1", [2])))
    assert len(host._arrived(Wake(None, None, 1.0, 0, gather=gather))) == came
    host.engine.env.store.close()
