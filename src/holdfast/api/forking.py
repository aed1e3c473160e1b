"""Forks: new runs that share the history of another up to an event."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.api.checks import ID_LIMIT, check_id, check_number
from holdfast.api.inbox import refuse_without_history
from holdfast.api.options import check_call
from holdfast.api.reading import RunReader, Which
from holdfast.api.starting import tell_submitted
from holdfast.core import events as ev
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.forking import Fork, fork
from holdfast.core.registry import Definitions
from holdfast.engine.records import RunOptions, data_attribute, fingerprint, to_record
from holdfast.errors import ArgumentError, RunExistsError, UnknownNameError
from holdfast.ports import NewRun, Notifier, RunRow, Store, Topic
from holdfast.printing import show

logger = logging.getLogger("holdfast")


@dataclass(slots=True)
class Forker:
    """Forks runs. A fork is recorded as made `by` somebody, if that is said."""

    definitions: Definitions
    store: Store
    notifier: Notifier
    reader: RunReader
    by: str

    def reruns(self, run: Which, at: int) -> list[str]:
        """What a fork there would execute anew."""
        return self._plan(run, at, {}, None).reruns

    def fork(
        self,
        run: Which,
        at: int,
        replaced: dict[int, object] | None,
        input: tuple[Any, ...] | None,
        new_id: str | None,
    ) -> Which:
        row = self.reader.row(run)
        replaced = {} if replaced is None else replaced
        if not isinstance(replaced, dict):
            raise ArgumentError(f"replace={show(replaced)}: give a dict of results by the numbers of their events")
        for seq in replaced:
            check_number("a key of replace", seq)
        if new_id is not None:
            check_id(new_id)
        codec = self.definitions.codec
        results = {seq: Raw(codec.encode(value, f"the result at event {seq}")) for seq, value in replaced.items()}
        call = None if input is None else self._input(row.workflow, input)
        plan = self._plan(run, at, results, call)
        if new_id is None:
            suffix = f"-fork-{uuid.uuid4().hex[:8]}"
            new_id = run.id[: ID_LIMIT - len(suffix)] + suffix
        if plan.reruns:
            logger.warning(
                "fork of run %s at %d: these were under way and run anew: %s",
                run.id,
                at,
                ", ".join(plan.reruns),
            )
        first = plan.events[0]
        assert isinstance(first, ev.RunStarted | ev.ContinuedAsNew)
        plan.events[0] = msgspec.structs.replace(first, by=self.by)
        now = self.store.now()
        new = NewRun(
            id=new_id, workflow=row.workflow, records=[to_record(event) for event in plan.events], wake_at=now, created_at=now,
            fingerprint=fingerprint(row.workflow, bytes(first.input)), priority=row.priority, options=_options_of(row),
            attributes=[("forked_from", run.id, b""), *(data_attribute(*each) for each in ev.published(plan.events).items())],
        )  # fmt: skip
        if self.store.create(new) is not None:
            raise RunExistsError(f"there is a run {new_id!r} already; choose another id", run_id=new_id)
        tell_submitted(self.definitions.instruments, new)
        self.notifier.ring(Topic.RUNS)
        return Which(new_id, new.no)

    def _plan(self, run: Which, at: int, replaced: dict[int, Raw], input: Raw | None) -> Fork:
        check_number("at", at)
        refuse_without_history(self.reader.row(run), "forked")
        return fork(self.reader.events(run), run.id, at, replaced, input)

    def _input(self, name: str, args: tuple[Any, ...]) -> Raw:
        if not isinstance(args, tuple):
            raise ArgumentError(f"input={show(args)}: give a tuple of arguments")
        try:
            definition: StepDefinition | WorkflowDefinition = self.definitions.find_workflow(name)
        except UnknownNameError:
            definition = self.definitions.find_step(name)
        check_call(name, definition, args, {})
        what = f"the arguments of {name!r}"
        call = self.definitions.codec.encode_call(args, {}, what, definition.hints)
        self.definitions.codec.check_call(args, {}, what, definition.hints)
        return Raw(call)


def _options_of(row: RunRow) -> bytes:
    """Those of the run, but no domain event has started it."""
    options = msgspec.json.decode(row.options, type=RunOptions)
    options.event = ""
    return options.to_json()
