"""What programs do when they begin and end, inside a `TestApp`: nothing of it reaches the app's own store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast import App, ArgumentError, NondeterminismError, Status, sleep
from holdfast.testing import TestApp


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def define(app: App) -> Any:
    @app.step
    def greet(name: str) -> str:
        return f"hello {name}"

    @app.workflow
    async def flow(name: str) -> str:
        await sleep("1d")
        return greet(name)

    return flow


@contextlib.contextmanager
def entered(block: contextlib.AbstractAsyncContextManager[Any]) -> Iterator[None]:
    with asyncio.Runner() as runner:
        runner.run(block.__aenter__())
        try:
            yield
        finally:
            runner.run(block.__aexit__(None, None, None))


def serving(lifespan: Any) -> contextlib.AbstractContextManager[None]:
    web = FastAPI(lifespan=lifespan)
    return entered(web.router.lifespan_context(web))


@contextlib.contextmanager
def one_that_closes(app: App) -> Iterator[None]:
    app.close()
    yield
    app.close()


@contextlib.contextmanager
def one_that_names_its_store(app: App) -> Iterator[None]:
    app.use_store("elsewhere.db")
    with app.worker():
        yield


PROGRAMS: dict[str, Callable[[App], contextlib.AbstractContextManager[Any]]] = {
    "worker": lambda app: app.worker(),
    "async worker": lambda app: entered(app.worker()),
    "executor": lambda app: app.executor(["gpu"]),
    "lifespan": lambda app: serving(app.lifespan),
    "lifespan without a worker": lambda app: serving(app.lifespan(worker=False)),
    "close": one_that_closes,
    "use_store": one_that_names_its_store,
}


@pytest.fixture(params=list(PROGRAMS))
def program(request: pytest.FixtureRequest) -> Any:
    return PROGRAMS[request.param]


def test_the_apps_own_store_is_never_made(app: App, tmp_path: Path, program: Any) -> None:
    flow = define(app)
    with TestApp(app):
        with program(app):
            run = flow.start("you")
            assert run.result() == "hello you"
            assert len(app.store.workers()) == 1
        assert [each.id for each in app.runs()] == [run.id]
        assert flow.start("me").result() == "hello me"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_waits_in_the_apps_own_store_goes_on_waiting(app: App, file: Path, program: Any) -> None:
    flow = define(app)
    waiting = flow.start("them")
    before = app.store
    with TestApp(app):
        with program(app):
            assert flow.start("you").result() == "hello you"
        assert len(app.runs()) == 1
    assert app.store is before
    assert app.store_url == str(file)
    assert [each.id for each in app.runs()] == [waiting.id]
    assert app.get_run(waiting.id).status == Status.PENDING
    assert [event.kind for event in waiting.history()] == ["RunStarted"]
    assert app.store.workers() == []


def test_its_own_runs_are_replayed_at_the_end_of_the_block(app: App, program: Any) -> None:
    times = iter(range(100))

    @app.step
    def step(n: int) -> int:
        return n

    @app.workflow
    def flow() -> int:
        return step(next(times))

    with pytest.raises(NondeterminismError), TestApp(app), program(app):
        flow.start().result()


def test_a_worker_works_as_before_after_the_block(app: App) -> None:
    @app.workflow
    def flow() -> int:
        return 1

    with TestApp(app), app.worker():
        assert flow.start().result() == 1
    with app.worker():
        assert flow.start().result(timeout=10) == 1
        assert len(app.store.workers()) == 1


def test_wrong_arguments_are_refused_as_ever(app: App) -> None:
    with TestApp(app):
        with pytest.raises(ArgumentError, match="concurrency"), app.worker(concurrency=0):
            pass
        with pytest.raises(ArgumentError, match="queues"), app.worker(queues="gpu"):
            pass
        with pytest.raises(ArgumentError, match="at least one queue"), app.executor([]):
            pass


def test_a_route_starts_runs_in_the_world(app: App, file: Path) -> None:
    flow = define(app)
    web = FastAPI(lifespan=app.lifespan)

    @web.post("/greet/{name}")
    async def greet(name: str) -> str:
        return str(await (await flow.astart(name)))

    async def ask() -> str:
        transport = httpx.ASGITransport(web)
        async with web.router.lifespan_context(web), httpx.AsyncClient(transport=transport) as http:
            return str((await http.post("http://shop/greet/you")).json())

    with TestApp(app):
        assert asyncio.run(ask()) == "hello you"
        assert [run.workflow for run in app.runs()] == ["flow"]
    assert not file.exists()
