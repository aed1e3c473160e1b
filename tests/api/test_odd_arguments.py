"""Values that people hand over are checked where they do: an error names the argument, what was given and what is
expected, and nothing is written. tests/faults/test_odd_calls.py draws such calls at random."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    EncodeError,
    HoldfastError,
    Run,
    Schedule,
    Status,
    define_hook,
    every,
    hook,
    this_step,
    wf,
)
from holdfast.durations import LONGEST, to_us
from holdfast.testing import TestApp

HALF = os.fsdecode(b"caf\xe9")  # what a file's name may be: half of a surrogate pair is in it


class Hostile:
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    __str__ = __eq__ = __hash__ = __bool__ = __repr__  # type: ignore[assignment]


OF_RUNS: list[tuple[str, Callable[[Run[Any]], Any]]] = [
    ("reason=None", lambda run: run.pause(None)),
    ("reason=5", lambda run: run.cancel(5)),
    ("reason='\\\\ud800'", lambda run: run.cancel("\ud800")),
    ("reason='a\\\\x00b'", lambda run: run.cancel("a\0b")),
    ("reason=<unprintable Hostile>", lambda run: run.pause(Hostile())),
    (r"send\(None\): give the hook a name", lambda run: run.send(None, 1)),
    (r"send\(5\): give the hook a name", lambda run: run.send(5, 1)),
    (r"send\(''\): give the hook a name", lambda run: run.send("", 1)),
    (r"send\('\\udc", lambda run: run.send("\udce9", 1)),
    (r"send\('x'\): key=5: a key is a text of 1 to 200", lambda run: run.send("x", 1, key=5)),
    ("key=''", lambda run: run.send("x", 1, key="")),
    ("at='1': give a number", lambda run: run.fork("1")),
    ("at=None", lambda run: run.fork_reruns(None)),
    ("at=1000000000000000000000000000000", lambda run: run.fork(10**30)),
    (r"replace=\[\]: give a dict", lambda run: run.fork(1, replace=[])),
    ("a key of replace='x'", lambda run: run.fork(1, replace={"x": 1})),
    ("input='x': give a tuple", lambda run: run.fork(1, input="x")),
    ("id='a b': an id is a text", lambda run: run.fork(1, id="a b")),
    ("after=-1", lambda run: run.stream(after=-1)),
    ("timeout: cannot read 'soon'", lambda run: run.result("soon")),
]


@pytest.mark.parametrize(("words", "call"), OF_RUNS)
def test_what_is_done_to_a_run_is_checked_before_the_run_hears_of_it(
    app: App, words: str, call: Callable[[Run[Any]], Any]
) -> None:
    @app.workflow
    async def flow() -> Any:
        return await hook("go")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        before = world.kinds(run)
        with pytest.raises(ArgumentError, match=words):
            call(run)
        world.settle()
        assert world.kinds(run) == before
        assert run.status == "WAITING"
        run.send("go", 1)
        assert run.result() == 1


OF_APPS: list[tuple[str, Callable[[App], Any]]] = [
    ("run_id=None", lambda app: app.get_run(None)),
    (r"run_id='\\ud800' has a NUL or half of a surrogate pair", lambda app: app.get_run("\ud800")),
    ("run_id=''", lambda app: app.get_run("")),
    ("limit=1000000000000000000000000000000", lambda app: app.runs(limit=10**30)),
    ("limit=True", lambda app: app.runs(limit=True)),
    ("after=-1: give the cursor of a page", lambda app: app.runs(after=-1)),
    ("after=1000000000000000000000000000000", lambda app: app.runs(after=10**30)),
    ("status=5: give one of PENDING", lambda app: app.runs(status=5)),
    (r"status=\[1\]: give one of", lambda app: app.runs(status=[[1]])),
    ("workflow=5", lambda app: app.runs(workflow=5)),
    ("parent='", lambda app: app.runs(parent=HALF)),
    ("since='x': give a datetime", lambda app: app.runs(since="x")),
    (r"data=\[\]: give a dict", lambda app: app.runs(data=[])),
    ("a key of data=5", lambda app: app.runs(data={5: 1})),
    ("token=5: give the text", lambda app: app.send_hook(5, 1)),
    ("key=5", lambda app: app.send_hook(key=5)),
    (r"send_hook\(5\): give the hook a name", lambda app: app.send_hook(key="k", name=5)),
    ("event None: the name of an event", lambda app: app.emit(None)),
    (r"event '\\ud800'", lambda app: app.emit("\ud800")),
    ("event 'Paid', key=5", lambda app: app.emit("Paid", key=5)),
    ("id=5", lambda app: app.trace(5)),
    ("batch=0", lambda app: app.gc(0)),
    ("name=None", lambda app: app.start(None)),
    (r"name=\[\]", lambda app: app.start([])),
    ("name=<unprintable Hostile>", lambda app: app.start(Hostile())),
    ("name=5", lambda app: app.schedules.get(5)),
    ("reason=None", lambda app: app.schedules.pause("x", None)),
    ("name='a", lambda app: app.schedules.resume("a\0b")),
    ("start='x'", lambda app: app.schedules.backfill("x", "x")),
    ("url=5", lambda app: app.use_store(5)),
    ("concurrency='x'", lambda app: app.make_engine(concurrency="x")),
    ("id=5: an id is", lambda app: app.step(name="s")(lambda: 1).options(id=5)),
    ("priority=1000000000000000000000000000000", lambda app: app.step(name="s")(lambda: 1).options(priority=10**30)),
    ("max_retries=1000000000000000000000000000000", lambda app: app.step(max_retries=10**30)),
    ("queue='a b'", lambda app: app.step(queue="a b")),
    ("timeout: nan is not a finite duration", lambda app: app.step(timeout=float("nan"))),
    ("pool=<unprintable Hostile>: give 'thread' or 'process'", lambda app: app.step(pool=Hostile())),
    ("retry_for=5", lambda app: app.step(retry_for=5)),
    ("define_hook", lambda app: define_hook(5, int)),
    ("payload=5: give a type", lambda app: define_hook("x-five", 5)),
    ("tz=5 is no time zone", lambda app: Schedule("@daily", tz=5)),
    ("missed=5", lambda app: Schedule("@daily", missed=5)),
    ("anchor=5: give a datetime", lambda app: every("1h", anchor=5)),
    ("include=5", lambda app: App("other", include=5)),
    ("codec=5", lambda app: App("other", codec=5)),
]


@pytest.mark.parametrize(("words", "call"), OF_APPS)
def test_what_is_asked_of_an_app_is_checked_and_nothing_is_written(
    app: App, words: str, call: Callable[[App], Any]
) -> None:
    with pytest.raises((ArgumentError, DefinitionError), match=words):
        call(app)
    assert app.runs() == []


IN_CODE: list[tuple[str, Callable[[], Any]]] = [
    ("wf.set_data: key='caf", lambda: wf.set_data(HALF, 1)),
    ("wf.set_data: key='a", lambda: wf.set_data("a\0b", 1)),
    ("wf.get_data: key=", lambda: wf.get_data([])),
    ("event 5: the name", lambda: wf.emit(5)),
]


@pytest.mark.parametrize(("words", "call"), IN_CODE)
@pytest.mark.parametrize("place", ["step", "workflow"])
def test_the_code_of_a_run_is_refused_at_its_own_call_and_the_worker_lives(
    app: App, words: str, call: Callable[[], Any], place: str
) -> None:
    @app.step(max_retries=0)
    def by_step() -> Any:
        return call()

    @app.workflow
    def by_workflow() -> Any:
        return call()

    @app.workflow
    def good() -> int:
        return 5

    with TestApp(app):
        run: Run[Any] = by_step.start() if place == "step" else by_workflow.start()
        with pytest.raises(HoldfastError, match=words):
            run.result()
        assert run.status == Status.FAILURE
        assert good.start().result() == 5


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("done=None", lambda: this_step.progress(None)),
        ("total=nan", lambda: this_step.progress(1, float("nan"))),
        ("note=5", lambda: this_step.progress(1, 2, 5)),
        ("a streamed item|an item streamed", lambda: this_step.stream(object())),
    ],
)
def test_what_a_step_tells_on_its_way_is_checked_where_it_tells_it(
    app: App, words: str, call: Callable[[], Any]
) -> None:
    @app.step(max_retries=0)
    def work() -> None:
        call()

    with TestApp(app), pytest.raises((ArgumentError, EncodeError), match=words):
        work.start().result()


def test_a_workflow_that_returns_json_of_its_own_can_not_damage_its_history(app: App) -> None:
    @app.workflow
    def flow() -> Any:
        return msgspec.Raw(b"{")

    with TestApp(app):
        run = flow.start()
        with pytest.raises(EncodeError, match="Raw"):
            run.result()
        assert [event.kind for event in run.history()][-1] == "RunFailed"


@pytest.mark.parametrize("long", [1e14, 1e308, 10**400, "9" * 400 + "d", dt.timedelta.max])
def test_a_duration_longer_than_anybody_will_wait_is_as_good_as_never(app: App, long: Any) -> None:
    @app.workflow(timeout=long)
    async def flow() -> Any:
        return await hook("go", timeout=long)

    assert to_us(long) == LONGEST
    with TestApp(app) as world:
        run = flow.options(delay=0).start()
        world.settle()
        assert run.status == "WAITING"
        assert run.history()[-1].detail["expires"].year > 6000
        later = flow.options(delay=long).start()
        world.settle()
        assert later.status == "PENDING"


def test_what_a_step_logs_is_made_printable(app: App) -> None:
    quiet = logging.getLogger(f"odd.{HALF}")
    quiet.propagate = False  # pytest's own handlers can't write it
    quiet.addHandler(logging.NullHandler())

    @app.step
    def work() -> None:
        quiet.warning("half a %s, and \0", HALF)

    with TestApp(app):
        run = work.start()
        run.result()
        (logs,) = run.logs()
        assert logs.lines[0].message == r"half a caf\udce9, and \0"
        assert logs.lines[0].logger == r"odd.caf\udce9"
