"""Slots of limits: those that a run has or waits for, and the lines that this engine has to serve.

Whoever ends something that had a slot serves its line once that is committed, and so does whoever asks for one. Should it
die in between, whoever declares it dead serves all lines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.codec import Codec
from holdfast.core.definitions import StepDefinition, WorkflowDefinition
from holdfast.core.limits import BoundLimit, lines_of
from holdfast.core.registry import Definitions
from holdfast.engine.agenda import Agenda
from holdfast.engine.change import PendingChange
from holdfast.engine.identity import Identity
from holdfast.engine.records import ControlMessage, SlotMessage
from holdfast.ports import Ask, LimitStore, Line, RunRow, Served, SlotRow

logger = logging.getLogger("holdfast.engine")
SAFETY_NET = 10.0
"""Seconds between two looks at all lines, for what was not told."""
OTHERS_DO_IT = 1_000_000
"""Microseconds that others, who were faster the last time, have to serve a line before this engine does."""


class Slot(msgspec.Struct, gc=False):
    """What a step, or a run, has asked for. `limits` are those whose lines it stands in, one after the other."""

    token: str
    limits: list[str]
    granted: bool = False
    is_from_before: bool = False  # asked for by whoever had the run before


class Slots:
    """Those of one run, by command ('' is the run itself)."""

    def __init__(self, row: RunRow, rows: Iterable[SlotRow], me: Identity, codec: Codec, change: PendingChange) -> None:
        self._row = row
        self._me = me
        self._codec = codec
        self._change = change
        self._slots = {
            each.cmd: Slot(each.token, each.limits, each.granted, is_from_before=True) for each in rows
        }  # fmt: skip

    def __bool__(self) -> bool:
        return bool(self._slots)

    def __contains__(self, cmd: str) -> bool:
        return cmd in self._slots

    def get(self, cmd: str) -> Slot | None:
        return self._slots.get(cmd)

    def commands(self) -> list[str]:
        return list(self._slots)

    def has(self, cmd: str, definition: StepDefinition | WorkflowDefinition, call: Any) -> bool:
        """Whether all slots are granted. If none were asked for they are now; if the code says other limits than it did when
        they were, the step goes to the end of the new lines."""
        limits = definition.limits
        slot = self._slots.get(cmd)
        if slot is not None and slot.granted:
            return True
        if slot is not None and slot.limits == [limit.name for limit in limits]:
            return False
        if slot is not None:
            self.give_back(cmd)
        if limits:
            self._ask(cmd, definition, call)
        return not limits

    def _ask(self, cmd: str, definition: StepDefinition | WorkflowDefinition, call: Any) -> None:
        limits, token = definition.limits, self._me.next_token()
        lines = lines_of(limits, self._arguments(definition, call))
        ask = Ask(cmd=cmd, token=token, lines=lines, message=msgspec.json.encode(SlotMessage(cmd=cmd, token=token)))
        if not cmd:
            ask.control = True
            self._say_what_if_full(ask, limits, lines)
        self._slots[cmd] = Slot(token, [limit.name for limit in limits])
        self._change.asks.append(ask)
        if not self._row.limited:
            self._change.columns["limited"] = 1
            self._row.limited = True

    def _say_what_if_full(self, ask: Ask, limits: Sequence[BoundLimit], lines: Sequence[tuple[str, str, str]]) -> None:
        policies = {limit.limit.when_full for limit in limits}
        if "skip" in policies:
            where = " and ".join(describe(name, key) for name, key, _ in lines)
            refused = SlotMessage(cmd=ask.cmd, token=ask.token, refused=f"skipped, as {where} was full")
            ask.refusal = msgspec.json.encode(refused)
        if "cancel" in policies:
            where = " and ".join(
                describe(name, key) for limit, (name, key, _) in zip(limits, lines, strict=True)
                if limit.limit.when_full == "cancel"
            )  # fmt: skip
            ask.eviction = msgspec.json.encode(ControlMessage(reason=f"run {self._row.id} took its place in {where}"))

    def _arguments(self, definition: StepDefinition | WorkflowDefinition, call: Any) -> dict[str, Any]:
        if not any(limit.is_keyed for limit in definition.limits):
            return {}
        args, kwargs = self._codec.decode_call(call() if callable(call) else call, definition.hints)
        bound = definition.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def granted(self, message: SlotMessage) -> bool:
        """What was told; False if that is not what is waited for."""
        slot = self._slots.get(message.cmd)
        if slot is None or slot.token != message.token or slot.granted:
            return False
        slot.granted = True
        return True

    def give_back(self, cmd: str) -> None:
        """It has ended, or waits for something else."""
        if self._slots.pop(cmd, None) is not None:
            change = self._change
            if change.asks:
                change.asks = [ask for ask in change.asks if ask.cmd != cmd]
            change.gives_back.append(cmd)

    def give_others_back(self, kept: Iterable[str]) -> None:
        """All but those, also what this worker doesn't know of."""
        if self._row.limited:
            keeps = self._change.keeps = list(kept)
            self._slots = {cmd: self._slots[cmd] for cmd in keeps if cmd in self._slots}
            self._change.asks = [ask for ask in self._change.asks if ask.cmd in self._slots]

    def waiting(self) -> dict[str, str]:
        """What commands wait for, in words."""
        return {
            cmd: " and ".join(f"limit {name!r}" for name in slot.limits)
            for cmd, slot in self._slots.items()
            if not slot.granted
        }


def describe(name: str, key: str) -> str:
    return f"limit {name!r}" + (f" (key {key!r})" if key else "")


class Lines:
    """What this engine knows of lines in which one that waits may have a turn."""

    def __init__(self, app: Definitions, store: LimitStore) -> None:
        self._app = app
        self._store = store
        self._names: list[str] = []
        self._freed: dict[str, set[str] | None] = {}  # None: all keys
        self._timed: set[Line] = set()
        self.due = Agenda()

    def declare(self) -> None:
        """Make known what this worker's code says."""
        limits = self._app.declared_limits()
        self._names = [limit.name for limit in limits]
        if limits:
            self._store.declare_limits(limits)
            self.look_at_all()

    def look_at_all(self) -> None:
        """A worker may have died before it could serve a line."""
        for name in self._names:
            self._freed[name] = None

    def freed(self, lines: Iterable[Line]) -> None:
        for name, key in lines:
            keys = self._freed.setdefault(name, set())
            if keys is not None:
                keys.add(key)

    def joined(self, asks: Iterable[Ask]) -> None:
        for ask in asks:
            self._freed.setdefault(ask.lines[0][0], set())

    def have_come(self, now: int) -> None:
        """Lines whose time has come."""
        for line in list(self.due.due(now)):
            assert isinstance(line, tuple)
            self.freed([line])
            self._timed.add(line)

    def are_stale(self) -> bool:
        return bool(self._freed)

    def serve(self, worker_id: str) -> Iterator[Served]:
        """Serve all lines that may move, one limit after the other. What was not served because of a failure stays to be
        served."""
        while self._freed:
            name = next(iter(self._freed))
            keys = self._freed[name]
            served = self._store.serve(worker_id, name, None if keys is None else sorted(keys))
            del self._freed[name]
            for next_name in served.onward:
                self._freed.setdefault(next_name, set())
            for key, due in served.due.items():
                is_late = (name, key) in self._timed and key not in served.moved
                self.due.set((name, key), due + OTHERS_DO_IT if is_late else due)
            self._timed = {line for line in self._timed if line[0] != name}
            yield served
