"""What an app does for those that belong to it: steps and workflows, canvases, schedules, compositions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.api.client import Client
from holdfast.api.handles import Run
from holdfast.api.options import StartOptions
from holdfast.codec import Codec
from holdfast.core.definitions import StepOptions, WorkflowOptions
from holdfast.core.execution import Execution
from holdfast.core.registry import Definitions


class Owner(Protocol):
    """An app, as what it defines sees it."""

    name: str
    codec: Codec
    definitions: Definitions

    @property
    def client(self) -> Client: ...

    def get_run(self, run_id: str) -> Run[Any]: ...

    def start_run(self, name: str, call: bytes, options: StartOptions) -> Run[Any]: ...

    def run_canvas(self, execution: Execution, node: bytes) -> asyncio.Future[Any]:
        """Carry out a canvas in the run whose code asks."""

    def encode_by_name(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...

    def define_step(self, function: Any, name: str | None, options: StepOptions, place: str = "") -> Any: ...

    def define_workflow(
        self,
        function: Any,
        name: str | None,
        options: WorkflowOptions,
        place: str = "",
        check: Callable[..., None] | None = None,
    ) -> Any: ...
