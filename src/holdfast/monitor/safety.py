"""Who may look and who may act: tokens, origins, and the headers that keep a page from loading or running anything else."""

from __future__ import annotations

import hashlib
import hmac
import html
import inspect
import ipaddress
import re
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
_HERE = re.compile(r"(localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::(\d{1,5}))?", re.ASCII | re.IGNORECASE)

ACTION_HEADER = "x-holdfast-action"
BODY_LIMIT = 1_048_576
POLICY = "; ".join(
    [
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "base-uri 'self'", "form-action 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
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
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Holdfast</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="{base}/static/monitor.css">
<main class="locked">{text}</main></html>"""
ASKED = """<h1>This monitor needs its token</h1>{wrong}
<p>It is the end of the address that <code>holdfast monitor</code> has printed, after <code>?token=</code>. There is a new one
at each start, unless <code>--token</code> or <code>HOLDFAST_MONITOR_TOKEN</code> gives one.</p>
<form method="get"><label>Token <input type="password" name="token" required autofocus autocomplete="off"></label>{rest}
<button class="primary">Open</button></form>"""
WRONG = '<p class="trouble" role="alert">This is not its token.</p>'
REFUSED = "<h1>You may not see this monitor</h1><p>Whoever runs it says who may.</p>"


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
    """For a monitor without a token: a page of somebody else must not reach it under a name of its own. The header counts
    as it was sent, since `request.url` has the server's own address instead of one that can't be parsed."""
    given = request.headers.getlist("host")
    found = _HERE.fullmatch(given[0]) if len(given) == 1 else None
    return found is not None and is_loopback(found[1].strip("[]").lower()) and int(found[2] or 0) < 65_536


class Guard:
    """Stands before everything: refuses who may not, and puts the headers on every answer. `entrance` takes a token from
    the address that was printed, and makes a cookie of it. A link on a page of another site brings that cookie along; what
    acts is no link, and needs more than a cookie (`is_forged`)."""

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
            return locked(request, asks=True)
        rest = urlencode(_without_token(request))
        # Within this site whatever the path looks like: //other.example would be another one.
        path = "/" + quote(request.url.path.lstrip("/"), safe="/%:@")
        answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(
            self._entrance.cookie, given, httponly=True, samesite="lax", path=request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer


def _without_token(request: Request) -> list[tuple[str, str]]:
    return [pair for pair in parse_qsl(request.url.query) if pair[0] != "token"]


def locked(request: Request, asks: bool) -> HTMLResponse:
    """What those see who may not look. One that `asks` takes the token, and leads to where they wanted to go."""
    base = html.escape(request.scope.get("root_path", ""), quote=True)
    pairs = [(html.escape(name, quote=True), html.escape(value, quote=True)) for name, value in _without_token(request)]
    rest = "".join(f'<input type="hidden" name="{name}" value="{value}">' for name, value in pairs)
    wrong = WRONG if request.query_params.get("token") else ""
    return HTMLResponse(PAGE.format(base=base, text=ASKED.format(wrong=wrong, rest=rest) if asks else REFUSED), 401)


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
    if origin is not None and _place_of(origin) != headers.get("host", ""):
        return "the request comes from another origin"
    return ""


def _place_of(origin: str) -> str | None:
    """Its host and port; None if it can't be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def refused(status: int, text: str, field: str = "") -> JSONResponse:
    return JSONResponse({"error": text, **({"field": field} if field else {})}, status)
