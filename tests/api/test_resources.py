"""What steps share: opened once, given to those who ask, never recorded, closed at the end."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import process_resources
import pytest

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    FatalError,
    ResourceError,
    chain,
    use,
    wf,
)
from holdfast.core.context import current_step
from holdfast.testing import TestApp


@dataclass
class Pool:
    rows: list[int] = field(default_factory=list)


@pytest.fixture
def log() -> list[str]:
    return []


def define(app: App, log: list[str]) -> SimpleNamespace:
    """Two resources, one made from the other, and both kinds of steps that take them."""

    @app.resource
    def pool() -> Iterator[Pool]:
        log.append("open pool")
        yield Pool()
        log.append("close pool")

    @app.resource
    async def client(db: Pool = use(pool)) -> AsyncIterator[str]:
        log.append(f"open client of {len(db.rows)} rows")
        yield "client"
        log.append("close client")

    @app.step
    def load(x: int, db: Pool = use(pool)) -> int:
        db.rows.append(x)
        return len(db.rows)

    @app.step
    async def fetch(x: int, *, http: str = use(client), db: Pool = use(pool)) -> str:
        return f"{http} {x} {len(db.rows)}"

    @app.workflow
    async def both(n: int) -> list[Any]:
        found: list[Any] = [load(i) for i in range(n)]
        found += await asyncio.gather(*(fetch(i) for i in range(n)))
        return found

    return SimpleNamespace(pool=pool, client=client, load=load, fetch=fetch, both=both)


def test_a_resource_is_opened_once_per_worker_and_closed_last_opened_first(app: App, log: list[str]) -> None:
    define(app, log)
    with app.worker():
        assert log == []
        run = app.start("both", 3)
        assert run.result(timeout=10) == [1, 2, 3, "client 0 3", "client 1 3", "client 2 3"]
        assert app.start("both", 1).result(timeout=10) == [4, "client 0 4"]
        assert log == ["open pool", "open client of 3 rows"]
    assert log == ["open pool", "open client of 3 rows", "close client", "close pool"]
    del log[:]
    with app.worker():
        assert app.start("load", 1).result(timeout=10) == 1
    assert log == ["open pool", "close pool"]


def test_many_first_attempts_open_it_once(app: App) -> None:
    opened: list[int] = []
    together = threading.Barrier(4)

    @app.resource
    def pool() -> Iterator[Pool]:
        opened.append(1)
        yield Pool()

    @app.resource
    async def client() -> AsyncIterator[object]:
        opened.append(2)
        await asyncio.sleep(0)
        yield object()

    @app.step
    def meet() -> None:
        together.wait(10)

    @app.step
    def load(db: Pool = use(pool)) -> int:
        return id(db)

    @app.step
    async def fetch(http: object = use(client), db: Pool = use(pool)) -> list[int]:
        return [id(http), id(db)]

    @app.workflow
    async def flow() -> list[Any]:
        await asyncio.gather(*(meet.submit() for _ in range(4)))
        return [
            await asyncio.gather(*(load.submit() for _ in range(8))),
            await asyncio.gather(*(fetch() for _ in range(8))),
        ]

    with app.worker():
        loaded, fetched = flow.start().result(timeout=10)
    assert len(set(loaded)) == 1
    assert len({tuple(pair) for pair in fetched}) == 1
    assert sorted(opened) == [1, 2]


def test_a_resource_is_no_part_of_what_is_recorded(app: App, log: list[str]) -> None:
    define(app, log)
    with app.worker():
        run = app.start("both", 1)
        run.result(timeout=10)
    assert [(step.args, step.kwargs) for step in run.steps] == [((0,), {}), ((0,), {})]
    assert Pool not in app.codec.types.shapes


def test_a_resource_is_given_in_a_canvas_too(app: App, log: list[str]) -> None:
    code = define(app, log)
    with app.worker():
        run = chain(code.load.s(5), code.fetch.s()).start()
        assert run.result(timeout=10) == "client 1 1"
        assert code.load.s(5)() == 1
        with pytest.raises(ArgumentError, match="the worker gives it db, so leave that out"):
            chain(code.load.s(5, db=Pool()), code.fetch.s()).start()


def test_in_a_run_nobody_passes_a_resource(app: App, log: list[str]) -> None:
    define(app, log)
    message = r"load\(x: 'int'\) -> 'int': .*; the worker gives it db, so leave that out"
    for args, kwargs in [((1,), {"db": Pool()}), ((1, Pool()), {})]:
        with pytest.raises(ArgumentError, match=message):
            app.start("load", *args, **kwargs)


def test_a_plain_call_takes_a_resource_like_any_argument_or_opens_it_for_the_call(app: App, log: list[str]) -> None:
    code = define(app, log)
    fake = Pool([7, 7])
    assert code.load(1, db=fake) == 3
    assert code.load(1, fake) == 4
    assert asyncio.run(code.fetch(1, http="fake", db=fake)) == "fake 1 4"
    assert log == []
    assert code.load(1) == 1
    assert log == ["open pool", "close pool"]
    del log[:]
    assert asyncio.run(code.fetch(1, db=fake)) == "client 1 4"
    assert log == ["open pool", "open client of 0 rows", "close client", "close pool"]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        code.load()


def test_a_step_that_a_step_calls_gets_the_worker_s_resource(app: App, log: list[str]) -> None:
    code = define(app, log)

    @app.step
    def outer() -> list[int]:
        return [code.load(1), code.load(2)]

    @app.step
    async def outer_async() -> list[Any]:
        return [code.load(3), await code.fetch(0)]

    @app.step
    def with_a_loop_of_its_own() -> str:
        found: str = asyncio.run(code.fetch(5))
        return found

    with app.worker():
        assert outer.start().result(timeout=10) == [1, 2]
        assert outer_async.start().result(timeout=10) == [3, "client 0 3"]
        assert log == ["open pool", "open client of 3 rows"]
        assert with_a_loop_of_its_own.start().result(timeout=10) == "client 5 0"
        assert log[2:] == ["open pool", "open client of 0 rows", "close client", "close pool"]


def test_an_opening_that_fails_fails_the_attempt_and_is_tried_again_by_the_next(app: App) -> None:
    tries: list[str] = []

    @app.resource
    def pool() -> Iterator[int]:
        tries.append("pool")
        if len(tries) == 1:
            raise ConnectionError("no database")
        yield 1

    @app.resource
    async def client() -> AsyncIterator[int]:
        tries.append("client")
        if tries.count("client") == 1:
            raise ConnectionError("no network")
        yield 2

    @app.step(retry_delay="1s", retry_for=[ZeroDivisionError])
    def load(db: int = use(pool)) -> int:
        return db

    @app.step(retry_delay="1s")
    async def fetch(http: int = use(client)) -> int:
        return http

    @app.step(max_retries=0)
    def once(db: int = use(pool)) -> int:
        return db

    with TestApp(app) as world:
        tries.clear()
        with pytest.raises(
            ResourceError, match="resource 'pool' could not be opened: ConnectionError: no database; the"
        ):
            once.start().result()
        tries.clear()
        run = load.start()
        assert run.result() == 1
        assert world.kinds(run).count("StepRetrying") == 1
        run = fetch.start()
        assert run.result() == 2
        assert world.kinds(run).count("StepRetrying") == 1


def test_a_fatal_error_of_an_opening_is_not_retried(app: App) -> None:
    @app.resource
    def pool() -> Iterator[int]:
        raise FatalError("DATABASE_URL is not set")
        yield 1

    @app.step
    def load(db: int = use(pool)) -> int:
        return db

    with TestApp(app):
        run = load.start()
        with pytest.raises(FatalError, match="DATABASE_URL"):
            run.result()
        assert [step.attempts for step in run.steps] == [1]


def test_an_attempt_that_is_cancelled_leaves_the_opening_to_the_others(app: App) -> None:
    go_on = threading.Event()

    @app.resource
    async def client() -> AsyncIterator[str]:
        await asyncio.to_thread(go_on.wait, 10)
        yield "client"

    @app.step(timeout="50ms", max_retries=0)
    async def hasty(http: str = use(client)) -> str:
        return http

    @app.step
    async def patient(http: str = use(client)) -> str:
        return http

    with app.worker():
        with pytest.raises(TimeoutError):
            hasty.start().result(timeout=10)
        run = patient.start()
        go_on.set()
        assert run.result(timeout=10) == "client"


def test_an_opening_that_is_under_way_at_the_end_is_given_up(app: App) -> None:
    log: list[str] = []
    begun = threading.Event()

    @app.resource
    async def client() -> AsyncIterator[str]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("given up")
        yield "never"

    @app.step
    async def fetch(http: str = use(client)) -> str:
        return http

    with app.worker(grace=0):
        fetch.start()
        assert begun.wait(10)
    assert log == ["given up"]


def test_a_plain_opening_that_hangs_keeps_no_process_from_ending(app: App) -> None:
    opened_by: list[threading.Thread] = []

    @app.resource
    def pool() -> Iterator[str]:
        opened_by.append(threading.current_thread())
        yield "pool"

    @app.step
    async def fetch(db: str = use(pool)) -> str:
        return db

    with TestApp(app):
        assert fetch.start().result() == "pool"
    assert [thread.daemon for thread in opened_by] == [True]


def test_an_async_resource_is_entered_and_left_in_one_task_outside_of_any_step(app: App) -> None:
    seen: list[Any] = []
    mark = contextvars.ContextVar("mark", default="none")

    @app.resource
    async def group() -> AsyncIterator[asyncio.TaskGroup]:
        seen.append((asyncio.current_task(), mark.get(), current_step.get()))
        async with asyncio.TaskGroup() as tasks:
            yield tasks
        seen.append((asyncio.current_task(), mark.get(), current_step.get()))

    @app.step
    async def spawn(tasks: asyncio.TaskGroup = use(group)) -> int:
        mark.set("a step's")
        return await tasks.create_task(asyncio.sleep(0, 42))

    with app.worker():
        assert spawn.start().result(timeout=10) == 42
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][1:] == ("none", None)


def test_a_resource_that_fails_to_close_is_told_and_keeps_no_other_open(
    app: App, log: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    pool = define(app, log).pool

    @app.resource
    def bad(db: Pool = use(pool)) -> Iterator[int]:
        yield 1
        raise OSError("too late")

    @app.resource
    def again() -> Iterator[int]:
        yield 2
        yield 3

    @app.step
    def add(a: int = use(bad), b: int = use(again)) -> int:
        return a + b

    with caplog.at_level(logging.ERROR), app.worker():
        assert add.start().result(timeout=10) == 3
    assert log == ["open pool", "close pool"]
    assert "resource 'bad' failed while it was closed" in caplog.text
    assert "resource 'again' yields more than once" in caplog.text


def test_each_process_of_the_pool_opens_and_closes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary = tmp_path / "diary"
    monkeypatch.setenv("DIARY", str(diary))
    app = process_resources.app
    with app.worker():
        first = process_resources.load.start().result(timeout=20)
        again = process_resources.fetch.start().result(timeout=20)
        assert process_resources.load.start().result(timeout=20) == first
    app.close()
    assert first != os.getpid()
    assert again == [first, "client"]
    assert diary.read_text().splitlines() == [
        "open pool", "load 1", "open client", "fetch 1 async", "fetch 1", "load 1", "close client", "close pool",
    ]  # fmt: skip


# -- definitions


def test_wrong_definitions_are_refused_at_once(app: App, log: list[str]) -> None:
    code = define(app, log)
    pool, client = code.pool, code.client

    with pytest.raises(DefinitionError, match=r"workflow 'flow' takes the resource 'db', .* let a step take it"):

        @app.workflow
        def flow(db: Pool = use(pool)) -> None: ...

    with pytest.raises(DefinitionError, match=r"step 'plain': 'http' is resource 'client', which lives on the .* loop"):

        @app.step
        def plain(http: str = use(client)) -> None: ...

    with pytest.raises(DefinitionError, match="resource 'plain_resource': 'http' is resource 'client'"):

        @app.resource
        def plain_resource(http: str = use(client)) -> Iterator[int]:
            yield 1

    with pytest.raises(DefinitionError, match=r"step 'middle': 'db' is a resource, .* put it last"):

        @app.step
        def middle(db: Pool = use(pool), x: int = 1) -> None: ...

    with pytest.raises(DefinitionError, match="step 'variadic': 'db' is a resource"):

        @app.step
        def variadic(db: Pool = use(pool), *rest: int) -> None: ...

    with pytest.raises(DefinitionError, match="workers open it without arguments, so nothing gives 'url'"):

        @app.resource
        def by_url(url: str, db: Pool = use(pool)) -> Iterator[int]:
            yield 1

    with pytest.raises(DefinitionError, match="give a generator function, which yields once"):

        @app.resource  # type: ignore[arg-type]
        def no_generator() -> Pool:
            return Pool()

    with pytest.raises(DefinitionError, match=r"use\(Pool\): give a generator function that is decorated"):
        use(Pool)  # type: ignore[arg-type]

    with pytest.raises(AttributeError, match="'rows' was asked of <resource 'pool'> itself; its value is given to"):
        pool.rows


# -- tests of users


def test_testapp_replaces_resources_by_values_and_by_generators(app: App, log: list[str]) -> None:
    code = define(app, log)

    def fake_client() -> Iterator[str]:
        log.append("open fake")
        yield "fake"
        log.append("close fake")

    with TestApp(app, resources={code.pool: Pool([1, 2]), code.client: fake_client}) as world:
        assert app.start("both", 1).result() == [3, "fake 0 3"]
        assert world.calls("load") == [(0,)]
        assert world.calls("fetch") == [(0,)]
        assert code.load(5) == 4
        world.mock("load", lambda x: x + 100)
        assert app.start("both", 1).result() == [100, "fake 0 4"]
        assert log == ["open fake"]
    assert log == ["open fake", "close fake"]
    with TestApp(app):
        assert app.start("load", 1).result() == 1
    assert log[2:] == ["open pool", "close pool"]


def test_a_mock_is_a_value_though_it_can_be_called(app: App, log: list[str]) -> None:
    pool = define(app, log).pool
    with TestApp(app, resources={pool: MagicMock(rows=[])}):
        assert app.start("load", 1).result() == 1


def test_testapp_refuses_what_cannot_stand_in(app: App, log: list[str]) -> None:
    pool = define(app, log).pool

    async def fake() -> AsyncIterator[Pool]:
        yield Pool()

    with pytest.raises(ArgumentError, match="<resource 'pool'> is taken by plain steps too"):
        TestApp(app, resources={pool: fake})
    with pytest.raises(ArgumentError, match="give resources of the app"):
        TestApp(app, resources={"pool": Pool()})  # type: ignore[dict-item]


def test_data_of_the_run_is_there_beside_a_resource(app: App, log: list[str]) -> None:
    pool = define(app, log).pool

    @app.step
    def note(x: int, db: Pool = use(pool)) -> None:
        wf.set_data("rows", [*db.rows, x])

    with TestApp(app, resources={pool: Pool([1])}):
        run = note.start(2)
        run.result()
        assert run.data == {"rows": [1, 2]}
