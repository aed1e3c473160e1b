"""Celery tasks that were there before, as steps: the same function with the same retries, and its outcome in the store."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Callable
from typing import Any

from celery.app.task import Task
from celery.exceptions import Ignore, Retry

from holdfast.core.context import StepContext, current_step
from holdfast.errors import DefinitionError, FatalError, RetryableError
from holdfast.executors.celery.broker import HEADER

OPTIONS: dict[str, Any] = {"max_retries": None, "retry_for": (RetryableError,), "timeout": None}
"""Of the step: when to try again, and how long it may take, is said by the task."""


class TaskRetry(RetryableError):
    """The task has asked for a retry. `retry` is what it raised."""

    def __init__(self, message: str = "", *, retry_after: Any = None, retry: Retry | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.retry = retry


def is_task(function: Any) -> bool:
    return isinstance(function, Task)


def is_durable(task: Any) -> bool:
    return hasattr(task, "holdfast_run")


def to_function(task: Task) -> Callable[..., Any]:
    """What a step calls that stands for a task. From now on a message for that task that is about an attempt is carried
    out as one; all others do what they did."""
    if inspect.iscoroutinefunction(inspect.unwrap(task.run)):
        raise DefinitionError(f"Celery task {task.name!r} is a coroutine function, which Celery doesn't await")
    run = task.holdfast_run if is_durable(task) else task.run

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        context = current_step.get()
        return task(*args, **kwargs) if context is None else _execute(task, run, context, args, kwargs)

    call.__name__ = task.name.rpartition(".")[2]
    call.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]
    call.celery_task = task  # type: ignore[attr-defined]
    return call


def divert(task: Task, app: str, perform: Callable[[Task], Any]) -> None:
    """Let messages that tell of an attempt of an app `perform` it. A task may be a step of several apps."""
    if is_durable(task):
        task.holdfast_apps[app] = perform
        return
    run = task.run
    apps = {app: perform}

    @functools.wraps(run)
    def diverted(*args: Any, **kwargs: Any) -> Any:
        asking = getattr(task.request, HEADER, None)
        return _perform_for(asking, apps, task) if asking else run(*args, **kwargs)

    task.holdfast_run, task.holdfast_apps = run, apps
    task.run = diverted


def _perform_for(app: str, apps: dict[str, Callable[[Task], Any]], task: Task) -> Any:
    if app not in apps:
        raise DefinitionError(
            f"a message about task {task.name!r} is from app {app!r}, and here it is a step of: {', '.join(sorted(apps))}; "
            "make it a step of that app in what this worker imports, or let another worker serve the queue"
        )
    return apps[app](task)


def _execute(task: Task, run: Any, context: StepContext, args: Any, kwargs: Any) -> Any:
    """Call the code of the task as a worker does. It sees its own id, stable over attempts, and how often it was tried;
    `self.retry` raises and sends nothing, as in Celery's eager mode: the store says when to try again."""
    attempt = context.attempt
    # What is not said here is as it was in the message.
    task.push_request(
        id=attempt.idempotency_key, args=args, kwargs=kwargs, retries=attempt.number - 1, is_eager=True,
        called_directly=False, root_id=attempt.root_id, parent_id=attempt.parent_id, task=task.name,
        delivery_info={"is_eager": True}, **{HEADER: None},
    )  # fmt: skip
    try:
        # As Celery does: a class of tasks may have a __call__ of its own, which prepares something.
        is_own = type(task).__call__ is not Task.__call__
        return task(*args, **kwargs) if is_own else run(*args, **kwargs)
    except Retry as retry:
        raise _translated(task, retry, args, kwargs) from retry.exc
    except Ignore:
        return None
    finally:
        task.pop_request()


def _translated(task: Task, retry: Retry, args: Any, kwargs: Any) -> BaseException:
    sig = retry.sig
    if sig is not None and (tuple(sig.args or ()) != tuple(args) or dict(sig.kwargs or {}) != dict(kwargs)):
        return FatalError(
            f"task {task.name!r} asks for a retry with other arguments; as a step it has those that it was called with. "
            "Keep what changes with this_step.checkpoint(...)"
        )
    when = retry.when
    if isinstance(when, dt.datetime):
        now = dt.datetime.now(when.tzinfo)
        when = max(0.0, (when - now).total_seconds())
    why = f": {retry.exc!r}" if retry.exc is not None else ""
    return TaskRetry(f"task {task.name!r} asks to be tried again{why}", retry_after=float(when or 0), retry=retry)
