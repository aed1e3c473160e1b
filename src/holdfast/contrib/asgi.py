"""Hooks, requests and steps that end elsewhere, over HTTP. Plain ASGI: it mounts in FastAPI, Starlette, or serves alone.

web.mount("/holdfast", hooks(orders))            # POST /holdfast/hooks/{token}
web.mount("/carts", requests(shop, [add_item]))  # POST /carts/runs/{run_id}/ask/{name}, behind your own authentication
web.mount("/work", steps(films))                 # POST /work/steps/{token}, .../fail, .../beat
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

from holdfast.api.checks import check_id, duration_of
from holdfast.api.reading import Which
from holdfast.api.requests import RequestDefinition
from holdfast.app import App
from holdfast.blocking import run_blocking
from holdfast.durations import Duration
from holdfast.errors import (
    ArgumentError,
    HoldfastError,
    HookPayloadError,
    HookTokenError,
    RequestPayloadError,
    RequestRefusedError,
    RunFinishedError,
    RunNotFoundError,
    RunStuckError,
    StepTokenError,
    StoreError,
    TransformError,
    ValueCodecError,
    WaitTimeoutError,
)
from holdfast.printing import printable

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("holdfast.hooks")

_STATUS: tuple[tuple[type[HoldfastError], int], ...] = (
    (HookTokenError, 403),
    (StepTokenError, 403),
    (HookPayloadError, 422),
    (RequestPayloadError, 422),
    (TransformError, 503),
    (ValueCodecError, 422),
    (RunNotFoundError, 404),
    (RunFinishedError, 409),
    (RunStuckError, 409),
    (StoreError, 503),
)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Call:
    """One request, up to its body, which is not read before somebody asks for it."""

    def __init__(self, scope: Scope, receive: Receive, limit: int) -> None:
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self._headers = scope.get("headers", ())
        self._receive = receive
        self._limit = limit
        if scope["method"] != "POST":
            raise _Refused(405, "send the payload with POST")
        length = self.header(b"content-length")
        if length.isdigit() and int(length) > limit:
            raise _too_large(limit)

    def header(self, wanted: bytes) -> str:
        found = [value for name, value in self._headers if name.lower() == wanted]
        return found[0].decode("latin-1") if found else ""

    async def payload(self) -> Any:
        return _payload(await _body(self._receive, self._limit))


Handle = Callable[[_Call], Awaitable[tuple[int, dict[str, Any]]]]


def hooks(app: App, *, limit: int = 1_048_576) -> Asgi:
    """An ASGI app with one route, `POST /hooks/{token}`: the body is JSON of up to `limit` bytes, checked against the
    hook's model.

    The token is all that is needed and all that is accepted; without a good one the body is not even read. Type tags in
    the body mean nothing.
    """

    async def handle(call: _Call) -> tuple[int, dict[str, Any]]:
        (token,) = _parts(call, r"/hooks/([^/]+)", "POST /hooks/{token}")
        await asyncio.to_thread(lambda: app.client.hooks.check_token(token))  # before a stranger's body is read
        await app.asend_hook(token, await call.payload())
        return 202, {"accepted": True}

    return _serve(handle, "hooks", limit)


def requests(
    app: App,
    allowed: Sequence[RequestDefinition[Any, Any] | str],
    *,
    limit: int = 1_048_576,
    timeout: Duration = "30s",
) -> Asgi:
    """An ASGI app with one route, `POST /runs/{run_id}/ask/{name}`, for the requests that are `allowed` and no others: the
    body is the payload, as JSON of up to `limit` bytes, and the answer is `{"answer": ...}`. A refusal is 409 with
    `{"refused": ...}`; 504 if there is no answer within `timeout`. An `Idempotency-Key` header makes it once-only.

    There is no authentication here: whoever can reach it may ask any run of the app. Mount it behind your own.
    """
    names = {each if isinstance(each, str) else each.name: each for each in allowed}
    duration_of("timeout", timeout, ArgumentError)

    async def handle(call: _Call) -> tuple[int, dict[str, Any]]:
        run_id, name = _parts(call, r"/runs/(.+)/ask/([^/]+)", "POST /runs/{run_id}/ask/{name}")
        if name not in names:
            raise _Refused(404, f"there is no request {name!r} here")
        key = call.header(b"idempotency-key") or None
        if key is not None:
            check_id(key, "Idempotency-Key")
        payload = await call.payload()
        try:
            asker, run = app.client.asker, Which(run_id)
            asked = await run_blocking(lambda given_up: asker.asked(run, names[name], payload, key, timeout))
            answer = await asker.aanswer(asked, plain=True)
        except WaitTimeoutError as error:
            return 504, {"error": printable(str(error))}
        except RequestRefusedError as refusal:
            return 409, {"refused": printable(str(refusal))}
        return 200, {"answer": answer}

    return _serve(handle, "requests", limit)


def steps(app: App, *, limit: int = 1_048_576) -> Asgi:
    """An ASGI app for steps that were handed over: `POST /steps/{token}` with the result as JSON, `POST
    /steps/{token}/fail` with the text of the error, `POST /steps/{token}/beat` as a sign of life, with nothing or with
    `{"done": 3, "total": 10, "note": ""}`.

    The token is all that is needed and all that is accepted; without a good one the body is not even read.
    """

    async def handle(call: _Call) -> tuple[int, dict[str, Any]]:
        token, what = _parts(call, r"/steps/([^/]+)(/fail|/beat|)", "POST /steps/{token}, with /fail or /beat after it")
        await asyncio.to_thread(lambda: app.client.handed_over.check_token(token))
        payload = await call.payload()
        if what == "/fail":
            if type(payload) is not str or not payload:
                raise _Refused(422, "give the text of the error, as a JSON string")
            await app.afail_step(token, payload)
        elif what == "/beat":
            if not (payload is None or (isinstance(payload, dict) and payload.keys() <= {"done", "total", "note"})):
                raise _Refused(422, 'give nothing, or {"done": 3, "total": 10, "note": ""}')
            await app.abeat_step(token, **(payload or {}))
        else:
            await app.afinish_step(token, payload)
        return 202, {"accepted": True}

    return _serve(handle, "steps", limit)


def _serve(handle: Handle, what: str, limit: int) -> Asgi:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"{what} answer http, not {scope['type']}")
        try:
            status, body = await handle(_Call(scope, receive, limit))
        except _Refused as refused:
            await _answer(send, refused.status, {"error": printable(str(refused))})
        except HoldfastError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
            if status == 503:
                logger.error("%s over HTTP: the store or the codec failed: %s", what, error)
            await _answer(send, status, {"error": printable(str(error))})
        else:
            await _answer(send, status, body)

    return serve


def _parts(call: _Call, pattern: str, shown: str) -> tuple[str, ...]:
    found = re.fullmatch(pattern, call.path)
    if found is None:
        raise _Refused(404, f"there is only {shown} here")
    return found.groups()


def _too_large(limit: int) -> _Refused:
    return _Refused(413, f"the payload is larger than {limit} bytes")


async def _body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Refused(400, "the request ended early")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return b"".join(parts)


def _payload(body: bytes) -> Any:
    if not body.strip():
        return None
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise _Refused(400, "the body is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise _Refused(400, f"the body is not JSON: {error}") from None


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(body)})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
