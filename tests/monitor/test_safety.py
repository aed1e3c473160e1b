"""What must not work: without a token, with a wrong one, from elsewhere, with anything odd."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from monitor_server import client_of
from monitor_shop import sleeps
from starlette.requests import Request

from holdfast import App
from holdfast.errors import ArgumentError
from holdfast.monitor import monitor
from holdfast.monitor.openapi import described
from holdfast.monitor.safety import from_this_machine
from holdfast.monitor.serving import serving as printing

TOKEN = "a-token-of-the-tests"
READING = (
    *(f"{path}?id=s&cmd=1&name=x" for path, each in described("")["paths"].items() if "get" in each), "/api/changes",
    "/api/openapi.json", "/workflows/runs", "/workflows/runs/s", "/workflows/", "/workers", "/schedules", "/hooks",
    "/failures", "/invocations", "/invocations/s/1", "/timeline", "/import",
)  # fmt: skip
ACTION = {"x-holdfast-action": "cancel", "content-type": "application/json"}


@pytest.fixture
def stranger(shop: App) -> Iterator[httpx.Client]:
    sleeps.options(id="s").start()
    with client_of(monitor(shop, token=TOKEN)) as found:
        yield found


def test_nothing_is_read_without_the_token(stranger: httpx.Client) -> None:
    for path in READING:
        assert stranger.get(path).status_code == 401, path
        assert stranger.get(path, headers={"authorization": "Bearer wrong"}).status_code == 401, path
        assert stranger.get(path, headers={"cookie": "holdfast-000000000000=wrong"}).status_code == 401, path


def test_nothing_is_done_without_the_token(stranger: httpx.Client, shop: App) -> None:
    assert stranger.post("/api/actions/cancel", content=b'{"id":"s"}', headers=ACTION).status_code == 401
    assert shop.store.orders("s") == []


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_and_pages_of_other_sites_cannot_use(
    stranger: httpx.Client,
) -> None:
    answer = stranger.get(f"/workflows/runs?q=status:failed&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/workflows/runs?q=status%3Afailed")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert stranger.get("/api/runs").status_code == 200  # the client keeps it
    assert stranger.get("/workflows/runs").status_code == 200


def test_the_printed_address_leads_in_whatever_the_token_is_made_of(shop: App) -> None:
    token = 'a+b&c#d%20e f"g;h=i'
    server = printing(shop, "127.0.0.1", 0, token=token)
    server.socket.close()
    with client_of(monitor(shop, token=token)) as client:
        answer = client.get(server.url.partition("/?")[2].join(("/workflows/runs?", "")), follow_redirects=True)
        assert answer.status_code == 200
        assert client.get("/api/runs").status_code == 200
    with pytest.raises(ArgumentError, match="plain ASCII"):
        monitor(shop, token="schlüssel-für-alle")


def test_a_wrong_token_in_the_address_is_refused(stranger: httpx.Client) -> None:
    answer = stranger.get("/workflows/runs?token=wrong")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_whoever_has_no_token_is_asked_for_it_and_led_to_where_they_wanted_to_go(stranger: httpx.Client) -> None:
    page = stranger.get('/workflows/runs?q="><b>&token=wrong').text
    assert 'name="token"' in page
    assert 'name="q" value="&quot;&gt;&lt;b&gt;"' in page
    assert "This is not its token" in page
    assert "This is not its token" not in stranger.get("/workflows/runs").text


def test_nobody_is_asked_for_a_token_where_there_is_none(shop: App) -> None:
    with client_of(monitor(shop, authorize=lambda request, action: False)) as client:
        page = client.get("/workflows/runs?token=x")
        assert (page.status_code, 'name="token"' in page.text) == (401, False)


def test_what_is_asked_for_with_a_link_changes_nothing(client: httpx.Client, shop: App) -> None:
    sleeps.options(id="s").start()
    for name in ("cancel", "pause", "delete"):
        assert client.get(f"/api/actions/{name}?id=s").status_code == 405
        assert client.get(f"/api/bulk/{name}?q=id:s").status_code in (200, 400)
    assert client.get("/api/inspect").status_code == 405
    assert (shop.store.orders("s"), shop.get_run("s").status) == ([], "PENDING")


def test_the_way_in_leads_to_no_other_site(stranger: httpx.Client) -> None:
    answer = stranger.get(f"{stranger.base_url}//evil.example/?token={TOKEN}")
    assert answer.headers["location"].startswith("/evil.example/")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"x-holdfast-action": "pause", "content-type": "application/json"},
        {"x-holdfast-action": "cancel", "content-type": "text/plain"},
        {**ACTION, "origin": "http://evil.example"},
        {**ACTION, "origin": "null"},
        {**ACTION, "origin": "http://["},
        {**ACTION, "sec-fetch-site": "cross-site"},
        {**ACTION, "sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_can_do_nothing(client: httpx.Client, shop: App, headers: dict[str, str]) -> None:
    sleeps.options(id="s").start()
    assert client.post("/api/actions/cancel", content=b'{"id":"s"}', headers=headers).status_code == 403
    assert shop.store.orders("s") == []


def test_our_own_page_can(client: httpx.Client, shop: App) -> None:
    sleeps.options(id="s").start()
    headers = {**ACTION, "origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert client.post("/api/actions/cancel", content=b'{"id":"s"}', headers=headers).status_code == 200
    assert shop.store.orders("s") == ["cancel"]


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "a{b.evil.example", "a}b.evil.example", "a`b.evil.example", 'a"b.evil.example', "", "evil.example:99999",
        "localhost:99999", "ev il.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.999", "[::1", "[::2]",
        "evil.example\\@localhost", "user@localhost", "localhost:", "localhost, evil.example",
    ],
)  # fmt: skip
def test_without_a_token_no_page_gets_in_under_a_name_of_its_own(shop: App, host: str) -> None:
    sleeps.options(id="s").start()
    with client_of(monitor(shop, authorize=from_this_machine), host=host) as client:
        assert client.get("/api/runs").status_code in (400, 401)
        answer = client.post("/api/actions/cancel", content=b'{"id":"s"}', headers=ACTION)
        assert answer.status_code in (400, 401)
    assert shop.store.orders("s") == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8080"])
def test_without_a_token_this_machine_gets_in(shop: App, host: str) -> None:
    with client_of(monitor(shop, authorize=from_this_machine), host=host) as client:
        assert client.get("/api/runs").status_code == 200


def test_without_a_token_a_request_that_names_no_host_is_refused(shop: App) -> None:
    with client_of(monitor(shop, authorize=from_this_machine)) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as raw:
            raw.sendall(b"GET /api/runs HTTP/1.0\r\n\r\n")
            assert b" 401 " in raw.makefile("rb").readline()


def test_a_read_only_monitor_does_nothing(shop: App) -> None:
    sleeps.options(id="s").start()
    with client_of(monitor(shop, token=TOKEN, read_only=True), authorization=f"Bearer {TOKEN}") as client:
        assert client.post("/api/actions/cancel", content=b'{"id":"s"}', headers=ACTION).status_code == 403
        assert client.get("/api/run?id=s").status_code == 200
    assert shop.store.orders("s") == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 400), (b'{"id": 5}', 400), (b"{}", 400), (b'{"id":"s","more":1}', 400),
        (b"\xff\xfe", 400), (b'{"id":"s","reason":"' + b"x" * 1_100_000 + b'"}', 413), (b'{"id":"\\u0000"}', 400),
        (b"[" * 100_000, 400),
    ],
)  # fmt: skip
def test_a_malformed_body_is_refused_and_does_nothing(
    client: httpx.Client, shop: App, body: bytes, status: int
) -> None:
    sleeps.options(id="s").start()
    assert client.post("/api/actions/cancel", content=body, headers=ACTION).status_code == status
    assert shop.store.orders("s") == []


@pytest.mark.parametrize(
    "path",
    [
        "/api/run", "/api/run?id=s&id=", "/api/runs?after=x", "/api/runs?after=-1", "/api/runs?limit=9e9",
        "/api/runs?q=%22", "/api/runs?q=status:", "/api/runs?q=workflow:*a*", "/api/runs?after=" + "9" * 40,
        "/api/changes?what=../etc", "/api/runs?q=started:x",
    ],
)  # fmt: skip
def test_a_malformed_question_is_answered_with_what_is_wrong(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize("id", ["%00", "nobody", "..%2F..%2Fetc%2Fpasswd", "%F0%9F%98%80"])
def test_a_run_that_is_not_there_is_not_found(client: httpx.Client, id: str) -> None:
    assert client.get(f"/api/run?id={id}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static//etc/passwd",
        "/static/vendor/%2e%2e/%2e%2e/__init__.py", "/static/..\\server.py",
    ],
)  # fmt: skip
def test_files_outside_of_the_pages_are_not_served(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize("path", ["/workflows/runs", "/api/runs", "/static/main.js", "/nothing", "/api/run?id=x"])
def test_every_answer_lets_a_page_load_nothing_from_elsewhere_and_run_nothing_inline(
    client: httpx.Client, path: str
) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")


def test_what_users_write_is_only_ever_sent_as_json(client: httpx.Client, shop: App) -> None:
    id = "<script>alert(1)</script>"
    sleeps.options(id=id).start()
    answer = client.get("/api/runs")
    assert (answer.headers["content-type"], answer.json()["runs"][0]["id"]) == ("application/json", id)
    page = client.get("/workflows/runs/" + quote(id, safe=""))
    assert page.status_code == 200
    assert "alert" not in page.text


def test_a_mounted_monitor_asks_its_host_who_may_do_what(shop: App) -> None:
    sleeps.options(id="s").start()
    asked: list[str] = []

    async def authorize(request: Request, action: str) -> bool:
        asked.append(action)
        return request.headers.get("x-user") == "ann" and action == "view"

    with client_of(monitor(shop, authorize=authorize), below="/ops") as client:
        assert client.get("/ops/api/runs").status_code == 401
        assert client.get("/ops/api/runs", headers={"x-user": "ann"}).status_code == 200
        answer = client.post("/ops/api/actions/cancel", content=b'{"id":"s"}', headers={**ACTION, "x-user": "ann"})
        assert answer.status_code == 403
        assert asked == ["view", "view", "cancel", "view"]
        page = client.get("/ops/workflows/runs", headers={"x-user": "ann"})
        assert '<base href="/ops/">' in page.text
        home = client.get("/ops/", headers={"x-user": "ann"}, follow_redirects=False)
        assert home.headers["location"] == "/ops/workflows/runs"


@pytest.mark.parametrize("given", [{}, {"token": "short"}, {"token": TOKEN, "authorize": lambda request, action: True}])
def test_a_monitor_without_somebody_who_says_who_may_is_not_made(shop: App, given: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="monitor:"):
        monitor(shop, **given)
