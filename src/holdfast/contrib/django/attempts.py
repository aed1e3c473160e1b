"""Database connections around attempts, as Django treats them around requests: those that are broken or too old
(CONN_MAX_AGE) are closed before and after. Within a transaction nothing is closed.

A process of its own (`pool="process"`) imports this before the steps, which need Django to be set up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections

from holdfast.core.context import StepAttempt


def fresh_connections(attempt: StepAttempt) -> Iterator[None]:
    """For steps on threads: connections belong to the thread that made them."""
    if attempt.is_async:  # here is the event loop's thread, which has none
        yield
        return
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


async def fresh_connections_async(attempt: StepAttempt) -> AsyncIterator[None]:
    """For async steps: the ORM's async methods do their work on the thread that this uses too."""
    close = sync_to_async(close_old_connections)
    await close()
    try:
        yield
    finally:
        await close()


if not apps.apps_ready:
    django.setup()
