"""Web processes with and without an engine in them, under a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from serving import served
from starlette.applications import Starlette

from holdfast import App, Status, StoreUnavailableError, use


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    app = App("weborders", str(tmp_path / "orders.db"))
    yield app
    app.close()


def define(app: App, log: list[str]) -> None:
    @app.resource
    async def client() -> AsyncIterator[str]:
        log.append("open")
        yield "client"
        log.append("close")

    @app.step
    async def fetch(order: str, http: str = use(client)) -> str:
        return f"{order} by {http}"

    @app.workflow
    async def fulfil(order: str) -> str:
        return await fetch(order)


def add_routes(app: App, web: FastAPI) -> None:
    @web.post("/orders/{order}", status_code=202)
    async def create(order: str) -> dict[str, str]:
        run = await app.astart("fulfil", order)
        return {"run": run.id}

    @web.get("/runs/{run_id}")
    async def result(run_id: str) -> dict[str, str]:
        run = await app.aget_run(run_id)
        return {"result": await run.aresult(timeout=10)}


def test_an_engine_lives_in_the_web_process_and_is_drained_with_it(app: App) -> None:
    log: list[str] = []
    define(app, log)
    web = FastAPI(lifespan=app.lifespan)
    add_routes(app, web)
    with served(web) as url, httpx.Client(base_url=url) as http:
        created = http.post("/orders/o-1")
        assert created.status_code == 202
        assert http.get(f"/runs/{created.json()['run']}").json() == {"result": "o-1 by client"}
        assert len(app.store.workers()) == 1
        assert log == ["open"]
    assert log == ["open", "close"]
    assert app.store.workers() == []


def test_without_a_worker_the_web_process_starts_runs_that_others_execute(app: App) -> None:
    define(app, [])
    web = FastAPI(lifespan=app.lifespan(worker=False))
    add_routes(app, web)
    with served(web) as url, httpx.Client(base_url=url) as http:
        run_id = http.post("/orders/o-2").json()["run"]
        assert app.store.workers() == []
        assert app.get_run(run_id).status == Status.PENDING
        elsewhere = App("weborders", app.store_url)
        define(elsewhere, [])
        with elsewhere.worker():
            assert http.get(f"/runs/{run_id}").json() == {"result": "o-2 by client"}
        elsewhere.close()


def test_a_lifespan_of_ones_own_holds_it(app: App) -> None:
    define(app, [])

    @contextlib.asynccontextmanager
    async def lifespan(web: Starlette) -> AsyncIterator[None]:
        async with app.lifespan(web):
            yield

    with served(Starlette(lifespan=lifespan)):
        assert app.start("fulfil", "o-3").result(timeout=10) == "o-3 by client"
    with served(Starlette(lifespan=app.lifespan(concurrency=2, grace=1))):
        assert app.start("fulfil", "o-4").result(timeout=10) == "o-4 by client"


def test_a_store_that_cannot_be_reached_keeps_the_web_process_from_starting(tmp_path: Path) -> None:
    app = App("weborders", str(tmp_path / "nowhere" / "orders.db"))

    async def enter(web: Starlette) -> None:
        async with web.router.lifespan_context(web):
            pass

    for lifespan in (app.lifespan, app.lifespan(worker=False)):
        with pytest.raises(StoreUnavailableError, match="doesn't exist"):
            asyncio.run(enter(Starlette(lifespan=lifespan)))


def test_async_code_has_a_worker_for_the_length_of_a_block(app: App) -> None:
    log: list[str] = []
    define(app, log)

    async def main() -> str:
        async with app.worker():
            return str(await (await app.astart("fulfil", "o-1")))

    async def fails() -> None:
        async with app.worker():
            raise LookupError("of the block")

    assert asyncio.run(main()) == "o-1 by client"
    assert log == ["open", "close"]
    with pytest.raises(LookupError, match="of the block"):
        asyncio.run(fails())
    with app.worker():  # and again
        assert app.start("fulfil", "o-2").result(timeout=10) == "o-2 by client"
