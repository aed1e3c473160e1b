"""Why code no longer fits its history, in words: what the code does instead, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.core.journal import Journal
from holdfast.core.matching import Ask, Recorded, describe
from holdfast.core.source_lines import lines_of_error
from holdfast.printing import text_of

if TYPE_CHECKING:
    from holdfast.core.execution import Execution

NAMED = 3
"""So many of the things on one side are named."""


def history_side(kind: str, there: list[Recorded]) -> str:
    """What is recorded where the code asks for something of this kind that isn't: the same kind says most."""
    alike = [one for one in there if one.kind == kind]
    shown = ", ".join(describe(one.kind, one.name, one.args) for one in (alike or there)[:NAMED])
    if alike:
        return shown
    return f"no such thing, but {shown}" if shown else "no such thing"


def code_side(execution: Execution) -> tuple[str, str, bool]:
    """What the code does instead of what is recorded, the line if it is known, and whether the input is what is wrong."""
    main = execution.code.task
    if main is None or not main.done():
        waits = ", ".join(_waits(execution)[:NAMED])
        return f"nothing like it, but waits for {waits}" if waits else "nothing like it", "", False
    if main.cancelled():
        return "nothing more: it was cancelled", "", False
    error = main.exception()
    if error is None:
        return "nothing more: it has returned", "", False
    raised = f"{type(error).__name__}: {text_of(error)}"
    lines = lines_of_error(error)
    if not lines and isinstance(error, TypeError | ValueError):  # raised before a line of the user's was executed
        return f"nothing: its input doesn't fit it ({raised})", "", True
    return f"nothing more: it raised {raised}", lines[-1] if lines else "", False


def _waits(execution: Execution) -> list[str]:
    found = [f"step {step.name!r}" for step in execution.steps.pending.values()]
    found += map(str, execution.hooks.pending.values())
    found += [f"child {child.name!r}" for child in execution.children.pending.values() if child.waited]
    timers = execution.loop.timers.by_id.values()
    return found + [f"a timer of {timer.delay / 1e6:g} s" for timer in timers]


def renamed(there: Iterable[Recorded], asked: Iterable[Ask]) -> str:
    """What to do if one is the other under a new name; empty if none looks so."""
    for one in there:
        for other in asked:
            if one.kind == other.kind and one.kind in "sch" and one.name != other.name and one.args == other.args:
                how = f"keep the old one: name={one.name!r}" if one.kind in "sc" else "keep the old one"
                return f"If {other.name!r} is {one.name!r} under a new name, {how}. "
    return ""


def advice(journal: Journal, unfit_input: bool, may_be_renamed: bool = False) -> str:
    forked_from = journal.beginning.forked_from
    if unfit_input and forked_from:
        return "Give the fork an input that fits"
    if unfit_input:
        return "Give new parameters a default, and let old ones take what they took, then resume the run"
    if forked_from and journal.info.same_build is not False:
        return (
            f"This is a fork of run {forked_from}, and with its input or results replaced the code doesn't come to what "
            "both share: fork at an earlier event"
        )
    if journal.info.same_build:
        # A build is known by its version, or by the modules of its workflows: a step of another may have a new name.
        reason = "Otherwise the code" if may_be_renamed else "The code is of the build that made this history, so it"
        return (
            f"{reason} decides by something that is not recorded: look for random numbers, the clock, globals, the "
            "environment, the order of a set. Use wf.random(), wf.utc_now() or a step, then resume the run"
        )
    return "Deploy the code that made this history, or guard the change with wf.patched('...'), then resume the run"
