"""Limits as users meet them: how many steps and runs are under way at once, how often, and in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, FatalError, Limit, RetryableError, RunCancelledError, Status, sleep, wf
from holdfast.errors import DefinitionError, RunStuckError, StoreUnavailableError
from holdfast.testing import TestApp


class Gauge:
    """Who is under way, and the most there ever were at once, in all and by key. What is `held` waits to be let go."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, int] = {}
        self.peak = 0
        self.peaks: dict[str, int] = {}
        self.order: list[Any] = []
        self.held = threading.Event()
        self.held.set()

    @contextmanager
    def measured(self, what: Any, key: str = "") -> Iterator[None]:
        with self._lock:
            self.order.append(what)
            self._now[key] = self._now.get(key, 0) + 1
            self.peaks[key] = max(self.peaks.get(key, 0), self._now[key])
            self.peak = max(self.peak, sum(self._now.values()))
        try:
            assert self.held.wait(20)
            yield
        finally:
            with self._lock:
                self._now[key] -= 1


@pytest.fixture
def app() -> App:
    return App("limits", ":memory:")


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


# -- steps


@pytest.mark.parametrize("many", [1, 3])
def test_no_more_steps_than_the_limit_are_under_way_at_once(app: App, gauge: Gauge, many: int) -> None:
    @app.step(concurrency=many)
    def charge(number: int) -> int:
        with gauge.measured(number):
            return number

    @app.workflow
    async def fan(count: int) -> list[int]:
        return await asyncio.gather(*(charge.submit(i) for i in range(count)))

    with TestApp(app):
        gauge.held.clear()
        runs = [fan.start(8) for _ in range(3)]
        threading.Timer(0.2, gauge.held.set).start()
        assert [run.result() for run in runs] == [list(range(8))] * 3
    assert gauge.peak == many


def test_with_a_key_each_key_has_a_limit_of_its_own(app: App, gauge: Gauge) -> None:
    @app.step(concurrency=2, key="customer")
    def charge(order: int, customer: str = "nobody") -> None:
        with gauge.measured(order, customer):
            pass

    @app.workflow
    async def fan() -> None:
        calls = [charge.submit(i, name) for i in range(6) for name in ("ann", "bob")]
        await asyncio.gather(*calls, *(charge.submit(i) for i in range(4)))

    with TestApp(app) as world:
        gauge.held.clear()
        run = fan.start()
        until(lambda: len(gauge.order) == 6)
        waiting = {line.key: (line.in_use, line.waiting) for use in world.store.limits(9) for line in use.lines}
        assert waiting == {"ann": (2, 4), "bob": (2, 4), "nobody": (2, 2)}
        gauge.held.set()
        run.result()
    assert gauge.peaks == {"ann": 2, "bob": 2, "nobody": 2}


def test_keys_are_served_in_turn_where_all_share_a_limit(app: App, gauge: Gauge) -> None:
    @app.step(limits=[Limit(concurrency=1), Limit(concurrency=5, key=lambda customer: customer.upper())])
    def charge(customer: str, number: int) -> None:
        with gauge.measured(customer):
            pass

    @app.workflow
    async def fan(customer: str, count: int) -> None:
        await asyncio.gather(*(charge.submit(customer, i) for i in range(count)))

    with TestApp(app):
        gauge.held.clear()
        greedy = fan.start("greedy", 40)
        until(lambda: gauge.order == ["greedy"])
        modest = fan.start("modest", 4)
        until(lambda: len(app.store.places(modest.id, 100)) == 8)
        gauge.held.set()
        greedy.result()
        modest.result()
    places = [i for i, customer in enumerate(gauge.order) if customer == "modest"]
    assert places[-1] <= 14, f"the others were served at {places}"
    assert gauge.peak == 1


def test_a_named_limit_is_shared_by_all_that_name_it(app: App, gauge: Gauge) -> None:
    stripe = Limit("stripe", concurrency=1)

    @app.step(limits=[stripe])
    def charge() -> None:
        with gauge.measured("charge"):
            pass

    @app.step(limits=[Limit("stripe", concurrency=1), Limit(concurrency=1)])
    async def refund() -> None:
        with gauge.measured("refund"):
            await asyncio.sleep(0)

    @app.workflow
    async def both() -> None:
        await asyncio.gather(*(step.submit() for step in (charge, refund) * 5))

    with TestApp(app):
        both.start().result()
    assert gauge.peak == 1
    assert gauge.order.count("refund") == 5


def test_a_rate_lets_steps_begin_one_after_the_other_and_the_run_parks_meanwhile(app: App) -> None:
    begun: list[int] = []

    @app.step(rate_limit="4/m")
    def call(number: int) -> None:
        begun.append(app.storage.clock.now())

    @app.workflow
    async def fan() -> None:
        await asyncio.gather(*(call.submit(i) for i in range(6)))

    with TestApp(app) as world:
        run = fan.start()
        world.settle()
        until(lambda: run.status == Status.WAITING)
        row = world.store.get(run.id)
        assert row is not None
        assert row.reason == "limit 'call'"
        run.result()
    assert [time - begun[0] for time in begun] == [i * 15_000_000 for i in range(6)]


def test_a_slot_is_given_back_between_attempts(app: App, gauge: Gauge) -> None:
    @app.step(concurrency=1, retry_delay="1h", max_retries=1)
    def flaky(number: int) -> None:
        with gauge.measured(number):
            if gauge.order.count(number) == 1:
                raise RetryableError("not yet")

    @app.workflow
    async def fan() -> None:
        await asyncio.gather(*(flaky.submit(i) for i in range(3)))

    with TestApp(app):
        fan.start().result()
    assert gauge.order[:3] == [0, 1, 2], "all were tried before the first was tried again"
    assert sorted(gauge.order) == [0, 0, 1, 1, 2, 2]
    assert gauge.peak == 1


@pytest.mark.parametrize("how", ["cancel", "terminate", "pause", "fail"])
def test_whatever_ends_a_run_or_holds_it_others_get_its_slots(app: App, gauge: Gauge, how: str) -> None:
    @app.step(concurrency=1, max_retries=0)
    def charge(who: str) -> None:
        with gauge.measured(who):
            pass

    @app.step
    def fails() -> None:
        raise FatalError("no")

    @app.workflow
    async def first() -> None:
        charge.submit("first")
        charge.submit("first too")
        charge.submit("and this")
        await sleep("1h")
        if how == "fail":
            fails()
        await sleep("10h")

    @app.workflow
    async def second() -> None:
        charge("second")

    with TestApp(app) as world:
        gauge.held.clear()
        one = first.start()
        until(lambda: gauge.order == ["first"])
        two = second.start()
        until(lambda: len(app.store.places(two.id, 100)) == 1)
        if how == "fail":
            gauge.held.set()
            world.advance("2h")
        else:
            one.terminate("a test") if how == "terminate" else getattr(one, how)()
            until(lambda: one.status in (Status.CANCELLED, Status.PAUSED))
            gauge.held.set()
        two.result()
        if how == "pause":
            assert gauge.order == ["first", "second"], "it goes to the end of the line"
            one.resume()
            world.settle()
        else:
            assert world.store.places(one.id, 100) == []
    assert gauge.peak == 1 or how in ("cancel", "terminate"), "nobody can interrupt a thread"


def test_a_step_that_is_no_longer_wanted_leaves_the_line(app: App, gauge: Gauge) -> None:
    @app.step(concurrency=1)
    def charge(who: str) -> str:
        with gauge.measured(who):
            return who

    @app.workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(60):
                return str(await charge.submit("impatient"))
        except TimeoutError:
            return "gave up"

    @app.workflow
    async def holder() -> None:
        charge("holder")

    with TestApp(app) as world:
        gauge.held.clear()
        one = holder.start()
        until(lambda: gauge.order == ["holder"])
        two = impatient.start()
        until(lambda: len(world.store.places(two.id, 100)) == 1)
        world.clock._held_up += 1  # the step that executes lets time pass
        try:
            assert two.result() == "gave up"
        finally:
            world.clock._held_up -= 1
            gauge.held.set()
        one.result()
        assert [use.waiting + use.in_use for use in world.store.limits(5)] == [0]
    assert gauge.order == ["holder"]


def test_the_limit_of_a_single_step_started_as_a_run_holds_too(app: App, gauge: Gauge) -> None:
    @app.step(concurrency=1)
    def charge(number: int) -> int:
        with gauge.measured(number):
            return number

    with TestApp(app):
        runs = [charge.start(i) for i in range(5)]
        assert [run.result() for run in runs] == [0, 1, 2, 3, 4]
    assert gauge.peak == 1


def test_a_slot_that_was_granted_without_an_answer_is_found(
    app: App, gauge: Gauge, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.step(concurrency=1)
    def charge(number: int) -> int:
        with gauge.measured(number):
            return number

    @app.workflow
    async def fan() -> int:
        return sum(await asyncio.gather(*(charge.submit(i) for i in range(3))))

    with TestApp(app) as world:
        serve, failed = world.store.serve, list[str]()

        def fails_once(*args: Any) -> Any:
            served = serve(*args)
            if served.messages and not failed:
                failed.append(args[1])
                raise StoreUnavailableError("the answer was lost")
            return served

        monkeypatch.setattr(world.store, "serve", fails_once)
        assert fan.start().result() == 3
    assert (failed, gauge.peak) == (["charge"], 1)


def test_a_key_that_can_not_be_told_sets_the_run_aside(app: App) -> None:
    @app.step(concurrency=1, key=lambda order: order["customer"])
    def charge(order: dict[str, str]) -> None:
        pass

    @app.workflow
    async def pay() -> None:
        charge({})

    with TestApp(app), pytest.raises(RunStuckError, match="customer"):
        pay.start().result()


def test_steps_on_other_machines_are_limited_too(tmp_path: Path, gauge: Gauge) -> None:
    app = App("limits", str(tmp_path / "limits.db"))

    @app.step(concurrency=1, queue="gpu")
    def train(number: int) -> int:
        with gauge.measured(number):
            return number

    @app.workflow
    async def fan() -> int:
        return sum(await asyncio.gather(*(train.submit(i) for i in range(5))))

    with app.worker():
        run = fan.start()
        until(lambda: [(each.queue, each.waiting) for each in app.store.queues()] == [("gpu", 1)])
        with app.executor(["gpu"]):
            assert run.result(timeout=60) == 10
    assert (gauge.order, gauge.peak) == ([0, 1, 2, 3, 4], 1)
    app.close()


# -- runs


def test_no_more_runs_than_the_limit_are_under_way_and_the_others_begin_in_order(app: App) -> None:
    events: list[tuple[str, int]] = []

    @app.workflow(concurrency=2)
    async def import_file(number: int) -> int:
        events.append(("begins", number))
        await sleep("1h")
        events.append(("ends", number))
        return number

    with TestApp(app) as world:
        runs = [import_file.start(i) for i in range(5)]
        world.settle()
        until(lambda: world.store.limits(1)[0].waiting == 3)
        assert runs[3].status == Status.PENDING
        assert [run.result() for run in runs] == list(range(5))
    begun = [number for what, number in dict.fromkeys(events) if what == "begins"]
    assert begun == list(range(5))
    under_way = 0
    for what, _ in dict.fromkeys(events):
        under_way += 1 if what == "begins" else -1
        assert under_way <= 2


def test_runs_of_each_key_go_one_after_the_other(app: App) -> None:
    @app.workflow(concurrency=1, key="account")
    async def book(account: str, number: int) -> int:
        await sleep("1m")
        return number

    with TestApp(app) as world:
        began = world.now
        runs = [book.start(account, i) for i in range(3) for account in "ab"]
        for run in runs:
            run.result()
        assert (world.now - began).total_seconds() == 180


def test_a_run_that_finds_the_limit_full_may_be_skipped(app: App) -> None:
    @app.workflow(concurrency=1, key="account", when_full="skip")
    async def report(account: str) -> str:
        await sleep("1h")
        return account

    with TestApp(app) as world:
        first = report.start("a")
        until(lambda: first.status == Status.WAITING)
        second, other = report.start("a"), report.start("b")
        with pytest.raises(RunCancelledError, match=r"skipped, as limit 'report/account' \(key 'a'\) was full"):
            second.result()
        assert first.result() == "a"
        assert other.result() == "b"
        assert report.start("a").result() == "a"
        assert [(use.in_use, use.waiting) for use in world.store.limits(1)] == [(0, 0)]


def test_a_newer_run_may_cancel_the_older_one(app: App) -> None:
    cleaned: list[int] = []

    @app.workflow(concurrency=1, when_full="cancel")
    async def build(commit: int) -> int:
        try:
            await sleep("1h")
        finally:
            cleaned.append(commit)
        return commit

    with TestApp(app) as world:
        runs = []
        for i in range(3):
            runs.append(build.start(i))
            world.settle()
        assert runs[-1].result() == 2
        for run in runs[:-1]:
            with pytest.raises(RunCancelledError, match="took its place in limit 'build'"):
                run.result()
    assert cleaned[0] == 0


def test_a_run_in_line_can_be_cancelled_and_paused(app: App) -> None:
    begun: list[str] = []

    @app.workflow(concurrency=1)
    async def alone(name: str) -> str:
        begun.append(name)
        await sleep("1h")
        return name

    with TestApp(app) as world:
        first = alone.start("first")
        until(lambda: first.status == Status.WAITING)
        cancelled, paused, last = (alone.start(name) for name in ("cancelled", "paused", "last"))
        until(lambda: world.store.limits(1)[0].waiting == 3)
        cancelled.cancel()
        paused.pause()
        until(lambda: (cancelled.status, paused.status) == (Status.CANCELLED, Status.PAUSED))
        assert first.result() == "first"
        assert last.result() == "last"
        paused.resume()
        assert paused.result() == "paused"
        assert list(dict.fromkeys(begun)) == ["first", "last", "paused"]


def test_a_run_that_is_tried_again_waits_for_its_turn_again(app: App) -> None:
    @app.workflow(concurrency=1, max_retries=1, retry_delay="1h")
    async def flaky(name: str) -> str:
        await sleep("1m")
        if wf.attempt == 1 and name == "flaky":
            raise RuntimeError("no")
        return name

    with TestApp(app) as world:
        began = world.now
        runs = [flaky.start(name) for name in ("flaky", "other")]
        assert [run.result() for run in reversed(runs)] == ["other", "flaky"]
        assert (world.now - began).total_seconds() >= 3_600
        assert [(use.in_use, use.waiting) for use in world.store.limits(1)] == [(0, 0)]


# -- saying it


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"concurrency": 0}, "concurrency=0: give how many may be under way at once, as a number from 1"),
        ({"concurrency": True}, "concurrency=True"),
        ({"concurrency": "5"}, "concurrency='5'"),
        ({"rate_limit": "fast"}, "rate_limit='fast': say how many in which time, such as '100/m', '5/s' or '10/30s'"),
        ({"rate_limit": "0/s"}, "rate_limit='0/s'"),
        ({"rate_limit": "5/fortnight"}, "rate_limit='5/fortnight'"),
        ({"rate_limit": 5}, "rate_limit=5"),
        ({"key": "order"}, "key='order' limits nothing yet; add concurrency=5 or rate_limit='100/m'"),
        ({"concurrency": 5, "key": "custmer"}, "key= asks for 'custmer', which is none of its arguments"),
        ({"concurrency": 5, "key": lambda o: o}, "key= asks for 'o', which is none of its arguments"),
        ({"concurrency": 5, "key": 7}, "key=7: give the name of an argument, or a function of arguments"),
        ({"concurrency": 5, "burst": 2}, "burst=2 is about a rate"),
        ({"rate_limit": "5/s", "burst": 0}, "burst=0"),
        ({"limits": Limit(concurrency=1)}, "give a list of limits, such as [Limit(concurrency=5)]"),
        ({"limits": [], "concurrency": 5}, "limits= says all limits there are; put concurrency= into one of them"),
        ({"limits": [Limit("a", concurrency=1), Limit("a", concurrency=1)]}, "is under limit 'a' twice; name it once"),
        ({"limits": [Limit(concurrency=1, when_full="skip")]}, "when_full= is for workflows"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_where_it_is_said(app: App, options: dict[str, Any], words: str) -> None:
    def charge(order: str) -> None: ...

    with pytest.raises(DefinitionError) as error:
        app.step(**options)(charge)
    assert words in str(error.value)


def test_what_shares_a_name_has_to_be_the_same_limit(app: App) -> None:
    @app.step(limits=[Limit("stripe", concurrency=5)])
    def charge(order: str) -> None: ...

    def other(order: str) -> None: ...

    for limit, words in (
        (Limit("stripe", concurrency=6), "says something else than that of 'charge'"),
        (Limit("stripe", concurrency=5, key="order"), "has a key in one place and none in the other"),
    ):
        with pytest.raises(DefinitionError, match=words):
            app.step(limits=[limit])(other)
    with pytest.raises(DefinitionError, match="would wait for itself"):
        app.workflow(limits=[Limit("stripe", concurrency=5)])(other)
    with pytest.raises(DefinitionError, match="when_full='wait'"):
        app.workflow(concurrency=1, when_full="wait")(other)
    with pytest.raises(DefinitionError, match="which a rate_limit has no use for"):
        app.workflow(rate_limit="1/s", when_full="cancel")(other)


# -- waiting in a test for what happens in another thread


def until(condition: Any) -> None:
    deadline = threading.Event()
    for _ in range(4_000):
        if condition():
            return
        deadline.wait(0.005)
    raise AssertionError("it has not happened for 20 s")
