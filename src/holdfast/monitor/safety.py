"""Who may look and who may act: tokens, origins, and the headers that keep a page from loading or running anything else."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Verdict = bool | str | None
Authorize = Callable[[Request, str], Verdict | Awaitable[Verdict]]
"""Whether a request may do something: "view", or the name of an action such as "cancel". A text says yes, and who it is:
that is recorded with what they do."""

ROLES = ("viewer", "operator", "admin")
"""Each may do what the ones before it may. A viewer looks, an operator acts on runs and schedules."""
ADMIN_ONLY = ("terminate", "delete")

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
    """Whether a request has a token, and what the role of that may do: in its cookie, or as `Authorization: Bearer`."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        """`tokens` are by role."""
        self._tokens = dict(tokens)
        # Cookies don't tell ports apart, and several monitors may run on one machine.
        joined = "\0".join(self._tokens[role] for role in sorted(self._tokens))
        self.cookie = "holdfast-" + hashlib.sha256(joined.encode()).hexdigest()[:12]

    def role_of(self, given: str) -> str:
        """Empty if it is none of the tokens."""
        fitting = [role for role, token in self._tokens.items() if hmac.compare_digest(given.encode(), token.encode())]
        return fitting[0] if fitting else ""

    def __call__(self, request: Request, action: str) -> Verdict:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        role = self.role_of(given if kind.lower() == "bearer" else request.cookies.get(self.cookie, ""))
        if not role or ROLES.index(role) < _needed(action):
            return None
        return f"{role} at {request.client.host}" if request.client is not None else role


def _needed(action: str) -> int:
    if action == "view":
        return 0
    return 2 if action in ADMIN_ONLY else 1


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
        if request.method != "GET" or not self._entrance.role_of(given):
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


async def who_may(authorize: Authorize, request: Request, action: str) -> str | None:
    """Who does it, as far as that is known; None if they may not."""
    answer = authorize(request, action)
    verdict = await answer if inspect.isawaitable(answer) else answer
    if isinstance(verdict, str):
        return verdict or None
    return "" if verdict else None


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
