"""The monitor beside a Django project: in `asgi.py`, `application = with_monitor(get_asgi_application(), "/ops")`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from holdfast.contrib.django.configuration import configured_app
from holdfast.monitor import Authorize, monitor
from holdfast.views.redaction import Redact

Application = Callable[[Any, Any, Any], Awaitable[None]]


def with_monitor(
    application: Application,
    path: str = "/holdfast",
    *,
    authorize: Authorize | None = None,
    read_only: bool = False,
    redact: Redact | None = None,
) -> Application:
    """The project's ASGI application with the monitor of its app below `path`. Staff may look and superusers may act, as
    who they are logged in, unless `authorize(request, action)` says otherwise."""
    base = "/" + path.strip("/")
    inside = monitor(configured_app(), authorize=authorize or by_session, read_only=read_only, redact=redact)

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        at = scope.get("path", "")
        if scope["type"] != "http" or not (at == base or at.startswith(f"{base}/")):
            await application(scope, receive, send)
            return
        if at == base:
            scope = {**scope, "path": f"{base}/"}
        await inside({**scope, "root_path": scope.get("root_path", "") + base}, receive, send)

    return serve


async def by_session(request: Any, action: str) -> str | None:
    """Who is logged in, if they may: by Django's own sessions and users."""
    key = request.cookies.get(settings.SESSION_COOKIE_NAME)
    if not key:
        return None
    found: str | None = await sync_to_async(_user_who_may)(key, action)
    return found


def _user_who_may(key: str, action: str) -> str | None:
    asked = HttpRequest()
    asked.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(asked)
    if not (user.is_active and user.is_staff and (action == "view" or user.is_superuser)):
        return None
    return str(user.get_username())
