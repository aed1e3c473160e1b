"""Where in a value something went wrong. The path is gathered while the error travels out, so that a value
that passes pays nothing for it."""

from __future__ import annotations

from holdfast.printing import show, show_error


class Misfit(Exception):
    """Why a value can't pass. Never leaves the codec: `Codec` turns it into EncodeError or DecodeError."""

    def __init__(self, reason: str, *, if_recorded: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.if_recorded = if_recorded  # what helps where the value can no longer be another one
        self.steps: list[str] = []  # innermost first
        self.holders: list[int] = []  # the ids of the containers passed, to tell a cycle from mere depth
        self.is_final = False  # no other form helps, wherever it is

    def within(self, step: str, holder: object = None) -> Misfit:
        self.steps.append(step)
        self.holders.append(-len(self.steps) if holder is None else id(holder))
        return self

    def text(self, what: str, root: str = "$") -> str:
        """`what: path: reason`. `root` is "" for a call, whose first step is the argument's own name."""
        steps, holders = self.steps[::-1], self.holders[::-1]
        for i, holder in enumerate(holders):
            if holder in holders[:i]:
                first = "".join(steps[: holders.index(holder)])
                reason = f"refers back to {root}{first}; a value can't contain itself, so refer by an id"
                return f"{what}: {root}{''.join(steps[:i])}: {reason}"
        if len(steps) > 20:
            steps = [*steps[:10], "…", *steps[-5:]]
        place = root + "".join(steps)
        return f"{what}: {place}: {self.reason}" if place not in ("", "$") else f"{what}: {self.reason}"


def explain(exc: Exception, what: str, root: str = "$", *, recorded: bool = False) -> str:
    if isinstance(exc, Misfit):
        remedy = f"; {exc.if_recorded}" if recorded and exc.if_recorded else ""
        return exc.text(what, root) + remedy
    # Whatever else is raised comes from the value's own code: from a tzinfo, a metaclass, a hash.
    return f"{what}: is nested too deeply" if isinstance(exc, RecursionError) else f"{what}: {show_error(exc)}"


def key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{show(key)}]"


def name_of(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
