"""Random workflow programs as plain data: one generic workflow executes them, and a plain evaluator says what has to come
out, whatever happens to engines meanwhile.

An operation is `[kind, ...]`. What a race decides is `OneOf` in the evaluator's answer. Failures are decided by the data
alone, so that they are expected ones.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast import App, FatalError, Limit, RetryableError, emit, hook, saga, sleep, this_step, wait_for_event, wf
from holdfast.errors import SagaFailed, StepTimeoutError, WorkerLostError

Op = list[Any]
NEWER = "newer"
NARROW = 1
"""So many steps, and so many runs, that are under a limit may be under way at once."""
MANY = 10_000
"""Losses that a step survives: how many there are is the simulation's doing, not the step's."""
SAID = 3
"""So many items are streamed by a step that streams."""


class Broken(FatalError):
    """How steps of these programs fail."""


def do(job: Any) -> str:
    """What every step does: its job says how often it fails before it succeeds."""
    fails = job["fails"]
    if fails < 0:
        raise Broken(f"broken {job['id']}")
    if this_step.attempt <= fails:
        raise RetryableError(f"not yet {job['id']}")
    return f"done {job['id']}"


def make_app(build: str = "one") -> App:
    """The app of one build. The second knows a workflow more."""
    app = App("simulated", ":memory:", version=build, keep_logs=None)
    again = {"max_retries": 3, "retry_delay": ["50ms", "2s", "0ms"], "max_losses": MANY, "timeout": None}

    @app.step(**again)
    def plain(job: Any) -> Any:
        return do(job)

    @app.step(**again)
    async def work(job: Any) -> Any:
        return do(job)

    @app.step(**again)
    def writes(job: Any) -> Any:
        wf.set_data(f"step {job['id']}", job["id"])
        return do(job)

    @app.step(**again, concurrency=NARROW)
    def narrow(job: Any) -> Any:
        return do(job)

    @app.step(**again, limits=[Limit("paced", rate_limit="5/s"), Limit(concurrency=1, key=lambda job: job["id"] % 2)])
    async def paced(job: Any) -> Any:
        return do(job)

    @app.step(at_most_once=True, timeout=None)
    def once(job: Any) -> Any:
        return do(job)

    @app.step(**again | {"timeout": "1s"})
    def hasty(job: Any) -> Any:
        return do(job)

    @app.step(**again)
    async def talks(job: Any) -> Any:
        for number in range(SAID):
            this_step.stream(number)
        return do(job)

    @app.step(**again)
    def emits(job: Any, key: str) -> Any:
        wf.emit("Ping", {"key": key}, key=key)
        return do(job)

    @app.step(**again)
    async def undo(result: str) -> Any:
        return f"undone {result}"

    async def code(op: Op, last: int = 0, generation: int = 0) -> Any:
        result = await run(op, f"{generation}")
        if generation < last:
            wf.continue_as_new(op, last, generation + 1)
        return result

    program = app.workflow(name="program")(code)
    if build == "two":
        app.workflow(name=NEWER)(code)

    @app.on("Ping")
    @app.workflow
    async def pinged(ping: Any) -> Any:
        return await work({"id": 0, "fails": 0}) and ping["key"]

    @app.workflow
    def ticked() -> Any:
        assert wf.scheduled_at is not None
        return round(wf.scheduled_at.timestamp())

    @app.workflow
    def plain_program(op: Op) -> Any:
        return wf.wait(run(op, "0"))

    @app.workflow(concurrency=NARROW)
    async def narrow_program(op: Op) -> Any:
        return await run(op, "0")

    async def run(op: Op, where: str) -> Any:
        kind, *rest = op
        return await operations[kind](where, *rest)

    async def _step(where: str, name: str, job: Any) -> Any:
        if name in ("plain", "narrow"):
            return plain(job) if name == "plain" else narrow(job)
        if name == "paced":
            return await paced(job)
        if name == "writes":
            return [writes(job), wf.get_data(f"step {job['id']}")]
        return await work(job)

    async def _once(where: str, job: Any) -> Any:
        try:
            return once(job)
        except WorkerLostError:
            return "lost"

    async def _hasty(where: str, job: Any) -> Any:
        try:
            return hasty(job)
        except StepTimeoutError:
            return "took too long"

    async def _stream(where: str, job: Any) -> Any:
        wf.stream("before")
        found = await talks(job)
        wf.stream("after")
        return found

    async def _emit(where: str, job: Any) -> Any:
        key = f"{wf.identity.workflow_id} {where} {job['id']}"
        await emit("Ping", {"key": key}, key=key)
        return emits(job, f"{key} step")

    async def _event(where: str, name: str) -> Any:
        return (await wait_for_event("News", where={"name": f"{name} {where}"}))["says"]

    async def _seq(where: str, *ops: Op) -> Any:
        return [await run(op, where) for op in ops]

    async def _gather(where: str, *ops: Op) -> Any:
        found = await asyncio.gather(*(run(op, where) for op in ops), return_exceptions=True)
        return [f"error {each}" if isinstance(each, Exception) else each for each in found]

    async def _fan(where: str, jobs: list[Any]) -> Any:
        return await asyncio.gather(*(narrow.submit(job) if job["id"] % 3 == 0 else work(job) for job in jobs))

    async def _race(where: str, *ops: Op) -> Any:
        tasks = [asyncio.ensure_future(run(op, where)) for op in ops]
        try:
            done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return next(task.result() for task in tasks if task in done)

    async def _timeout(where: str, seconds: float, op: Op) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await run(op, where)
        except TimeoutError:
            return "late"

    async def _try(where: str, op: Op, handler: Op) -> Any:
        try:
            return await run(op, where)
        except Exception as error:
            return [f"error {error}", await run(handler, where)]

    async def _sleep(where: str, seconds: float) -> Any:
        await sleep(seconds)
        return "slept"

    async def _hook(where: str, name: str) -> Any:
        return await hook(f"{name} {where}")

    async def _data(where: str, key: str, value: Any, op: Op) -> Any:
        wf.set_data(f"{key} {where}", value)
        found = await run(op, where)
        return [found, wf.get_data(f"{key} {where}")]

    async def _child(where: str, op: Op) -> Any:
        return await program(op)

    async def _plain_child(where: str, op: Op) -> Any:
        return plain_program(op)

    async def _narrow_child(where: str, op: Op) -> Any:
        return await narrow_program(op)

    async def _saga(where: str, jobs: list[Any], op: Op) -> Any:
        try:
            async with saga() as steps:
                for job in jobs:
                    await steps.step(work, job, compensate=undo)
                return await run(op, where)
        except SagaFailed as failed:
            raise Broken(str(failed.__cause__)) from failed

    operations = {
        "step": _step, "once": _once, "seq": _seq, "gather": _gather, "fan": _fan, "race": _race, "timeout": _timeout,
        "try": _try, "sleep": _sleep, "hook": _hook, "data": _data, "child": _child, "plain child": _plain_child,
        "narrow child": _narrow_child, "saga": _saga, "hasty": _hasty, "stream": _stream, "emit": _emit, "event": _event,
    }  # fmt: skip
    return app


# -- what has to come out


@dataclass
class OneOf:
    """What a race decides."""

    choices: list[Any]


class Fails(Exception):
    """The operation fails with that message."""


def expected(op: Op) -> Any:
    """What the operation gives; raises Fails if it fails."""
    kind, *rest = op
    match kind:
        case "step":
            done = expect_job(rest[1])
            return [done, rest[1]["id"]] if rest[0] == "writes" else done
        case "once":
            return OneOf([expect_job(rest[0]), "lost"])
        case "hasty":
            return OneOf([expect_job(rest[0]), "took too long"])
        case "stream" | "emit":
            return expect_job(rest[0])
        case "event":
            return f"news of {rest[0]}"
        case "seq":
            return [expected(each) for each in rest]
        case "gather":
            return [_or_error(each) for each in rest]
        case "fan":
            return [expect_job(job) for job in rest[0]]
        case "race":
            return OneOf([expected(each) for each in rest])
        case "timeout":
            return OneOf([expected(rest[1]), "late"])
        case "try":
            try:
                return expected(rest[0])
            except Fails as error:
                return [f"error {error}", expected(rest[1])]
        case "sleep":
            return "slept"
        case "hook":
            return f"answer to {rest[0]}"
        case "data":
            return [expected(rest[2]), rest[1]]
        case "child" | "plain child" | "narrow child":
            return expected(rest[0])
        case "saga":
            for job in rest[0]:
                expect_job(job)
            return expected(rest[1])
    raise AssertionError(kind)


def expect_job(job: Any) -> str:
    if job["fails"] < 0:
        raise Fails(f"broken {job['id']}")
    return f"done {job['id']}"


def _or_error(op: Op) -> Any:
    try:
        return expected(op)
    except Fails as error:
        return f"error {error}"


def matches(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, OneOf):
        return any(matches(found, choice) for choice in wanted.choices)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(matches, found, wanted))
    return bool(found == wanted)


def hooks_of(op: Any) -> list[str]:
    """The names of all hooks that a program may wait for in the run itself, without its children."""
    if not isinstance(op, list) or not op or op[0] in ("child", "plain child", "narrow child"):
        return []
    if op[0] == "hook":
        return [op[1]]
    return [name for each in op[1:] for name in hooks_of(each)]


def events_of(op: Any) -> list[str]:
    """The names of all domain events that a program may wait for, as its children do."""
    if not isinstance(op, list) or not op:
        return []
    if op[0] == "event":
        return [op[1]]
    return [name for each in op[1:] for name in events_of(each)]


# -- drawing


class Generator:
    """Draws programs. What races may fail only in ways that are caught, so that the data alone decides."""

    def __init__(self, chance: Random, start: int = 0) -> None:
        self._chance = chance
        self._numbers = itertools.count(start)
        self._timeouts = 0

    def program(self) -> tuple[Op, int]:
        """An operation, and how often it continues as new."""
        return self._op(3, may_fail=True, hooks=True), self._chance.choice((0, 0, 0, 0, 1, 2))

    def _job(self, may_fail: bool) -> Any:
        fails = self._chance.choice((0, 0, 0, 0, 0, 1, 2, 3))
        if may_fail and self._chance.random() < 0.12:
            fails = -1
        return {"id": next(self._numbers), "fails": fails}

    def _op(self, depth: int, may_fail: bool, hooks: bool) -> Op:
        chance = self._chance
        if depth == 0 or chance.random() < 0.25:
            return self._leaf(may_fail, hooks)
        match chance.choice(("seq", "seq", "gather", "fan", "race", "timeout", "try", "data", "child", "saga", "saga")):
            case "seq":
                return ["seq", *(self._op(depth - 1, may_fail, hooks) for _ in range(chance.randint(1, 4)))]
            case "gather":
                return ["gather", *(self._op(depth - 1, may_fail, hooks) for _ in range(chance.randint(1, 4)))]
            case "fan":
                return ["fan", [self._job(may_fail=False) for _ in range(chance.randint(1, 6))]]
            case "race":
                return ["race", *(self._op(depth - 1, False, hooks) for _ in range(chance.randint(2, 3)))]
            case "timeout":
                self._timeouts += 1
                op = self._op(depth - 1, False, hooks)
                self._timeouts -= 1
                return ["timeout", chance.choice((0.0, 0.2, 2.0, 15.0)), op]
            case "try":
                return ["try", self._op(depth - 1, True, hooks), self._op(depth - 1, may_fail, hooks)]
            case "data":
                return ["data", f"key {next(self._numbers)}", next(self._numbers), self._op(depth - 1, may_fail, hooks)]
            case "child":
                kind = chance.choice(("child", "child", "plain child", "narrow child"))
                if kind == "narrow child":  # one in another would wait for a slot that its parent has
                    return [kind, self._leaf(may_fail, hooks=False)]
                return [kind, self._op(depth - 1, may_fail, hooks=False)]
            case _ if self._timeouts > 1:
                # The second of two timeouts that end during a roll-back is known to cancel what comes after it.
                return self._leaf(may_fail, hooks)
            case _:
                jobs = [self._job(may_fail) for _ in range(chance.randint(1, 3))]
                return ["saga", jobs, self._op(depth - 1, may_fail, hooks)]

    def _leaf(self, may_fail: bool, hooks: bool) -> Op:
        chance = self._chance
        kinds = ("step", "step", "step", "step", "once", "once", "sleep", "hook", "hasty", "stream", "emit", "event")
        match chance.choice(kinds):
            case "once" | "hasty" as kind:
                return [kind, {"id": next(self._numbers), "fails": 0}]
            case "stream" | "emit" as kind:
                return [kind, self._job(may_fail)]
            case "event":
                return ["event", f"event {next(self._numbers)}"]
            case "sleep":
                return ["sleep", chance.choice((0.0, 0.01, 0.5, 3.0, 20.0))]
            case "hook" if hooks:
                return ["hook", f"hook {next(self._numbers)}"]
            case _:
                return ["step", chance.choice(("plain", "work", "writes", "narrow", "paced")), self._job(may_fail)]
