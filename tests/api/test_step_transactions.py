"""`@app.step(transaction=True)`: what a step writes and its outcome are committed together."""

from __future__ import annotations

import contextvars
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import (
    App,
    DefinitionError,
    RetryableError,
    StepTimeoutError,
    WrongContextError,
    failpoints,
    this_step,
    transaction,
    wf,
)
from holdfast.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError
from holdfast.stores import transactions
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import TestApp


class Shop:
    """An app, and a table of its own in the store's database."""

    def __init__(self, url: str, query: Callable[[str], list[Any]]) -> None:
        self.app = App("shop", url)
        self._query = query
        _ = self.app.store

    def rows(self) -> list[Any]:
        return self._query("SELECT n FROM sold ORDER BY n")


@pytest.fixture(params=["postgres", "sqlite"])
def shop(request: Any, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        file = tmp_path / "shop.db"

        def query(sql: str) -> list[Any]:
            with closing(sqlite3.connect(file)) as db:
                return db.execute(sql).fetchall()

        made = Shop(str(file), query)
        with closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE sold (n INTEGER)")
        yield made
        made.app.close()
        return
    url = request.getfixturevalue("postgres_url")
    schema = url.partition("schema=")[2].partition("&")[0]
    with psycopg.connect(url.partition("&schema=")[0], autocommit=True) as other:
        made = Shop(f"{url}&options=-c%20search_path%3D{schema}_own", lambda sql: other.execute(sql).fetchall())
        other.execute(f"CREATE SCHEMA {schema}_own")
        other.execute(f"SET search_path = {schema}_own")
        other.execute("CREATE TABLE sold (n INTEGER)")
        yield made
        made.app.close()
        other.execute(f"DROP SCHEMA {schema}_own CASCADE")


def sell(n: int) -> None:
    transaction().execute(f"INSERT INTO sold VALUES ({n})")


def test_what_a_step_writes_is_there_with_its_outcome(shop: Shop) -> None:
    @shop.app.step(transaction=True)
    def one(n: int) -> int:
        wf.set_data("seen", n)
        sell(n)
        assert transaction() is transaction()
        return n + 1

    @shop.app.workflow
    async def two(n: int) -> int:
        total = one(one(n))
        assert wf.get_data("seen") == n + 1
        return total

    with shop.app.worker():
        assert two.start(1).result(timeout=20) == 3
    assert shop.rows() == [(1,), (2,)]


def test_what_a_failed_attempt_wrote_is_not_there(shop: Shop) -> None:
    @shop.app.step(transaction=True, max_retries=1, retry_delay=0)
    def flaky() -> int:
        sell(this_step.attempt)
        if this_step.attempt == 1:
            raise RetryableError("not yet")
        return this_step.attempt

    with shop.app.worker():
        assert flaky.start().result(timeout=20) == 2
    assert shop.rows() == [(2,)]


def test_an_outcome_that_was_committed_is_not_executed_again(shop: Shop) -> None:
    """As after a crash between the step's commit and its worker's."""
    executed = []

    @shop.app.step(transaction=True)
    def once() -> list[int]:
        executed.append(1)
        sell(1)
        return [1]

    store = shop.app.store
    run = once.start()
    with shop.app.worker():
        assert run.result(timeout=20) == [1]
    (key,) = store.attributes(run.id, "outcome")
    row = store.get(run.id)
    assert row is not None
    again = store.transaction(row.no, key)
    again.connection.execute("INSERT INTO sold VALUES (2)")
    assert again.recorded() == again.commit(b"another")
    assert shop.rows() == [(1,)]
    assert executed == [1]


def test_of_attempts_that_overtake_each_other_one_commits(postgres_url: str) -> None:
    """One that is thought to be dead, and goes on."""
    app = App("shop", postgres_url)
    store = app.store

    @app.step
    def never() -> None: ...

    run = never.start()
    no = store.get(run.id).no  # type: ignore[union-attr]
    with store.read() as db:  # type: ignore[attr-defined]
        db.execute("CREATE TABLE sold (n INTEGER)")
    first, second = store.transaction(no, "k"), store.transaction(no, "k")
    table = f"{postgres_url.partition('schema=')[2].partition('&')[0]}.sold"
    for n, each in enumerate((first, second)):
        each.connection.execute(f"INSERT INTO {table} VALUES ({n})")
    assert first._record(first._db, b"first")  # type: ignore[attr-defined]
    ended: list[bytes | None] = []
    late = threading.Thread(target=lambda: ended.append(second.commit(b"second")))
    late.start()
    first._context.__exit__(None, None, None)  # type: ignore[attr-defined]
    late.join(20)
    assert ended == [b"first"]
    with store.read() as db:  # type: ignore[attr-defined]
        assert db.execute("SELECT n FROM sold").fetchall() == [(0,)]
    app.close()


class SoftLimit(Exception):
    """As Celery raises one in a step that takes too long, wherever its thread is."""


@pytest.fixture
def interruptions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Exception]]]:
    """What is raised when a step's transaction has been committed, and what when it is asked what became of that."""
    raised: list[list[Exception]] = [[], []]
    database = type(shop.app.store.database)  # type: ignore[attr-defined]
    step_write = database.step_write
    in_doubt = False

    def after_commit() -> None:
        nonlocal in_doubt
        if raised[0]:
            in_doubt = True
            raise raised[0].pop(0)

    def another(self: Any) -> Any:
        if in_doubt and raised[1]:
            raise raised[1].pop(0)
        return step_write(self)

    failpoints.arm("transaction.after_commit", after_commit)
    monkeypatch.setattr(database, "step_write", another)
    monkeypatch.setattr(transactions, "PAUSE", 0.01)
    yield raised
    failpoints.disarm()


@pytest.mark.parametrize("error", [StoreUnavailableError("the server is gone"), SoftLimit()])
@pytest.mark.parametrize("then", [StoreBusyError("no connection"), SoftLimit(), StoreReadOnlyError("a replica")])
def test_what_was_committed_has_not_failed_whatever_is_raised_meanwhile(
    shop: Shop, interruptions: list[list[Exception]], error: Exception, then: Exception
) -> None:
    @shop.app.step(transaction=True, max_retries=0)
    def once() -> int:
        sell(1)
        return 1

    interruptions[0].append(error)
    interruptions[1] += [then, then]
    with shop.app.worker():
        assert once.start().result(timeout=20) == 1
    assert shop.rows() == [(1,)]
    assert interruptions == [[], []]


def test_what_was_interrupted_before_its_commit_has_failed_and_written_nothing(shop: Shop) -> None:
    @shop.app.step(transaction=True, max_retries=0)
    def never() -> None:
        sell(1)

    def interrupt() -> None:
        failpoints.disarm()
        raise SoftLimit()

    failpoints.arm("transaction.before_commit", interrupt)
    with shop.app.worker(), pytest.raises(SoftLimit):
        never.start().result(timeout=20)
    assert shop.rows() == []


def test_a_step_that_takes_too_long_has_written_nothing(shop: Shop) -> None:
    go_on, over = threading.Event(), threading.Event()

    @shop.app.step(transaction=True, timeout=0.2, max_retries=0)
    def slow() -> None:
        if isinstance(shop.app.store, SqliteStore):
            assert go_on.wait(20)  # before it has a transaction, which would keep its worker from committing
        sell(1)
        assert go_on.wait(20)
        over.set()

    with shop.app.worker():
        with pytest.raises(StepTimeoutError):
            slow.start().result(timeout=20)
        go_on.set()
        assert over.wait(20)
    assert shop.rows() == []


def test_a_step_that_never_asks_for_its_connection_is_an_ordinary_one(shop: Shop) -> None:
    @shop.app.step(transaction=True)
    def idle() -> int:
        return 1

    with shop.app.worker():
        run = idle.start()
        assert run.result(timeout=20) == 1
    assert shop.app.store.attributes(run.id, "outcome") == {}


def test_a_run_can_be_started_in_the_transaction_of_a_step(shop: Shop) -> None:
    @shop.app.step
    def child(n: int) -> int:
        return n

    @shop.app.step(transaction=True, max_retries=1, retry_delay=0)
    def parent() -> str:
        sell(this_step.attempt)
        run = child.options(connection=transaction(), id=f"c{this_step.attempt}").start(7)
        if this_step.attempt == 1:
            raise RetryableError("not yet")
        return run.id

    with shop.app.worker():
        assert parent.start().result(timeout=20) == "c2"
        assert shop.app.get_run("c2").result(timeout=20) == 7
    assert {run.id for run in shop.app.runs()} & {"c1", "c2"} == {"c2"}


def test_it_is_the_same_on_a_worker_that_only_executes(shop: Shop) -> None:
    @shop.app.step(transaction=True, queue="gpu", max_retries=1, retry_delay=0)
    def elsewhere(n: int) -> int:
        sell(n)
        if this_step.attempt == 1:
            raise RetryableError("not yet")
        return n + 1

    with shop.app.worker(), shop.app.executor(["gpu"]):
        assert elsewhere.start(1).result(timeout=20) == 2
    assert shop.rows() == [(1,)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_transaction_may_begin_on_a_thread_that_the_step_has_started(shop: Shop, fails: bool) -> None:
    @shop.app.step(transaction=True, max_retries=0)
    def sells() -> int:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(sell, 7))
        thread.start()
        thread.join()
        if fails:
            raise ValueError("not this one")
        return 7

    with shop.app.worker():
        result = sells.start().result(timeout=20, propagate=False)
    assert str(result) == ("not this one" if fails else "7")
    assert shop.rows() == ([] if fails else [(7,)])


def test_the_transaction_is_not_the_steps_to_end(shop: Shop) -> None:
    @shop.app.step(transaction=True, max_retries=0)
    def hasty(how: str) -> None:
        sell(1)
        getattr(transaction(), how)()

    with shop.app.worker():
        for how in ("commit", "rollback"):
            with pytest.raises((WrongContextError, psycopg.ProgrammingError)):
                hasty.start(how).result(timeout=20)
    assert shop.rows() == []


def test_a_plain_call_commits_what_it_writes_unless_it_raises(shop: Shop) -> None:
    @shop.app.step(transaction=True)
    def inner(n: int) -> int:
        sell(n)
        if n < 0:
            raise ValueError(n)
        return n

    @shop.app.step(transaction=True)
    def outer(n: int) -> int:
        sell(n)
        return inner(n + 1)

    assert inner(1) == 1
    with pytest.raises(ValueError, match="-1"):
        inner(-1)
    assert outer(2) == 3
    with pytest.raises(ValueError, match="-1"):
        outer(-2)
    assert shop.rows() == [(1,), (2,), (3,)]


def test_a_file_is_not_waited_for_by_the_step_that_holds_it(tmp_path: Path) -> None:
    app = App("shop", str(tmp_path / "shop.db"))

    @app.step
    def child() -> None: ...

    @app.step(transaction=True, max_retries=0)
    def parent() -> None:
        transaction()
        child.start()

    with app.worker(), pytest.raises(StoreBusyError, match=r"say connection=transaction\(\)"):
        parent.start().result(timeout=20)
    app.close()


def test_it_works_in_a_world_of_tests() -> None:
    app = App("shop")

    @app.step(transaction=True)
    def pay(n: int) -> int:
        db = transaction()
        db.execute("CREATE TABLE IF NOT EXISTS sold (n)")
        db.execute("INSERT INTO sold VALUES (?)", (n,))
        return len(db.execute("SELECT n FROM sold").fetchall())

    @app.workflow
    async def twice() -> int:
        return pay(1) + pay(2)

    with TestApp(app):
        assert twice.start().result() == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"at_most_once": True}, "leave out at_most_once"),
        ({"pool": "process"}, "leave out pool"),
        ({"transaction": 1}, "transaction"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    app = App("shop", ":memory:")
    with pytest.raises(DefinitionError, match=said):
        app.step(**{"transaction": True, **given})(lambda: None)


def test_an_async_step_has_no_transaction() -> None:
    app = App("shop", ":memory:")
    with pytest.raises(DefinitionError, match="leave out `async`"):

        @app.step(transaction=True)
        async def pay() -> None: ...


def test_elsewhere_it_says_where_it_works(tmp_path: Path) -> None:
    with pytest.raises(WrongContextError, match="no step is here"):
        transaction()
    app = App("shop", str(tmp_path / "shop.db"))

    @app.step(max_retries=0)
    def bare() -> None:
        transaction()

    @app.workflow
    async def code() -> None:
        transaction()

    with app.worker():
        with pytest.raises(WrongContextError, match=r"@app\.step\(transaction=True\) above it"):
            bare.start().result(timeout=20)
        with pytest.raises(WrongContextError, match="use it in a step"):
            code.start().result(timeout=20)
    app.close()
