"""`from holdfast import step, workflow`: the decorators of a default app on `./holdfast.db`, for scripts."""

from __future__ import annotations

from holdfast.app import App
from holdfast.core.definitions import DEFAULT_APP

default_app = App(DEFAULT_APP)
step = default_app.step
workflow = default_app.workflow
