"""`worker --health ADDR`: HTTP for probes and for Prometheus. GET /health is 200 while this worker is well, else 503, with
JSON that says why; GET /metrics is what this worker has done."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from socketserver import TCPServer
from typing import ClassVar

import msgspec

from holdfast.cli.failures import Misuse, usage
from holdfast.engine.health import Health
from holdfast.telemetry.metrics import CONTENT_TYPE

LOOPBACK = "127.0.0.1"


class HealthEndpoint:
    """Listens from the moment it is made, and answers once it is told whom to ask."""

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        try:
            self._server = (_ServerOnSix if ":" in host else _Server)((host, port), _Handler)
        except OSError as error:
            raise Misuse(f"--health {address}: can't listen there: {error.strerror}; name another address") from None

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else host!s}:{port}/health"

    def start(self, ask: Callable[[], Health], metrics: Callable[[], str] = lambda: "") -> None:
        self._server.ask, self._server.metrics = ask, metrics
        threading.Thread(target=self._server.serve_forever, name="holdfast-health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def parse_address(text: str) -> tuple[str, int]:
    """`:8080` is on this machine's loopback; other machines get in only where an address is named."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if host == "localhost":
        host = LOOPBACK
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number < 65536:
        usage(f"--health {text!r}: give a port on this machine (:8080) or an address and a port (0.0.0.0:8080)")
    return host, number


class _Server(ThreadingHTTPServer):
    ask: Callable[[], Health]
    metrics: Callable[[], str]

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's own asks a name server what this machine is called


class _ServerOnSix(_Server):
    address_family = AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5
    server_version = "holdfast"
    sys_version = ""
    _PATHS: ClassVar = ("/health", "/health/")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, self.server.metrics().encode(), CONTENT_TYPE)
            return
        if path not in self._PATHS:
            self._answer(404, b'{"error": "ask for /health or /metrics"}')
            return
        health = self.server.ask()
        self._answer(200 if health.ok else 503, msgspec.json.encode(health))

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds; nobody wants to read of them."""
