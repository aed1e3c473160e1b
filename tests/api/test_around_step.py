"""What wraps attempts: in order, seeing how each ends, swallowing nothing."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast import App, DefinitionError, ResourceError, RetryableError, StepAttempt, this_step, use, wf
from holdfast.testing import TestApp

tenant = contextvars.ContextVar("tenant", default="nobody")


def test_wrappers_surround_each_attempt_the_first_defined_outermost(app: App) -> None:
    log: list[str] = []

    @app.around_step
    def outer(attempt: StepAttempt) -> Iterator[None]:
        log.append(f"outer {attempt.step} {attempt.number} {attempt.workflow}")
        try:
            yield
        except BaseException as error:
            log.append(f"outer saw {error!r}")
            raise
        log.append("outer end")

    @app.around_step
    async def inner(attempt: StepAttempt) -> AsyncIterator[None]:
        log.append(f"inner {attempt.is_async}")
        await asyncio.sleep(0)
        yield
        log.append("inner end")

    @app.step(retry_delay="1s")
    async def fetch() -> str:
        log.append("fetch")
        if this_step.attempt == 1:
            raise ConnectionError("down")
        return "fetched"

    @app.step
    def load() -> str:
        log.append("load")
        return "loaded"

    @app.workflow
    async def flow() -> list[str]:
        return [await fetch(), load()]

    with TestApp(app):
        assert flow.start().result() == ["fetched", "loaded"]
    assert log == [
        "outer fetch 1 flow", "inner True", "fetch", "outer saw ConnectionError('down')",
        "outer fetch 2 flow", "inner True", "fetch", "inner end", "outer end",
        "outer load 1 flow", "load", "outer end",
    ]  # fmt: skip


def test_a_wrapper_works_where_the_step_does(app: App) -> None:
    threads: list[int] = []

    @app.around_step
    def of_tenant(attempt: StepAttempt) -> Iterator[None]:
        tenant.set(wf.get_data("tenant", "none"))
        threads.append(threading.get_ident())
        yield
        assert this_step.idempotency_key == attempt.idempotency_key
        assert wf.identity.workflow_id == attempt.run_id

    @app.step
    def load() -> str:
        threads.append(threading.get_ident())
        return tenant.get()

    @app.step
    async def fetch() -> str:
        threads.append(threading.get_ident())
        return tenant.get()

    @app.workflow
    async def flow(name: str) -> list[str]:
        wf.set_data("tenant", name)
        return [load(), await fetch()]

    with app.worker():
        assert flow.start("acme").result(timeout=10) == ["acme", "acme"]
        assert flow.start("ajax").result(timeout=10) == ["ajax", "ajax"]
    assert all(threads[i] == threads[i + 1] for i in range(0, len(threads), 2))


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_wrapper_swallows_is_raised_all_the_same_and_what_it_raises_instead_counts(
    app: App, is_async: bool
) -> None:
    swallowed: list[str] = []

    def swallow(attempt: StepAttempt) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            swallowed.append(str(error))

    async def swallow_async(attempt: StepAttempt) -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            swallowed.append(str(error))

    def translate(attempt: StepAttempt) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as error:
            raise RetryableError("not now", retry_after="1h") from error

    if is_async:
        app.around_step(swallow_async)
    else:
        app.around_step(swallow)
    app.around_step(translate)

    @app.step(max_retries=0)
    async def bad() -> None:
        raise ValueError("bad")

    @app.step(max_retries=1)
    async def divides() -> float:
        return 1 / (this_step.attempt - 1)

    with TestApp(app) as world:
        with pytest.raises(ValueError, match="bad"):
            bad.start().result()
        before = world.now
        assert divides.start().result() == 1
        assert (world.now - before).total_seconds() >= 3_600
    assert swallowed == ["bad"]


def test_a_wrapper_sees_a_resource_that_fails_and_a_failure_after_the_step_fails_the_attempt(app: App) -> None:
    seen: list[str] = []

    @app.around_step
    def watching(attempt: StepAttempt) -> Iterator[None]:
        try:
            yield
        except ResourceError as error:
            seen.append(type(error.__cause__).__name__)
            raise

    @app.around_step
    def committing(attempt: StepAttempt) -> Iterator[None]:
        yield
        raise OSError("the commit failed")

    @app.resource
    def pool() -> Iterator[int]:
        raise ConnectionRefusedError
        yield 1

    @app.step(max_retries=0)
    def load(db: int = use(pool)) -> int:
        return db

    @app.step(max_retries=0)
    def fine() -> int:
        return 1

    with TestApp(app):
        with pytest.raises(ResourceError):
            load.start().result()
        with pytest.raises(OSError, match="the commit failed"):
            fine.start().result()
    assert seen == ["ConnectionRefusedError"]


def test_a_wrapper_that_does_not_yield_once_is_named(app: App) -> None:
    yields = {"times": 0}

    @app.around_step
    def odd(attempt: StepAttempt) -> Iterator[None]:
        for _ in range(yields["times"]):
            yield

    @app.step(max_retries=0)
    def fine() -> int:
        return 1

    with TestApp(app):
        with pytest.raises(
            DefinitionError, match="around_step 'odd' ended before its yield; let it yield exactly once"
        ):
            fine.start().result()
        yields["times"] = 2
        with pytest.raises(DefinitionError, match="around_step 'odd' yields more than once"):
            fine.start().result()
        yields["times"] = 1
        assert fine.start().result() == 1


def test_wrong_wrappers_are_refused_at_once(app: App) -> None:
    with pytest.raises(DefinitionError, match=r"around_step .*no_generator: give a generator function"):

        @app.around_step  # type: ignore[type-var]
        def no_generator(attempt: StepAttempt) -> None: ...

    with pytest.raises(DefinitionError, match="around_step 'no_argument' is given one argument, a StepAttempt"):

        @app.around_step  # type: ignore[type-var]
        def no_argument() -> Iterator[None]:
            yield


def test_a_plain_call_is_not_wrapped(app: App) -> None:
    @app.around_step
    def never(attempt: StepAttempt) -> Iterator[None]:
        raise AssertionError
        yield

    @app.step
    def load() -> int:
        return 1

    assert load() == 1
