from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from serving import served

from holdfast import App, define_hook, wf
from holdfast.contrib.asgi import hooks


@dataclass
class Approval:
    by: str
    amount: int


def make_app(folder: Path) -> App:
    app = App("approvals", str(folder / "approvals.db"))
    approval = define_hook("http-approval", payload=Approval)

    @app.workflow
    async def approve() -> str:
        waiting = approval(timeout="1h")
        wf.set_data("token", waiting.token)
        answer = await waiting
        return f"{answer.by}:{answer.amount}"

    return app


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[App, httpx.Client]]:
    app = make_app(tmp_path)
    web = FastAPI(lifespan=app.lifespan)
    web.mount("/holdfast", hooks(app, limit=1_000))
    with served(web) as url, httpx.Client(base_url=f"{url}/holdfast/hooks/") as client:
        yield app, client
    app.close()


def start(app: App) -> tuple[str, str]:
    run = app.start("approve")
    watch = app.notifier.watch(run.id)
    while "token" not in run.data:
        watch.wait(0.01)
    watch.close()
    return run.id, run.data["token"]


def test_a_payload_posted_to_a_token_reaches_the_workflow_typed(world: tuple[App, httpx.Client]) -> None:
    app, client = world
    run_id, token = start(app)
    answer = client.post(token, json={"by": "ada", "amount": 3})
    assert (answer.status_code, answer.json()) == (202, {"accepted": True})
    assert app.get_run(run_id).result(timeout=10) == "ada:3"
    again = client.post(token, json={"by": "ada", "amount": 3})
    assert again.status_code == 403
    assert "used already" in again.json()["error"]


def test_bad_requests_are_refused_and_the_run_goes_on_waiting(world: tuple[App, httpx.Client]) -> None:
    app, client = world
    run_id, token = start(app)
    assert client.post(token, json={"by": "ada"}).status_code == 422
    assert "amount" in client.post(token, json={"by": "ada"}).json()["error"]
    assert client.post(token, content=b"{").status_code == 400
    assert client.post(token, content=json.dumps("x" * 2_000)).status_code == 413
    assert client.get(token).status_code == 405
    assert client.post(token[:-4] + "AAAA", json={}).status_code == 403
    assert client.post("").status_code == 404
    assert client.post(token, json={"by": "bob", "amount": 1}).status_code == 202
    assert app.get_run(run_id).result(timeout=10) == "bob:1"


def test_type_tags_in_a_body_build_nothing(world: tuple[App, httpx.Client]) -> None:
    app, client = world
    _, token = start(app)
    answer = client.post(token, json={"$": "pickle", "v": "gASVAAAAAAAAAA=="})
    assert answer.status_code == 422


BODIES = [
    b"[" * 10_000 + b"]" * 10_000,
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b"[" * 150 + b"]" * 150,
    b"\xff\xfe",
    b'"\xed\xa0\x80"',
    b'"\\ud800"',
    b"\x00",
    b"nan",
    b"[1e999]",
    b'{"by": "ada", "amount": 1e999}',
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_whatever_bytes_are_sent_are_refused_as_the_senders_mistake(tmp_path: Path, body: bytes) -> None:
    app = make_app(tmp_path)
    with app.worker(), served(hooks(app)) as url, httpx.Client(base_url=f"{url}/hooks/") as client:
        run_id, token = start(app)
        answer = client.post(token, content=body)
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]
        assert client.post(token, json={"by": "ada", "amount": 3}).status_code == 202
        assert app.get_run(run_id).result(timeout=20) == "ada:3"
    app.close()


def ask(app: App, token: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
    """The status of the answer, and how often the body was read."""
    reads: list[int] = []
    sent: list[int] = []

    async def receive() -> dict[str, object]:
        reads.append(1)
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def send(message: MutableMapping[str, object]) -> None:
        if message["type"] == "http.response.start":
            sent.append(message["status"])  # type: ignore[arg-type]

    scope = {"type": "http", "path": f"/hooks/{token}", "method": "POST", "headers": headers}
    asyncio.run(hooks(app, limit=1_000)(scope, receive, send))
    return sent[0], len(reads)


def test_the_body_of_a_stranger_is_not_read(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    with app.worker():
        _, token = start(app)
        assert ask(app, token[:-4] + "AAAA", []) == (403, 0)
        assert ask(app, token, [(b"content-length", b"1001")]) == (413, 0)
        assert ask(app, token, []) == (413, 11), "no more than the limit"
    app.close()
