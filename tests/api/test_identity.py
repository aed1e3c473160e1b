"""An id may be given to another run once its run is deleted or restarted. Tokens, handles and waits are for the very run
that they were made for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from waiting import wait_until

from holdfast import (
    App,
    HookTokenError,
    Run,
    RunFinishedError,
    RunNotFoundError,
    Status,
    hook,
    sleep,
    wf,
)
from holdfast.api.tokens import HookToken
from holdfast.engine.records import ask_child
from holdfast.testing import TestApp


def define_expense(app: App) -> Any:
    @app.workflow
    async def expense(amount: int) -> Any:
        pending = hook("approval")
        wf.set_data("token", pending.token)
        return [amount, await pending]

    return expense


def end_and_delete(run: Run[Any], world: TestApp) -> None:
    run.cancel()
    world.settle()
    run.delete()


def end(run: Run[Any], world: TestApp) -> None:
    run.cancel()
    world.settle()


# -- tokens


@pytest.mark.parametrize("leave", [end, end_and_delete])
def test_a_token_is_for_the_run_that_made_it_and_not_for_the_next_of_its_id(
    app: App, leave: Callable[[Run[Any], TestApp], None]
) -> None:
    expense = define_expense(app)
    with TestApp(app) as world:
        run = expense.options(id="expense-17").start(10)
        world.settle()
        token = run.data["token"]
        leave(run, world)
        again = expense.options(id="expense-17", if_exists="restart").start(1_000_000)
        world.settle()
        with pytest.raises(
            HookTokenError, match="was made for an earlier run 'expense-17', which was deleted; ask for a new"
        ):
            app.send_hook(token, "yes")
        assert again.status == "WAITING"
        app.send_hook(again.data["token"], "no")
        assert again.result() == [1_000_000, "no"]


def as_older_versions_made_it(app: App, token: str) -> str:
    """The same token without the run's number."""
    known = HookToken.read(app.store.secret(), token, app.name, 0)
    whole = HookToken(known.app, known.run_id, known.name, known.key, known.cmd, known.expires)
    return whole.write(app.store.secret())


def test_a_token_of_an_older_version_works_as_far_as_it_can_be_checked(app: App) -> None:
    expense = define_expense(app)
    with TestApp(app) as world:
        run = expense.options(id="expense-17").start(10)
        world.settle()
        old = as_older_versions_made_it(app, run.data["token"])
        end(run, world)
        world.advance("1s")
        again = expense.options(id="expense-17", if_exists="restart").start(20)
        world.settle()
        with pytest.raises(HookTokenError, match="was made for an earlier run"):
            app.send_hook(old, "yes")
        app.send_hook(as_older_versions_made_it(app, again.data["token"]), "yes")
        assert again.result() == [20, "yes"]


def test_a_token_outlives_a_retry_and_a_fresh_history_of_its_run(app: App) -> None:
    @app.workflow
    async def flow(turn: int) -> Any:
        if turn == 0:
            wf.set_data("token", hook("approval").token)
            wf.continue_as_new(1)
        return await hook("approval")

    with TestApp(app, check_replay=False) as world:
        run = flow.start(0)
        world.settle()
        app.send_hook(run.data["token"], "yes")
        assert run.result() == "yes"


def test_of_many_senders_with_one_token_one_is_told_that_it_was_accepted(app: App) -> None:
    expense = define_expense(app)
    accepted: list[int] = []
    refused: list[int] = []
    with app.worker():
        for _ in range(5):
            run = expense.start(10)
            wait_until(lambda run=run: "token" in run.data)
            token = run.data["token"]
            begin = threading.Barrier(12)
            accepted.clear()
            refused.clear()

            def answer(number: int, token: str = token, begin: threading.Barrier = begin) -> None:
                begin.wait()
                try:
                    app.send_hook(token, number)
                    accepted.append(number)
                except (HookTokenError, RunFinishedError):
                    refused.append(number)

            senders = [threading.Thread(target=answer, args=(number,)) for number in range(12)]
            for sender in senders:
                sender.start()
            for sender in senders:
                sender.join()
            assert len(accepted) == 1, f"told accepted: {accepted}"
            assert len(refused) == 11
            assert run.result(timeout=20) == [10, accepted[0]]


def test_a_token_that_an_ended_run_did_not_take_is_not_used_up(app: App) -> None:
    """The run has failed and is retried: the answer counts then."""
    expense = define_expense(app)
    with TestApp(app) as world:
        run = expense.start(1)
        world.settle()
        token = run.data["token"]
        end(run, world)
        with pytest.raises(RunFinishedError):
            app.send_hook(token, "early")
        run.retry()
        world.settle()
        app.send_hook(token, "in time")
        assert run.result() == [1, "in time"]


# -- handles


@pytest.mark.parametrize(
    "use",
    [
        lambda run: run.result(timeout=0),
        lambda run: asyncio.run(run.aresult(timeout=0)),
        lambda run: run.status,
        lambda run: run.data,
        lambda run: run.steps,
        lambda run: run.history(),
        lambda run: run.logs(),
        lambda run: run.status_history(),
        lambda run: run.trace(),
        lambda run: next(iter(run.stream())),
        lambda run: run.send("approval", 1),
        lambda run: run.cancel(),
        lambda run: run.pause(),
        lambda run: run.resume(),
        lambda run: run.retry(),
        lambda run: run.fork(1),
        lambda run: run.fork_reruns(1),
        lambda run: run.delete(),
    ],
)
def test_a_handle_does_not_answer_for_another_run_of_its_id(app: App, use: Callable[[Run[Any]], Any]) -> None:
    expense = define_expense(app)
    with TestApp(app) as world:
        handles = [expense.options(id="e").start(1), app.get_run("e"), app.runs()[0]]
        world.settle()
        end_and_delete(handles[0], world)
        other = expense.options(id="e").start(2)
        world.settle()
        before = [event.kind for event in other.history()]
        for handle in handles:
            with pytest.raises(
                RunNotFoundError, match=r"run 'e' was deleted, and another run has its id.*app.get_run\('e'\)"
            ):
                use(handle)
        world.settle()
        assert [event.kind for event in other.history()] == before
        assert other.status == "WAITING"


def test_who_waits_for_a_run_is_told_that_it_was_deleted_and_replaced(app: App) -> None:
    expense = define_expense(app)
    told: list[BaseException] = []
    with app.worker():
        run = expense.options(id="e").start(1)
        wait_until(lambda: "token" in run.data)

        def wait() -> None:
            try:
                run.result(timeout=20)
            except BaseException as error:
                told.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        run.pause()
        wait_until(lambda: run.status == Status.PAUSED)
        run.delete()
        expense.options(id="e").start(2)
        waiting.join(20)
    assert [type(error) for error in told] == [RunNotFoundError]


# -- parents and children


def define_family(app: App, retain: str = "1h") -> Any:
    @app.workflow(retain=retain)
    async def child() -> str:
        return str(await hook("go"))

    @app.workflow
    async def parent(waits: bool) -> str:
        handle = child.submit() if waits else child.start()
        if not waits:
            await hook("later")
        try:
            return str(await handle)
        except RunNotFoundError as error:
            return f"{error}"

    return parent


GONE = "child run '{}' was deleted, so its result is not known"


def test_a_parent_learns_at_the_await_that_its_child_was_collected(app: App) -> None:
    parent = define_family(app)
    with TestApp(app) as world:
        run = parent.start(False)
        world.settle()
        (child,) = run.children()
        child.send("go", "done")
        world.settle()
        assert child.status == "SUCCESS"
        world.advance("2h")
        app.gc()
        run.send("later")
        assert run.result().startswith(GONE.format(child.id))


@pytest.mark.parametrize("waits", [True, False])
def test_a_parent_learns_that_a_paused_child_was_deleted(app: App, waits: bool) -> None:
    parent = define_family(app)
    with TestApp(app) as world:
        run = parent.start(waits)
        world.settle()
        (child,) = run.children()
        child.pause()
        world.settle()
        child.delete()
        world.settle()
        if not waits:
            assert run.status == "WAITING"
            run.send("later")
        assert run.result().startswith(GONE.format(child.id))


def test_a_parent_that_has_asked_is_told_when_its_child_is_deleted_before_anybody_has_looked(app: App) -> None:
    parent = define_family(app)
    with app.worker():
        run = parent.start(False)
        wait_until(lambda: bool(run.children()))
        (child,) = run.children()
        child.send("go", "done")
        child.result(timeout=20)
    # Nobody is there to read what is asked of the child.
    app.store.post(ask_child(app.codec, child.id, "watch", run.id, "7c7"))
    child.delete()
    with app.store.read() as db:  # type: ignore[attr-defined]
        messages = [body for (body,) in db.execute("SELECT body FROM inbox WHERE kind = 'child'")]
    assert [msgspec.json.decode(message)["cmd"] for message in messages] == ["7c7"]


def test_a_parent_that_lets_go_of_its_child_cancels_no_stranger_of_its_id(app: App) -> None:
    @app.workflow
    async def child() -> None:
        await hook("never")

    @app.workflow
    async def parent() -> None:
        child.options(id="c").submit()
        await sleep("1h")

    with TestApp(app) as world:
        run = parent.start()
        world.settle()
        mine = app.get_run("c")
        mine.pause()
        world.settle()
        app.store.delete("c")  # as an older version does it: nobody is told
        stranger = child.options(id="c").start()
        world.settle()
        run.cancel()
        world.settle()
        assert run.status == "CANCELLED"
        assert stranger.status == "WAITING"
