"""Runs are asked, and steps are finished, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from serving import served

from holdfast import App, RequestRefusedError, StepError, define_request, sleep, this_step, wf
from holdfast.contrib.asgi import requests, steps

tokens: list[str] = []


@dataclass
class Item:
    name: str
    count: int


add = define_request("http.add", Item, list[Item])
total = define_request("http.total", None, int)
secret = define_request("http.secret", None, str)


def make_app(folder: Path) -> App:
    app = App("carts", str(folder / "carts.db"))

    @app.step(timeout="1h", max_retries=0)
    async def render() -> str:
        tokens.append(this_step.hand_over())
        return ""

    @app.workflow
    async def produce() -> str:
        wf.set_data("begun", True)
        return await render()

    @app.workflow
    async def cart() -> None:
        items: list[Item] = []

        @add.handle
        def _(item: Item) -> list[Item]:
            if item.count < 1:
                raise RequestRefusedError("one at least")
            items.append(item)
            return items

        @secret.handle
        async def _tell() -> str:
            await sleep("1h")
            return "late"

        await sleep("1d")

    return app


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, httpx.Client]]:
    app = make_app(tmp_path_factory.mktemp("http"))
    web = FastAPI(lifespan=app.lifespan)
    web.mount("/carts", requests(app, [add, "http.secret"], limit=1_000, timeout=20))
    web.mount("/hasty", requests(app, [secret], timeout=0.05))
    web.mount("/work", steps(app))
    with served(web) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield app, client
    app.close()


def test_a_run_answers_or_refuses_and_the_same_key_asks_once(world: tuple[App, httpx.Client]) -> None:
    app, client = world
    run = app.start("cart")
    url = f"/carts/runs/{run.id}/ask/http.add"
    key = {"idempotency-key": "k1"}
    for _ in range(2):
        answer = client.post(url, json={"name": "pen", "count": 2}, headers=key)
        assert (answer.status_code, answer.json()) == (200, {"answer": [{"name": "pen", "count": 2}]})
    assert len(client.post(url, json={"name": "ink", "count": 1}).json()["answer"]) == 2
    refused = client.post(url, json={"name": "pen", "count": 0})
    assert (refused.status_code, refused.json()) == (409, {"refused": "one at least"})
    run.terminate("over")


def test_mistakes_of_whoever_asks_are_told(world: tuple[App, httpx.Client]) -> None:
    app, client = world
    run = app.start("cart")
    url = f"/carts/runs/{run.id}/ask/http.add"
    assert client.post(url, json={"name": "pen"}).status_code == 422
    assert client.post(url, content=b"[" * 500).status_code == 400
    assert client.post(url, json="x" * 2_000).status_code == 413
    assert client.get(url).status_code == 405
    assert client.post(f"/carts/runs/{run.id}/ask/http.total").status_code == 404, "it is not allowed here"
    assert client.post("/carts/runs/nobody/ask/http.add", json={"name": "p", "count": 1}).status_code == 404
    assert client.post(url, json={}, headers={"idempotency-key": "a b"}).status_code == 400
    late = client.post(f"/hasty/runs/{run.id}/ask/http.secret")
    assert late.status_code == 504
    assert "has not answered request 'http.secret'" in late.json()["error"]
    run.terminate("over")
    with pytest.raises(Exception, match="terminated"):
        run.result(timeout=20)
    assert client.post(url, json={"name": "p", "count": 1}).status_code == 409


def handed_over(app: App) -> tuple[str, str]:
    run = app.start("produce")
    watch = app.notifier.watch(run.id)
    while not tokens:
        watch.wait(0.01)
    watch.close()
    return run.id, tokens.pop()


def test_a_step_is_finished_failed_and_heard_of(world: tuple[App, httpx.Client]) -> None:
    app, client = world
    run_id, token = handed_over(app)
    assert client.post(f"/work/steps/{token[:-3]}AAA", json="x").status_code == 403
    assert client.post(f"/work/steps/{token}/beat").status_code == 202
    assert client.post(f"/work/steps/{token}/beat", json={"done": 1, "total": 2}).status_code == 202
    assert client.post(f"/work/steps/{token}/beat", json={"dune": 1}).status_code == 422
    assert client.post(f"/work/steps/{token}/beat", json={"done": "much"}).status_code == 400
    assert client.post(f"/work/steps/{token}", json="film.mp4").status_code == 202
    assert app.get_run(run_id).result(timeout=20) == "film.mp4"
    run_id, token = handed_over(app)
    assert client.post(f"/work/steps/{token}/fail", json={"no": 1}).status_code == 422
    assert client.post(f"/work/steps/{token}/fail", json="no film").status_code == 202
    with pytest.raises(StepError, match="no film"):
        app.get_run(run_id).result(timeout=20)
    assert client.post(f"/work/steps/{token}", json="late").status_code == 409
