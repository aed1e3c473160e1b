"""Django with the monitor beside it: prints its port and the sessions of some users, and serves."""

from __future__ import annotations

import json
import os

import uvicorn
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.core.asgi import get_asgi_application
from django.core.management import call_command

from holdfast.contrib.django.monitor import with_monitor


def log_in(name: str, **rights: bool) -> str:
    from django.contrib.auth.models import User  # once Django is set up
    from django.contrib.sessions.backends.db import SessionStore

    user = User.objects.create_user(name, password="only for tests", **rights)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return str(session.session_key)


os.environ["DJANGO_SETTINGS_MODULE"] = "staff_settings"
application = with_monitor(get_asgi_application(), "/ops")
call_command("migrate", verbosity=0)
sessions = {
    "ann": log_in("ann"),
    "bob": log_in("bob", is_staff=True),
    "eve": log_in("eve", is_staff=True, is_superuser=True),
}
config = uvicorn.Config(application, port=0, log_level="warning", lifespan="off")
socket = config.bind_socket()
socket.listen(16)
print(json.dumps({"port": socket.getsockname()[1], **sessions}), flush=True)
uvicorn.Server(config).run(sockets=[socket])
