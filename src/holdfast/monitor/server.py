"""Routes: pages, their files, the JSON API, actions, and the stream of changes."""

from __future__ import annotations

import html
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from holdfast import errors as e
from holdfast.api.selection import Action
from holdfast.app import App
from holdfast.monitor.actions import BULK, NAMES, carry_out, carry_out_for_many, preview
from holdfast.monitor.changes import Changes, as_event
from holdfast.monitor.one_run import EVENTS_PER_PAGE, OneRun
from holdfast.monitor.openapi import described
from holdfast.monitor.overview import Overview
from holdfast.monitor.run_lists import RunLists
from holdfast.monitor.safety import BODY_LIMIT, Authorize, Guard, TokenCheck, is_forged, locked, refused, who_may
from holdfast.monitor.source import Conflict, Refusal, Source
from holdfast.telemetry.metrics import CONTENT_TYPE
from holdfast.views.gauges import store_gauges
from holdfast.views.redaction import Redact

STATIC = Path(__file__).parent / "static"
PAGE_LIMIT = 200
EVENTS_LIMIT = 1_000
IMPORT_LIMIT = 32 * 1_048_576
DAY = 86_400
LISTS = ("runs", "workflows", "workers", "schedules", "hooks")
PAGES = (
    "/workflows/runs", "/workflows/runs/{id:path}", "/workflows/", "/workers", "/schedules", "/hooks", "/failures",
    "/invocations", "/invocations/{id:path}", "/timeline", "/import",
)  # fmt: skip
logger = logging.getLogger("holdfast.monitor")

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (e.RunNotFoundError, 404), (e.ScheduleNotFoundError, 404), (e.HookNotFoundError, 404), (e.ArgumentError, 400),
    (Conflict, 409), (Refusal, 400), (e.StoreError, 503), (e.RunError, 409), (e.ScheduleError, 409), (e.HoldfastError, 422),
)  # fmt: skip
Ask = Callable[[Request], Any]


def monitor(
    app: App,
    *,
    token: str | None = None,
    operator_token: str | None = None,
    viewer_token: str | None = None,
    authorize: Authorize | None = None,
    read_only: bool = False,
    redact: Redact | None = None,
) -> Starlette:
    """The monitor of an app, to serve or to mount. Whoever has `token` may use it, with `operator_token` all but terminate
    and delete runs, with `viewer_token` look; or `authorize(request, action)` says who may "view", "cancel" and so on.
    With `read_only` nobody can act. `redact(name, value)` gives what is shown instead of a value that belongs to users."""
    given = {"admin": token, "operator": operator_token, "viewer": viewer_token}
    tokens = {role: each for role, each in given.items() if each is not None}
    if bool(tokens) == (authorize is not None):
        raise e.ArgumentError("monitor: give a token, or authorize=, a function that says who may do what; not both")
    if any(len(each) < 16 for each in tokens.values()):
        raise e.ArgumentError("monitor: a token has 16 characters or more, so that nobody guesses it")
    if any(not (each.isascii() and each.isprintable()) for each in tokens.values()):
        raise e.ArgumentError("monitor: a token has plain ASCII characters only, as it is sent in a header")
    if len(set(tokens.values())) < len(tokens):
        raise e.ArgumentError("monitor: each role needs a token of its own")
    entrance = TokenCheck(tokens) if tokens else None
    who: Authorize = entrance if entrance is not None else authorize  # type: ignore[assignment]
    site = Site(app, who, read_only, redact)
    questions: dict[str, Ask] = {
        "runs": site.runs,
        "counts": lambda request: site.lists.counts(_filter(request)),
        "counts/time": lambda request: site.lists.counts_over_time(_filter(request), _seconds(request, DAY)),
        "run": site.run,
        "run/graph": lambda request: site.one_run.graph(_id(request), request.query_params.getlist("open")),
        "run/values": lambda request: site.one_run.values(_id(request)),
        "run/lanes": lambda request: site.one_run.lanes(
            _id(request), _number(request, "at", 0) or 0, _limit(request, EVENTS_PER_PAGE, EVENTS_LIMIT)
        ),
        "run/tree": lambda request: site.one_run.tree(_id(request)),
        "run/family": lambda request: site.one_run.family(_id(request)),
        "run/events": site.events,
        "run/event": lambda request: site.one_run.event(_id(request), _number(request, "seq", 1) or 1),
        "run/stream": site.stream,
        "run/reruns": site.reruns,
        "invocations": site.invocations,
        "invocation": site.invocation,
        "timeline": lambda request: site.overview.timeline(_filter(request), _seconds(request, 900)),
        "views": lambda request: site.lists.views(),
        "failures": lambda request: site.lists.failures(_filter(request)),
        "workflow": site.workflow,
        "hooks": site.hooks,
        "findings": lambda request: site.overview.findings(),
        **{name: site.listing(name) for name in ("workflows", "workers", "schedules")},
    }
    routes = [
        Route("/health", site.health),
        Route("/metrics", site.metrics),
        Route("/api/openapi.json", site.reading(lambda request: described(request.scope.get("root_path", "")))),
        Route("/api/about", site.about),
        *(Route(f"/api/{path}", site.reading(ask)) for path, ask in questions.items()),
        Route("/api/changes", site.changes),
        Route("/api/inspect", site.inspect, methods=["POST"]),
        Route("/api/bulk/{name}", site.preview, methods=["GET"]),
        Route("/api/bulk/{name}", site.act_on_many, methods=["POST"]),
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


def _limit(request: Request, default: int = 50, most: int = PAGE_LIMIT) -> int:
    return min(max(_number(request, "limit", default) or 1, 1), most)


def _seconds(request: Request, default: int) -> int:
    return min(max(_number(request, "seconds", default) or default, 60), 400 * DAY)


class Site:
    """Handlers. What reads the store does so on a thread."""

    def __init__(self, app: App, authorize: Authorize, read_only: bool, redact: Redact | None) -> None:
        self.source = Source(app, redact)
        self.lists = RunLists(self.source)
        self.one_run = OneRun(self.source)
        self.overview = Overview(self.source)
        self._app = app
        self._authorize = authorize
        self._read_only = read_only
        self.streams = Changes(self.source)

    # -- reading

    def reading(self, ask: Ask) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if await who_may(self._authorize, request, "view") is None:
                return refused(
                    401, "this needs the monitor's token: open the address that `holdfast monitor` has printed"
                )
            return await self._answer(lambda: ask(request))

        return handle

    async def about(self, request: Request) -> Response:
        """What is looked at, and what whoever asks may do."""
        may = [] if self._read_only else [n for n in NAMES if await who_may(self._authorize, request, n) is not None]
        more = {"read_only": self._read_only, "may": may}
        return await self.reading(lambda request: {**self.overview.about(), **more})(request)

    def runs(self, request: Request) -> dict[str, Any]:
        filter, after, limit = _filter(request), _number(request, "after"), _limit(request)
        version = self.streams.versions.of("runs", filter, after, limit)  # before what it stands for
        return {**self.lists.runs(filter, after, limit), "version": version}

    def run(self, request: Request) -> dict[str, Any]:
        run_id = _id(request)
        version = self.streams.versions.of(f"run:{run_id}")
        return {**self.one_run.run(run_id), "version": version}

    def hooks(self, request: Request) -> dict[str, Any]:
        after = _number(request, "after")
        version = self.streams.versions.of("hooks", after=after)
        return {**self.overview.hooks(after), "version": version}

    def listing(self, name: str) -> Ask:
        def ask(request: Request) -> dict[str, Any]:
            version = self.streams.versions.of(name)
            return {**getattr(self.overview, name)(), "version": version}

        return ask

    def events(self, request: Request) -> dict[str, Any]:
        limit = _limit(request, EVENTS_PER_PAGE, EVENTS_LIMIT)
        return self.one_run.events(_id(request), _number(request, "after", 0) or 0, limit)

    def stream(self, request: Request) -> dict[str, Any]:
        return self.one_run.stream(_id(request), _number(request, "after", 0) or 0, _limit(request))

    def invocations(self, request: Request) -> dict[str, Any]:
        run_id, after = request.query_params.get("workflow_id", ""), request.query_params.get("after")
        return self.overview.invocations(_filter(request), run_id, after, _limit(request))

    def invocation(self, request: Request) -> dict[str, Any]:
        cmd = request.query_params.get("cmd", "")
        if not cmd:
            raise Refusal("cmd is missing: which step of the run?")
        return self.one_run.invocation(_id(request), cmd)

    def workflow(self, request: Request) -> dict[str, Any]:
        name = request.query_params.get("name", "")
        if not name or "\0" in name:
            raise Refusal("name is missing: which workflow?")
        return self.overview.workflow(name)

    def reruns(self, request: Request) -> dict[str, Any]:
        return self.one_run.fork_reruns(_id(request), _number(request, "at", 0) or 0)

    async def health(self, request: Request) -> Response:
        """For probes: whether the store answers. Says nothing else, as nobody has to show a token."""
        answer = await self._answer(lambda: {"ok": self._app.store.now() > 0 and self._app.store.workers() is not None})
        return answer if answer.status_code == 200 else refused(503, "the store can't be reached")

    async def _answer(self, ask: Callable[[], Any]) -> Response:
        try:
            found = await run_in_threadpool(ask)
        except (e.HoldfastError, Refusal) as error:
            self.streams.failed(error)
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            return refused(status, str(error), getattr(error, "field", ""))
        return Response(msgspec.json.encode(found), media_type="application/json")

    # -- changes

    async def changes(self, request: Request) -> Response:
        """Server-sent events: one each time that what is looked at has changed. It goes on after Last-Event-ID."""
        if await who_may(self._authorize, request, "view") is None:
            return refused(401, "this needs the monitor's token")
        what = request.query_params.get("what", "runs")
        if what not in LISTS and not what.startswith("run:"):
            return refused(400, f"what={what!r}: give run:ID, or one of {', '.join(LISTS)}")
        try:
            key = (what, _filter(request), _number(request, "after"), _limit(request))
            if what == "runs":
                self.source.query_of(key[1])
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
        if await who_may(self._authorize, request, "view") is None:
            return refused(401, "this needs the monitor's token, as `Authorization: Bearer`")
        text = await run_in_threadpool(store_gauges(self._app.store).render)
        # What can't be read is left out; without all of it this has failed.
        return Response(text, media_type=CONTENT_TYPE) if text.strip() else await self.health(request)

    # -- acting

    async def act(self, request: Request) -> Response:
        return await self._act(request, NAMES, carry_out)

    async def act_on_many(self, request: Request) -> Response:
        def carry(app: App, name: str, body: bytes, by: str) -> dict[str, Any]:
            return carry_out_for_many(self.source, self.lists, cast("Action", name), body, by)

        return await self._act(request, BULK, carry)

    async def preview(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in BULK:
            return refused(404, f"{name!r} can't be done to many runs; known: {', '.join(BULK)}")
        return await self.reading(lambda request: preview(self.source, name, _filter(request)))(request)

    async def _act(
        self, request: Request, known: Sequence[str], carry: Callable[[App, str, bytes, str], dict[str, Any]]
    ) -> Response:
        name = request.path_params["name"]
        if name not in known:
            return refused(404, f"there is no action {name!r}; known: {', '.join(known)}")
        forged = is_forged(request.headers, name)
        if forged:
            return refused(403, forged)
        by = await who_may(self._authorize, request, name)
        if by is None:
            looks = await who_may(self._authorize, request, "view") is not None
            return refused(
                403 if looks else 401, f"{name} needs a token of another role" if looks else "this needs a token"
            )
        if self._read_only:
            return refused(403, "this monitor is read-only")
        try:
            body = await _read_body(request, BODY_LIMIT)
        except Refusal as error:
            return refused(413, str(error))
        by = by or f"the monitor, from {request.client.host if request.client else 'somewhere'}"
        answer = await self._answer(lambda: carry(self._app, name, body, by[:200]))
        if answer.status_code == 200:
            logger.info("%s by %s: %s", name, by, _without_values(body))
        return answer

    async def inspect(self, request: Request) -> Response:
        """A run that somebody has exported. Nothing of it is kept."""
        forged = is_forged(request.headers, "inspect")
        if forged:
            return refused(403, forged)
        if await who_may(self._authorize, request, "view") is None:
            return refused(401, "this needs the monitor's token")
        try:
            body = await _read_body(request, IMPORT_LIMIT)
        except Refusal as error:
            return refused(413, str(error))
        return await self._answer(lambda: self.one_run.imported(body))

    # -- pages

    async def home(self, request: Request) -> Response:
        return RedirectResponse(request.scope.get("root_path", "") + "/workflows/runs", 307)

    async def page(self, request: Request) -> Response:
        """All pages are one file: what it shows is in its address."""
        if await who_may(self._authorize, request, "view") is None:
            return locked(request, asks=isinstance(self._authorize, TokenCheck))
        base = html.escape(request.scope.get("root_path", "") + "/", quote=True)
        text = (STATIC / "index.html").read_text().replace("{base}", base)
        return HTMLResponse(text)


def _without_values(body: bytes) -> str:
    """What was ordered, for a log: what users give to their runs is none of its business."""
    said = {
        key: value for key, value in msgspec.json.decode(body).items() if key not in ("input", "payload", "replace")
    }
    return msgspec.json.encode(said).decode()[:200]


async def _read_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise Refusal(f"the body is longer than {limit} bytes")
    except ClientDisconnect:
        raise Refusal("the body was cut off") from None
    return bytes(body)
