"""Steps and children that the unit tests share, and `code` to make a workflow of any function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core_world import World

from holdfast import App

steps = App("code")


class Broken(Exception):
    pass


@steps.step
async def a(x: Any = None) -> Any: ...


@steps.step
async def b(x: Any = None) -> Any: ...


@steps.step
async def c(x: Any = None) -> Any: ...


@steps.step
def p(x: Any = None) -> Any: ...


@steps.step
def q(x: Any = None) -> Any: ...


@steps.workflow
async def kid(x: Any = None) -> Any: ...


def code(function: Callable[..., Any], **options: Any) -> App:
    """A build of the app whose workflow `flow` is this function."""
    app = App("code")
    app.workflow(name="flow", **options)(function)
    return app


def world(function: Callable[..., Any], *args: Any, strict: bool = False, seed: int = 1, **options: Any) -> World:
    """A run of this function."""
    return World(code(function, **options), "flow", *args, strict=strict, seed=seed)


def deploy(run: World, function: Callable[..., Any], **options: Any) -> World:
    """The worker restarts with other code."""
    run.crash()
    run.app = code(function, **options)
    return run
