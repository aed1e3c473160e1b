"""Bad input gets a clear error and loses nothing. Each message says what happened, where, and what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    DeadlockError,
    EncodeError,
    NeverAwaitedError,
    Run,
    RunCancelledError,
    RunStuckError,
    Status,
    StoreBusyError,
    StoreFullError,
    StoreReadOnlyError,
    StoreSchemaError,
    StoreUnavailableError,
    emit,
    hook,
    sleep,
    start_child_workflow,
    wf,
)
from holdfast.api.options import NO_OPTIONS
from holdfast.engine.settings import Settings
from holdfast.executors import loops as loops_module
from holdfast.stores import ground
from holdfast.stores.intercom import Intercom
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing import TestApp

QUICK = Settings(sweep=0.05, unknown_after=0.1, blocked_after=0.3)


def line_of(function: Callable[..., Any], text: str) -> str:
    """Where in this file `text` stands within a function, as messages show it."""
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    return f"{__file__}:{first + next(n for n, line in enumerate(lines) if text in line)}"


# -- arguments and results


def test_arguments_that_cannot_be_recorded_are_refused_at_the_call(app: App) -> None:
    @app.workflow
    def flow(order: Any, **more: Any) -> None: ...

    with TestApp(app):
        with pytest.raises(EncodeError) as caught:
            flow.start({"items": [{"lock": threading.Lock()}]})
        text = str(caught.value)
        assert text.startswith("the arguments of workflow 'flow': order.items[0].lock: ")
        assert "_thread.lock" in text
        with pytest.raises(EncodeError, match=r"handle"):
            flow.start(1, handle=open)
        assert app.runs() == []


def test_arguments_of_a_step_are_refused_at_its_call_in_the_workflow(app: App) -> None:
    @app.step
    def work(value: Any) -> None: ...

    @app.workflow
    def flow() -> None:
        work({"f": lambda: 1})

    with TestApp(app) as world:
        with pytest.raises(EncodeError, match=r"the arguments of step 'work': value\.f: .*function"):
            flow.start().result()
        assert world.calls(work) == []


def test_a_step_that_was_not_awaited_is_named_where_its_result_was_meant(app: App) -> None:
    @app.step
    async def fetch() -> int:
        return 1

    @app.step
    def charge(amount: int) -> int:
        return amount

    @app.workflow
    async def flow() -> int:
        return charge(fetch())  # type: ignore[arg-type]

    with TestApp(app):
        with pytest.raises(
            EncodeError, match=r"'charge': amount: <step 'fetch', to be awaited> .*; await it .*, and record"
        ):
            flow.start().result()


def test_a_result_that_cannot_be_recorded_fails_the_step_once_and_names_the_path(app: App) -> None:
    @app.step(max_retries=5)
    def work() -> Any:
        return {"rows": [1, {"file": object()}]}

    @app.workflow
    def flow() -> None:
        work()

    with TestApp(app) as world:
        with pytest.raises(EncodeError, match=r"the result of step 'work': \$\.rows\[1\]\.file: .*object"):
            flow.start().result()
        assert len(world.calls(work)) == 1, "it would be the same again"


def test_a_workflows_own_result_is_checked_too(app: App) -> None:
    @app.workflow
    def flow() -> Any:
        return [1, {2, object()}]

    with TestApp(app):
        run = flow.start()
        with pytest.raises(EncodeError, match=r"the result of workflow 'flow': \$\[1\]"):
            run.result()
        assert run.status == "FAILURE"


def test_a_value_that_contains_itself_is_refused(app: App) -> None:
    @app.workflow
    def flow(rows: list[Any]) -> None: ...

    rows: list[Any] = [1]
    rows.append(rows)
    with pytest.raises(EncodeError, match=r"refers back to .*a value can't contain itself"):
        flow.start(rows)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'order'"),
        (("o", 1, 2), {}, "too many positional arguments"),
        (("o",), {"colour": "red"}, "got an unexpected keyword argument 'colour'"),
        (("o",), {"order": "p"}, "multiple values for argument 'order'"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call_by_signature(
    app: App, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    @app.workflow
    def fulfil(order: str, express: bool = False) -> None: ...

    @app.step
    def work(order: str, express: bool = False) -> None: ...

    @app.workflow
    def caller() -> None:
        work(*args, **kwargs)

    shown = r"\(order: 'str', express: 'bool' = False\) -> 'None': " + words
    with TestApp(app) as world:
        with pytest.raises(ArgumentError, match=rf"workflow fulfil{shown}"):
            fulfil.start(*args, **kwargs)
        with pytest.raises(ArgumentError, match=rf"step work{shown}"):
            work.start(*args, **kwargs)
        assert app.runs() == []
        with pytest.raises(ArgumentError, match=rf"step work{shown}"):
            caller.start().result()
        assert world.calls(work) == []


def test_an_argument_that_its_annotation_does_not_accept_fails_the_step(app: App) -> None:
    @app.step(max_retries=2)
    def work(n: int) -> int:
        return n

    @app.workflow
    def flow() -> int:
        return work("five")  # type: ignore[arg-type]

    with TestApp(app) as world:
        with pytest.raises(ValueError, match=r"n: .*int.*'five'"):
            flow.start().result()
        assert world.calls(work) == []


def test_an_input_that_its_annotation_does_not_accept_is_refused_at_the_start(app: App) -> None:
    @app.workflow
    def flow(n: int, *, prices: dict[str, float] | None = None) -> tuple[int, Any]:
        return n, prices

    with TestApp(app):
        refused = r"^the arguments of workflow 'flow': n: expected int, got 'five' of type str$"
        with pytest.raises(ArgumentError, match=refused):
            flow.start("five")  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"'flow': prices: expected .*'a lot'"):
            flow.options(id="f").start(5, prices={"tea": "a lot"})  # type: ignore[dict-item]
        with pytest.raises(ArgumentError, match=r"the arguments of 'flow': n: expected int"):
            app.start("flow", [5])
        assert app.runs() == []
        assert flow.start(5, prices={"tea": 1}).result() == (5, {"tea": 1.0}), "what can be converted is"


def test_an_input_of_another_version_that_does_not_fit_fails_the_run(app: App) -> None:
    @app.workflow
    def flow(n: int) -> int:
        return n

    with TestApp(app):
        run = app.start_run("flow", app.codec.encode_call(("five",), {}), NO_OPTIONS)
        with pytest.raises(ArgumentError, match=r"n: expected int, got 'five' of type str$"):
            run.result()
        assert run.status == "FAILURE"


# -- code that workers don't know


def two_versions(app: App, **options: Any) -> tuple[App, App]:
    """The same app on the same store before and after a deployment."""
    old = App("shop", app.store_url, version="1", **options)
    new = App("shop", app.store_url, version="2", **options)
    return old, new


def test_a_run_that_no_worker_knows_is_set_aside_with_the_names_they_know(app: App) -> None:
    old, new = two_versions(app)

    @old.workflow
    def fulfil() -> None: ...

    @new.workflow(name="fulfil")
    def same() -> None: ...

    @new.workflow
    def refund() -> str:
        return "refunded"

    run = refund.start()
    assert run.status == "PENDING"
    with old.worker(settings=QUICK):
        wait_until(lambda: run.status == Status.STUCK)
        assert run.reason == (
            "no live worker of app 'shop' knows 'refund'; known: fulfil. Start a worker whose code defines it, and the "
            "run goes on by itself"
        )
        with pytest.raises(RunStuckError, match=r"is stuck: no live worker of app 'shop' knows 'refund'") as caught:
            run.result(timeout=5)
        assert caught.value.run_id == run.id
        assert caught.value.reason == run.reason
        with new.worker(settings=QUICK):
            wait_until(lambda: run.status == "SUCCESS")
            assert run.result(timeout=5) == "refunded"
    old.close()
    new.close()


def test_a_step_that_the_worker_does_not_know_sets_the_run_aside(app: App) -> None:
    @app.step
    def first() -> str:
        return "first"

    @app.step
    def second() -> str:
        return "second"

    @app.workflow
    def flow() -> list[str]:
        return [first(), second()]

    known = dict(app.definitions.steps)
    del app.definitions.steps["second"]
    run = flow.start()
    with app.worker(settings=QUICK):
        wait_until(lambda: run.status == Status.STUCK)
        assert "no step named 'second' in app 'shop'; known: first" in run.reason
        app.definitions.steps.update(known)
        run.resume()
        assert run.result(timeout=10) == ["first", "second"]


# -- code that changed


def test_code_that_diverged_is_set_aside_and_shows_both_sides(app: App) -> None:
    old, new = two_versions(app)
    for version, each in enumerate((old, new), 1):
        each.step(name="reserve")(lambda order: f"reserved {order}")
        each.step(name="charge")(lambda order: f"charged {order}")

        @each.workflow(name="fulfil")
        async def fulfil(order: str, *, app: App = each, version: int = version) -> list[Any]:
            steps = {name: _call(app, name) for name in ("reserve", "charge")}
            first = "reserve" if version == 1 else "charge"
            return [steps[first](order), await hook("go")]

    run = old.start("fulfil", "o1")
    with old.worker(settings=QUICK):
        wait_until(lambda: run.status == "WAITING")
    with new.worker(settings=QUICK):
        run.send("go", 1)
        wait_until(lambda: run.status == Status.STUCK)
        reason = run.reason
        assert f"the code of workflow 'fulfil' no longer fits the history of run {run.id}" in reason
        assert "the history has step 'reserve'" in reason
        assert "the code asks for step 'charge'" in reason
        assert f"{__file__}:" in reason
        assert "wf.patched(" in reason
        assert "resume the run" in reason
    with old.worker(settings=QUICK):
        assert run.result(timeout=10) == ["reserved o1", 1]
    assert [entry.status for entry in run.status_history()][-1] == "SUCCESS"
    old.close()
    new.close()


def _call(app: App, name: str) -> Callable[..., Any]:
    from holdfast.api.functions import SyncStep

    definition = app.definitions.find_step(name)
    return SyncStep(app, definition, definition.function)


def test_a_diverged_run_goes_on_when_it_is_resumed_after_the_code_was_mended(app: App) -> None:
    order = ["a", "b"]

    @app.step
    def work(name: str) -> str:
        return name

    @app.step
    def other(name: str) -> str:
        return name

    @app.workflow
    async def flow() -> list[Any]:
        found = work("x") if order[0] == "a" else other("x")
        await sleep("1h")
        return [found, work("y")]

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.pause()
        world.settle()
        order.reverse()
        run.resume()
        with pytest.raises(RunStuckError, match="no longer fits the history"):
            run.result()
        assert run.status == Status.STUCK
        kinds = world.kinds(run)
        order.reverse()
        run.resume()
        assert run.result() == ["x", "y"]
        assert kinds[-1] == "RunStuck"
        assert world.calls(work) == [("x",), ("y",)]
        assert world.calls(other) == []


def test_patched_lets_old_runs_keep_their_way(app: App) -> None:
    deployed: list[str] = []

    @app.step
    def work(name: str) -> str:
        return name

    @app.step
    def check() -> str:
        return "checked"

    @app.workflow
    async def flow() -> list[Any]:
        out = [work("a")]
        if deployed and wf.patched("check first"):
            out.append(check())
        await hook("go")
        return out

    with TestApp(app) as world:
        before = flow.start()
        world.settle()
        before.pause()
        world.settle()
        deployed.append("new code")
        before.resume()
        before.send("go")
        after = flow.start()
        after.send("go")
        assert before.result() == ["a"]
        assert after.result() == ["a", "checked"]


def test_a_stuck_run_can_be_cancelled_and_deleted(app: App) -> None:
    @app.workflow
    def flow() -> None:
        time.sleep(0.01)

    with TestApp(app, check_replay=False) as world:
        run = flow.start()
        with pytest.raises(RunStuckError):
            run.result()
        run.cancel("hopeless")
        with pytest.raises(RunCancelledError, match="cancelled while its code could not go on"):
            run.result()
        other = flow.start()
        world.settle()
        other.delete()
        assert app.runs() == [run]


# -- code that blocks


BLOCKING: dict[str, tuple[Callable[[], Any], str]] = {
    "a file": (lambda: os.close(os.open("/etc/hostname", os.O_RDONLY)), "opens a file ('/etc/hostname')"),
    "path": (lambda: Path("/etc/hostname").read_text(), "opens a file ('/etc/hostname')"),
    "a connection": (lambda: socket.create_connection(("127.0.0.1", 9)), "looks up a host ('127.0.0.1')"),
    "http": (lambda: urllib.request.urlopen("http://127.0.0.1:9/"), "looks up a host ('127.0.0.1')"),
    "a process": (lambda: subprocess.run(["true"]), "starts a process ('true')"),
    "a shell": (lambda: os.system("true"), "starts a process"),
    "a database": (lambda: sqlite3.connect("x.db"), "opens a database ('x.db')"),
    "time.sleep": (lambda: time.sleep(0.01), "sleeps (use `await sleep(...)` or `wf.sleep(...)`)"),
    "a thread": (lambda: threading.Thread(target=print).start(), "starts a thread"),
    "a listing": (lambda: os.listdir("/"), "reads a folder ('/')"),
    "glob": (lambda: list(Path("/").iterdir()), "reads a folder ('/')"),
    "removal": (lambda: os.remove("/nonexistent"), "removes a file ('/nonexistent')"),
    "mkdir": (lambda: os.mkdir("/nonexistent/x"), "makes a folder ('/nonexistent/x')"),
    "rename": (lambda: os.rename("/nonexistent", "/x"), "renames a file ('/nonexistent')"),
    "rmtree": (lambda: shutil.rmtree("/nonexistent"), "removes a folder ('/nonexistent')"),
    "input": (lambda: input("name? "), "waits for the keyboard ('name? ')"),
}


def test_io_in_a_library_is_shown_where_the_workflow_uses_it(app: App, tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("import os\n\ndef read(path):\n    return os.listdir(path)\n")
    namespace: dict[str, Any] = {"__name__": "library"}
    exec(compile(library.read_text(), library, "exec"), namespace)

    @app.workflow
    def flow() -> None:
        namespace["read"]("/etc")

    with TestApp(app):
        run = flow.start()
        with pytest.raises(RunStuckError):
            run.result()
        assert f"reads a folder ('/etc') at {line_of(flow.__wrapped__, 'namespace')} in flow" in run.reason


@pytest.mark.parametrize("what", BLOCKING)
def test_blocking_calls_and_io_in_workflow_code_set_the_run_aside_until_it_is_mended(app: App, what: str) -> None:
    block, words = BLOCKING[what]
    mended: list[bool] = []

    @app.step
    def work() -> str:
        return "work"

    @app.workflow
    def flow() -> str:
        found = work()
        if not mended:
            with contextlib.suppress(Exception):
                block()
        return found

    with TestApp(app) as world:
        run = flow.start()
        with pytest.raises(RunStuckError) as caught:
            run.result()
        assert run.status == Status.STUCK
        assert f"workflow code {words} at {__file__}:" in run.reason
        assert run.reason.endswith("it is replayed, so move this into a step, then resume the run")
        assert run.reason in str(caught.value)
        mended.append(True)
        run.resume()
        assert run.result() == "work"
        assert len(world.calls(work)) == 1


def test_the_same_calls_are_fine_in_steps_and_outside(app: App) -> None:
    @app.step
    def work() -> str:
        return Path("/etc/hostname").read_text() + str(len(os.listdir("/")) > 0)

    @app.step
    async def later() -> str:
        return await asyncio.to_thread(Path("/etc/hostname").read_text)

    @app.workflow
    async def flow() -> list[str]:
        return [work(), await later()]

    with TestApp(app):
        assert "True" in flow.start().result()[0]
        assert os.listdir("/")


def test_imports_logging_and_warnings_are_fine_in_workflow_code(app: App, caplog: pytest.LogCaptureFixture) -> None:
    import logging

    @app.workflow
    def flow() -> str:
        import colorsys

        logging.getLogger("shop").warning("in workflow code")
        return colorsys.__name__

    sys.modules.pop("colorsys", None)
    with TestApp(app):
        assert flow.start().result() == "colorsys"
    assert "in workflow code" in caplog.text


@pytest.mark.parametrize("call", ["to_thread", "run_in_executor", "open_connection", "create_subprocess"])
def test_threads_sockets_and_executors_of_asyncio_say_to_use_a_step(app: App, call: str) -> None:
    @app.workflow
    async def flow() -> None:
        if call == "to_thread":
            await asyncio.to_thread(print)
        elif call == "run_in_executor":
            await asyncio.get_running_loop().run_in_executor(None, print)
        elif call == "open_connection":
            await asyncio.open_connection("127.0.0.1", 9)
        else:
            await asyncio.create_subprocess_exec("true")

    with TestApp(app):
        with pytest.raises(RunStuckError, match=r"uses threads, connections or processes at .*test_bad_input.*in flow"):
            flow.start().result()


def test_code_that_does_not_yield_is_interrupted_and_named(app: App) -> None:
    mended: list[bool] = []

    @app.workflow
    async def spin() -> str:
        while not mended:
            pass
        return "yielded"

    @app.workflow
    async def bystander() -> str:
        await sleep("50ms")
        return "fine"

    with app.worker(settings=QUICK):
        run = spin.start()
        other = bystander.start()
        wait_until(lambda: run.status == Status.STUCK)
        assert "workflow code has not yielded for 0.3 s, at" in run.reason
        assert __file__ in run.reason
        assert "in spin" in run.reason
        assert "await something, or move the work into a step, then resume the run" in run.reason
        assert other.result(timeout=10) == "fine"
        mended.append(True)
        run.resume()
        assert run.result(timeout=10) == "yielded"


def test_code_that_waits_where_it_cannot_be_interrupted_is_named_in_the_log(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def flow() -> None:
        threading.Event().wait(1.0)

    with app.worker(settings=Settings(blocked_after=0.1)):
        run = flow.start()
        wait_until(lambda: run.status == Status.STUCK)
        assert "has not yielded for 0.1 s" in run.reason
        assert f"{__file__}:" in run.reason
    assert f"workflow code of run {run.id} holds up the whole worker" in caplog.text
    assert "restart the worker" in caplog.text


def test_code_that_blocks_while_it_is_replayed_is_told_so_and_fits_its_history(app: App) -> None:
    is_blocking = False

    @app.step
    def step(n: int) -> int:
        return n

    @app.workflow
    async def flow() -> int:
        first = step(1)
        while is_blocking:
            pass
        second = step(2)
        await hook("go on")
        return first + second

    run = flow.start()
    with app.worker():
        wait_until(lambda: run.reason == "hook 'go on'")
    is_blocking = True
    run.send("go on")
    with app.worker(settings=Settings(blocked_after=0.1)):
        wait_until(lambda: run.status == Status.STUCK)
        assert "has not yielded for 0.1 s" in run.reason
        is_blocking = False
        run.resume()
        assert run.result(timeout=10) == 3


def test_code_that_swallows_the_interruption_is_set_aside_even_so(app: App) -> None:
    interruptions: list[int] = []

    @app.workflow
    async def flow() -> None:
        while len(interruptions) < 3:
            try:
                while True:
                    pass
            except BaseException:
                interruptions.append(1)

    with app.worker(settings=Settings(blocked_after=0.1)):
        run = flow.start()
        wait_until(lambda: run.status == Status.STUCK)
        assert len(interruptions) == 3


# -- code that waits for nothing


def test_an_async_step_that_blocks_is_told_with_its_line(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops_module, "ANSWERS_WITHIN", 0.05)
    told = threading.Event()

    @app.step
    async def blocks() -> str:
        told.wait()
        return "done"

    @app.step
    async def waits() -> str:
        await asyncio.sleep(0.2)
        return "done"

    with app.worker(), caplog.at_level(logging.WARNING, "holdfast.executor"):
        assert waits.start().result() == "done"
        assert caplog.messages == []
        run = blocks.start()
        wait_until(lambda: caplog.messages)
        told.set()
        assert run.result() == "done"
    (message,) = caplog.messages
    place = line_of(blocks.__wrapped__, "told.wait")
    assert (
        f"async step 'blocks' of run {run.id} holds up all others of this worker, for 0.05 s or longer, at {place}"
        in message
    )


def test_awaits_that_were_mixed_up_are_explained_beside_pythons_own_words(app: App) -> None:
    @app.step
    async def fetch() -> int:
        return 1

    @app.step
    def count() -> int:
        return 1

    @app.workflow
    async def forgotten() -> int:
        return fetch() + 1  # type: ignore[operator]

    @app.workflow
    async def too_many() -> int:
        return await count()  # type: ignore[no-any-return, misc]

    with TestApp(app):
        with pytest.raises(TypeError) as caught:
            forgotten.start().result()
        place = line_of(forgotten.__wrapped__, "return")
        (note,) = caught.value.__notes__
        assert (
            note == f"step 'fetch' at {place} in forgotten was never awaited: what it gives is there only after `await`"
        )
        with pytest.raises(TypeError, match="await") as caught:
            too_many.start().result()
        assert caught.value.__notes__ == [
            "what is made from `def` is called, and what is made from `async def` is awaited"
        ]


def test_a_step_created_and_never_awaited_fails_the_run_with_the_line(app: App) -> None:
    @app.step
    async def charge() -> None: ...

    @app.workflow
    async def child() -> None: ...

    @app.workflow
    async def flow(what: str) -> str:
        if what == "step":
            charge()  # a step
        elif what == "sleep":
            sleep("1h")  # a sleep
        elif what == "hook":
            hook("approval")  # a hook
        elif what == "child":
            child()  # a child
        else:
            start_child_workflow(child)  # a start
        return "never noticed"

    with TestApp(app) as world:
        for what, shown in (
            ("step", "step 'charge'"),
            ("sleep", "sleep"),
            ("hook", "hook 'approval'"),
            ("child", "workflow 'child'"),
            ("start", "start_child_workflow(child)"),
        ):
            run = flow.start(what)
            with pytest.raises(NeverAwaitedError) as caught:
                run.result()
            place = line_of(flow.__wrapped__, f"# a {what}")
            assert (
                str(caught.value)
                == f"created and never awaited: {shown} at {place} in flow; await it, or don't create it"
            )
            assert run.status == "FAILURE"
        assert world.calls(charge) == []


def test_plain_code_that_forgets_to_wait_is_told_how_plain_code_waits(app: App) -> None:
    @app.workflow
    async def child() -> int:
        return 1

    @app.workflow
    def flow(right: bool) -> int | None:
        called = start_child_workflow(child)
        return wf.wait(called) if right else None

    with TestApp(app):
        with pytest.raises(NeverAwaitedError, match=r"wait for it with wf\.wait\(\.\.\.\)"):
            flow.start(False).result()
        assert flow.start(True).result() == 1


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("what", ["emit 'paid'", "sleep", "start_child_workflow(child)"])
def test_what_a_step_creates_and_never_awaits_fails_it_at_once(app: App, what: str, is_async: bool) -> None:
    @app.workflow
    async def child() -> None: ...

    def create() -> Any:
        if what == "sleep":
            return sleep(0)
        return emit("paid") if what == "emit 'paid'" else start_child_workflow(child)

    @app.step
    async def forgets() -> None:
        create()

    @app.step
    def forgets_plainly() -> None:
        create()

    step = forgets if is_async else forgets_plainly
    with TestApp(app):
        run = step.start()
        with pytest.raises(NeverAwaitedError) as caught:
            run.result()
        assert f"created and never awaited: {what} at {__file__}:" in str(caught.value)
        assert [step.attempts for step in run.steps] == [1]
        assert app.runs(workflow="child") == []


def test_what_a_step_awaits_later_or_waits_for_plainly_or_closes_is_not_forgotten(app: App) -> None:
    @app.workflow
    async def child() -> int:
        return 7

    @app.step
    async def later() -> int:
        sleep(1).close()
        pause, started = asyncio.create_task(sleep(0.01)), start_child_workflow(child)
        await asyncio.gather(pause, emit("paid", key="later"))
        return await started

    @app.step
    def plainly() -> int:
        wf.wait(sleep(0.01))
        asyncio.run(emit("paid", key="plainly"))
        return wf.wait(start_child_workflow(child))

    with app.worker(settings=QUICK):
        assert later.start().result(timeout=10) == 7
        assert plainly.start().result(timeout=10) == 7


def test_a_deadlocked_workflow_fails_with_the_stack_of_each_task(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        one, two = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            await two.wait()  # waits for second
            one.set()

        async def second() -> None:
            await one.wait()  # waits for first
            two.set()

        await asyncio.gather(asyncio.create_task(first(), name="first"), asyncio.create_task(second(), name="second"))

    with TestApp(app):
        run = flow.start()
        with pytest.raises(DeadlockError) as caught:
            run.result()
        text = str(caught.value)
        assert (
            f"run {run.id} waits for nothing that can happen: no step, timer, hook, request or child is outstanding"
            in text
        )
        for name in ("first", "second", "flow"):
            assert f"  {name}: " in text
        assert line_of(flow.__wrapped__, "# waits for second") in text
        assert line_of(flow.__wrapped__, "# waits for first") in text
        assert "/holdfast/" not in text.replace(__file__, "")


def test_a_deadlock_in_a_plain_call_shows_only_lines_of_users(app: App) -> None:
    @app.workflow
    def flow() -> None:
        wf.wait(asyncio.Event().wait())  # the line

    with TestApp(app):
        with pytest.raises(DeadlockError) as caught:
            flow.start().result()
        stack = next(line for line in str(caught.value).splitlines() if line.startswith("  flow: "))
        assert stack == f"  flow: {line_of(flow.__wrapped__, '# the line')} in flow"


def test_a_workflow_that_waits_for_a_future_that_nobody_sets_is_a_deadlock(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await asyncio.get_running_loop().create_future()

    with TestApp(app):
        with pytest.raises(DeadlockError):
            flow.start().result()


def test_a_wait_that_a_timer_can_end_is_no_deadlock(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return ""

    with TestApp(app):
        assert flow.start().result() == "timed out"


def test_an_error_in_a_background_task_is_not_lost(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.workflow
    async def flow() -> str:
        async def background() -> None:
            raise ValueError("nobody awaits me")

        asyncio.create_task(background())
        await sleep(1)
        return "done"

    with TestApp(app):
        assert flow.start().result() == "done"
        import gc

        gc.collect()
    assert "nobody awaits me" in caplog.text


# -- the store


def test_a_newer_schema_is_refused_with_what_to_do(app: App, tmp_path: Path) -> None:
    @app.workflow
    def flow() -> None: ...

    flow.start()
    app.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("UPDATE meta SET value = '9999' WHERE key = 'schema'")
        db.commit()
    with pytest.raises(
        StoreSchemaError, match=r"has schema 9999, this version of Holdfast knows \d+; upgrade Holdfast"
    ):
        flow.start()


def test_a_file_that_is_no_database_is_refused(app: App, tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("this is not a database, it is a text " * 100)

    @app.workflow
    def flow() -> None: ...

    with pytest.raises(StoreUnavailableError, match=r"is not a SQLite database .*; name another file"):
        flow.start()


def test_a_database_of_another_program_is_refused(app: App, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE runs (x)")
        db.commit()

    @app.workflow
    def flow() -> None: ...

    with pytest.raises(StoreSchemaError, match="is a database of another program; name another file"):
        flow.start()


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    app = App("shop", str(tmp_path / "nowhere" / "shop.db"))

    @app.workflow
    def flow() -> None: ...

    with pytest.raises(StoreUnavailableError, match=r"the folder .*nowhere doesn't exist; create it, or name another"):
        flow.start()


@pytest.mark.parametrize("url", ["mysql://me:secret@x", "redis://x"])
def test_a_store_that_is_not_there_yet_says_what_is(url: str) -> None:
    app = App("shop", url)
    with pytest.raises(
        StoreUnavailableError, match=r"knows SQLite files and PostgreSQL; give a path, sqlite:///path"
    ) as refused:
        app.runs()
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(app)


def test_an_address_with_a_slash_too_few_is_told_so() -> None:
    with pytest.raises(StoreUnavailableError, match=r"say sqlite:///orders\.db\?sync=normal$"):
        App("shop", "sqlite://orders.db?sync=normal").runs()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:5432/d", "postgresql://u:***@h:5432/d"),
        ("postgresql://u:se@cret@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:sec/ret@h/d", "postgresql://u:***@h/d"),
        (
            "postgresql://h/d?user=u&password=secret&sslpassword=secret&schema=s",
            "postgresql://h/d?user=u&password=***&sslpassword=***&schema=s",
        ),
        ("redis://:secret@h:6379/0", "redis://:***@h:6379/0"),
        ("postgresql://h:5432/d?user=a@b", "postgresql://h:5432/d?user=a@b"),
        ("a.db?sync=normal", "a.db?sync=normal"),
    ],
)
def test_addresses_are_shown_without_their_passwords(url: str, shown: str) -> None:
    assert repr(App("shop", url)) == f"<App 'shop' on {shown}>"


def test_a_store_that_cannot_be_written_says_so_and_loses_nothing(app: App, tmp_path: Path) -> None:
    @app.workflow
    def flow() -> str:
        return "done"

    run = flow.start()
    with app.store.write("test") as db:
        db.execute("PRAGMA query_only = ON")
    with pytest.raises(
        StoreReadOnlyError, match=r"shop\.db can't be written .*; make the file and its folder writable"
    ):
        flow.start()
    app.close()
    with app.worker():
        assert run.result(timeout=10) == "done"
    assert len(app.runs()) == 1


def test_a_store_that_is_full_says_so_and_loses_nothing(app: App) -> None:
    @app.workflow
    def flow(text: str) -> int:
        return len(text)

    run = flow.start("small")
    with app.store.write("test") as db:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreFullError, match=r"there is no room left for .*shop\.db .*; free some, runs go on"):
        flow.start("x" * 100_000)
    app.close()
    with app.worker():
        assert run.result(timeout=10) == 5
    assert len(app.runs()) == 1


def test_a_store_that_another_program_locks_says_so(app: App, tmp_path: Path) -> None:
    @app.workflow
    def flow() -> None: ...

    flow.start()
    app.close()
    impatient = SqliteStore("shop", str(tmp_path / "shop.db"), app.storage.clock, timeout=0.1)
    app.storage.opened = (impatient, Intercom())
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreBusyError, match=r"was locked by another program for 0\.1 s .*; close whatever has it open"
        ):
            flow.start()
        other.execute("ROLLBACK")
        flow.start()
        assert len(app.runs()) == 2


def test_a_store_on_a_network_mount_is_refused(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "_filesystem_of", lambda folder: "nfs4")
    with pytest.raises(
        StoreUnavailableError, match=r"is on a nfs4 mount, where SQLite's locks don't hold; put the file on"
    ):
        app.runs()


# -- names


SCRIPT = """
from __future__ import annotations

import sys
from dataclasses import dataclass
from holdfast import App

app = App("mainly", "m.db")


@dataclass
class Order:
    name: str


class PickyError(Exception):
    pass


@app.step(pool="process", max_retries=0)
def in_process(order: Order) -> Order:
    if order.name == "bad?":
        raise PickyError(order.name)
    return Order(order.name + "!")


@app.step
def add(order: Order) -> Order:
    return Order(order.name + "?")


@app.workflow
def flow(order: Order) -> Order:
    return in_process(add(order))


def main() -> None:
    with app.worker():
        result = flow.start(Order("a")).result(timeout=30)
        print(type(result) is Order, result.name)
        try:
            flow.start(Order("bad")).result(timeout=30)
        except PickyError as error:
            print("caught", error)


if __name__ == "__main__":
    if "twice" in sys.argv:
        import script  # defines everything a second time, under its own name

        assert script.flow is not flow
        script.main()
    else:
        main()
"""


@pytest.mark.parametrize("how", [["script.py"], ["script.py", "twice"], ["-m", "script"]], ids=" ".join)
def test_names_defined_in_main_are_found_by_their_own_process_and_by_importers(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["True a?!", "caught bad?"], done.stderr


def test_a_run_started_by_a_script_goes_on_in_a_worker_that_imports_it(tmp_path: Path) -> None:
    (tmp_path / "shop_script.py").write_text(
        textwrap.dedent(
            """
            from __future__ import annotations
            import sys
            from dataclasses import dataclass
            from holdfast import App

            app = App("scripted", "s.db")

            @dataclass
            class Order:
                name: str

            @app.workflow
            def flow(order: Order) -> Order:
                return Order(order.name + "!")

            if __name__ == "__main__":
                print(flow.options(id="one").start(Order("a")).id)
            """
        )
    )
    run = [sys.executable, "shop_script.py"]
    started = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert started.stdout.strip() == "one", started.stderr
    finish = (
        "import shop_script\n"
        "with shop_script.app.worker():\n"
        "    print(shop_script.app.get_run('one').result(timeout=20))\n"
    )
    ended = subprocess.run([sys.executable, "-c", finish], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == "Order(name='a!')", ended.stderr


def test_a_run_knows_nothing_of_a_worker_of_another_app_on_its_store(app: App) -> None:
    other = App("other", app.store_url)

    @app.workflow(name="flow")
    def ours() -> str:
        return "ours"

    @other.workflow(name="flow")
    def theirs() -> str:
        return "theirs"

    run: Run[str] = ours.start()
    with other.worker(settings=QUICK):
        with pytest.raises(TimeoutError, match="is PENDING"):
            run.result(timeout=0.4)
        assert theirs.start().result(timeout=10) == "theirs"
    with app.worker():
        assert run.result(timeout=10) == "ours"
    other.close()


@pytest.mark.parametrize("count", [0, -1, 2.5, "4", True])
def test_a_worker_that_could_execute_nothing_is_refused(app: App, count: Any) -> None:
    with pytest.raises(ArgumentError, match=r"concurrency=.*give a number of 1 or more"), app.worker(concurrency=count):
        pass
    with pytest.raises(ArgumentError, match="concurrency="):
        app.lifespan(concurrency=count)
    with pytest.raises(ArgumentError, match="processes="):
        app.make_engine(processes=count)
