"""The monitor as a server of its own: an address, a token, and an end that keeps nobody waiting."""

from __future__ import annotations

import secrets
from socket import socket
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.app import App
from holdfast.errors import ArgumentError, StoreLostError
from holdfast.monitor.changes import Changes
from holdfast.monitor.safety import from_this_machine, is_loopback
from holdfast.monitor.server import monitor


class Serving(uvicorn.Server):
    """A server whose streams end when it does. `url` is the way in."""

    def __init__(self, web: Starlette, streams: Changes, host: str, port: int, way_in: str) -> None:
        super().__init__(
            uvicorn.Config(
                web, host=host, port=port, log_level="warning", access_log=False, server_header=False, lifespan="off",
                timeout_graceful_shutdown=2,
            )
        )  # fmt: skip
        self._streams = streams
        try:
            self.socket = self.config.bind_socket()
        except SystemExit:  # how uvicorn says it, after a line in its log
            raise ArgumentError(
                f"can't listen at {host}, port {port}; choose another port, or end who has it"
            ) from None
        self.socket.listen(128)  # whoever reads the address may come before the server has begun
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.socket.getsockname()[1]}{way_in}"

    def serve_until_stopped(self) -> None:
        """Or until the store is lost, as a worker does: once it is started again it sees the files that are there now."""
        self.run(sockets=[self.socket])

    @property
    def lost(self) -> StoreLostError | None:
        return self._streams.lost

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.lost is not None

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._streams.end()
        await super().shutdown(sockets)


def serving(
    app: App,
    host: str,
    port: int,
    *,
    token: str | None,
    operator_token: str | None = None,
    viewer_token: str | None = None,
    no_token: bool = False,
    read_only: bool = False,
    base_path: str = "",
) -> Serving:
    """Listens already, and serves once it is told to. Without a token there is a new one, unless nobody needs any:
    that is for this machine alone."""
    if no_token and not is_loopback(host):
        raise ArgumentError(f"--host {host} lets other machines in, so a token is needed; leave --no-token out")
    if no_token:
        inside = monitor(app, authorize=from_this_machine, read_only=read_only)
    else:
        token = token or secrets.token_urlsafe(24)
        inside = monitor(
            app, token=token, operator_token=operator_token, viewer_token=viewer_token, read_only=read_only
        )
    base = "/" + base_path.strip("/") if base_path.strip("/") else ""
    web = Starlette(routes=[Mount(base, inside)]) if base else inside
    _ = app.store  # one that can't be reached says so now
    return Serving(
        web,
        inside.state.streams,
        host,
        port,
        f"{base}/" if no_token else f"{base}/?token={quote(token or '', safe='')}",
    )
