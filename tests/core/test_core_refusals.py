"""Threads, sockets and executors on the workflow's loop are refused, with the rule."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
from core_code import a, world

from holdfast import WrongContextError
from holdfast.core.greenlets import Greenlets
from holdfast.core.loop import _CHANGING, _WAITING, WorkflowLoop
from holdfast.errors import WorkflowBlocked


async def refused(call: Callable[[], Any]) -> str:
    try:
        found = call()
        if asyncio.iscoroutine(found):
            await found
    except WrongContextError as error:
        return str(error)
    return "not refused"


CALLS: dict[str, Callable[[], Any]] = {
    "to_thread": lambda: asyncio.to_thread(print),
    "run_in_executor": lambda: asyncio.get_running_loop().run_in_executor(None, print),
    "open_connection": lambda: asyncio.open_connection("127.0.0.1", 1),
    "start_server": lambda: asyncio.start_server(lambda r, w: None, "127.0.0.1", 0),
    "create_subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "create_subprocess_shell": lambda: asyncio.create_subprocess_shell("true"),
    "getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    "sock_recv": lambda: asyncio.get_running_loop().sock_recv(socket.socket, 1),  # type: ignore[arg-type]
    "add_reader": lambda: asyncio.get_running_loop().add_reader(0, print),
    "add_signal_handler": lambda: asyncio.get_running_loop().add_signal_handler(2, print),
    "call_soon_threadsafe": lambda: asyncio.get_running_loop().call_soon_threadsafe(print),
    "run_until_complete": lambda: asyncio.get_running_loop().run_until_complete(asyncio.Future()),
    "stop": lambda: asyncio.get_running_loop().stop(),
    "set_task_factory": lambda: asyncio.get_running_loop().set_task_factory(None),
}


@pytest.mark.parametrize("what", [what for what in CALLS if what not in _CHANGING])
def test_what_needs_a_thread_or_a_socket_sets_the_run_aside_whatever_the_code_makes_of_it(what: str) -> None:
    async def flow() -> Any:
        await a()
        try:
            return await refused(CALLS[what])
        except BaseException:
            return "swallowed"

    run = world(flow)
    with pytest.raises(
        WorkflowBlocked, match=r"uses threads.* at .*test_core_refusals.py:\d+ in .*move this into a step"
    ):
        run.complete(run.step("a"))


@pytest.mark.parametrize("what", [what for what in CALLS if what in _CHANGING])
def test_the_loop_itself_can_not_be_changed(what: str) -> None:
    async def flow() -> Any:
        await a()
        return await refused(CALLS[what])

    run = world(flow)
    run.complete(run.step("a"))
    assert "can't be stopped, closed or changed" in run.result()


def test_every_method_of_an_event_loop_is_either_ours_or_refused() -> None:
    inherited = {
        name
        for name, method in vars(asyncio.AbstractEventLoop).items()
        if callable(method) and getattr(WorkflowLoop, name) is method and not name.startswith("_")
    }
    assert inherited == set()
    assert {*_WAITING, *_CHANGING} <= {name for name in dir(WorkflowLoop)}


def test_a_loop_is_of_no_use_without_its_run() -> None:
    loop = WorkflowLoop(Greenlets())  # type: ignore[abstract]
    assert loop.is_running()
    assert not loop.is_closed()
    assert loop.time() == 0
    with pytest.raises(WrongContextError):
        loop.run_forever()
    loop.evict()
    assert loop.is_closed()
