"""How far the steps of a plan are, by what they depend on. Pure: it knows names, edges and states, and no values."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from holdfast.core.plans import Plan, PlannedStep
from holdfast.ports import StepState


class Progress:
    """How far the steps of a plan are: which are ready, and which are skipped because of others."""

    def __init__(self, plan: Plan) -> None:
        self.steps = {step.name: step for step in plan.steps}
        self.states: dict[str, StepState] = {}
        self._tainted: set[str] = set()  # failed, or skipped because something failed
        self._places = {name: place for place, name in enumerate(self.steps)}
        self._left = {step.name: len(step.depends_on) for step in plan.steps}
        self._followers = plan.followers()
        self._ready = deque(step for step in plan.steps if not step.depends_on)

    def next_ready(self) -> PlannedStep | None:
        """One that waits for nothing any more; each is given once."""
        return self._ready.popleft() if self._ready else None

    @property
    def is_over(self) -> bool:
        return len(self.states) == len(self.steps)

    def settle(self, step: PlannedStep, state: StepState) -> None:
        self.states[step.name] = state
        if state == StepState.FAILURE or (
            state == StepState.SKIPPED and any(name in self._tainted for name in step.depends_on)
        ):
            self._tainted.add(step.name)
        for follower in self._followers[step.name]:
            self._left[follower.name] -= 1
            if not self._left[follower.name]:
                self._ready.append(follower)

    def reason_to_skip(self, step: PlannedStep) -> str:
        """Why it isn't executed, of what it depends on; "" if nothing keeps it."""
        if step.run_if == "all_done" or not step.depends_on:
            return ""
        states = {name: self.states[name] for name in step.depends_on}
        if step.run_if == "none_failed":
            blamed = next((name for name in states if name in self._tainted), "")
            return f"{blamed!r} did not succeed" if blamed else ""
        if step.run_if == "any_success":
            return "" if StepState.SUCCESS in states.values() else "nothing that it depends on succeeded"
        blamed = next((name for name, state in states.items() if state != StepState.SUCCESS), "")
        return f"{blamed!r} {'failed' if states[blamed] == StepState.FAILURE else 'was skipped'}" if blamed else ""

    def before(self, step: PlannedStep) -> list[str]:
        """All steps that it comes after: those of a chain one after the other, what is above in the order in which it
        was defined."""
        chain: list[str] = []
        while len(step.depends_on) == 1:
            chain.append(step.depends_on[0])
            step = self.steps[step.depends_on[0]]
        return sorted(ancestors(self.steps, step), key=self._places.__getitem__) + chain[::-1]

    def skipped(self) -> list[str]:
        return [name for name in self.steps if self.states.get(name) == StepState.SKIPPED]


def ancestors(steps: Mapping[str, PlannedStep], step: PlannedStep) -> Iterator[str]:
    """All steps that it comes after, directly or not."""
    found: set[str] = set()
    left = list(step.depends_on)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            yield name
            left.extend(steps[name].depends_on)


def find_cycle(steps: Mapping[str, PlannedStep]) -> list[str]:
    """Names that depend on each other in a circle, in the order of execution that they ask for; empty if none do."""
    done: set[str] = set()
    for start in steps:
        path = {start: iter(steps[start].depends_on)} if start not in done else {}  # a stack: dicts keep their order
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                done.add(name)
                del path[name]
            elif following in path:
                names = list(path)
                return [following, *reversed(names[names.index(following) :])]
            elif following not in done:
                path[following] = iter(steps[following].depends_on)
    return []
