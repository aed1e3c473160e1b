"""Django behind a real server: prints its port, and serves."""

from __future__ import annotations

import os
from wsgiref.simple_server import make_server

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
server = make_server("127.0.0.1", 0, get_wsgi_application())
print(server.server_port, flush=True)
server.serve_forever()
