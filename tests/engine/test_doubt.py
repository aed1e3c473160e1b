"""After a commit whose fate nobody knows, and after a worker that is gone: what has begun, and what has not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from waiting import wait_until

from holdfast import App, WorkerLostError, hook, this_step, wf
from holdfast.core import events as ev
from holdfast.engine import backoff
from holdfast.engine.host import Host
from holdfast.engine.records import to_record
from holdfast.engine.run import LiveRun
from holdfast.engine.settings import Settings
from holdfast.errors import StoreUnavailableError
from holdfast.ports import Change, RunQuery, WorkerRow


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setattr(backoff, "LONGEST", 0.01)
    app = App("doubt", str(tmp_path / "doubt.db"))
    yield app
    app.close()


@contextmanager
def engine(
    app: App, prepare: Callable[[Any], None] = lambda store: None, started_after: float = 60.0, concurrency: int = 16
) -> Iterator[Host]:
    host = app.make_engine(concurrency=concurrency, settings=Settings(sweep=0.1, started_after=started_after))
    prepare(host.store)
    host.start()
    thread = threading.Thread(target=host.run)
    thread.start()
    try:
        yield host
    finally:
        host.stop(0)
        thread.join(20)
        host.store.close()
    assert not thread.is_alive()
    assert host.failure is None


def has(changes: Sequence[Change], kind: str) -> bool:
    return any(record.kind == kind for change in changes for record in change.records)


def test_a_commit_that_is_carried_out_late_is_waited_for_before_anything_is_read_again(app: App) -> None:
    """The server is still at it when its answer is lost. It claims a run, which nobody would ever look for."""

    @app.workflow
    def flow() -> str:
        return "done"

    late: list[Callable[[], Any]] = []

    def prepare(store: Any) -> None:
        commit, settle, runs = store.commit, store.settle, store.runs
        is_lost = [False]

        def lose(worker: str, changes: Sequence[Change], claim: int, names: Sequence[str]) -> Any:
            if is_lost[0] or not claim:
                return commit(worker, changes, claim, names)
            is_lost[0] = True
            late.append(lambda: commit(worker, changes, claim, names))
            raise StoreUnavailableError("the answer is lost")

        def happen() -> None:
            while late:
                late.pop()()

        def wait(worker: str) -> None:
            happen()
            settle(worker)

        def look(query: RunQuery) -> Any:
            found = runs(query)
            happen()
            return found

        store.commit, store.settle, store.runs = lose, wait, look

    run = flow.start()
    with engine(app, prepare):
        assert run.result(timeout=10) == "done"
    assert not late


def test_a_step_at_most_once_whose_announcement_was_recorded_without_an_answer_is_executed(app: App) -> None:
    """It was not handed over before that was known: it has not begun."""
    begun: list[int] = []

    @app.step(at_most_once=True)
    def once() -> str:
        begun.append(1)
        return "done"

    @app.workflow
    def flow() -> str:
        return once()

    def prepare(store: Any) -> None:
        commit = store.commit
        is_lost = [False]

        def lose(worker: str, changes: Sequence[Change], *rest: Any) -> Any:
            committed = commit(worker, changes, *rest)
            if not is_lost[0] and has(changes, "StepStarted"):
                is_lost[0] = True
                raise StoreUnavailableError("the answer is lost")
            return committed

        store.commit = lose

    with engine(app, prepare):
        assert flow.start().result(timeout=20) == "done"
    assert begun == [1]


def test_a_probe_that_was_announced_twice_counts_as_one_worker(app: App) -> None:
    """The run was there when others took three workers down. That its own worker lives and had no answer is no fourth."""

    @app.workflow
    def flow() -> str:
        return "done"

    lost: list[str] = []

    def prepare(store: Any) -> None:
        commit = store.commit

        def lose(worker: str, changes: Sequence[Change], *rest: Any) -> Any:
            committed = commit(worker, changes, *rest)
            if len(lost) < 3 and has(changes, "RunProbed"):
                lost.append(worker)
                raise StoreUnavailableError("the answer is lost")
            return committed

        store.commit = lose

    run = flow.start()
    with app.store.database.write("test") as db:  # type: ignore[attr-defined]
        db.execute("UPDATE runs SET losses = 3")
    with engine(app, prepare):
        assert run.result(timeout=20) == "done"
    assert len(lost) == 3


def loses_the_answer_to_data(store: Any) -> list[str]:
    """The first commit that publishes data happens, and nobody is told."""
    lost: list[str] = []
    commit = store.commit

    def lose(worker: str, changes: Sequence[Change], *rest: Any) -> Any:
        committed = commit(worker, changes, *rest)
        if not lost and has(changes, "DataSet"):
            lost.append(worker)
            raise StoreUnavailableError("the answer is lost")
        return committed

    store.commit = lose
    return lost


def is_read_again(host: Host, before: LiveRun) -> bool:
    """Whether another one stands for the run in memory, with all that it has come to committed."""
    (live,) = host.engine.runs.values()
    is_ready = live.code.execution is not None and live.code.replay is None
    return live is not before and is_ready and not (live.broken or live.change or live.deliveries)


def test_a_step_at_most_once_that_waits_for_a_thread_has_not_begun_though_its_run_was_read_again(app: App) -> None:
    begun: list[int] = []
    is_held, gate = threading.Event(), threading.Event()

    @app.step(timeout=None)
    def hog() -> None:
        is_held.set()
        gate.wait(20)

    @app.step(at_most_once=True)
    def once() -> str:
        begun.append(1)
        return "done"

    @app.workflow
    async def flow() -> str:
        hogging, waiting = hog.submit(), once.submit()
        await hook("go on")
        wf.set_data("k", 1)
        await hogging
        return await waiting

    with engine(app, concurrency=1) as first:
        run = flow.start()
        assert is_held.wait(20)
        wait_until(lambda: "StepStarted" in [event.kind for event in run.history()], 20)
        (before,) = first.engine.runs.values()
        lost = loses_the_answer_to_data(first.store)
        run.send("go on")
        wait_until(lambda: bool(lost) and is_read_again(first, before), 20)
    gate.set()
    with engine(app):
        assert run.result(timeout=20) == "done"
    assert begun == [1]


def test_a_checkpoint_is_there_for_the_next_attempt_and_gone_at_the_end_though_the_run_was_read_again(app: App) -> None:
    is_kept, gate = threading.Event(), threading.Event()
    seen: list[object] = []

    @app.step(max_retries=1, retry_delay=0)
    def works() -> None:
        seen.append(this_step.last_checkpoint)
        if len(seen) == 1:
            this_step.checkpoint("half-way")
            is_kept.set()
            gate.wait(20)
            raise OSError("again")

    @app.workflow
    async def flow() -> None:
        working = works.submit()
        await hook("go on")
        wf.set_data("k", 1)
        await working

    with engine(app) as host:
        run = flow.start()
        assert is_kept.wait(20)
        wait_until(lambda: bool(host.store.attributes(run.id, "checkpoint")), 20)
        (before,) = host.engine.runs.values()
        lost = loses_the_answer_to_data(host.store)
        run.send("go on")
        wait_until(lambda: bool(lost) and is_read_again(host, before), 20)
        gate.set()
        run.result(timeout=20)
        assert seen == [None, "half-way"]
        assert host.store.attributes(run.id, "checkpoint") == {}


def test_the_failure_of_a_lost_step_comes_after_the_steps_that_it_makes_unwanted(app: App) -> None:
    """Both are asked for by one replay. The one that is lost cancels the other, which must not begin then."""
    begun: Counter[str] = Counter()
    gate = threading.Event()

    @app.step(max_losses=1, timeout=None)
    def deadly() -> None:
        begun["deadly"] += 1
        gate.wait(30)

    @app.step(timeout=None)
    def other() -> None:
        begun["other"] += 1
        gate.wait(30)

    @app.workflow
    async def flow() -> str:
        lost, unwanted = deadly.submit(), other.submit()
        try:
            await lost
        except WorkerLostError as error:
            unwanted.cancel()
            await hook("go on")
            return type(error).__name__
        return "done"

    def starts() -> int:
        return sum(event.kind == "StepStarted" for event in run.history())

    with engine(app, started_after=0.0) as first:
        run = flow.start()
        wait_until(lambda: starts() == 2, 20)
        first.store.release_lock(first.engine.me.worker)  # as the kernel does when its process dies
        first.store.commit = _gone  # type: ignore[method-assign]
        with engine(app):
            run.send("go on")
            assert run.result(timeout=20) == "WorkerLostError"
            gate.set()
    assert begun == {"deadly": 1, "other": 1}


def _gone(*args: Any) -> Any:
    raise StoreUnavailableError("this process is gone")


@pytest.mark.parametrize("happened", [True, False])
def test_what_a_step_streams_is_there_once_whatever_became_of_the_commit(app: App, happened: bool) -> None:
    """A commit with nothing but items leaves no trace in the history."""

    @app.step
    def talk() -> None:
        for word in ("one", "two", "three"):
            this_step.stream(word)
            said.wait(20)

    @app.workflow
    def flow() -> None:
        talk()

    lost: list[int] = []
    said = threading.Event()

    def prepare(store: Any) -> None:
        commit = store.commit

        def lose(worker: str, changes: Sequence[Change], *rest: Any) -> Any:
            if lost or not any(change.streamed for change in changes):
                return commit(worker, changes, *rest)
            lost.append(len(changes))
            if happened:
                commit(worker, changes, *rest)
            said.set()
            raise StoreUnavailableError("the answer is lost")

        store.commit = lose

    with engine(app, prepare):
        run = flow.start()
        run.result(timeout=20)
        assert [(item.item, item.attempt) for item in run.stream()] == [("one", 1), ("two", 1), ("three", 1)]
    assert lost == [1]


def test_what_a_step_has_said_is_told_though_its_worker_was_taken_for_dead(app: App) -> None:
    """It had said it to a run that was no longer this worker's, and the step's outcome counts."""
    executed: list[int] = []

    @app.step
    def talk() -> str:
        executed.append(1)
        for word in ("one", "two", "three"):
            this_step.stream(word)
        return "said"

    @app.workflow
    def flow() -> str:
        return talk()

    fenced: list[str] = []

    def prepare(store: Any) -> None:
        commit = store.commit

        def fence(worker: str, changes: Sequence[Change], *rest: Any) -> Any:
            if not fenced and any(change.streamed for change in changes):
                fenced.append(worker)
                store.unregister(worker)
            return commit(worker, changes, *rest)

        store.commit = fence

    with engine(app, prepare):
        run = flow.start()
        assert run.result(timeout=20) == "said"
        assert [(item.item, item.attempt) for item in run.stream()] == [("one", 1), ("two", 1), ("three", 1)]
    assert executed == [1]
    assert len(fenced) == 1


def test_an_attempt_that_others_have_made_too_is_dropped_where_it_still_executes(app: App) -> None:
    """Its run was elsewhere meanwhile, where the attempt has failed, and now waits for the next one."""
    begun, gate = threading.Event(), threading.Event()

    @app.step(max_retries=5, retry_delay=0)
    def flaky() -> None:
        begun.set()
        gate.wait(20)
        raise ValueError("no")

    @app.workflow
    def flow() -> None:
        flaky()

    with engine(app) as host:
        run = flow.start()
        begun.wait(20)
        run.pause()
        wait_until(lambda: run.status == "PAUSED" and not host.engine.runs)
        seq = run.history()[-1].seq + 1
        error = Raw(app.codec.encode_error(ValueError("elsewhere")))
        elsewhere = ev.StepRetrying(
            seq=seq, ts=app.store.now(), cmd="1s0", cause=1, name="flaky", args=Raw(b"{}"), attempt=1, worker="another",
            error=error, retry_at=app.store.now() + 3_600_000_000,
        )  # fmt: skip
        store: Any = app.store
        store.register(WorkerRow(id="another", app=app.name, host="h", pid=1, build="1", names=["flow"]), 60_000_000)
        with store.database.write("test") as db:
            db.execute("UPDATE runs SET owner = 'another'")
        change = Change(no=store.get(run.id).no, records=[to_record(elsewhere)], columns={"owner": None})
        store.commit("another", [change], 0, [])
        store.unregister("another")
        run.resume()
        wait_until(lambda: run.reason == "retry of step 'flaky' (attempt 2)")
        gate.set()
        wait_until(lambda: not host.engine.inflight)
        wait_until(lambda: not host.engine.live_runs.ready)
        events = [ev.from_json(payload) for payload in app.store.payloads(run.id)]
        assert [event.worker for event in events if isinstance(event, ev.StepRetrying)] == ["another"]
