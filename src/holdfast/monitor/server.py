"""Routes: pages, their files, the JSON API, actions, and the stream of changes."""

from __future__ import annotations

import html
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast import errors as e
from holdfast.app import App
from holdfast.monitor.actions import NAMES, Refusal, carry_out
from holdfast.monitor.changes import Changes, as_event
from holdfast.monitor.resources import Resources
from holdfast.monitor.safety import BODY_LIMIT, LOCKED, Authorize, Guard, TokenCheck, is_forged, may, refused
from holdfast.telemetry.metrics import CONTENT_TYPE
from holdfast.views.gauges import store_gauges

STATIC = Path(__file__).parent / "static"
PAGE_LIMIT = 200
LISTS = ("runs", "workflows", "workers", "schedules", "hooks")
PAGES = ("/workflows/runs", "/workflows/runs/{id:path}", "/workflows/", "/workers", "/schedules", "/hooks")
logger = logging.getLogger("holdfast.monitor")

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (e.RunNotFoundError, 404), (e.ScheduleNotFoundError, 404), (e.HookNotFoundError, 404), (e.ArgumentError, 400),
    (Refusal, 400), (e.StoreError, 503), (e.RunError, 409), (e.ScheduleError, 409), (e.HoldfastError, 422),
)  # fmt: skip
Ask = Callable[[Request], Any]


def monitor(
    app: App, *, token: str | None = None, authorize: Authorize | None = None, read_only: bool = False
) -> Starlette:
    """The monitor of an app, to serve or to mount. Whoever has `token` may use it; or `authorize(request, action)` says
    who may "view", "cancel" and so on. One of them has to be given. With `read_only` nobody can act."""
    if (token is None) == (authorize is None):
        raise e.ArgumentError("monitor: give a token, or authorize=, a function that says who may do what; not both")
    if token is not None and len(token) < 16:
        raise e.ArgumentError("monitor: a token has 16 characters or more, so that nobody guesses it")
    entrance = TokenCheck(token) if token is not None else None
    who: Authorize = entrance if entrance is not None else authorize  # type: ignore[assignment]
    site = Site(app, who, read_only)
    routes = [
        Route("/health", site.health),
        Route("/metrics", site.metrics),
        Route("/api/about", site.reading(lambda request: site.about())),
        Route("/api/runs", site.reading(site.runs)),
        Route("/api/counts", site.reading(lambda request: site.resources.counts(_filter(request)))),
        Route("/api/run", site.reading(site.run)),
        Route("/api/run/tree", site.reading(lambda request: site.resources.tree(_id(request)))),
        Route("/api/run/events", site.reading(site.events)),
        Route("/api/run/reruns", site.reading(site.reruns)),
        *(Route(f"/api/{name}", site.reading(site.listing(name))) for name in LISTS[1:]),
        Route("/api/changes", site.changes),
        Route("/api/actions/{name}", site.act, methods=["POST"]),
        Route("/", site.home),
        *(Route(path, site.page) for path in PAGES),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    web = Starlette(routes=routes)
    web.add_middleware(Guard, entrance=entrance)
    web.state.streams = site.streams
    return web


def _filter(request: Request) -> str:
    return request.query_params.get("q", "")


def _id(request: Request) -> str:
    found = request.query_params.get("id", "")
    if not found:
        raise Refusal("id is missing: which run?")
    return found


def _number(request: Request, name: str, default: int | None = None) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Refusal(f"{name}={text!r} is not a number")
    return int(text)


def _limit(request: Request) -> int:
    return min(max(_number(request, "limit", 50) or 1, 1), PAGE_LIMIT)


class Site:
    """Handlers. What reads the store does so on a thread."""

    def __init__(self, app: App, authorize: Authorize, read_only: bool) -> None:
        self.resources = Resources(app)
        self._app = app
        self._authorize = authorize
        self._read_only = read_only
        self.streams = Changes(self.resources)

    # -- reading

    def reading(self, ask: Ask) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if not await may(self._authorize, request, "view"):
                return refused(
                    401, "this needs the monitor's token: open the address that `holdfast monitor` has printed"
                )
            return await _answer(lambda: ask(request))

        return handle

    def about(self) -> dict[str, Any]:
        return {**self.resources.about(), "read_only": self._read_only}

    def runs(self, request: Request) -> dict[str, Any]:
        filter, after, limit = _filter(request), _number(request, "after"), _limit(request)
        version = self.streams.versions.of("runs", filter, after, limit)  # before what it stands for
        return {**self.resources.runs(filter, after, limit), "version": version}

    def run(self, request: Request) -> dict[str, Any]:
        run_id = _id(request)
        version = self.streams.versions.of(f"run:{run_id}")
        return {**self.resources.run(run_id), "version": version}

    def listing(self, name: str) -> Ask:
        def ask(request: Request) -> dict[str, Any]:
            version = self.streams.versions.of(name)
            return {**getattr(self.resources, name)(), "version": version}

        return ask

    def events(self, request: Request) -> dict[str, Any]:
        return self.resources.events(_id(request), _number(request, "after", 0) or 0)

    def reruns(self, request: Request) -> dict[str, Any]:
        return self.resources.fork_reruns(_id(request), _number(request, "at", 0) or 0)

    async def health(self, request: Request) -> Response:
        """For probes: whether the store answers. Says nothing else, as nobody has to show a token."""
        answer = await _answer(lambda: {"ok": self._app.store.now() > 0 and self._app.store.workers() is not None})
        return answer if answer.status_code == 200 else refused(503, "the store can't be reached")

    # -- changes

    async def changes(self, request: Request) -> Response:
        """Server-sent events: one each time that what is looked at has changed. It goes on after Last-Event-ID."""
        if not await may(self._authorize, request, "view"):
            return refused(401, "this needs the monitor's token")
        what = request.query_params.get("what", "runs")
        if what not in LISTS and not what.startswith("run:"):
            return refused(400, f"what={what!r}: give run:ID, or one of {', '.join(LISTS)}")
        try:
            key = (what, _filter(request), _number(request, "after"), _limit(request))
            if what == "runs":
                self.resources.query_of(key[1])
        except (Refusal, e.ArgumentError) as error:
            return refused(400, str(error))
        seen = request.headers.get("last-event-id") or request.query_params.get("seen", "")

        async def lines() -> AsyncIterator[str]:
            yield "retry: 1000\n\n"
            async for version in self.streams.follow(key, seen):
                yield as_event(version)

        return StreamingResponse(lines(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def metrics(self, request: Request) -> Response:
        """What the store holds, for Prometheus; what workers do is told by their own."""
        if not await may(self._authorize, request, "view"):
            return refused(401, "this needs the monitor's token, as `Authorization: Bearer`")
        text = await run_in_threadpool(store_gauges(self._app.store).render)
        return Response(text, media_type=CONTENT_TYPE)

    # -- acting

    async def act(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in NAMES:
            return refused(404, f"there is no action {name!r}; known: {', '.join(NAMES)}")
        forged = is_forged(request.headers, name)
        if forged:
            return refused(403, forged)
        if not await may(self._authorize, request, name):
            return refused(401, "this needs the monitor's token, or another one may do it")
        if self._read_only:
            return refused(403, "this monitor is read-only")
        try:
            body = await _read_body(request)
        except Refusal as error:
            return refused(413, str(error))
        answer = await _answer(lambda: carry_out(self._app, name, body))
        if answer.status_code == 200:
            logger.info("%s by %s: %s", name, request.client.host if request.client else "somebody", body[:200])
        return answer

    # -- pages

    async def home(self, request: Request) -> Response:
        return RedirectResponse(request.scope.get("root_path", "") + "/workflows/runs", 307)

    async def page(self, request: Request) -> Response:
        """All pages are one file: what it shows is in its address."""
        if not await may(self._authorize, request, "view"):
            return HTMLResponse(LOCKED, 401)
        base = html.escape(request.scope.get("root_path", "") + "/", quote=True)
        text = (STATIC / "index.html").read_text().replace("{base}", base)
        return HTMLResponse(text)


async def _read_body(request: Request) -> bytes:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > BODY_LIMIT:
                raise Refusal(f"the body is longer than {BODY_LIMIT} bytes")
    except ClientDisconnect:
        raise Refusal("the body was cut off") from None
    return body


async def _answer(ask: Callable[[], Any]) -> Response:
    try:
        found = await run_in_threadpool(ask)
    except (e.HoldfastError, Refusal) as error:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        return refused(status, str(error))
    return Response(msgspec.json.encode(found), media_type="application/json")
