"""Random public calls with random odd arguments, against a live worker. The law: a clear error at the call or a recorded
outcome; never a dead worker, never a run that can't be ended and deleted.

What is called is what the package shows, not a list: see `subjects`. A seed repeats everything:
`HOLDFAST_SEED=17 pytest tests/faults/test_odd_calls.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import inspect
import logging
import os
import random
import re
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import odd_values
import pytest
from odd_values import Odd, OddError, OddSignal

import holdfast
from holdfast import (
    App,
    Checkpointed,
    Dag,
    HoldfastError,
    Saga,
    Schedule,
    Status,
    chain,
    chord,
    define_hook,
    every,
    group,
    hook,
    saga,
    signature,
    sleep,
    start_child_workflow,
    this_step,
    wait_for_event,
    wf,
)
from holdfast.engine.host import Host
from holdfast.engine.settings import Settings
from holdfast.printing import printable, show

HERE = Path(__file__).name
SEEDS = [int(os.environ["HOLDFAST_SEED"])] if "HOLDFAST_SEED" in os.environ else None
LONG = 20.0
# What ends the world that the calls are made in, waits for ever by its nature, or is made for other layers.
LEFT_OUT = {
    "App": {
        "client", "close", "lifespan", "load", "make_engine", "notifier", "store", "use_store", "worker",
        "codec", "definitions", "storage", "run_canvas", "start_run", "encode_by_name", "define_step", "define_workflow",
    },
    "Codec": {"check_call", "encode_error_value", "error_text", "hints_for", "join_call", "join_dict", "join_list", "plain"},
    "Canvas": {"app"},
    "wf": {"wait"},
}  # fmt: skip
PLAUSIBLE: dict[str, list[Any]] = {
    "name": ["work", "flow", "approval", "tick", "Paid", "order"], "reason": ["", "because"], "timeout": [0.01, "10ms"],
    "key": ["k", None], "id": ["a", "b", "c"], "run_id": ["a", "b", "c"], "at": [1, 2], "delay": [0, 0.01], "limit": [10],
    "status": [None, "RUNNING"], "schedule": [every("1h"), "@daily"], "interval": ["1h"], "duration": [0, 0.001],
    "event": ["Paid"], "when": ["@daily", every("1h")], "tz": ["UTC"],
    "start": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)], "priority": [0, 3],
    "if_exists": ["return", "restart"], "max_retries": [0], "queue": ["", "q"], "payload": [None, 1, {"a": 1}], "size": [2],
    "items": [[1, 2], [(1,), (2,)]], "args": [(), (1,)], "kwargs": [None, {}], "replace": [None], "input": [None, (1,)],
    "after": [0, None], "depends_on": [()], "data": [None, {"k": 1}], "where": [None, {"a": 1}], "batch": [100], "count": [2],
    "done": [1], "value": [1], "what": ["value"], "signature": [None], "hint": [Any], "item": [1], "change": ["c"],
    "context": [{}], "apart": [False, True],
}  # fmt: skip

SETTLED = {"what", "signature", "hint", "apart"}
"""What other layers say, and no user."""


def _closed(found: Any) -> Any:
    """A coroutine that nobody will await is returned all the same, but complains of nothing later."""
    if inspect.iscoroutine(found):
        found.close()
    return found


class World:
    """An app with a live worker, and calls of everything that it and the package offer."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.odd = Odd(self.chance)
        self.app = App(f"odd{seed}", f"{folder / 'odd.db'}?sync=normal")
        self.scripts: dict[int, Callable[[], Any]] = {}
        self.calls: list[str] = []
        self.unclear: list[str] = []
        self._define()

    def _define(self) -> None:
        app, scripts = self.app, self.scripts

        @app.step(max_retries=0, timeout="2s")
        def work(value: Any = None) -> Any:
            return value

        @app.step(max_retries=1, retry_delay=0, timeout="2s")
        def odd_step(number: int) -> Any:
            return _closed(scripts[number]())

        @app.step(max_retries=0, timeout="2s")
        async def odd_async_step(number: int) -> Any:
            found = scripts[number]()
            return await asyncio.wait_for(found, 0.05) if inspect.isawaitable(found) else found

        @app.workflow
        async def odd_flow(number: int) -> Any:
            found = scripts[number]()
            if inspect.isawaitable(found):
                return await asyncio.wait_for(found, 0.05)
            return found

        @app.workflow
        def odd_plain_flow(number: int) -> Any:
            return _closed(scripts[number]())

        @app.workflow
        async def flow(value: Any = None) -> Any:
            await hook("approval", timeout="1d")
            return value

        @app.on("Paid")
        @app.workflow
        async def on_paid(payload: Any) -> Any:
            return await wait_for_event("Packed", timeout="1d")

        @app.workflow
        async def good(number: int) -> int:
            return await total(number) + work(number)  # type: ignore[no-any-return]

        @app.step
        async def total(number: int) -> int:
            return number

        self.work, self.flow, self.good = work, flow, good
        self.probes = [odd_step, odd_async_step, odd_flow, odd_plain_flow]
        self.dag = Dag("odd-dag", app=app)
        self.dag.add_step("one", work)
        self.saga = Saga("odd-saga", app=app)
        self.saga.add_step("one", work)
        self.listed = Checkpointed("odd-list", [("one", work)], app=app)
        self.decision = define_hook(f"decision-{self.seed}", int)

    # -- what there is to call

    def subjects(self) -> dict[str, Any]:
        """Everything in a user's hands, by name: anew each time, as runs come and go."""
        some = [*self.app.runs(limit=5), self.flow.start(1)]
        run = self.chance.choice(some)
        schedules = self.app.schedules
        found = {
            "App": self.app, "Run": run, "Schedules": schedules, "step": self.work, "workflow": self.flow, "wf": wf,
            "this_step": this_step, "options": self.flow.options(), "Signature": self.work.s(1), "Codec": self.app.codec,
            "chain": self.work.s(1) | self.work.s(), "group": group(self.work.s(1)), "Dag": self.dag, "Saga": self.saga,
            "chord": chord([self.work.s(1)], self.work.s()), "Checkpointed": self.listed, "hook": self.decision,
        }  # fmt: skip
        infos = schedules.list()
        if infos:
            found["ScheduleInfo"] = infos[0]
        return found

    def callables(self) -> list[tuple[str, Callable[..., Any]]]:
        """Every public method and property of the subjects, and every public function and class that a user calls."""
        found: list[tuple[str, Callable[..., Any]]] = []
        for name, subject in self.subjects().items():
            left_out = set().union(*(names for kind, names in LEFT_OUT.items() if kind in _kinds(name, subject)))
            for member in dir(type(subject)):
                if member in left_out or (member.startswith("_") and member != "__call__"):
                    continue
                if isinstance(inspect.getattr_static(type(subject), member), property):
                    found.append((f"{name}.{member}", _read(subject, member)))
                elif callable(getattr(type(subject), member)):
                    found.append((f"{name}.{member}", getattr(subject, member)))
        functions = [
            Schedule, every, chain, group, chord, hook, sleep, signature, define_hook, wait_for_event, start_child_workflow,
            holdfast.emit, holdfast.use, saga,
        ]  # fmt: skip
        found += [(function.__name__, function) for function in functions]
        found += [("Dag", lambda name=None, **more: Dag(name, app=self.app, **more))]
        found += [("Saga", lambda name=None, **more: Saga(name, app=self.app, **more))]
        return found

    def call(self) -> tuple[str, Callable[[], Any]]:
        """A call, with its arguments chosen: what it is in words, and how it is made."""
        name, function = self.chance.choice(self.callables())
        args, kwargs = self._arguments(function)
        shown = [*(show(arg) for arg in args), *(f"{key}={show(value)}" for key, value in kwargs.items())]
        return printable(f"{name}({', '.join(shown)})"), lambda: function(*args, **kwargs)

    def _arguments(self, function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        oddest = self.chance.random()  # how much of the call is odd: one bad argument gets further than five
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += [self._argument(name, oddest) for _ in range(self.chance.choice([0, 0, 1, 2]))]
            elif parameter.kind is parameter.VAR_KEYWORD:
                if self.chance.random() < 0.2:
                    kwargs[self.chance.choice(["x", "value", "\ud800", "id", "delay"])] = self._argument(
                        "value", oddest
                    )
            elif parameter.kind is parameter.KEYWORD_ONLY:
                if parameter.default is parameter.empty or self.chance.random() < 0.4:
                    kwargs[name] = self._argument(name, oddest)
            elif not kwargs and (
                parameter.default is parameter.empty or self.chance.random() < 0.6 or name == "timeout"
            ):
                args.append(self._argument(name, oddest))
            elif name == "timeout":
                kwargs[name] = self._argument(name, oddest)
        return args, kwargs

    def _argument(self, name: str, oddest: float) -> Any:
        if name in PLAUSIBLE and (name in SETTLED or self.chance.random() > oddest):
            return self.chance.choice(PLAUSIBLE[name])
        if name in ("function", "workflow", "handler", "action") and self.chance.random() > oddest:
            return self.chance.choice([self.work, self.flow, "work", "flow"])
        return self.odd.value()

    # -- making calls

    def call_outside(self) -> None:
        what, make = self.call()
        if what.partition("(")[0].rpartition(".")[2] in WAITING and not _is_short(what):
            return
        self._made(what, make)

    def call_inside(self) -> None:
        """The same from the code of a step or of a workflow: whatever comes of it is that run's outcome."""
        kind = self.chance.choice(["call", "call", "give", "raise"])
        if kind == "call":
            what, make = self.call()
        elif kind == "give":
            value = self.odd.value()
            what, make = f"return {show(value)}", lambda: value
        else:
            error = self.odd.failure()
            what, make = f"raise {type(error).__name__}", lambda: _raise(error)
        number = len(self.scripts)
        self.scripts[number] = make
        probe = self.chance.choice(self.probes)
        if what.startswith(("wf.sleep(", "Run.result(", "Run.aresult(")) and not _is_short(what):
            return
        self._made(f"{probe.name}: {what}", lambda: probe.options(id=f"probe-{number}").start(number))

    def _made(self, what: str, make: Callable[[], Any]) -> None:
        self.calls.append(what)
        is_own = what.startswith(("Run.result(", "Run.aresult(", "Run.get("))  # which raise what the run has raised
        try:
            found = make()
            if self.odd.has_made(found):
                return
            if inspect.iscoroutine(found):
                found = asyncio.run(_within(found))
            elif inspect.isawaitable(found) and hasattr(found, "close"):
                found.close()
        except HoldfastError as error:
            if not str(error) and not is_own:
                self.unclear.append(f"{what}: an error without a word")
        except (Exception, OddSignal) as error:
            if not _is_clear(error) and not is_own:
                self.unclear.append(f"{what}: {printable(''.join(traceback.format_exception(error)[-2:]))}")

    # -- the law

    def check(self, engine: Host) -> None:
        assert engine.failure is None, f"the worker ended: {engine.failure!r}"
        assert self.good.start(3).result(timeout=LONG) == 6

    def end_everything(self) -> None:
        """Every run can be looked at, ended and deleted."""
        deadline = time.monotonic() + 3 * LONG
        for run in self.app.runs(limit=100_000):
            _ = (
                run.status,
                run.reason,
                run.history(),
                run.steps,
                run.logs(),
                run.data,
                run.status_history(),
                run.children(),
            )
        left = list(self.app.runs(limit=100_000))
        asked: set[str] = set()
        while left:
            assert time.monotonic() < deadline, (
                f"can't be ended: {[(run.id, run.status, run.reason) for run in left[:5]]}"
            )
            for run in list(left):
                with contextlib.suppress(holdfast.RunNotFoundError):
                    # What was started by a name that nobody knows can be deleted, but nobody can cancel it.
                    if run.status.is_final or "no live worker" in run.reason:
                        try:
                            run.delete()
                        except holdfast.RunError:  # its worker is about to let it go
                            continue
                    else:
                        if run.id not in asked or run.status in (Status.STUCK, Status.PAUSED):
                            asked.add(run.id)
                            with contextlib.suppress(holdfast.RunFinishedError):
                                run.cancel("the test is over")
                        continue
                left.remove(run)
            left += [run for run in self.app.runs(limit=100_000) if run not in left]
            time.sleep(0.02)


def _kinds(name: str, subject: object) -> set[str]:
    return {name, *(base.__name__ for base in type(subject).__mro__)}


def _read(subject: Any, member: str) -> Callable[[], Any]:
    return lambda: [getattr(subject, member)]


def _raise(error: BaseException) -> Any:
    raise error


WAITING = {
    *("result", "aresult", "get", "ask", "aask", "wait_data", "await_data", "start_and_ask", "astart_and_ask", "sleep")
}
"""What may wait as long as it is told to."""


def _is_short(what: str) -> bool:
    """Whether it waits no longer than a moment: with a time of ours, or with one that is refused."""
    before = ("timeout=",) if "timeout=" in what else ("(", ", ")
    times = ("0.01", "'10ms'", "0)", "0.001", "None)", "-", "'x'", "nan")
    if what.startswith(("Run.result", "Run.aresult", "Run.get", "wf.sleep")):
        before = ("(",)
    else:
        times = times[:2]  # of ours
    return any(place + time in what for place in before for time in times)


async def _within(coroutine: Any) -> Any:
    with contextlib.suppress(TimeoutError):
        return await asyncio.wait_for(coroutine, 1)


def _is_clear(error: BaseException) -> bool:
    """What is no error of ours has to be Python's word on the call itself, a word of ours on a duration, or what a value
    did that was asked for its items."""
    if isinstance(error, TimeoutError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    last = Path(frames[-1].filename)
    if isinstance(error, OddError | OddSignal):
        shown = [frame.filename for frame in frames if Path(frame.filename).name not in ("reprlib.py", "odd_values.py")]
        return str(error) in ("__iter__", "__len__") or "/asyncio/" in shown[-1]  # which shows what tasks give
    if not isinstance(error, TypeError | ValueError | LookupError | RuntimeError) or isinstance(error, UnicodeError):
        return False
    if isinstance(error, TypeError) and re.search(r"\(\) (got an unexpected|got multiple|missing|takes) ", str(error)):
        return True
    return last.name in (HERE, "durations.py", odd_values.__name__ + ".py")


# -- the tests


@contextlib.contextmanager
def live(world: World) -> Iterator[Host]:
    """A worker on a thread of its own. What it says is not of interest: that it lives is."""
    logging.getLogger("holdfast").setLevel(logging.CRITICAL + 1)
    engine = world.app.make_engine(settings=Settings(sweep=0.1, park_after=0.05, blocked_after=1.0))
    engine.start()
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        yield engine
    finally:
        engine.stop(2)
        thread.join(20)
        engine.store.close()
        world.app.close()
        world.odd.close()
        logging.getLogger("holdfast").setLevel(logging.NOTSET)
    assert not thread.is_alive()
    assert engine.failure is None


def torment(folder: Path, seed: int, calls: int) -> None:
    world = World(folder, seed)
    try:
        with warnings.catch_warnings(), live(world) as engine:
            warnings.simplefilter("ignore")  # of coroutines that were odd values, and are nobody's
            for number in range(calls):
                world.chance.choice([world.call_outside, world.call_outside, world.call_inside])()
                if number % 50 == 49:
                    world.check(engine)
            world.check(engine)
            world.end_everything()
            world.check(engine)
            assert not world.unclear, "\n\n".join(world.unclear[:20])
    except BaseException as error:
        error.add_note(f"HOLDFAST_SEED={seed}, after {len(world.calls)} calls, the last: {world.calls[-3:]}")
        raise


@pytest.mark.parametrize("seed", SEEDS or [1, 2])
def test_no_call_ends_a_worker_or_leaves_a_run_that_nobody_can_end(tmp_path: Path, seed: int) -> None:
    torment(tmp_path, seed, 150)


@pytest.mark.torture
@pytest.mark.parametrize("seed", SEEDS or range(100, 140))
def test_no_call_of_very_many_does(tmp_path: Path, seed: int) -> None:
    torment(tmp_path, seed, 1_500)
