"""Steps across runs: which were executed where, and how each ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core import events as ev
from holdfast.errors import ArgumentError
from holdfast.ports import FINAL, Query, RunQuery, RunRow, Status, StepState
from holdfast.views.filters import KNOWN, terms_of, unquoted
from holdfast.views.steps import STEP_EVENTS, StepView, steps_of
from holdfast.views.times import iso

_SAID = {
    "failed": StepState.FAILURE, "succeeded": StepState.SUCCESS, "done": StepState.SUCCESS,
    "running": StepState.STARTED, "queued": StepState.PENDING,
}  # fmt: skip
KNOWN_OF_STEPS = f"step:, state:, {KNOWN}"
RUNS_AT_ONCE = 50
RUNS_LOOKED_AT = 500
EVENTS_AT_ONCE = 20_000


class StepFilter(msgspec.Struct, frozen=True):
    """Which steps: a name that ends in `*` is the beginning of one."""

    name: str = ""
    states: tuple[str, ...] = ()
    worker: str = ""

    def fits(self, step: StepView) -> bool:
        if self.name.endswith("*"):
            named = any(name.startswith(self.name[:-1]) for name in (step.name, step.key))
        else:
            named = not self.name or self.name in (step.name, step.key)
        on = not self.worker or self.worker in (step.worker, *(attempt.worker for attempt in step.tries))
        return named and on and (not self.states or step.state in self.states)


def split_filter(text: str) -> tuple[StepFilter, str]:
    """What a filter says of steps, and what it says of their runs."""
    name, worker, states, rest = "", "", list[str](), list[str]()
    for term in terms_of(text):
        word, _, value = term.partition(":")
        if word not in ("step", "state", "worker"):
            rest.append(term)
        elif not value:
            raise ArgumentError(f"filter {term}: nothing comes after {word}:; give a value, or leave it out")
        elif word == "step":
            name = unquoted(value)
        elif word == "worker":
            worker = unquoted(value)
        else:
            states += map(_state, value.split(","))
    return StepFilter(name, tuple(states), worker), " ".join(rest)


def _state(word: str) -> str:
    known = {state.lower(): state for state in StepState} | _SAID
    state = known.get(word.lower())
    if state is None:
        raise ArgumentError(f"filter state:{word}: no such state; known: {', '.join(known)}")
    return str(state)


class Invocation(msgspec.Struct, frozen=True):
    row: RunRow
    step: StepView


class InvocationPage(msgspec.Struct):
    """`after` asks for the next page: the run and the step that were the last. Without it there are no more. A page may be
    short when many runs were looked at for it; `looked_at` says how many."""

    found: list[Invocation]
    after: str | None
    looked_at: int


def read_invocations(
    store: Query, query: RunQuery | RunRow, wanted: StepFilter, after: str | None, limit: int
) -> InvocationPage:
    """Of the newest runs first, and of each run the last step first. With a row, those of that run."""
    run, seq = _cursor(after)
    if isinstance(query, RunRow):
        page = InvocationPage([], None, 0)
        _fill(page, store, [query], wanted, (run, seq), limit)
        return page
    if wanted.states and not query.statuses and all(state not in FINAL for state in wanted.states):
        query = msgspec.structs.replace(query, statuses=[s for s in Status if not s.is_final])
    page = InvocationPage([], None, 0)
    # A run that was shown in part comes first again.
    query = msgspec.structs.replace(query, after=None if run is None else run + 1, limit=RUNS_AT_ONCE)
    while page.looked_at < RUNS_LOOKED_AT:
        rows = store.runs(query)
        if _fill(page, store, rows, wanted, (run, seq), limit):
            return page
        if len(rows) < RUNS_AT_ONCE:
            page.after = None
            return page
        query.after = rows[-1].no
        page.after = f"{rows[-1].no}.0"
    return page


def _fill(
    page: InvocationPage,
    store: Query,
    rows: Sequence[RunRow],
    wanted: StepFilter,
    last: tuple[int | None, int],
    limit: int,
) -> bool:
    """Whether the page is full."""
    for row, steps in read_steps(store, rows):
        page.looked_at += 1
        for step in reversed(steps):
            if (row.no == last[0] and step.seq >= last[1]) or not wanted.fits(step):
                continue
            if len(page.found) == limit:
                page.after = f"{page.found[-1].row.no}.{page.found[-1].step.seq}"
                return True
            page.found.append(Invocation(row, step))
    return False


def _cursor(text: str | None) -> tuple[int | None, int]:
    if not text:
        return None, 0
    run, _, seq = text.partition(".")
    if not (run.isascii() and run.isdigit() and seq.isascii() and seq.isdigit() and len(text) < 30):
        raise ArgumentError(f"after={text!r}: give what the page before said")
    return int(run), int(seq)


def read_steps(store: Query, rows: Sequence[RunRow]) -> Iterator[tuple[RunRow, list[StepView]]]:
    """Steps run by run, a few histories at a time if they are long."""
    at = 0
    while at < len(rows):
        some = [rows[at]]
        while at + len(some) < len(rows) and sum(row.end_seq for row in some) < EVENTS_AT_ONCE:
            some.append(rows[at + len(some)])
        found = store.histories([row.no for row in some], STEP_EVENTS)
        for row in some:
            yield row, steps_of(ev.from_json(payload) for payload in found[row.no])
        at += len(some)


def invocation_summary(each: Invocation, now: int) -> dict[str, Any]:
    step, row = each.step, each.row
    end = step.ended_at if step.ended_at is not None else now if step.state == StepState.STARTED else None
    return {
        "run_id": row.id,
        "workflow": row.workflow,
        "run_status": row.status,
        "cmd": step.cmd,
        "seq": step.seq,
        "name": step.name,
        "key": step.key or None,
        "state": str(step.state),
        "attempts": step.attempts,
        "worker": step.worker,
        "child_run_id": step.child_id or None,
        "reused": step.reused,
        "asked_at": iso(step.asked_at),
        "started_at": iso(step.started_at),
        "ended_at": iso(step.ended_at),
        "seconds": None if step.started_at is None or end is None else max(0, end - step.started_at) / 1_000_000,
    }
