"""`options(connection=...)`: what is started, sent and emitted in a transaction of the caller's happens with its commit."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from psycopg.rows import dict_row

from holdfast import App, ArgumentError, RunNotFoundError, WrongContextError, hook, start_child_workflow
from holdfast.engine.settings import Settings

SLOW = Settings(sweep=30.0)
"""An engine that finds what there is by hints alone."""
got: list[object] = []


def make(url: str) -> App:
    app = App("shop", url)

    @app.step
    def pay(n: int) -> int:
        return n + 1

    @app.workflow
    async def asks() -> str:
        return await hook("answer")

    @app.on("Paid")
    @app.step
    def noted(payload: object) -> None:
        got.append(payload)

    app.pay, app.asks = pay, asks  # type: ignore[attr-defined]
    return app


def without_options(url: str) -> str:
    """As a program that knows nothing of Holdfast would connect."""
    return url.partition("&schema=")[0]


@pytest.fixture
def app(postgres_url: str) -> Iterator[Any]:
    app = make(postgres_url)
    yield app
    app.close()


@pytest.fixture
def connection(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(without_options(postgres_url), row_factory=dict_row) as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id text)")
        connection.commit()
        yield connection


def test_a_run_is_there_once_the_transaction_is_committed_and_begins_at_once(
    app: Any, connection: psycopg.Connection[Any]
) -> None:
    with app.worker(settings=SLOW):
        for i in range(4):
            connection.execute("INSERT INTO orders VALUES (%s)", (str(i),))
            run = app.pay.options(connection=connection, id=f"o{i}").start(i)
            with pytest.raises(RunNotFoundError):
                app.get_run(run.id)
            if i % 2:
                connection.rollback()
                with pytest.raises(RunNotFoundError):
                    app.get_run(run.id)
            else:
                connection.commit()
                assert run.result(timeout=20) == i + 1
    assert len(app.runs()) == 2


def test_an_id_that_is_taken_is_the_same_run_here_too(app: Any, connection: psycopg.Connection[Any]) -> None:
    first = app.pay.options(id="o").start(1)
    again = app.pay.options(id="o", connection=connection).start(1)
    assert again == first
    assert app.pay.options(id="p", connection=connection).start(1) == app.pay.options(
        id="p", connection=connection
    ).start(1)
    connection.commit()
    assert len(app.runs()) == 2


def test_many_runs_are_started_by_one_commit(app: Any, connection: psycopg.Connection[Any]) -> None:
    app.pay.options(connection=connection).start_many([1, 2])
    connection.rollback()
    runs = app.pay.options(connection=connection).start_many([1, 2, 3])
    assert len(app.runs()) == 0
    connection.commit()
    assert {run.id for run in runs} == {run.id for run in app.runs()}


def test_a_transaction_that_stays_open_keeps_nobody_waiting(app: Any, connection: psycopg.Connection[Any]) -> None:
    """What is everybody's, the logical clock for example, is not locked by it."""
    run = app.pay.options(connection=connection, id="waits").start(1)
    others = [make(app.store_url) for _ in range(2)]
    for i, other in enumerate(others):  # in their first transactions they write down how far their clocks may count
        other.pay.options(id=f"o{i}").start(1)  # type: ignore[attr-defined]
        other.close()
    connection.commit()
    assert run.status == "PENDING"


def test_what_is_sent_and_emitted_waits_for_the_commit(app: Any, connection: psycopg.Connection[Any]) -> None:
    got.clear()
    with app.worker(settings=SLOW):
        run = app.asks.start()
        run.send("answer", "never", connection=connection)
        app.emit("Paid", {"n": 1}, connection=connection)
        connection.rollback()
        run.send("answer", "yes", connection=connection)
        app.emit("Paid", {"n": 2}, connection=connection)
        assert app.store.orders(run.id) == []
        connection.commit()
        assert run.result(timeout=20) == "yes"
        _until(lambda: got)
    assert got == [{"n": 2}]


def _until(condition: Callable[[], Any]) -> None:
    for _ in range(2_000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come true")


def test_a_transaction_that_its_owner_ended_takes_nothing_with_it(postgres_url: str, app: Any) -> None:
    with psycopg.connect(without_options(postgres_url), autocommit=True) as connection:
        with pytest.raises(ArgumentError, match=r"no transaction open.*connection.transaction\(\)"):
            app.pay.options(connection=connection).start(1)
        with connection.transaction():
            app.pay.options(connection=connection, id="in").start(1)
    assert [run.id for run in app.runs()] == ["in"]


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_sqlalchemy_commits_and_rolls_back_runs(app: Any, postgres_url: str, kind: str) -> None:
    plain = without_options(postgres_url).replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(plain)
    make_one = sqlalchemy.orm.Session if kind == "session" else lambda engine: engine.connect()
    with make_one(engine) as connection:
        app.pay.options(connection=connection, id="first").start(1)  # before it has said anything itself
        connection.commit()
        connection.execute(sqlalchemy.text("SELECT 1"))
        app.pay.options(connection=connection, id="second").start(1)
        connection.rollback()
        app.pay.options(connection=connection, id="third").start(1)
    engine.dispose()
    assert [run.id for run in app.runs()] == ["first"]


def test_a_store_elsewhere_is_not_joined(postgres_schemas: Callable[[], str], tmp_path: Path) -> None:
    url = postgres_schemas()
    app = make(url)
    try:
        with closing(sqlite3.connect(tmp_path / "x.db")) as other:
            with pytest.raises(ArgumentError, match=r"joined by a psycopg\.Connection"):
                app.pay.options(connection=other).start(1)  # type: ignore[attr-defined]
        with psycopg.connect(without_options(url)) as connection:
            connection.execute("SET search_path = nowhere")
            app.store.database.schema = "nowhere"  # type: ignore[attr-defined]
            with pytest.raises(ArgumentError, match="another database than the store"):
                app.pay.options(connection=connection).start(1)  # type: ignore[attr-defined]
    finally:
        app.close()


# -- a file


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Any]:
    app = make(str(tmp_path / "shop.db"))
    _ = app.store
    yield app
    app.close()


def test_a_file_is_joined_by_a_connection_to_it(shop: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.row_factory = lambda cursor, row: {"whatever": row}
        connection.execute("CREATE TABLE orders (id)")
        connection.execute("INSERT INTO orders VALUES (1)")
        shop.pay.options(connection=connection, id="a").start(1)
        connection.rollback()
        run = shop.pay.options(connection=connection, id="b").start(1)
        with pytest.raises(RunNotFoundError):
            shop.get_run("b")
        connection.commit()
    with shop.worker():
        assert run.result(timeout=20) == 2
    assert len(shop.runs()) == 1


def test_sqlalchemy_joins_a_file_too(shop: Any, tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with sqlalchemy.orm.Session(engine) as session:
        shop.pay.options(connection=session, id="a").start(1)
        session.commit()
        shop.pay.options(connection=session, id="b").start(1)
        session.rollback()
    engine.dispose()
    assert [run.id for run in shop.runs()] == ["a"]


def test_another_file_is_refused_and_so_is_a_connection_without_a_transaction(shop: Any, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        with pytest.raises(ArgumentError, match=r"leads to .*other\.db, and runs are kept in .*shop\.db"):
            shop.pay.options(connection=other).start(1)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        with pytest.raises(ArgumentError, match="execute BEGIN IMMEDIATE first"):
            shop.pay.options(connection=connection).start(1)
        connection.execute("BEGIN IMMEDIATE")
        shop.pay.options(connection=connection).start(1)
        connection.execute("COMMIT")
    assert len(shop.runs()) == 1


def test_what_is_no_connection_is_refused(shop: Any) -> None:
    for given in (1, "shop.db", object()):
        with pytest.raises(ArgumentError, match="connection="):
            shop.pay.options(connection=given).start(1)


def test_workflow_code_joins_nothing(tmp_path: Path) -> None:
    app = App("odd", str(tmp_path / "odd.db"))

    @app.workflow
    async def child() -> None: ...

    @app.workflow
    async def parent() -> None:
        child.options(connection=object()).submit()

    @app.workflow
    async def other() -> None:
        await start_child_workflow(child)
        child.options(connection=object()).start()

    with app.worker():
        for workflow in (parent, other):
            with pytest.raises(WrongContextError, match="connection= is for what is started from outside"):
                workflow.start().result(timeout=20)
    app.close()


DJANGO = """
import sys
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

url, plain = sys.argv[1:]
place = conninfo_to_dict(plain)
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": place["dbname"], "USER": place["user"], "HOST": place["host"],
}})
django.setup()
from django.db import connection, transaction
from holdfast import App, ArgumentError

app = App("shop", url)

@app.step
def pay(n: int) -> int:
    return n

with transaction.atomic():
    pay.options(connection=connection, id="kept").start(1)
try:
    with transaction.atomic():
        pay.options(connection=connection, id="dropped").start(1)
        raise ValueError
except ValueError:
    pass
try:
    pay.options(connection=connection, id="bare").start(1)
except ArgumentError as error:
    print(error)
print([run.id for run in app.runs()])
app.close()
"""


def test_djangos_atomic_block_is_joined(postgres_url: str) -> None:
    if "host=" not in postgres_url:
        pytest.skip("the address of this server is not of the form that the test knows")
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, postgres_url, without_options(postgres_url)], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "with transaction.atomic()" in done.stdout
    assert done.stdout.splitlines()[-1] == "['kept']"
