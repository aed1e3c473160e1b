"""A run that can't go on is its own trouble, not its worker's, and not the next worker's either."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import effects
import msgspec
import pytest
from msgspec import Raw
from test_commit_failures import FailingCommit, check_executed_once, running_engine
from world import World

from holdfast import RunStuckError
from holdfast.core import events as ev
from holdfast.engine.engine import Engine
from holdfast.engine.records import OutcomeMessage
from holdfast.errors import EncodeError, RunFinishedError
from holdfast.ports import Change, InboxRow, Message, Topic
from holdfast.stores.sqlite import SqliteStore


def test_a_history_that_can_not_be_read_sets_its_run_aside(world: World) -> None:
    bad, good = effects.sequence.options(id="bad").start(3), effects.sequence.start(3)
    store = world.app.store
    assert isinstance(store, SqliteStore)
    with store.write("test") as db:
        db.execute("""UPDATE history SET payload = '{"kind":"FromTheFuture","seq":1}' WHERE run = 1""")
    with running_engine(world, lambda engine: None):
        assert good.result(timeout=20) == 3
        with pytest.raises(RunStuckError, match="FromTheFuture"):
            bad.result(timeout=20)


def test_a_change_that_can_not_be_written_sets_its_run_aside_and_holds_up_no_other(world: World) -> None:
    refused: list[int] = []

    def refuse(changes: Sequence[Change]) -> str:
        bad = world.app.store.get("bad")
        for change in changes:
            if bad is not None and change.no == bad.no and any(r.kind == "StepCompleted" for r in change.records):
                refused.append(len(changes))
                raise EncodeError("a value can't be kept")
        return ""

    with running_engine(world, lambda engine: FailingCommit(engine, refuse)):
        runs = [effects.sequence.options(id="bad" if i == 3 else f"good-{i}").start(3) for i in range(6)]
        with pytest.raises(RunStuckError, match="a value can't be kept"):
            runs[3].result(timeout=20)
        assert [run.result(timeout=20) for run in runs if run.id != "bad"] == [3] * 5
    assert refused
    world.check_histories()
    assert [e.kind for e in world.events("bad")] == ["RunStarted", "RunStuck"]


def test_what_was_set_aside_goes_on_with_what_it_had_achieved(world: World) -> None:
    """The outcome that could not be written was kept."""
    refused: list[int] = []

    def refuse_once(changes: Sequence[Change]) -> str:
        if not refused and any(r.kind == "StepCompleted" for change in changes for r in change.records):
            refused.append(1)
            raise EncodeError("a value can't be kept")
        return ""

    with running_engine(world, lambda engine: FailingCommit(engine, refuse_once)):
        run = effects.sequence.start(3)
        world.until(lambda: run.status == "STUCK")
        run.resume()
        world.until(lambda: run.status.is_final)
        assert run.result(timeout=20) == 3
    world.check_histories()
    check_executed_once(world)


def test_a_time_beyond_all_times_is_as_good_as_never(world: World) -> None:
    with running_engine(world, lambda engine: None):
        run = effects.nap.start(1e14)
        world.until(lambda: run.status == "WAITING" and world.app.store.get(run.id).owner is None)  # type: ignore[union-attr]
        assert effects.sequence.start(3).result(timeout=20) == 3
        run.cancel()
        world.until(lambda: run.status == "CANCELLED")


# -- outcomes on their way


def test_the_outcome_of_an_earlier_run_of_the_same_id_is_nobodys(world: World) -> None:
    with running_engine(world, lambda engine: None):
        run = effects.gated.options(id="same").start("go")
        row = world.app.store.get("same")
        assert row is not None
        world.until(lambda: world.ledger("wait_at_gate"))
        message = OutcomeMessage(
            run_no=row.no - 1, cmd="1s0", attempt=1, worker="zombie", started=0, result=Raw(b'"another"')
        )
        world.app.store.post(Message(run_id="same", kind="outcome", body=msgspec.json.encode(message)))
        world.app.notifier.ring(Topic.INBOX)
        world.until(lambda: not world.app.store.inbox(row.owner or world.workers()[0]))
        world.open_gate("go")
        assert run.result(timeout=20) == "go"


def test_a_paused_and_resumed_run_does_not_repeat_the_step_that_executes(world: World) -> None:
    with running_engine(world, lambda engine: None):
        run = effects.gated.start("go")
        world.until(lambda: world.ledger("wait_at_gate"))
        for _ in range(3):
            run.pause()
            world.until(lambda: run.status == "PAUSED")
            run.resume()
            world.until(lambda: run.status == "RUNNING")
        world.open_gate("go")
        assert run.result(timeout=20) == "go"
    check_executed_once(world)
    world.check_histories()


def test_the_outcome_of_a_step_that_ends_while_its_run_is_paused_is_kept(world: World) -> None:
    with running_engine(world, lambda engine: None):
        for number in range(10):
            run = effects.gated.options(id=f"run-{number}").start(f"gate-{number}")
            world.until(lambda run=run: world.ledger("wait_at_gate", run.id))
            world.open_gate(f"gate-{number}")
            with contextlib.suppress(RunFinishedError):  # the gate was faster than this thread
                run.pause()
            world.until(lambda run=run: run.status in ("PAUSED", "SUCCESS"))
            if run.status == "PAUSED":
                run.resume()
            assert run.result(timeout=20) == f"gate-{number}"
    check_executed_once(world)
    world.check_histories()


def test_a_failed_outcome_that_took_the_long_way_is_a_failure(world: World) -> None:
    """The step fails while its run is paused."""
    with running_engine(world, lambda engine: None):
        run = effects.fails_at_gate.start("go")
        world.until(lambda: world.ledger("fail_at_gate"))
        run.pause()
        world.until(lambda: run.status == "PAUSED")
        world.open_gate("go")
        world.until(lambda: inbox_of(world, run.id) == ["outcome"])
        run.resume()
        assert run.result(timeout=20) == "it failed: at the gate"
    check_executed_once(world)
    assert [e.kind for e in world.events(run.id) if isinstance(e, ev.StepFailed)] == ["StepFailed"]


def inbox_of(world: World, run_id: str) -> list[str]:
    assert isinstance(world.app.store, SqliteStore)
    with world.app.store.read() as db:
        query = "SELECT kind FROM inbox WHERE run = (SELECT no FROM runs WHERE id = ?)"
        return [kind for (kind,) in db.execute(query, (run_id,))]


def damage(world: World, statement: str, *parameters: object) -> None:
    store = world.app.store
    assert isinstance(store, SqliteStore)
    with store.write("test") as db:
        db.execute(statement, parameters)


@pytest.mark.parametrize("kind", ["pause", "hook", "resume", "child", "outcome", "retry", "watch", "no such kind"])
@pytest.mark.parametrize("body", [b"{", b"null", b'{"reason":null,"name":5}', b"\xff"])
def test_a_message_that_can_not_be_read_is_dropped_and_recorded(world: World, kind: str, body: bytes) -> None:
    control = kind in ("pause", "resume", "retry", "watch")
    with running_engine(world, lambda engine: None):
        run = effects.question.start()
        world.until(lambda: run.status == "WAITING")
        world.app.store.post(Message(run_id=run.id, kind=kind, body=body, control=control))
        run.send("answer", "a")
        run.send("answer", "b")
        assert run.result(timeout=20) == "a b"
    assert [e.message for e in world.events(run.id) if isinstance(e, ev.MessageDropped)] == [kind]
    world.check_histories()


@pytest.mark.parametrize("kind", ["pause", "resume", "retry", "watch", "no such kind"])
def test_a_message_that_can_not_be_read_does_not_keep_a_held_run_from_being_managed(world: World, kind: str) -> None:
    with running_engine(world, lambda engine: None) as engine:
        run = effects.question.start()
        world.until(lambda: run.status == "WAITING")
        run.pause()
        world.until(lambda: run.status == "PAUSED")
        world.app.store.post(Message(run_id=run.id, kind=kind, body=b"{", control=True))
        world.until(lambda: not world.app.store.orders(run.id), what="the end of the message")
        world.until(lambda: not engine.runs)
        run.resume()
        world.until(lambda: run.status == "WAITING")
        run.cancel()
        world.until(lambda: run.status == "CANCELLED")
        run.delete()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE runs SET options = x'ff' WHERE id = 'bad'",
        "UPDATE runs SET options = '{\"timeout\": \"long\"}' WHERE id = 'bad'",
        "UPDATE history SET payload = x'7b' WHERE run = (SELECT no FROM runs WHERE id = 'bad')",
        'UPDATE history SET payload = \'{"kind":"DataSet","cmd":5}\' WHERE run = (SELECT no FROM runs WHERE id = \'bad\')',
    ],
)
def test_a_run_with_a_damaged_row_is_set_aside_and_can_be_managed(world: World, statement: str) -> None:
    bad, good = effects.question.options(id="bad").start(), effects.sequence.start(3)
    damage(world, statement)
    with running_engine(world, lambda engine: None) as engine:
        assert good.result(timeout=20) == 3
        world.until(lambda: bad.status == "STUCK")
        for order in (bad.resume, bad.retry):
            order()
            world.until(lambda: not world.app.store.orders("bad") and not engine.runs, what="an end of waking")
            assert bad.status == "STUCK", "it is told again, once for each order"
        bad.cancel()
        world.until(lambda: bad.status == "CANCELLED")
        bad.delete()
    assert effects.question.options(id="bad").start().id == "bad"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "error", [Unspeakable(), ValueError("\ud800"), ValueError("a\0b"), UnicodeDecodeError("x", b"", 0, 1, "\udcff")]
)
def test_setting_aside_never_fails(world: World, error: Exception) -> None:
    """Whatever a change trips over when it is written, and whatever it says."""

    def refuse(changes: Sequence[Change]) -> str:
        if any(r.kind == "StepCompleted" for change in changes for r in change.records):
            raise error
        return ""

    with running_engine(world, lambda engine: FailingCommit(engine, refuse)):
        run = effects.sequence.start(3)
        world.until(lambda: run.status == "STUCK")
        run.cancel()
        world.until(lambda: run.status == "CANCELLED")


def test_a_run_that_can_not_even_be_set_aside_with_what_it_has_is_set_aside_without(world: World) -> None:
    def refuse(changes: Sequence[Change]) -> str:
        if any(change.messages or any(r.kind == "StepCompleted" for r in change.records) for change in changes):
            raise ValueError("not this either")
        return ""

    with running_engine(world, lambda engine: FailingCommit(engine, refuse)):
        run = effects.sequence.start(3)
        world.until(lambda: run.status == "STUCK")


@pytest.mark.parametrize(
    "raised", ["GeneratorExit", "Suspended", "KeyboardInterrupt", "SystemExit", "BaseException", "StopIteration"]
)
def test_whatever_workflow_code_raises_is_its_own_trouble(world: World, raised: str) -> None:
    with running_engine(world, lambda engine: None):
        run, good = effects.raises.start(raised), effects.sequence.start(3)
        world.until(lambda: run.status in ("FAILURE", "STUCK"))
        assert good.result(timeout=20) == 3


def test_a_turn_that_fails_in_a_way_nobody_thought_of_is_not_the_end(world: World) -> None:
    failures = iter([RuntimeError("a bug"), OSError(24, "Too many open files"), KeyError("x")])

    def break_things(engine: Engine) -> None:
        inbox = engine.env.store.inbox

        def messages(worker_id: str, runs: Sequence[int] | None = None) -> list[InboxRow]:
            error = next(failures, None)
            if error is not None:
                raise error
            return inbox(worker_id, runs)

        engine.env.store.inbox = messages  # type: ignore[method-assign]

    with running_engine(world, break_things):
        runs = [effects.sequence.start(5) for _ in range(5)]
        assert [run.result(timeout=20) for run in runs] == [10] * 5
    check_executed_once(world)
    world.check_histories()
