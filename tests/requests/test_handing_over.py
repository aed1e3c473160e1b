"""Steps that end elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from holdfast import (
    App,
    ArgumentError,
    FatalError,
    RunFinishedError,
    StepError,
    StepTimeoutError,
    StepTokenError,
    chain,
    emit,
    hook,
    this_step,
    wf,
)
from holdfast.testing import TestApp
from holdfast.views.waits import waits_of
from holdfast.views.why import waiting_text

app = App("elsewhere", ":memory:")
tokens: list[str] = []


@app.step(timeout="1d", max_retries=1, retry_delay="1m")
async def render(film: str) -> str:
    tokens.append(this_step.hand_over())
    return "this is nobody's"


@app.step(timeout="1h", max_retries=0)
def render_once(film: str) -> str:
    tokens.append(this_step.hand_over())
    return ""


@app.step(timeout=None, stall_timeout="10m", max_retries=0)
def watched(film: str) -> str:
    tokens.append(this_step.hand_over())
    return ""


@app.workflow
async def produce(film: str) -> str:
    return await render(film)


@app.workflow
async def watch(film: str) -> str:
    return watched(film)


@pytest.fixture
def world() -> Iterator[TestApp]:
    tokens.clear()
    with TestApp(app) as world:
        yield world


def test_a_step_that_was_handed_over_ends_with_what_is_told_elsewhere(world: TestApp) -> None:
    run = produce.start("heidi")
    world.settle()
    world.advance("20h")
    assert run.status == "WAITING"
    assert run.reason == "step 'render', which was handed over"
    assert run.steps["render"].state == "STARTED"
    row, events = run._fetch(), app.client.reader.events(run._which)
    said = waiting_text(row, world.clock.now(), waits_of(events, row))
    assert said == "step 'render' was handed over 20h00m ago, and whoever has its token ends it"
    app.finish_step(tokens[0], "heidi.mp4")
    assert run.result() == "heidi.mp4"
    assert world.kinds(run) == ["RunStarted", "StepHandedOver", "StepCompleted", "RunCompleted"]


def test_a_token_is_good_for_one_end(world: TestApp) -> None:
    @app.workflow(name="lingers")
    async def lingers() -> str:
        film = await render("heidi")
        await hook("end")
        return film

    run = lingers.start()
    world.settle()
    asyncio.run(app.afinish_step(tokens[0], "1"))
    for _ in range(2):
        with pytest.raises(StepTokenError, match="was ended with this token before"):
            app.finish_step(tokens[0], "2")
        world.settle()
    run.send("end")
    assert run.result() == "1"
    with pytest.raises(RunFinishedError):
        app.fail_step(tokens[0], "too late")


def test_a_failure_from_elsewhere_is_retried_as_the_step_says(world: TestApp) -> None:
    run = produce.start("heidi")
    world.settle()
    app.fail_step(tokens[0], "out of memory")
    world.advance("2m")
    assert len(tokens) == 2
    app.fail_step(tokens[1], "again")
    with pytest.raises(StepError, match="again"):
        run.result()
    fatal = produce.start("b")
    world.settle()
    app.fail_step(tokens[2], FatalError("no such film"))
    with pytest.raises(FatalError, match="no such film"):
        fatal.result()


def test_the_timeout_counts_on_elsewhere_and_a_late_result_of_an_earlier_attempt_counts(world: TestApp) -> None:
    run = produce.start("heidi")
    world.settle()
    world.advance("25h")
    assert len(tokens) == 2
    app.finish_step(tokens[0], "late.mp4")
    assert run.result() == "late.mp4"


def test_a_late_failure_of_an_earlier_attempt_is_history(world: TestApp) -> None:
    run = produce.start("heidi")
    world.settle()
    world.advance("25h")
    app.fail_step(tokens[0], "an attempt that is over")
    world.settle()
    assert run.status == "WAITING"
    app.finish_step(tokens[1], "good.mp4")
    assert run.result() == "good.mp4"


def test_nobody_who_finishes_is_a_timeout(world: TestApp) -> None:
    run = produce.start("heidi")
    with pytest.raises(StepTimeoutError, match="took longer than its timeout of 1d, elsewhere"):
        run.result()


def test_signs_of_life_keep_a_step_waiting_and_silence_ends_it(world: TestApp) -> None:
    run = watch.start("heidi")
    world.settle()
    for minute in range(0, 120, 5):
        app.beat_step(tokens[0], minute, 120, "frames")
        world.advance("5m")
    assert run.status == "WAITING"
    assert run.steps["watched"].progress == {"done": 115, "total": 120, "note": "frames"}
    assert world.kinds(run).count("StepHandedOver") < 20
    with pytest.raises(StepTimeoutError, match="gave no sign of life for 10m, elsewhere"):
        run.result()


def test_what_is_finished_before_the_step_itself_has_returned_counts(world: TestApp) -> None:
    @app.step(name="quick")
    def quick() -> str:
        app.finish_step(this_step.hand_over(), "at once")
        return "later"

    assert quick.start().result() == "at once"


def test_a_step_that_is_cancelled_meanwhile_is_over(world: TestApp) -> None:
    @app.workflow(name="impatient")
    async def impatient() -> str:
        try:
            async with asyncio.timeout(60):
                return await render("heidi")
        except TimeoutError:
            await hook("go")
            return "without"

    run = impatient.start()
    world.settle()
    world.advance("2m")
    app.finish_step(tokens[0], "late")
    world.settle()
    run.send("go")
    assert run.result() == "without"


def test_mistakes_are_told(world: TestApp) -> None:
    run = produce.start("heidi")
    world.settle()
    for bad in (tokens[0][:-2] + "xx", "", "nonsense"):
        with pytest.raises(StepTokenError, match="altered"):
            app.finish_step(bad)
    with pytest.raises(ArgumentError, match="give an exception, or its text"):
        app.fail_step(tokens[0], 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="give a number"):
        app.beat_step(tokens[0], "much")  # type: ignore[arg-type]

    @app.step(name="writer", max_retries=0)
    async def writer() -> None:
        wf.set_data("x", 1)
        await emit("Written")
        this_step.hand_over()

    with pytest.raises(Exception, match="set data and then handed over"):
        writer.start().result()

    @app.workflow(name="asks")
    async def asks() -> str:
        waiting = hook("approval")
        wf.set_data("token", waiting.token)
        return str(await waiting)

    asked = asks.start()
    with pytest.raises(StepTokenError, match="of something else than a step"):
        app.finish_step(asked.wait_data("token"), 1)
    asked.cancel()
    run.cancel()
    world.settle()


def test_outside_a_run_a_step_that_hands_over_is_a_plain_function() -> None:
    assert asyncio.run(render("x")) == "this is nobody's"


@pytest.mark.parametrize("how", ["finish", "fail"])
def test_whoever_has_the_token_may_be_faster_than_the_function_that_gave_it_away(how: str) -> None:
    app = App("early", ":memory:")
    told = threading.Event()

    @app.step(max_retries=0, timeout=None)
    def pay() -> str:
        token = this_step.hand_over()
        if how == "finish":
            app.finish_step(token, "paid")
        else:
            app.fail_step(token, "no money")
        told.wait(5)  # until the run knows
        return ""

    with app.worker():
        run = pay.start()
        if how == "finish":
            assert run.result(timeout=10) == "paid"
        else:
            with pytest.raises(StepError, match="no money"):
                run.result(timeout=10)
        told.set()


def test_a_token_is_of_one_attempt_of_its_run(world: TestApp) -> None:
    """The steps of a composition have the same names in each."""
    film = chain(render_once.s("a"))
    run = film.start()
    world.settle()
    app.fail_step(tokens[0], "no film")
    with pytest.raises(StepError):
        run.result()
    run.retry()
    world.settle()
    assert len(tokens) == 2
    with pytest.raises(StepTokenError, match="before"):
        app.finish_step(tokens[0], "of the first attempt")
    app.finish_step(tokens[1], "rendered")
    assert run.result() == "rendered"


def test_a_token_that_was_not_used_is_of_no_use_to_the_next_attempt_of_the_run(world: TestApp) -> None:
    run = chain(render_once.s("a")).start()
    world.settle()
    world.advance("2h")
    with pytest.raises(StepTimeoutError):
        run.result()
    run.retry()
    world.settle()
    app.beat_step(tokens[0])
    app.finish_step(tokens[0], "of the first attempt")
    world.settle()
    assert run.status == "WAITING"
    app.finish_step(tokens[1], "rendered")
    assert run.result() == "rendered"
