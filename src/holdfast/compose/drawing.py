"""A DAG as text that others draw, and as a picture: layers from top to bottom, neighbours close to each other."""

from __future__ import annotations

import re
from html import escape
from itertools import pairwise
from statistics import fmean

from holdfast.core.plans import Plan, PlannedStep

HEIGHT, GAP, LAYER, LETTER, MARGIN = 40, 24, 96, 8, 16
SWEEPS = 8
PASSED = 20_000


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


# -- the picture

Point = str | tuple[str, str, int]
"""A step, or where the edge between two steps passes a layer."""


def to_svg(plan: Plan) -> str:
    layers, routes = _arranged(plan)
    widths: dict[Point, float] = {step.name: LETTER * len(_label(step)) + 2 * MARGIN for step in plan.steps}
    across = [sum(widths.get(place, 0) for place in layer) + GAP * (len(layer) - 1) for layer in layers]
    width = max(across, default=0) + 2 * MARGIN
    height = LAYER * max(len(layers) - 1, 0) + HEIGHT + 2 * MARGIN
    centres: dict[Point, tuple[float, float]] = {}
    for number, layer in enumerate(layers):
        x = (width - across[number]) / 2
        for place in layer:
            centres[place] = (x + widths.get(place, 0) / 2, MARGIN + LAYER * number + HEIGHT / 2)
            x += widths.get(place, 0) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        'font-family="system-ui, sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667085"/></marker></defs>',
    ]
    for step in plan.steps:
        lines += [_edge([centres[place] for place in routes[name, step.name]], step.run_if) for name in step.depends_on]
    lines += [_box(step, centres[step.name], widths[step.name]) for step in plan.steps]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _edge(points: list[tuple[float, float]], run_if: str) -> str:
    """From the bottom of the first to the top of the last; straight through the layers between."""
    x, y = points[0]
    drawn = f"M{x:g} {y + HEIGHT / 2:g}"
    for (x1, y1), (x2, y2) in pairwise(points):
        start, end = y1 + HEIGHT / 2, y2 - HEIGHT / 2
        middle = (start + end) / 2
        drawn += f"C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {end:g}"
        if (x2, y2) != points[-1]:
            drawn += f"V{y2 + HEIGHT / 2:g}"
    dashes = "" if run_if == "all_success" else ' stroke-dasharray="5 4"'
    title = "" if run_if == "all_success" else f"<title>{run_if}</title>"
    return f'<path d="{drawn}" fill="none" stroke="#667085"{dashes} marker-end="url(#tip)">{title}</path>'


def _box(step: PlannedStep, centre: tuple[float, float], width: float) -> str:
    x, y = centre
    corner = 20 if step.has_condition else 6
    thick = ' stroke-width="2.5"' if step.is_workflow else ""
    return (
        f'<g><rect x="{x - width / 2:g}" y="{y - HEIGHT / 2:g}" width="{width:g}" height="{HEIGHT}" rx="{corner}" '
        f'fill="#f9fafb" stroke="#344054"{thick}/><text x="{x:g}" y="{y + 5:g}" text-anchor="middle" fill="#101828">'
        f"{escape(_label(step))}</text></g>"
    )


def _arranged(plan: Plan) -> tuple[list[list[Point]], dict[tuple[str, str], list[Point]]]:
    """What is in each layer, from left to right, and by which places each edge goes."""
    depths = _depths(plan)
    layers: list[list[Point]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for name, depth in depths.items():
        layers[depth].append(name)
    edges = [(name, step.name) for step in plan.steps for name in step.depends_on]
    # Around the boxes, unless there are so many long edges that nobody could follow them anyway.
    around = sum(depths[end] - depths[start] - 1 for start, end in edges) <= PASSED
    routes: dict[tuple[str, str], list[Point]] = {}
    above: dict[Point, list[Point]] = {}
    below: dict[Point, list[Point]] = {}
    for start, end in edges:
        passed: list[Point] = [(start, end, n) for n in range(depths[start] + 1, depths[end])] if around else []
        for place, depth in zip(passed, range(depths[start] + 1, depths[end]), strict=False):
            layers[depth].append(place)
        routes[start, end] = [start, *passed, end]
        for upper, lower in pairwise(routes[start, end]):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    _order(layers, above, below)
    return layers, routes


def _depths(plan: Plan) -> dict[str, int]:
    """Each step below all that it depends on, as high as possible."""
    left = {step.name: len(step.depends_on) for step in plan.steps}
    followers = plan.followers()
    depths: dict[str, int] = {}
    layer, depth = [name for name, count in left.items() if not count], 0
    while layer:
        depths |= dict.fromkeys(layer, depth)
        following: list[str] = []
        for name in layer:
            for follower in followers[name]:
                left[follower.name] -= 1
                if not left[follower.name]:
                    following.append(follower.name)
        layer, depth = following, depth + 1
    return depths


def _order(layers: list[list[Point]], above: dict[Point, list[Point]], below: dict[Point, list[Point]]) -> None:
    """Neighbours near each other: each place is moved to the middle of those above it, then of those below."""
    places = {place: number for layer in layers for number, place in enumerate(layer)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for layer in layers if down else reversed(layers):
            middles = {
                place: fmean(places[each] for each in neighbours[place]) if place in neighbours else places[place]
                for place in layer
            }
            layer.sort(key=middles.__getitem__)
            places |= {place: number for number, place in enumerate(layer)}
