"""What wraps starts and workflows, and what comes along from one to the other."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast import App, DefinitionError, StartCall, StepAttempt, WorkflowAttempt, hook, sleep, wf
from holdfast.testing import TestApp

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def make() -> tuple[App, list[Any]]:
    app, seen = App("around", ":memory:"), list[Any]()

    @app.around_start
    def carry(call: StartCall) -> Iterator[None]:
        call.headers.setdefault("tenant", tenant.get())
        seen.append(("start", call.name, call.headers["tenant"]))
        yield
        seen.append(("started", call.name))

    @app.around_workflow
    def as_tenant(run: WorkflowAttempt) -> Iterator[None]:
        token = tenant.set(run.headers.get("tenant", "none"))
        try:
            yield
        except ValueError as error:
            raise RuntimeError(f"{run.workflow} attempt {run.number}") from error
        finally:
            tenant.reset(token)

    @app.around_step
    def in_step(attempt: StepAttempt) -> Iterator[None]:
        token = tenant.set(attempt.headers["tenant"])
        yield
        tenant.reset(token)

    @app.step
    def who() -> str:
        return tenant.get()

    @app.step
    def starts() -> str:
        kid.options(id="of-a-step").start()
        return ""

    @app.workflow
    async def kid() -> str:
        return f"{tenant.get()} {who()}"

    @app.workflow
    def flow(depth: int) -> list[str]:
        wf.sleep("1d")
        starts()
        return [tenant.get(), who(), wf.wait(kid())]

    @app.workflow
    async def fails() -> None:
        await sleep("1s")
        raise ValueError("no")

    return app, seen


def test_headers_come_along_to_workflows_steps_children_and_what_steps_start() -> None:
    app, seen = make()
    with TestApp(app):
        tenant.set("acme")
        run = app.start("flow", 1)
        tenant.set("other")
        assert run.result() == ["acme", "acme", "acme acme"]
        assert app.get_run("of-a-step").result() == "acme acme"
        assert asyncio.run(app.astart("kid")).result() == "other other"
    assert seen == [
        ("start", "flow", "acme"), ("started", "flow"), ("start", "kid", "acme"), ("started", "kid"),
        ("start", "kid", "other"), ("started", "kid"),
    ]  # fmt: skip


def test_what_wraps_a_workflow_sees_its_exception_and_may_replace_it() -> None:
    app, _ = make()
    with TestApp(app):
        with pytest.raises(RuntimeError, match="fails attempt 1"):
            app.start("fails").result()


def test_those_defined_first_are_the_outermost_and_a_run_that_is_replayed_is_wrapped_again() -> None:
    app, order = App("order", ":memory:"), list[str]()

    @app.around_workflow
    def first(run: WorkflowAttempt) -> Iterator[None]:
        order.append("first")
        yield
        order.append("last")

    @app.around_workflow
    def second(run: WorkflowAttempt) -> Iterator[None]:
        order.append("second")
        yield

    @app.workflow
    async def waits() -> str:
        return str(await hook("go"))

    with TestApp(app) as world:
        run = waits.start()
        world.settle()
        run.send("go", "on")
        assert run.result() == "on"
    assert order[:3] == ["first", "second", "last"]
    assert order.count("first") == 2  # and once when the world ended


def test_a_start_that_is_refused_by_what_wraps_it_is_no_start() -> None:
    app = App("refused", ":memory:")

    @app.around_start
    def refuse(call: StartCall) -> Iterator[None]:
        if call.name == "never":
            raise PermissionError("not for you")
        if call.name == "badly":
            call.headers["n"] = 1  # type: ignore[assignment]
        yield

    for name in ("never", "badly", "gladly"):
        app.workflow(name=name)(_nothing)
    with TestApp(app):
        with pytest.raises(PermissionError):
            app.start("never")
        with pytest.raises(TypeError, match="header 'n'=1: give a text"):
            app.start("badly")
        assert app.runs() == []
        app.start("gladly").result()


async def _nothing() -> None:
    return None


def test_what_can_not_wrap_is_refused() -> None:
    app = App("mistakes", ":memory:")

    async def waits(run: WorkflowAttempt) -> AsyncIterator[None]:
        yield

    def gets_nothing() -> Iterator[None]:
        yield

    for decorator in (app.around_workflow, app.around_start):
        with pytest.raises(DefinitionError, match="give a plain one"):
            decorator(waits)  # type: ignore[type-var]
        with pytest.raises(DefinitionError, match="is given one argument"):
            decorator(gets_nothing)  # type: ignore[type-var]
        with pytest.raises(DefinitionError, match="give a generator function"):
            decorator(lambda run: None)  # type: ignore[type-var]
