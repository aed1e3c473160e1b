"""A real server for a monitor, on a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn.server
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.monitor.serving import Serving


class _Hasty:
    """asyncio as the server sees it, which looks ten times a second whether it is to end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))


uvicorn.server.asyncio = _Hasty()  # type: ignore[assignment]


@contextlib.contextmanager
def serving(web: Starlette, port: int = 0, below: str = "") -> Iterator[str]:
    """The address of a monitor, as long as the block lasts; `below` is where it is mounted."""
    site = Starlette(routes=[Mount(below, web)]) if below else web
    server = Serving(site, web.state.streams, "127.0.0.1", port, "")
    thread = threading.Thread(target=server.serve_until_stopped, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield server.url
    finally:
        server.should_exit = True
        thread.join(10)
        server.socket.close()


@contextlib.contextmanager
def client_of(web: Starlette, below: str = "", **headers: str) -> Iterator[httpx.Client]:
    with serving(web, below=below) as url, httpx.Client(base_url=url, headers=headers, timeout=20) as client:
        yield client
