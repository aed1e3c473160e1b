"""Async code that waits for many runs at once: one thread waits for all of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import wait_until

from holdfast import App, RunFinishedError, RunNotFoundError, WaitTimeoutError, WrongContextError, hook, wf
from holdfast.api import results, waiting_room
from holdfast.api.handles import Run
from holdfast.api.reading import RunReader


@pytest.fixture(params=["a file", "memory", "a server"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    if request.param == "a server":
        url = request.getfixturevalue("postgres_schemas")()
    else:
        url = ":memory:" if request.param == "memory" else str(tmp_path / "shop.db")
    app = App("shop", url)
    yield app
    app.close()


@pytest.fixture
def waits(app: App) -> Callable[[], Run[str]]:
    @app.workflow
    async def waits() -> str:
        answer: str = await hook("go")
        wf.set_data("said", answer)
        return answer

    return waits.start


def rooms() -> int:
    return sum(thread.name == "holdfast-wait" for thread in threading.enumerate())


def test_a_hundred_who_wait_have_one_thread_and_one_bell(
    app: App, waits: Callable[[], Run[str]], tmp_path: Path
) -> None:
    wait_until(lambda: rooms() == 0, 20)  # of a test before this one

    async def main() -> None:
        runs = [waits() for _ in range(100)]
        waiting = [asyncio.ensure_future(run.aresult()) for run in runs]
        waiting += [asyncio.ensure_future(run.await_data("said")) for run in runs]
        await asyncio.sleep(0)
        await asyncio.to_thread(wait_until, lambda: all(run.status == "WAITING" for run in runs), 20)
        assert rooms() == 1
        assert len([file for file in tmp_path.iterdir() if "-bell-" in file.name]) <= 2, "the worker's, and that of all"
        for number, run in enumerate(runs):
            await run.asend("go", str(number))
        assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [*map(str, range(100))] * 2

    with app.worker():
        asyncio.run(main())


def test_who_gives_up_or_has_no_more_time_leaves_the_others_waiting(app: App, waits: Callable[[], Run[str]]) -> None:
    async def main() -> None:
        run, other = waits(), waits()
        patient = asyncio.ensure_future(run.aresult())
        gives_up = asyncio.ensure_future(run.aresult())
        elsewhere = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(run.aresult())))  # in another loop
        with pytest.raises(WaitTimeoutError, match="ask again later"):
            await run.aresult(timeout="50ms")
        gives_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gives_up
        await other.asend("go", "other")
        assert await other == "other"
        assert not patient.done()
        await run.asend("go", "one")
        assert await asyncio.gather(patient, elsewhere) == ["one", "one"]

    with app.worker():
        asyncio.run(main())


def test_what_one_waits_for_in_vain_is_told_that_one(app: App, waits: Callable[[], Run[str]]) -> None:
    async def main() -> None:
        run, deleted, ends = waits(), waits(), waits()
        patient = asyncio.ensure_future(run.aresult())
        lost = asyncio.ensure_future(deleted.aresult())
        in_vain = asyncio.ensure_future(ends.await_data("never"))
        await deleted.apause("to be deleted")
        await asyncio.to_thread(wait_until, lambda: deleted.status == "PAUSED", 20)
        await deleted.adelete()
        with pytest.raises(RunNotFoundError):
            await lost
        await ends.asend("go", "x")
        with pytest.raises(RunFinishedError, match="without having published 'never'"):
            await in_vain
        await run.asend("go", "one")
        assert await patient == "one"

    with app.worker():
        asyncio.run(main())


def test_the_thread_goes_when_nobody_waits_and_comes_again(
    app: App, waits: Callable[[], Run[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: rooms() == 0, 20)  # of a test before this one
    monkeypatch.setattr(waiting_room, "STAYS", 0.01)
    with app.worker():
        for _ in range(3):
            run = waits()
            run.send("go", "on")
            assert asyncio.run(run.aresult()) == "on"
            wait_until(lambda: rooms() == 0, 20)


def test_those_who_can_not_be_told_of_runs_are_told_why(
    app: App, waits: Callable[[], Run[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waits()
    with monkeypatch.context() as broken, pytest.raises(OSError, match="no more files"):
        broken.setattr(app.notifier, "watch_many", lambda: (_ for _ in ()).throw(OSError("no more files")))
        asyncio.run(run.aresult())
    run.send("go", "on")
    with app.worker():
        assert asyncio.run(run.aresult()) == "on"


def test_a_thread_that_can_not_be_started_is_started_for_the_next(
    app: App, waits: Callable[[], Run[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waits()
    run.send("go", "on")
    wait_until(lambda: rooms() == 0, 20)  # of a test before this one
    with app.worker():
        assert run.result(timeout=20) == "on"
        with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="can't start new thread"):
            broken.setattr(
                threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread"))
            )
            asyncio.run(run.aresult())
        assert asyncio.run(run.aresult(timeout=20)) == "on"


def test_a_result_that_is_there_needs_neither_a_watch_nor_a_thread_of_the_pool(
    app: App, waits: Callable[[], Run[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = waits()
    run.send("go", "on")
    with app.worker():
        run.result(timeout=20)
    wait_until(lambda: rooms() == 0, 20)  # of a test before this one
    told = threading.Event()
    watch_many = app.notifier.watch_many
    monkeypatch.setattr(app.notifier, "watch_many", lambda: told.wait(60) and watch_many())

    async def main() -> str:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            loop.set_default_executor(pool)
            busy = loop.run_in_executor(None, told.wait, 60)
            found = await run.aresult(timeout=20)
            told.set()
            await busy
        return found

    assert asyncio.run(main()) == "on"


def test_a_store_that_does_not_answer_lets_nobody_wait_for_longer_than_they_want(
    app: App, waits: Callable[[], Run[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "AT_MOST_LATER", 0.05)
    runs, answers = [waits() for _ in range(5)], threading.Event()
    row = RunReader.row
    monkeypatch.setattr(RunReader, "row", lambda self, run: answers.wait(60) and row(self, run))

    async def main() -> list[str | BaseException]:
        waiting = [run.aresult(timeout="100ms") for run in runs]
        found = await asyncio.gather(*waiting, return_exceptions=True)
        answers.set()
        return found

    for error in asyncio.run(main()):
        assert isinstance(error, WaitTimeoutError)
        assert "in a state that its store can't be asked for now after 100ms" in str(error)


def test_a_handle_that_is_awaited_in_workflow_code_is_refused(app: App, waits: Callable[[], Run[str]]) -> None:
    handle = waits()

    @app.workflow
    async def awaits() -> str:
        return await handle

    with app.worker(), pytest.raises(WrongContextError, match="wait for it in a step, or start it as a child"):
        awaits.start().result(timeout=20)


def test_one_who_waits_for_several_runs_is_told_which_was_announced(app: App, waits: Callable[[], Run[str]]) -> None:
    with app.worker():
        one, two = waits(), waits()
        wait_until(lambda: one.status == two.status == "WAITING", 20)
        watches = app.notifier.watch_many()
        watches.add([one.id, two.id, "nobody"])
        wait_until(lambda: not watches.wait(0.1), 20)
        two.send("go", "on")
        rung: set[str] = set()
        wait_until(lambda: rung.update(watches.wait(1.0)) or two.id in rung, 20)
        assert rung == {two.id}
        watches.drop(one.id)
        one.send("go", "on")
        one.result(timeout=20)
        assert one.id not in watches.wait(0.1)
        threading.Timer(0.05, watches.wake).start()
        begun = time.monotonic()
        watches.wait(60)
        assert time.monotonic() - begun < 30
        watches.close()
