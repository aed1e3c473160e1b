"""A run is asked, and its workflow answers or refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import wait_until

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    RequestPayloadError,
    RequestRefusedError,
    RunFinishedError,
    WaitTimeoutError,
    WrongContextError,
    define_request,
    hook,
    sleep,
    wf,
)
from holdfast.testing import TestApp


@dataclass
class Item:
    name: str
    count: int


@dataclass
class Cart:
    items: list[Item]


add = define_request("cart.add", Item, Cart)
total = define_request("cart.total", None, int)
shown = define_request("cart.shown", None, int, data="count")
rename = define_request("cart.rename", str, str)
app = App("cart", ":memory:")


@app.step
async def check(name: str) -> bool:
    return name != "bad"


@app.workflow
async def cart() -> int:
    """Answers beside its main flow, which waits for the checkout."""
    items: list[Item] = []

    @add.handle
    async def _add(item: Item) -> Cart:
        if not await check(item.name):
            raise RequestRefusedError(f"nobody sells {item.name!r}")
        if item.count < 1:
            raise ValueError("count has to be 1 or more")
        items.append(item)
        wf.set_data("count", len(items))
        return Cart(list(items))

    @total.handle
    def _total() -> int:
        return sum(item.count for item in items)

    await hook("checkout")
    return sum(item.count for item in items)


@app.workflow
async def names(first: str) -> str:
    """Takes requests one at a time."""
    name = first
    async for request in rename:
        if request.payload == "end":
            request.answer(name)
            break
        if not request.payload:
            request.refuse("give a name")
            continue
        old, name = name, request.payload
        request.answer(old)
    return name


@pytest.fixture
def world() -> Iterator[TestApp]:
    with TestApp(app) as world:
        yield world


def test_a_handler_answers_beside_the_main_flow_and_may_use_steps(world: TestApp) -> None:
    run = cart.start()
    assert run.ask(add, Item("pen", 2)) == Cart([Item("pen", 2)])
    assert run.ask(add, Item("ink", 1)).items[1] == Item("ink", 1)
    assert run.ask(total) == 3
    run.send("checkout")
    assert run.result() == 3
    assert world.kinds(run).count("RequestReceived") == world.kinds(run).count("RequestAnswered") == 3


def test_a_refusal_reaches_whoever_asked_and_the_run_goes_on(world: TestApp) -> None:
    run = cart.start()
    with pytest.raises(RequestRefusedError, match=r"nobody sells 'bad'"):
        run.ask(add, Item("bad", 1))
    with pytest.raises(RequestRefusedError, match=r"refused request 'cart.add': ValueError: count has to be") as caught:
        run.ask(add, Item("pen", 0))
    assert isinstance(caught.value.__cause__, ValueError)
    assert run.ask(total) == 0


def test_a_loop_takes_requests_one_after_the_other_and_those_that_came_early(world: TestApp) -> None:
    run = names.options(delay="1h").start("a")
    assert [run.ask(rename, text) for text in ("b", "c")] == ["a", "b"]
    with pytest.raises(RequestRefusedError, match=r"^give a name$"):
        run.ask(rename, "")
    assert run.ask("cart.rename", "end") == "c"
    assert run.result() == "c"


def test_the_same_id_asks_once_and_gets_the_same_answer_even_after_the_end(world: TestApp) -> None:
    run = names.start("a")
    assert run.ask(rename, "b", id="r1") == "a"
    assert run.ask(rename, "c", id="r1") == "a"
    run.ask(rename, "end")
    assert run.result() == "b"
    assert run.ask(rename, "b", id="r1") == "a"
    with pytest.raises(RunFinishedError, match=r"request 'cart.rename' can't be asked: run .* has ended"):
        run.ask(rename, "d")


def test_payloads_are_checked_before_anything_is_sent(world: TestApp) -> None:
    run = cart.start()
    with pytest.raises(RequestPayloadError, match=r"request 'cart.add' takes Item"):
        run.ask("cart.add", {"name": "pen"})
    with pytest.raises(RequestPayloadError, match=r"takes no payload"):
        run.ask("cart.total", 1)
    assert run.ask("cart.add", {"name": "pen", "count": 2}) == Cart([Item("pen", 2)])
    assert run.ask("cart.total") == 2


def test_what_was_published_answers_without_waking_the_run(world: TestApp) -> None:
    run = cart.start()
    run.ask(add, Item("pen", 2))
    before = world.kinds(run)
    assert run.ask(shown) == 1
    run.send("checkout")
    run.result()
    assert run.ask(shown) == 1
    assert world.kinds(run)[: len(before)] == before
    assert "cart.shown" not in [event.name for event in run.history()]


def test_an_answer_that_takes_too_long_can_be_had_later(world: TestApp) -> None:
    @app.workflow(name="late_answer")
    async def late_answer() -> None:
        await sleep("1d")
        (await rename.next()).answer("at last")

    run = late_answer.start()
    with pytest.raises(TimeoutError, match=r"has not answered request 'cart.rename' within .*ask again with id='r7'"):
        run.ask(rename, "x", id="r7", timeout=0)
    assert run.ask(rename, "x", id="r7") == "at last"


def test_a_run_that_ends_without_an_answer_says_so(world: TestApp) -> None:
    @app.workflow(name="deaf")
    async def deaf() -> None:
        await sleep("1h")

    with pytest.raises(RunFinishedError, match=r"has ended \(SUCCESS\) without an answer to request 'cart.total'"):
        deaf.start().ask(total)


def test_waiting_for_a_request_ends_with_its_timeout_and_loses_none(world: TestApp) -> None:
    @app.workflow(name="patient")
    async def patient() -> list[str]:
        seen = []
        for _ in range(2):
            try:
                request = await rename.next(timeout="1h")
            except TimeoutError as error:
                seen.append(str(error))
            else:
                request.answer(request.payload)
                seen.append(request.payload)
        return seen

    run = patient.start()
    world.advance("61m")
    assert run.ask(rename, "x") == "x"
    assert run.result() == ["nobody asked 'cart.rename' within 1h", "x"]


def test_start_and_ask_starts_one_run_and_asks_it_again_if_it_is_there(world: TestApp) -> None:
    first, had = names.options(id="n").start_and_ask(rename.of("b"), "a")
    second, then = names.options(id="n").start_and_ask(rename.of("c"), "a")
    assert (first, had, then) == (second, "a", "b")
    assert world.kinds(first)[:2] == ["RunStarted", "RequestReceived"]
    with pytest.raises(RequestPayloadError):
        names.options(id="unborn").start_and_ask(rename.of(3), "a")  # type: ignore[arg-type]
    assert [run.id for run in app.runs()] == ["n"]


def test_async_callers_ask_too(world: TestApp) -> None:
    async def caller() -> None:
        run, had = await names.astart_and_ask(rename.of("b"), "a")
        assert had == "a"
        assert await run.aask(rename, "c") == "b"

    asyncio.run(caller())


def test_a_step_that_is_tried_again_asks_the_same(world: TestApp) -> None:
    run = names.options(id="asked").start("a")

    @app.step(name="asker", retry_delay=0)
    def asker() -> str:
        had = app.get_run("asked").ask(rename, "b")
        if len(world.calls("asker")) == 1:
            raise ConnectionError("after it was answered")
        return had

    assert asker.start().result() == "a"
    assert len(world.calls("asker")) == 2
    assert world.kinds(run).count("RequestReceived") == 1


def test_requests_are_carried_over_when_a_run_continues_as_new(world: TestApp) -> None:
    @app.workflow(name="generations")
    async def generations(n: int) -> int:
        @total.handle
        async def slow() -> int:
            await sleep("1d")
            return n

        if n < 2:
            await hook("next")
            wf.continue_as_new(n + 1)
        return (await rename.next()) and n

    run = generations.start(0)
    world.settle()
    with pytest.raises(TimeoutError):
        run.ask(total, id="t", timeout=0)
    with pytest.raises(TimeoutError):
        run.ask(rename, "x", id="r", timeout=0)
    world.settle()
    run.send("next")
    run.send("next")
    world.settle()
    world.advance("2d")
    assert run.result() == 2
    with pytest.raises(RunFinishedError):
        run.ask(total, id="t")


def test_a_handler_that_was_under_way_is_asked_again_by_the_next_generation(world: TestApp) -> None:
    @app.workflow(name="renewed")
    async def renewed(n: int) -> None:
        @total.handle
        async def slow() -> int:
            await sleep("1d")
            return n

        await hook("next")
        wf.continue_as_new(n + 1)

    run = renewed.start(0)
    with pytest.raises(TimeoutError):
        run.ask(total, id="t", timeout=0)
    world.settle()
    run.send("next")
    world.settle()
    assert run.ask(total, id="t") == 1
    run.cancel()
    world.settle()


def test_a_handler_that_wants_to_continue_as_new_is_told_how(world: TestApp) -> None:
    @app.workflow(name="renews_itself")
    async def renews_itself(n: int) -> None:
        @total.handle
        def renew() -> int:
            wf.continue_as_new(n + 1)

        await hook("end")

    run = renews_itself.start(0)
    with pytest.raises(RequestRefusedError, match=r"can't continue as new, as it runs beside the main flow"):
        run.ask(total)
    run.send("end")
    run.result()


def test_a_retried_run_is_told_again_what_it_was_asked_and_answers_stand(world: TestApp) -> None:
    @app.workflow(name="retried", max_retries=1)
    async def retried() -> str:
        request = await rename.next()
        request.answer(f"{request.payload} in attempt {wf.attempt}")
        await hook("go")
        if wf.attempt == 1:
            raise ValueError("once")
        return request.payload

    run = retried.start()
    assert run.ask(rename, "x", id="r") == "x in attempt 1"
    run.send("go")
    assert run.result() == "x"
    assert run.ask(rename, "x", id="r") == "x in attempt 1"


def test_a_plain_workflow_waits_with_wf_wait(world: TestApp) -> None:
    @app.workflow(name="plain")
    def plain() -> str:
        request = wf.wait(rename.next())
        request.answer("plainly")
        return request.payload

    run, said = plain.start_and_ask(rename.of("x"))
    assert (said, run.result()) == ("plainly", "x")


def test_mistakes_are_told_where_they_are_made(world: TestApp) -> None:
    with pytest.raises(WrongContextError, match=r"works in a run"):
        rename.next()
    with pytest.raises(DefinitionError, match=r"use another name, or define each for its own app"):
        define_request("cart.rename", int, int)
    with pytest.raises(DefinitionError, match=r"there is no payload"):
        define_request("x", int, int, data="x")  # type: ignore[call-overload]

    @app.workflow(name="twice")
    async def twice() -> None:
        request = await rename.next()
        request.answer("a")
        request.answer("b")

    run, _ = twice.start_and_ask(rename.of("x"))
    with pytest.raises(WrongContextError, match=r"was answered already"):
        run.result()

    @app.workflow(name="fast", durable=False)
    async def fast() -> None:
        return None

    with pytest.raises(WrongContextError, match=r"durable=False"):
        fast.start_and_ask(rename.of("x"))
    with pytest.raises(ArgumentError, match=r"start_and_ask with debounce="):
        names.options(id="n", debounce="1s").start_and_ask(rename.of("x"), "a")


def test_an_app_has_requests_of_its_own(tmp_path: Path) -> None:
    other = App("other", ":memory:")
    mine = other.define_request("cart.rename", int, int)

    @other.workflow
    async def doubles() -> None:
        async for request in mine:
            request.answer(2 * request.payload)

    with TestApp(other):
        run = doubles.start()
        assert run.ask("cart.rename", 4) == 8
        with pytest.raises(RequestPayloadError, match=r"takes int"):
            run.ask("cart.rename", "x")


# -- from run to run


def test_a_workflow_sends_to_another_run_once_however_often_it_is_replayed(world: TestApp) -> None:
    @app.workflow(name="taker")
    async def taker() -> list[int]:
        return [await hook("number", key="k") for _ in range(2)]

    @app.workflow(name="giver")
    async def giver(to: str) -> None:
        await wf.send(to, "number", 1, key="k")
        await sleep("1d")
        await wf.send(to, "number", 2, key="k")

    taken = taker.start()
    given = giver.start(taken.id)
    given.result()
    assert taken.result() == [1, 2]
    assert world.kinds(given).count("HookSent") == 2
    assert world.kinds(taken).count("HookReceived") == 2


def test_an_attempt_that_is_tried_again_sends_only_what_it_had_not_sent(world: TestApp) -> None:
    @app.workflow(name="collector")
    async def collector() -> list[object]:
        return [await hook("thing") for _ in range(4)]

    @app.workflow(name="stumbler", max_retries=1)
    async def stumbler(to: str) -> None:
        for thing in ("a", "a", "b"):
            await wf.send(to, "thing", thing)
        if wf.attempt == 1:
            raise ValueError("after three")
        await wf.send(to, "thing", "a")

    collected = collector.start()
    stumbler.start(collected.id).result()
    assert collected.result() == ["a", "a", "b", "a"]


def test_what_can_not_be_delivered_is_told_to_the_sender(world: TestApp) -> None:
    @app.workflow(name="hopeful")
    async def hopeful(to: str) -> None:
        await wf.send(to, "number", 1)
        await sleep("1d")

    @app.workflow(name="brief")
    async def brief() -> None:
        return None

    ended = brief.start()
    ended.result()
    for target in ("nobody", ended.id):
        run = hopeful.start(target)
        run.result()
        (dropped,) = [event for event in run.history() if event.kind == "MessageDropped"]
        assert dropped.detail["message"] == f"hook 'number' to run {target}"
        assert dropped.detail["reason"] == "there is no such run, or it has ended"


def test_a_send_to_oneself_and_to_a_child_just_started_arrives(world: TestApp) -> None:
    @app.workflow(name="listening_child")
    async def listening_child() -> int:
        return int(await hook("number"))

    @app.workflow(name="sending_parent")
    async def sending_parent() -> list[int]:
        child = listening_child.submit()
        await wf.send(child.id, "number", 1)
        await wf.send(wf.identity.workflow_id, "number", 2)
        return [await child, await hook("number")]

    assert sending_parent.start().result() == [1, 2]


def test_sending_outside_a_workflow_says_how_it_is_done_there(world: TestApp) -> None:
    with pytest.raises(WrongContextError, match=r"app.get_run\(run_id\).send"):
        wf.send("x", "number", 1)

    @app.step(name="sender", max_retries=0)
    async def sender() -> None:
        await wf.send("x", "number", 1)

    with pytest.raises(WrongContextError, match=r"a step sends with app.get_run"):
        sender.start().result()


def test_a_request_that_was_put_back_is_for_one_that_waits_already() -> None:
    app = App("two", ":memory:")

    @app.workflow
    async def server() -> str:
        await hook("begin")

        async def take(who: str) -> str:
            request = await rename.next()
            request.answer(f"{who} has {request.payload}")
            return who

        first, second = asyncio.create_task(take("first")), asyncio.create_task(take("second"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    with app.worker():
        run = server.start()
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(lambda: run.ask(rename, "a name", timeout=20))
            wait_until(lambda: "RequestReceived" in [event.kind for event in run.history()])
            run.send("begin")
            assert asked.result() == "second has a name"
        assert run.result(timeout=10) == "second"


def test_a_request_that_nothing_defines_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shop = App("shop", str(tmp_path / "shop.db"))

    @shop.workflow
    async def flow() -> None:
        total.handle(lambda: 5)
        await hook("checkout")

    with shop.worker(), caplog.at_level(logging.WARNING, "holdfast"):
        run = flow.start()
        assert run.ask("cart.total", timeout=10) == 5
        assert not caplog.records
        with pytest.raises(WaitTimeoutError) as caught:
            run.ask("cart.totl", timeout="100ms")
    shop.close()
    told = "no request 'cart.totl' is defined in this program, so look at the name; known: "
    for text in (str(caught.value), caplog.text):
        assert told in text
        assert "cart.add, " in text


def test_a_request_that_only_the_workers_define_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    far = App("far", str(tmp_path / "far.db"))
    run = far.remote("cart").start()
    with caplog.at_level(logging.WARNING, "holdfast"), pytest.raises(WaitTimeoutError, match="no worker"):
        run.ask("cart.far", timeout="10ms")
    far.close()
    assert not caplog.records
