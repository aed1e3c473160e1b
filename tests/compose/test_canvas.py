"""Chains, groups and chords as runs, on every store and executor there is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from canvas_steps import Declined, Steps

from holdfast import (
    App,
    ChordError,
    Codec,
    GroupError,
    Run,
    RunCancelledError,
    Status,
    StepState,
    chain,
    chord,
    group,
    signature,
)


@pytest.fixture
def steps(app: App) -> Iterator[Steps]:
    steps = Steps(app)
    with app.worker():
        yield steps
        steps.gate.set()


def states(run: Run[Any]) -> dict[str, str]:
    return {step.cmd: step.state.value for step in run.steps}


# -- shapes


def test_a_chain_passes_each_result_on(steps: Steps) -> None:
    run = (steps.add.s(2, 3) | steps.double.s() | steps.add.s(4)).start()
    assert run.result(10) == 14
    assert steps.calls == [("add", 2, 3), ("double", 5), ("add", 10, 4)]
    assert run.workflow == "holdfast.chain"
    assert [step.result for step in run.steps] == [5, 10, 14]


def test_an_immutable_member_ignores_what_comes_before(steps: Steps) -> None:
    assert (steps.add.s(1, 2) | steps.double.si(21)).start().result(10) == 42
    assert (steps.add.s(1, 2) | group(steps.double.s(), steps.double.si(4))).start().result(10) == [6, 8]


def test_a_group_gives_results_in_the_order_of_its_members(steps: Steps) -> None:
    run = group(steps.wait.s("slow"), steps.echo.s("fast")).start()
    while not any(step.state is StepState.SUCCESS for step in run.steps):
        pass
    steps.gate.set()
    assert run.result(10) == ["slow", "fast"]


def test_a_group_before_something_is_a_chord(steps: Steps) -> None:
    canvas = steps.add.s(1, 1) | group(steps.add.s(i) for i in range(3)) | steps.total.s() | steps.double.s()
    assert canvas.start().result(10) == 18
    assert len(steps.called("total")) == 1


def test_all_forms_of_a_chord(steps: Steps) -> None:
    header = [steps.add.s(i, i) for i in range(4)]
    assert chord(header, steps.total.s()).start().result(10) == 12
    assert chord(header)(steps.total.s()).result(10) == 12
    assert chord((sig for sig in header), steps.total.s()).start().result(10) == 12
    assert (group(header) | steps.total.s()).start().result(10) == 12
    assert chord(steps.echo.s(5), steps.total.s()).start().result(10) == 5


def test_an_empty_header_runs_the_body_with_an_empty_list(steps: Steps) -> None:
    assert chord([], steps.echo.s()).start().result(10) == []
    assert (steps.echo.s(7) | group() | steps.double.s()).start().result(10) == 14, "an empty group lets it pass"


def test_a_group_that_turned_out_empty_gives_an_empty_list_to_what_follows(steps: Steps) -> None:
    nobody: list[int] = []
    assert (group(steps.echo.s(i) for i in nobody) | steps.total.s()).start().result(10) == 0
    assert chain(group(), group(), steps.echo.s(), steps.echo.s()).start().result(10) == []
    assert steps.add.chunks([], 3).start().result(10) == []
    assert (steps.add.chunks([], 3) | steps.total.s()).start().result(10) == 0
    assert steps.called("total") == [([],), ([],)]


def test_a_group_of_one_gives_a_list_of_one(steps: Steps) -> None:
    assert group(steps.echo.s(1)).start().result(10) == [1]
    assert (group([steps.echo.s(1)]) | steps.echo.s()).start().result(10) == [1]


def test_groups_after_groups(steps: Steps) -> None:
    canvas = group(steps.echo.s(1), steps.echo.s(2)) | group(steps.total.s(), steps.echo.s()) | steps.echo.s()
    assert canvas.start().result(10) == [3, [1, 2]]


def test_nested_groups_are_flat_and_a_group_at_the_end_of_a_chain_is_a_list(steps: Steps) -> None:
    assert group(group(steps.echo.s(1), steps.echo.s(2)), steps.echo.s(3)).start().result(10) == [1, 2, 3]
    nested = group(steps.echo.s(1), chain(steps.echo.s(2), group(steps.double.s(), steps.echo.s())))
    assert nested.start().result(10) == [1, [4, 2]]


def test_chords_in_headers_and_in_bodies(steps: Steps) -> None:
    inner = chord([steps.echo.s(1), steps.echo.s(2)], steps.total.s())
    assert chord([inner, steps.echo.s(10)], steps.total.s()).start().result(10) == 13
    body = chain(steps.total.s(), chord([steps.double.s(), steps.echo.s()], steps.total.s()))
    assert chord([steps.echo.s(1), steps.echo.s(2)], body).start().result(10) == 9
    assert (inner | chord([steps.double.s(), steps.echo.s()], steps.total.s())).start().result(10) == 9


def test_maps_and_chunks(steps: Steps) -> None:
    assert steps.double.map(range(3)).start().result(10) == [0, 2, 4]
    assert steps.add.starmap([(1, 2), (3, 4)]).start().result(10) == [3, 7]
    assert steps.calls[-2:] == [("add", 1, 2), ("add", 3, 4)], "one after the other"
    chunked = steps.add.chunks(zip(range(5), range(5), strict=True), 2)
    assert chunked.start().result(10) == [[0, 2], [4, 6], [8]]
    assert (steps.double.map([1, 2]) | steps.total.s()).start().result(10) == 6
    assert steps.double.map([]).start().result(10) == []


def test_a_long_chain_of_what_has_nothing_to_do(steps: Steps) -> None:
    nothing = [steps.double.map([])] * 3_000
    assert chain(steps.echo.s(1), *nothing, steps.echo.s()).start().result(10) == []


def test_arguments_given_at_the_start_go_to_the_beginning(steps: Steps) -> None:
    assert (steps.add.s(2) | steps.double.s()).delay(1).result(10) == 6
    assert group(steps.add.s(1), steps.add.s(2)).start(10).result(10) == [11, 12]
    assert steps.add.s(y=2).start(1).result(10) == 3
    assert chain(steps.add.s(2)).apply_async((1,), countdown=0).result(10) == 3


def test_workflows_are_members_too(app: App) -> None:
    steps = Steps(app)

    @app.workflow
    async def quadruple(x: int) -> int:
        return await steps.double(await steps.double(x))

    @app.workflow(durable=False)
    async def fleeting(x: int) -> int:
        return await steps.double(x)

    @app.workflow
    def refuse(x: int) -> int:
        raise Declined(f"not {x}")

    with app.worker():
        run = (steps.add.s(1, 2) | quadruple.s() | steps.double.s()).start()
        assert run.result(10) == 24
        assert [child.workflow for child in run.children()] == ["quadruple"]
        run = (fleeting.s(2) | steps.double.s()).start()
        assert run.result(10) == 8
        assert [event.kind for event in run.children()[0].history()] == ["RunStarted", "RunCompleted"]
        with pytest.raises(Declined, match="not 3"):
            (steps.add.s(1, 2) | refuse.s() | steps.double.s()).start().result(10)


def test_a_canvas_in_a_workflow(app: App) -> None:
    steps = Steps(app)

    @app.workflow
    async def flow(n: int) -> list[Any]:
        one = await chord([steps.add.s(i, i) for i in range(n)], steps.total.s())
        pending = group(steps.double.s(one), steps.echo.s(one)).submit()
        return [await (steps.add.s(1, 2) | steps.double.s()), await pending, await group()]

    @app.workflow
    def plain(n: int) -> Any:
        return chain(steps.add.s(n, n), steps.double.s()).submit().result()

    with app.worker():
        assert flow.start(3).result(10) == [6, [12, 6], []]
        assert plain.start(2).result(10) == 8


def test_every_value_passes_as_it_is(steps: Steps) -> None:
    value = {"price": Decimal("1.10"), "tags": ("a", "b"), "when": {1, 2}}
    assert (steps.echo.s(value) | steps.echo.s() | steps.echo.s()).start().result(10) == value
    assert group(steps.echo.s(value), steps.echo.s((1,))).start().result(10) == [value, (1,)]


def test_large_results_are_recorded_once(steps: Steps) -> None:
    text = "x" * 100_000
    run = (steps.echo.s(text) | steps.echo.s() | steps.echo.s()).start()
    assert run.result(10) == text
    assert [len(str(step.args)) < 200 for step in run.steps] == [True] * 3, "as references"
    assert steps.called("echo") == [(text,)] * 3


def test_sealed_values_pass_too(tmp_path: Any) -> None:
    class Mirror:
        name = "mirror"

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[::-1]

    app = App("sealed", str(tmp_path / "sealed.db"), codec=Codec(transforms=[Mirror()]))
    steps = Steps(app)
    with app.worker():
        canvas = group(steps.echo.s("a word to hide"), steps.fail.s("luck"), steps.echo.s({"a": Decimal(1)}))
        collected = chord(canvas.tasks, steps.echo.s(), on_failure="collect").start().result(10)
        assert collected[0] == "a word to hide"
        assert isinstance(collected[1], Declined)
        assert collected[2] == {"a": Decimal(1)}
        assert "a word to hide" not in str(canvas.to_dict())
        assert signature(canvas.to_dict()).tasks[0].args == ("a word to hide",)  # type: ignore[attr-defined]
    app.close()
    assert b"a word to hide" not in (tmp_path / "sealed.db").read_bytes()


# -- failures


def test_a_chain_raises_its_members_own_exception_and_goes_no_further(steps: Steps) -> None:
    run = (steps.echo.s("luck") | steps.fail.s() | steps.echo.s()).start()
    with pytest.raises(Declined, match="no luck"):
        run.result(10)
    assert run.status is Status.FAILURE
    assert isinstance(run.result(propagate=False), Declined)
    assert len(steps.called("echo")) == 1


def test_a_group_names_the_member_that_failed_and_the_others_finish(steps: Steps) -> None:
    run = group(steps.fail.s("luck"), steps.wait.s(2), steps.echo.s(3)).start()
    while len(steps.calls) < 3:
        pass
    steps.gate.set()
    with pytest.raises(GroupError, match=r"member 0 of the group, 'fail', failed: Declined: no luck") as caught:
        run.result(10)
    assert isinstance(caught.value.__cause__, Declined)
    assert (caught.value.member, caught.value.index) == ("fail", 0)
    found = run.result(propagate=False)
    assert isinstance(found[0], Declined)
    assert found[1:] == [2, 3]


def test_a_failed_header_is_a_chord_error_and_the_body_does_not_run(steps: Steps) -> None:
    run = chord([steps.echo.s(1), steps.fail.s("luck"), steps.fail.s("hope")], steps.total.s()).start()
    with pytest.raises(ChordError, match=r"member \d of the chord's header, 'fail', failed.*1 other of 3 failed too"):
        run.result(10)
    assert steps.called("total") == []


def test_a_body_that_fails_raises_its_own_exception(steps: Steps) -> None:
    with pytest.raises(Declined):
        chord([steps.echo.s(1)], steps.fail.s()).start().result(10)


def test_a_chord_can_collect_values_and_exceptions(steps: Steps) -> None:
    run = chord([steps.echo.s(1), steps.fail.s("luck"), steps.echo.s(3)], steps.echo.s(), on_failure="collect").start()
    one, error, three = run.result(10)
    assert (one, three) == (1, 3)
    assert isinstance(error, Declined)
    assert str(error) == "no luck"


def test_a_chord_can_cancel_the_others(steps: Steps) -> None:
    run = chord([steps.fail.s(), chain(steps.wait.s(), steps.echo.s())], steps.total.s(), on_failure="cancel").start()
    with pytest.raises(ChordError):
        run.result(10)
    assert states(run)["s:0.1.0"] == "CANCELLED"
    assert run.result(propagate=False)[1] is None
    assert steps.called("echo") == []


def test_a_failure_whose_class_is_not_known_goes_by_its_own_name(app: App) -> None:
    @app.step(max_retries=0)
    def leave() -> None:
        raise SystemExit

    with app.worker(), pytest.raises(GroupError, match=r"'leave', failed: SystemExit$"):
        group(leave.s()).start().result(10)


def test_failures_deep_inside_name_every_level(steps: Steps) -> None:
    inner = chord([steps.fail.si("luck")], steps.total.s())
    with pytest.raises(GroupError, match=r"member 1 of the group, chain of 'echo', chord of 'fail', 'total', failed"):
        group(steps.echo.s(1), chain(steps.echo.s(1), inner)).start().result(10)


def test_an_errback_runs_once_for_each_composition_that_fails(steps: Steps) -> None:
    for canvas in (
        steps.echo.s("luck") | steps.fail.s() | steps.echo.s(),
        group(steps.fail.s(1), steps.fail.s(2), steps.fail.s(3)),
        chord([steps.fail.s(1), steps.fail.s(2)], steps.total.s()),
        chord([steps.echo.s(1)], steps.fail.s()),
        steps.fail.s("luck"),
        steps.fail.map([1, 2, 3]),
    ):
        steps.calls.clear()
        run = canvas.clone().on_error(steps.tell.s()).start()
        expected = run.result(10, propagate=False)
        assert len(steps.called("tell")) == 1, canvas
        assert expected is not None
    whole = group(steps.fail.s(1).on_error(steps.tell.s()), steps.fail.s(2)).on_error(steps.tell.s())
    steps.calls.clear()
    whole.start().result(10, propagate=False)
    assert sorted(kind for kind, _ in steps.called("tell")) == ["Declined", "GroupError"]


def test_the_errback_of_a_chords_body_runs_once_if_the_header_fails(steps: Steps) -> None:
    body = steps.total.s().on_error(steps.tell.s())
    for canvas in (
        group(steps.fail.s(1), steps.fail.s(2)) | body,
        chord([steps.fail.s(1), steps.echo.s(2)], body),
        chord([steps.fail.s(1), steps.echo.s(2)], body, on_failure="cancel"),
        steps.echo.s(1) | group(steps.fail.s(), steps.echo.s()) | body | steps.echo.s(),
        chord([steps.fail.s(1)], (steps.total.s() | steps.echo.s()).on_error(steps.tell.s())),
    ):
        steps.calls.clear()
        with pytest.raises(ChordError, match=r"member \d of the chord's header"):
            canvas.clone().start().result(10)
        assert [kind for kind, _ in steps.called("tell")] == ["ChordError"], canvas
        assert steps.called("total") == []


def test_the_errback_of_a_chords_body_runs_beside_that_of_the_chord_and_after_the_last_attempt(steps: Steps) -> None:
    whole = chord([steps.fail.s(1)], steps.total.s().on_error(steps.tell.s())).on_error(steps.tell.s())
    with pytest.raises(ChordError):
        whole.options(max_retries=1).start().result(10)
    assert steps.called("fail") == [(1,)] * 2
    assert [kind for kind, _ in steps.called("tell")] == ["ChordError", "ChordError"]


def test_the_errback_of_a_chords_body_is_for_its_own_failure_too_and_not_for_success(steps: Steps) -> None:
    with pytest.raises(Declined):
        chord([steps.echo.s(1)], steps.fail.s().on_error(steps.tell.s())).start().result(10)
    assert [kind for kind, _ in steps.called("tell")] == ["Declined"]
    assert chord([steps.echo.s(1)], steps.total.s().on_error(steps.tell.s())).start().result(10) == 1
    assert len(steps.called("tell")) == 1


def test_an_errback_does_not_run_on_success_and_its_failure_changes_nothing(steps: Steps) -> None:
    assert steps.echo.s(1).on_error(steps.tell.s()).start().result(10) == 1
    assert steps.called("tell") == []
    with pytest.raises(Declined, match="no luck"):
        steps.fail.s("luck").on_error(steps.fail.s()).start().result(10)


def test_errbacks_wait_for_the_last_attempt_of_the_run(steps: Steps) -> None:
    member = steps.fail.s(1).on_error(steps.tell.s())
    whole = group(member, steps.echo.s(2)).on_error(steps.tell.s())
    with pytest.raises(GroupError):
        whole.options(max_retries=2).start().result(10)
    assert steps.called("fail") == [(1,)] * 3
    assert sorted(kind for kind, _ in steps.called("tell")) == ["Declined", "GroupError"]


def test_errbacks_of_members_run_if_the_whole_goes_well_though_it_had_attempts_left(steps: Steps) -> None:
    header = [steps.fail.s(1).on_error(steps.tell.s()), steps.echo.s(2)]
    run = chord(header, steps.echo.si("done"), on_failure="collect").options(max_retries=2).start()
    assert run.result(10) == "done"
    assert steps.called("tell") == [("Declined", "no 1")]


def test_a_step_is_applied_with_callbacks_like_its_signature(steps: Steps) -> None:
    assert steps.add.apply_async((1, 2), link=steps.echo.s(), link_error=steps.tell.s()).result(10) == 3
    assert steps.called("echo") == [(3,)]
    run = steps.fail.apply_async(
        kwargs={"value": "luck"}, link=steps.echo.s(), link_error=[steps.tell.s()], task_id="f"
    )
    with pytest.raises(Declined):
        run.result(10)
    assert run.id == "f"
    assert steps.called("tell") == [("Declined", "no luck")]


def test_callbacks_get_the_result_and_change_nothing(steps: Steps) -> None:
    canvas = steps.add.s(1, 2)
    callback = canvas.link(steps.echo.s())
    callback.link(steps.double.s())
    canvas.link(steps.fail.s())
    run = (canvas | steps.double.s()).start()
    assert run.result(10) == 6
    assert sorted(steps.calls) == [("add", 1, 2), ("double", 3), ("double", 3), ("echo", 3), ("fail", 3)]
    together = group(steps.echo.s(1), steps.echo.s(2))
    together.link(steps.total.s())
    assert together.apply_async(link=steps.echo.si("end")).result(10) == [1, 2]
    assert ("total", [1, 2]) in steps.calls


# -- acting on the run


def test_a_retry_keeps_the_members_that_were_completed(app: App) -> None:
    steps, broken = Steps(app), [True]

    @app.step(max_retries=0)
    def flaky(x: int) -> int:
        steps.calls.append(("flaky", x))
        if broken[0]:
            raise Declined("later")
        return x

    with app.worker():
        run = chord([steps.echo.s(1), chain(steps.echo.s(2), flaky.s()), flaky.s(3)], steps.total.s()).start()
        with pytest.raises(ChordError):
            run.result(10)
        broken[0] = False
        run.retry()
        assert run.result(10) == 6
    assert len(steps.called("echo")) == 2
    assert len(steps.called("flaky")) == 4


def test_a_cancelled_canvas_leaves_nothing_under_way(steps: Steps) -> None:
    run = chord([chain(steps.wait.s(i), steps.echo.s()) for i in range(3)], steps.total.s()).start()
    while len(steps.called("wait")) < 3:
        pass
    run.cancel("enough")
    with pytest.raises(RunCancelledError, match="enough"):
        run.result(10)
    assert isinstance(run.result(propagate=False), RunCancelledError)
    assert set(states(run).values()) == {"CANCELLED"}


def test_options_of_members(app: App) -> None:
    steps, tries = Steps(app), []

    @app.step
    def flaky(x: int) -> int:
        tries.append(x)
        raise Declined("always")

    with app.worker():
        with pytest.raises(GroupError):
            group(flaky.s(1), flaky.s(2).set(max_retries=0)).set(max_retries=1, retry_delay="1ms").start().result(10)
        assert sorted(tries) == [1, 1, 2]
        tries.clear()
        with pytest.raises(Declined):
            flaky.s(3).set(retry_delay="1ms").apply_async(max_retries=1, timeout=5).result(10)
        assert tries == [3, 3], "one attempt of the run, two of the step"
        run = (steps.echo.s(1).set(countdown=0.01) | steps.echo.s()).options(id="named", priority=3).start()
        assert run.result(10) == 1
        assert run.id == "named"
        assert app.get_run("named").result() == 1


def test_more_members_than_are_under_way_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.compose.canvas.WINDOW", 3)
    steps = Steps(app)
    now, most = 0, 0

    @app.step
    async def stay(value: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return value

    header = [chain(stay.s(i), group(steps.double.s(), stay.s())) for i in range(20)]
    with app.worker():
        assert chord(header, steps.echo.s()).start().result(20) == [[2 * i, i] for i in range(20)]
    assert most <= 3


def test_what_a_canvas_stores_grows_with_its_size_and_not_faster(app: App) -> None:
    steps = Steps(app)

    def stored(n: int) -> int:
        run = chord([steps.echo.s("x" * 100) for _ in range(n)], steps.echo.s() | steps.echo.s()).start()
        assert len(run.result(30)) == n
        return sum(map(len, app.store.payloads(run.id)))

    with app.worker():
        assert stored(800) < 9 * stored(100)
