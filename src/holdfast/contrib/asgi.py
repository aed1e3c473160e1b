"""Hooks over HTTP. Plain ASGI: it mounts in FastAPI, Starlette, or serves alone.

web.mount("/holdfast", hooks(orders))            # POST /holdfast/hooks/{token}
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.errors import (
    HoldfastError,
    HookPayloadError,
    HookTokenError,
    RunFinishedError,
    RunNotFoundError,
    StoreError,
    TransformError,
    ValueCodecError,
)
from holdfast.printing import printable

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger = logging.getLogger("holdfast.hooks")

_STATUS: tuple[tuple[type[HoldfastError], int], ...] = (
    (HookTokenError, 403),
    (HookPayloadError, 422),
    (TransformError, 503),
    (ValueCodecError, 422),
    (RunNotFoundError, 404),
    (RunFinishedError, 409),
    (StoreError, 503),
)


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def hooks(app: App, *, limit: int = 1_048_576) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An ASGI app with one route, `POST /hooks/{token}`: the body is JSON of up to `limit` bytes, checked against the
    hook's model.

    The token is all that is needed and all that is accepted; without a good one the body is not even read. Type tags in
    the body mean nothing.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"hooks answer http, not {scope['type']}")
        try:
            token = _token(scope)
            _refuse_large(scope, limit)
            await asyncio.to_thread(lambda: app.client.check_token(token))  # before a stranger's body is read
            payload = _payload(await _body(receive, limit))
            await app.asend_hook(token, payload)
        except _Refused as refused:
            await _answer(send, refused.status, {"error": printable(str(refused))})
        except HoldfastError as error:
            status = next((status for kind, status in _STATUS if isinstance(error, kind)), 400)
            if status == 503:
                logger.error("a hook could not be delivered: %s", error)
            await _answer(send, status, {"error": printable(str(error))})
        else:
            await _answer(send, 202, {"accepted": True})

    return serve


def _token(scope: Scope) -> str:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    prefix, _, token = path.rpartition("/hooks/")
    if prefix or not token or "/" in token:
        raise _Refused(404, "there is only POST /hooks/{token} here")
    if scope["method"] != "POST":
        raise _Refused(405, "send the payload with POST")
    return str(token)


def _refuse_large(scope: Scope, limit: int) -> None:
    for name, value in scope.get("headers", ()):
        if name.lower() == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)


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
