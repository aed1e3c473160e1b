"""A DAG as text that others draw, and as a picture: layers from top to bottom, neighbours close to each other."""

from __future__ import annotations

import re
from html import escape

from holdfast.core.plans import Plan, PlannedStep

HEIGHT, GAP, LAYER, LETTER, MARGIN = 40, 24, 96, 8, 16
_SWEEPS = 4


def to_mermaid(plan: Plan) -> str:
    """Names are put in quotes, as any text may be a name; what Mermaid would read as markup is escaped."""
    ids = {step.name: f"s{number}" for number, step in enumerate(plan.steps)}
    lines = ["flowchart TD"]
    for step in plan.steps:
        before, after = ("{{", "}}") if step.has_condition else ("[[", "]]") if step.is_workflow else ("[", "]")
        lines.append(f'    {ids[step.name]}{before}"{_mermaid_text(_label(step))}"{after}')
    for step in plan.steps:
        note = "" if step.run_if == "all_success" else f"|{step.run_if}|"
        lines += [f"    {ids[name]} -->{note} {ids[step.name]}" for name in step.depends_on]
    return "\n".join(lines) + "\n"


def _label(step: PlannedStep) -> str:
    return f"{step.name} × {step.map_over}" if step.map_over else step.name


def _mermaid_text(text: str) -> str:
    return re.sub(r'[#&<>"`*_~\\]', lambda found: f"#{ord(found[0])};", text)


def to_svg(plan: Plan) -> str:
    layers = _ordered(plan, _layers(plan))
    widths = {step.name: LETTER * len(_label(step)) + 2 * MARGIN for step in plan.steps}
    across = [sum(widths[name] for name in layer) + GAP * (len(layer) - 1) for layer in layers]
    width = max(across, default=0) + 2 * MARGIN
    height = LAYER * max(len(layers) - 1, 0) + HEIGHT + 2 * MARGIN
    centres: dict[str, tuple[float, float]] = {}
    for number, layer in enumerate(layers):
        x = (width - across[number]) / 2
        for name in layer:
            centres[name] = (x + widths[name] / 2, MARGIN + LAYER * number + HEIGHT / 2)
            x += widths[name] + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        'font-family="system-ui, sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667085"/></marker></defs>',
    ]
    lines += [_edge(centres[name], centres[step.name], step.run_if) for step in plan.steps for name in step.depends_on]
    lines += [_box(step, centres[step.name], widths[step.name]) for step in plan.steps]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _edge(start: tuple[float, float], end: tuple[float, float], run_if: str) -> str:
    (x1, y1), (x2, y2) = (start[0], start[1] + HEIGHT / 2), (end[0], end[1] - HEIGHT / 2)
    bend = (y2 - y1) / 2
    dashes = "" if run_if == "all_success" else ' stroke-dasharray="5 4"'
    title = "" if run_if == "all_success" else f"<title>{run_if}</title>"
    return (
        f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}" fill="none" stroke="#667085"'
        f'{dashes} marker-end="url(#tip)">{title}</path>'
    )


def _box(step: PlannedStep, centre: tuple[float, float], width: float) -> str:
    x, y = centre
    corner = 20 if step.has_condition else 6
    thick = ' stroke-width="2.5"' if step.is_workflow else ""
    return (
        f'<g><rect x="{x - width / 2:g}" y="{y - HEIGHT / 2:g}" width="{width:g}" height="{HEIGHT}" rx="{corner}" '
        f'fill="#f9fafb" stroke="#344054"{thick}/><text x="{x:g}" y="{y + 5:g}" text-anchor="middle" fill="#101828">'
        f"{escape(_label(step))}</text></g>"
    )


def _layers(plan: Plan) -> list[list[str]]:
    """Each step below all that it depends on, as high as possible."""
    left = {step.name: len(step.depends_on) for step in plan.steps}
    followers = plan.followers()
    layers: list[list[str]] = []
    layer = [name for name, count in left.items() if not count]
    while layer:
        layers.append(layer)
        following: list[str] = []
        for name in layer:
            for follower in followers[name]:
                left[follower.name] -= 1
                if not left[follower.name]:
                    following.append(follower.name)
        layer = following
    return layers


def _ordered(plan: Plan, layers: list[list[str]]) -> list[list[str]]:
    """Neighbours near each other: each step is moved to the middle of those above it, then of those below."""
    above = {step.name: list(step.depends_on) for step in plan.steps}
    below = {name: [step.name for step in steps] for name, steps in plan.followers().items()}
    places = {name: place for layer in layers for place, name in enumerate(layer)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for layer in layers if down else reversed(layers):
            middles = {
                name: sum(places[each] for each in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else places[name]
                for name in layer
            }
            layer.sort(key=middles.__getitem__)
            places |= {name: place for place, name in enumerate(layer)}
    return layers
