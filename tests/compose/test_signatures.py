"""Signatures are plain data: put together, checked and copied without a store."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    Signature,
    UnknownNameError,
    WrongContextError,
    chain,
    chord,
    group,
    signature,
)
from holdfast.core.canvases import outline

app = App("signatures", ":memory:")
other_app = App("other-signatures", ":memory:")


@app.step
def add(x: int, y: int) -> int:
    return x + y


@app.step
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.step
def tell(error: Exception, *, level: str = "warn") -> None: ...


@app.workflow
async def ship(order: Any, fast: bool = False) -> None: ...


@other_app.step
def foreign(x: int) -> int:
    return x


def shape(canvas: Any) -> Any:
    """A canvas in short: names, lists for chains, sets of members in order for groups."""
    data = canvas if isinstance(canvas, dict) else canvas.to_dict()
    for kind in ("chain", "group"):
        if kind in data:
            return (kind, *map(shape, data[kind]))
    if "chord" in data:
        return ("chord", [shape(member) for member in data["chord"]], shape(data["body"]))
    return data.get("step") or data.get("workflow")


def test_a_signature_calls_its_function_where_there_is_no_run() -> None:
    assert add.s(2)(1) == 3
    assert repr(add.s(2)) == "add(2)"
    assert repr(add.s(1, y=2) | total.s() | ship.s(fast=True)) == "add(1, y=2) | total() | ship(fast=True)"


@pytest.mark.parametrize(
    ("canvas", "expected"),
    [
        (add.s(1, 2) | add.s(3), ("chain", "add", "add")),
        (add.s(1, 2) | chain(add.s(3), add.s(4)), ("chain", "add", "add", "add")),
        (chain(add.s(1, 2), add.s(3)) | chain(add.s(4)), ("chain", "add", "add", "add")),
        (chain(chain(chain(add.s(1, 2)))), ("chain", "add")),
        (group(add.s(1, 2)) | total.s(), ("chain", ("chord", ["add"], "total"))),
        (group(add.s(1, 2)) | total.s() | add.s(1), ("chain", ("chord", ["add"], "total"), "add")),
        (
            group(add.s(1, 2)) | group(total.s()) | add.s(1),
            ("chain", ("chord", ["add"], ("chain", ("chord", ["total"], "add")))),
        ),
        (add.s(1, 2) | group(add.s(3), add.s(4)), ("chain", "add", ("group", "add", "add"))),
        (add.s(1, 2) | group(add.s(3)) | total.s(), ("chain", "add", ("chord", ["add"], "total"))),
        (add.s(1, 2) | group() | add.s(3), ("chain", "add", "add")),
        (group(group(add.s(1, 2), group(add.s(3, 4))), add.s(5, 6)), ("group", "add", "add", "add")),
        (chord([group(add.s(1, 2), add.s(3, 4))], total.s()), ("chord", ["add", "add"], "total")),
        (chord(group(add.s(1, 2)), total.s()) | add.s(1), ("chain", ("chord", ["add"], "total"), "add")),
        (chord(chain(add.s(1, 2), add.s(3)), total.s()), ("chord", [("chain", "add", "add")], "total")),
    ],
)
def test_how_shapes_are_put_together(canvas: Any, expected: Any) -> None:
    assert shape(canvas) == expected


def test_a_part_with_callbacks_of_its_own_stays_a_part() -> None:
    inner = chain(add.s(1, 2), add.s(3)).on_error(tell.s())
    assert shape(inner | add.s(4)) == ("chain", ("chain", "add", "add"), "add")
    together = group(add.s(1, 2)).on_error(tell.s())
    assert shape(group(together, add.s(3, 4))) == ("group", ("group", "add"), "add")
    assert shape(together | total.s()) == ("chain", ("group", "add"), "total")


def test_any_nesting_goes_through_json_and_back() -> None:
    canvas = chain(
        add.s(1, 2).set(max_retries=1, timeout="5s"),
        group(add.si(1, 2), ship.s(fast=True), chord([add.s(Decimal("1.5"))], total.s(), on_failure="collect")),
        chord([total.s().on_error(tell.s(level="high")), *add.chunks([(1, 2), (3, 4)], 1).tasks], total.s()),
        add.map([]),
    ).on_error(tell.s())
    canvas.link(ship.si({"id": (1, 2)}))
    data = json.loads(json.dumps(canvas.to_dict()))
    again = signature(data)
    assert again.to_dict() == data
    assert signature(again).to_dict() == data
    assert signature(data, app=app).to_dict() == data
    assert again.tasks[1].tasks[2].body.name == "total" if isinstance(again, chain) else False  # type: ignore[attr-defined]


def test_a_clone_shares_nothing_with_its_original() -> None:
    original = add.s(2).on_error(tell.s())
    copy = original.clone((1,), max_retries=0)
    copy.link(total.s())
    assert (original.args, original.chosen, original.to_dict().get("link")) == ((2,), {}, None)
    assert (copy.args, copy.chosen) == ((1, 2), {"max_retries": 0})
    assert add.si(1, 2).clone((9,)).args == (1, 2), "an immutable one takes nothing"


def test_setting_something_of_a_composition_changes_no_other_with_the_same_members() -> None:
    one, both = add.s(1), group(add.s(2), add.s(3))
    fast, slow = (one | add.s(4)).set(queue="fast"), (one | add.s(4)).set(queue="slow")
    chord(both, tell.s()).set(queue="fast").set_immutable()
    assert [task["options"]["queue"] for task in fast.to_dict()["chain"]] == ["fast", "fast"]
    assert [task["options"]["queue"] for task in slow.to_dict()["chain"]] == ["slow", "slow"]
    for each in (one, *both.tasks):
        assert each.to_dict().keys() == {"app", "step", "args"}


def test_what_is_no_signature_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        add.s(1, 2) | 10
    with pytest.raises(TypeError, match="unsupported operand"):
        10 | add.s(1, 2)
    with pytest.raises(DefinitionError, match=r"group: 3 is no signature; give signatures, e\.g\. step\.s\(1, 2\)"):
        group(add(1, 2))
    with pytest.raises(DefinitionError, match=r"chain: .* is no signature; give its signature, add\.s\(\.\.\.\)"):
        chain(add, total.s())
    with pytest.raises(DefinitionError, match="link_error"):
        add.s(1, 2).link_error(print)  # type: ignore[type-var]
    with pytest.raises(DefinitionError, match="chord's body"):
        chord([add.s(1, 2)], total)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="on_failure='panic'"):
        chord([], total.s(), on_failure="panic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("canvas", "message"),
    [
        (lambda: add.s(1, 2, 3), "too many positional arguments"),
        (lambda: add.s(z=1), "unexpected keyword argument 'z'"),
        (lambda: add.s(1).start(), "missing a required argument: 'y'"),
        (lambda: (add.s(1, 2) | add.s(3, 4)).start(), "after the result of what comes before it.*too many"),
        (lambda: chord([add.s(1, 2)], add.s()).start(), "missing a required argument: 'y'"),
        (lambda: add.s(1, 2).on_error(add.s(1, 2)).start(), "too many positional"),
        (lambda: chain().start(), "has no members"),
        (lambda: chord([add.s(1, 2)]).start(), "has no body"),
        (lambda: add.s(1, 2).set(retries=3), "a step has no option 'retries'; here that is max_retries"),
        (lambda: ship.s(1).set(queue="a"), "a workflow has no option 'queue'"),
        (lambda: add.s(1, 2).apply_async(ignore_result=3), "has no option 'ignore_result'"),
        (lambda: add.chunks([], 0), r"add.chunks\(\): size=0: give a number of 1 or more"),
        (lambda: add.map([1]).start(), "missing a required argument: 'y'"),
        (lambda: group(add.s(1, 2), add.s(1, "two")).start(), "y: expected int, got 'two'"),
        (lambda: (add.s(1, 2) | add.s("two")).start(), "y: expected int, got 'two'"),
        (lambda: (add.s(1, 2) | ship.s(fast="soon")).start(), "fast: expected bool, got 'soon'"),
        (lambda: add.starmap([(1, 2), (1, "two")]).start(), "y: expected int, got 'two'"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_written(canvas: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        canvas()
    assert app.runs() == []


@pytest.mark.parametrize(
    "options",
    [{"max_retries": -1}, {"timeout": "soon"}, {"countdown": "x"}, {"retry_delay": []}, {"queue": 7}, {"queue": "a b"},
     {"max_losses": "many"}, {"force_local": "yes"}, {"stall_timeout": 0}],
)  # fmt: skip
def test_wrong_options_are_refused_where_they_are_set(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"add\(1, 2\)\.set\(\): "):
        add.s(1, 2).set(**options)


def test_a_queue_is_that_of_the_members() -> None:
    with pytest.raises(ArgumentError, match="queue=7"):
        group(add.s(1, 2)).apply_async(queue=7)


def test_a_canvas_is_of_one_app_and_belongs_where_it_is_started() -> None:
    with pytest.raises(WrongContextError, match="a canvas is of one app"):
        (add.s(1, 2) | foreign.s()).start()
    with pytest.raises(WrongContextError, match=r"elsewhere use \.start\(\)"):
        (add.s(1, 2) | add.s(1)).submit()


@pytest.mark.parametrize(
    "data",
    [7, {"app": "signatures"}, {"app": "signatures", "chain": [1]}, {"app": "signatures", "chain": 1},
     {"app": "signatures", "group": [], "on_failure": set()}, {"app": "signatures", "step": "add", "args": 1},
     {"app": "signatures", "map": {"chain": []}, "items": []}],
)  # fmt: skip
def test_data_that_is_no_signature_is_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match=r"to_dict\(\)"):
        signature(data)


def test_unknown_names_in_data_are_told() -> None:
    with pytest.raises(UnknownNameError, match="no app named 'nowhere'"):
        signature({"app": "nowhere", "step": "add"})
    with pytest.raises(UnknownNameError, match="no step named 'sub'"):
        signature({"app": "signatures", "step": "sub"})


def test_too_deep_a_nesting_is_refused() -> None:
    canvas: Any = add.s(1, 2)
    for _ in range(150):
        canvas = group(chain(canvas).on_error(tell.s()))
    with pytest.raises(ArgumentError, match="nested deeper"):
        canvas.to_dict()


@pytest.mark.parametrize(
    "canvas",
    [add.s(1, 2), add.map([1, 2]), chain(add.s(1, 2), add.s(3)), group(add.s(1, 2)), chord([add.s(1, 2)], total.s())],
    ids=lambda canvas: type(canvas).__name__,
)
def test_what_has_no_results_yet_says_how_to_get_them(canvas: Any) -> None:
    with pytest.raises(TypeError, match=r"says what to call, and has no results to iterate over: `await` it"):
        list(canvas)
    with pytest.raises(ArgumentError, match=r"the items of add: .*: give a list"):
        add.map(canvas)


def test_signatures_are_exported() -> None:
    assert isinstance(add.s(1, 2), Signature)


@pytest.mark.parametrize(
    ("canvas", "expected"),
    [
        (add.s(1, 2), "add"),
        (
            chord([add.s(1, 2), add.s(3, 4), add.s(1, 2) | add.s(3)], total.s()) | add.s(1),
            "chord(add × 2, add | add, total) | add",
        ),
        (group(ship.s(1), add.map([])), "group(ship, add.map(0 items))"),
        (chord([], total.s(), on_failure="collect"), "chord(total, on_failure='collect')"),
    ],
)
def test_the_shape_of_a_canvas_in_short(canvas: Any, expected: str) -> None:
    assert outline(json.dumps(canvas.to_dict()).encode()) == expected
