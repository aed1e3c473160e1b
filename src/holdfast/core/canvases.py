"""A canvas as a run records it: names, arguments and shape, never code."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Raw

NO_OPTIONS = Raw(b"{}")
OnFailure = Literal["finish", "cancel", "collect"]


class CanvasNode(msgspec.Struct, omit_defaults=True):
    """A part of a canvas, as it is recorded. Its own parts are JSON, which is read when their turn comes."""

    step: str = ""
    workflow: str = ""
    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}
    options: Raw = NO_OPTIONS
    immutable: bool = False
    durable: bool = True
    chain: list[Raw] | None = None
    group: list[Raw] | None = None
    chord: list[Raw] | None = None
    body: Raw = Raw(b"{}")
    on_failure: OnFailure = "finish"
    map: Raw = Raw(b"")
    items: list[list[Raw]] = []
    link: list[Raw] = []
    link_error: list[Raw] = []

    @property
    def title(self) -> str:
        """What it is called in messages."""
        if self.step or self.workflow:
            return repr(self.step or self.workflow)
        if bytes(self.map):
            return f"map of {read(self.map).title}"
        shape, parts = ("chain", self.chain) if self.chain is not None else ("group", self.group)
        if self.chord is not None:
            shape, parts = "chord", [*self.chord, self.body]
        return f"{shape} of {', '.join(read(part).title for part in (parts or [])[:3])}" + (
            ", …" if len(parts or []) > 3 else ""
        )


read: Callable[[bytes | Raw], CanvasNode] = msgspec.json.Decoder(CanvasNode).decode


def outline(canvas: bytes | Raw) -> str:
    """Its shape in short, for people: `chord(charge × 30, summarize) | send_mail`."""
    node = read(canvas)
    if node.chain is not None:
        return " | ".join(_alike(node.chain, least=4))
    if bytes(node.map):
        return f"{outline(node.map)}.map({len(node.items)} items)"
    if node.step or node.workflow:
        return node.step or node.workflow
    if node.chord is None:
        return f"group({', '.join(_alike(node.group or []))})"
    how = "" if node.on_failure == "finish" else f", on_failure={node.on_failure!r}"
    return f"chord({', '.join([*_alike(node.chord), outline(node.body)])}{how})"


def _alike(parts: list[Raw], least: int = 2) -> list[str]:
    """Neighbours that look alike are counted, if there are so many of them."""
    found: list[str] = []
    for look, same in itertools.groupby(map(outline, parts)):
        count = len(list(same))
        found += [f"{look} × {count}"] if count >= least else [look] * count
    return found


class _Input(msgspec.Struct):
    args: tuple[Raw]


def canvas_of(input: Raw) -> Raw:
    """The canvas that a run is, from its input."""
    return msgspec.json.decode(input, type=_Input).args[0]
