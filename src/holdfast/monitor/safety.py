"""Who may look and who may act: tokens, origins, and the headers that keep a page from loading or running anything else."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Authorize = Callable[[Request, str], bool | Awaitable[bool]]
"""Whether a request may do something: "view", or the name of an action such as "cancel"."""

ACTION_HEADER = "x-holdfast-action"
BODY_LIMIT = 1_048_576
POLICY = "; ".join(
    [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "base-uri 'self'", "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)  # fmt: skip
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
LOCKED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title>
<h1>This monitor needs its token</h1>
<p>Open the address that <code>holdfast monitor</code> has printed: it ends in <code>?token=…</code>. After a restart there
is a new one.</p></html>"""


class TokenCheck:
    """Whether a request has the token: in its cookie, or as `Authorization: Bearer`."""

    def __init__(self, token: str) -> None:
        self._token = token
        # Cookies don't tell ports apart, and several monitors may run on one machine.
        self.cookie = "holdfast-" + hashlib.sha256(token.encode()).hexdigest()[:12]

    def fits(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def __call__(self, request: Request, action: str) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.fits(given)
        return self.fits(request.cookies.get(self.cookie, ""))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_this_machine(request: Request, action: str) -> bool:
    """For a monitor without a token: a page of somebody else must not reach it under a name of its own."""
    return is_loopback(request.url.hostname or "")


class Guard:
    """Stands before everything: refuses who may not, and puts the headers on every answer. `entrance` takes a token from
    the address that was printed, and makes a cookie of it."""

    def __init__(self, inside: ASGIApp, entrance: TokenCheck | None) -> None:
        self._inside = inside
        self._entrance = entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inside(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._enter(Request(scope))
        await (answer or self._inside)(scope, receive, send_safely)

    def _enter(self, request: Request) -> Response | None:
        given = request.query_params.get("token")
        if self._entrance is None or given is None:
            return None
        if request.method != "GET" or not self._entrance.fits(given):
            return HTMLResponse(LOCKED, 401)
        rest = urlencode([pair for pair in parse_qsl(request.url.query) if pair[0] != "token"])
        # Within this site whatever the path looks like: //other.example would be another one.
        path = "/" + quote(request.url.path.lstrip("/"), safe="/%:@")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(
            self._entrance.cookie, given, httponly=True, samesite="strict", path=request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer


async def may(authorize: Authorize, request: Request, action: str) -> bool:
    answer = authorize(request, action)
    return bool(await answer if inspect.isawaitable(answer) else answer)


def is_forged(headers: Headers, action: str) -> str:
    """Why a request to act can't be from one of our pages; empty if it can. A form of another site can't set headers,
    and a script of one can't without asking first, which nobody here answers."""
    if headers.get(ACTION_HEADER) != action:
        return f"an action needs the header {ACTION_HEADER}: {action}"
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return "an action needs content-type: application/json"
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "the request comes from another site"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host", ""):
        return "the request comes from another origin"
    return ""


def refused(status: int, text: str) -> JSONResponse:
    return JSONResponse({"error": text}, status)
