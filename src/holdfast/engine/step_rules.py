"""What this worker's code says of steps: whether it has them, where and how often they are executed."""

from __future__ import annotations

from holdfast.core import commands as co
from holdfast.core.definitions import StepDefinition, StepOptions
from holdfast.core.registry import Definitions
from holdfast.engine.identity import Identity
from holdfast.errors import UnknownNameError


class StepRules:
    """That a step is unknown here is found out when it is handed over, and its run is set aside then. Until then it is taken
    for one that is executed here, as often as it takes."""

    __slots__ = ("_app", "_me")

    def __init__(self, app: Definitions, me: Identity) -> None:
        self._app = app
        self._me = me

    def find(self, command: co.ScheduleStep) -> StepDefinition | None:
        try:
            return self._app.find_step(command.name)
        except UnknownNameError:
            return None

    def options(self, command: co.ScheduleStep) -> StepOptions:
        options = self._app.find_step(command.name).options
        return options.override(command.options) if command.options else options

    def queue_elsewhere(self, command: co.ScheduleStep) -> str | None:
        """The queue of a step that this worker leaves to others; None if it executes it itself."""
        here = self._me.queues
        if here is None or self.find(command) is None:
            return None
        options = self.options(command)
        return None if options.force_local or options.queue in here else options.queue

    def is_at_most_once(self, command: co.ScheduleStep) -> bool:
        return self.find(command) is not None and self.options(command).at_most_once
