from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast import App, this_step, wf
from holdfast.testing import TestApp


def make_app(store: str | None = None) -> App:
    app = App("streams", store)

    @app.step(retry_delay="1s")
    async def tokens(text: str) -> int:
        for word in text.split():
            this_step.stream(word)
        if this_step.attempt == 1:
            raise ConnectionError("the model went away")
        return len(text)

    @app.step
    def lines(count: int) -> None:
        for i in range(count):
            this_step.stream({"line": i})

    @app.workflow
    async def talk(text: str) -> int:
        wf.stream("begin")
        size = await tokens(text)
        lines(2)
        wf.stream(("end", size))
        return size

    return app


def test_items_of_steps_and_workflow_come_in_order_with_their_attempts() -> None:
    app = make_app()
    with TestApp(app):
        run = app.start("talk", "a b")
        run.result()
        items = [(item.number, item.item, item.attempt) for item in run.stream()]
    assert items == [
        (1, "begin", 1),
        (2, "a", 1),
        (3, "b", 1),
        (4, "a", 2),
        (5, "b", 2),
        (6, {"line": 0}, 1),
        (7, {"line": 1}, 1),
        (8, ("end", 3), 1),
    ]


def test_a_stream_resumes_after_a_number() -> None:
    app = make_app()
    with TestApp(app):
        run = app.start("talk", "a b")
        run.result()
        assert [item.number for item in run.stream(after=6)] == [7, 8]


def test_replay_streams_nothing_again() -> None:
    app = make_app()
    with TestApp(app) as world:
        run = app.start("talk", "a")
        run.result()
        before = len(list(run.stream()))
        world.replay(run)
        assert len(list(run.stream())) == before


def test_a_stream_is_followed_while_the_run_goes_on(tmp_path: Path) -> None:
    app = make_app(str(tmp_path / "s.db"))

    async def follow() -> list[object]:
        run = await app.astart("talk", "x y z")
        return [item.item async for item in run.stream()]

    with app.worker():
        items = asyncio.run(follow())
    app.close()
    assert items[0] == "begin"
    assert items[-1] == ("end", 5)


def test_outside_a_run_streaming_is_harmless() -> None:
    this_step.stream("x")
    wf.stream("y")
