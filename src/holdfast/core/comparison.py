"""What code asks for, compared with what the history of its attempt has.

What is recorded at once (data, children, hooks, times) has to be there on replay. A step is recorded only when something
becomes of it, so all steps of one cause are matched together when the loop is dry.
"""

from __future__ import annotations

from typing import Any, NoReturn

from msgspec import Raw

from holdfast.core import events as ev
from holdfast.core.divergence import advice, history_side, renamed
from holdfast.core.journal import Journal
from holdfast.core.loop import running
from holdfast.core.matching import Ask, Asked, Ledger, Match, describe, match_one, words_of
from holdfast.core.source_lines import code_line, task_lines
from holdfast.errors import DefinitionError, NondeterminismError


class Comparison:
    """`edge` is the last recorded event that reaches the code. `unrecorded` is what the event that is delivered made it ask
    for that is not in the history; `warned` are changes of arguments that are recorded. The code of an attempt that
    `was_over` had passed everything, though nothing may be recorded after its last event."""

    __slots__ = (
        "_journal", "_keys", "_workflow", "divergence", "edge", "ledger", "places", "unrecorded", "warned",
        "was_over",
    )  # fmt: skip

    def __init__(self, journal: Journal, workflow: str) -> None:
        self._journal = journal
        self._workflow = workflow
        self._keys: set[str] = set()
        self.warned: set[tuple[str, bytes]] = set()
        self.ledger = Ledger(())
        self.edge = 0
        self.was_over = False
        self.places: dict[str, int] = {}
        self.unrecorded: list[Ask] = []
        self.divergence: NondeterminismError | None = None

    def begin(self) -> None:
        """Another event is delivered."""
        if self.places:
            self.places.clear()
        if self.unrecorded:
            self.unrecorded = []

    def match(self, kind: str, name: str, args: Raw, key: str = "") -> Match[Asked]:
        """Match a command that is recorded at once. On replay it has to be there."""
        loop = self._journal.loop
        loop.refuse_if_closed()
        if key:
            self.check_key(kind, key)
        cause = loop.cause
        place = self.places[kind] = self.places.get(kind, -1) + 1
        asked = Asked(kind, name, args, key)
        found = match_one(self.ledger, cause, kind, asked, place)
        if found.recorded is None:
            if cause < self.edge:
                there = self.ledger.recorded_under(cause)
                self.diverged(history_side(kind, there), words_of(asked), code_line(), renamed(there, [asked]))
            if cause == self.edge:
                self.unrecorded.append(asked)
        elif found.changed or found.recorded.name != name:
            asked.line = code_line()
            self.compare(found, cause)
        return found

    def check_key(self, kind: str, key: str) -> None:
        if (kind + key) in self._keys:
            run_id = self._journal.info.run_id
            raise DefinitionError(f"the key {key!r} is used twice in run {run_id}; keys are unique in a run")
        self._keys.add(kind + key)

    def compare(self, found: Match[Any], cause: int) -> None:
        recorded, asked = found.recorded, found.asked
        if recorded is None:
            return
        if recorded.name != asked.name:  # both have the same key
            what = describe(recorded.kind, recorded.name, recorded.args)
            self.diverged(f"{what} under the key {asked.key!r}", words_of(asked), asked.line)
        if found.changed:
            what = describe(recorded.kind, recorded.name, recorded.args)
            self.warn_changed(found.cmd, cause, asked.name, asked.args, what, words_of(asked), asked.line)

    def warn_changed(
        self, cmd: str, cause: int, name: str, args: Raw, recorded: str, asked: str, line: str = ""
    ) -> None:
        journal = self._journal
        if journal.info.strict:
            self.diverged(recorded, asked, line)
        if (cmd, bytes(args)) not in self.warned:
            self.warned.add((cmd, bytes(args)))
            now = max(journal.loop.now, journal.recorded_until)
            journal.append(ev.ArgumentsChanged(ts=now, cmd=cmd, cause=cause, name=name, args=args))

    def diverged(
        self, recorded: str, asked: str, line: str = "", hint: str = "", unfit_input: bool = False
    ) -> NoReturn:
        """Code and history differ. Code is stopped where it asks, in a way that it can't catch, then this is raised."""
        journal, loop = self._journal, self._journal.loop
        line = line or self._where_code_stands()
        where = f" at {line}" if line else ""
        self.divergence = NondeterminismError(
            f"the code of workflow {self._workflow!r} no longer fits the history of run {journal.info.run_id}: after event "
            f"{loop.cause} the history has {recorded}, the code asks for {asked}{where}. "
            f"{hint}{advice(journal, unfit_input, bool(hint))}",
            recorded=recorded,
            asked=asked,
            line=line,
            event=loop.cause,
        )
        loop.closed = True
        if running() is loop:
            loop.refuse()
        raise self.divergence

    def _where_code_stands(self) -> str:
        tasks = self._journal.loop.tasks.values()
        return "; ".join([line for task in tasks for line in task_lines(task, users_own=True)[-1:]][:3])
