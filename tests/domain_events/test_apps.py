"""Events between apps that share a store, and workers that come and go with other code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import App, Codec, emit
from holdfast.engine.host import Host
from holdfast.engine.settings import Settings

Define = Callable[[App], None]


def deploy(store: str, define: Define, version: str = "1", name: str = "warehouse") -> App:
    """The code of an app, as one build has it."""
    app = App(name, store, version=version)
    define(app)
    return app


@contextlib.contextmanager
def worker(app: App) -> Iterator[Host]:
    with app.worker(settings=Settings(sweep=0.05)) as engine:
        yield engine
    app.close()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
    return found


def ended(app: App, workflow: str, count: int) -> list[Any]:
    """The results of so many runs of a workflow, and there are no more."""
    until(lambda: sum(run.status.is_final for run in app.runs(workflow=workflow)) >= count)
    runs = app.runs(workflow=workflow)
    assert len(runs) == count
    return sorted(run.result() for run in runs)


def reserves(app: App) -> None:
    @app.on("OrderCreated")
    @app.workflow
    def reserve(order: dict[str, Any]) -> str:
        return f"reserved {order['id']}"


def has_no_subscription(app: App) -> None:
    @app.workflow
    def reserve(order: dict[str, Any]) -> str:
        return f"reserved {order['id']}"


def is_renamed(app: App) -> None:
    @app.on("OrderCreated")
    @app.workflow
    def set_aside(order: dict[str, Any]) -> str:
        return f"set aside {order['id']}"


def keeps_its_name(app: App) -> None:
    @app.on("OrderCreated")
    @app.workflow(name="reserve")
    def set_aside(order: dict[str, Any]) -> str:
        return f"set aside {order['id']}"


@pytest.fixture
def store(app: App) -> str:
    return app.store_url


def test_one_app_emits_and_another_reacts(app: App, other: App) -> None:
    @app.step
    async def save(id: str) -> None:
        await emit("OrderCreated", {"id": id})

    @app.workflow
    async def order(id: str) -> None:
        await save(id)

    reserves(other)
    with worker(other), worker(app):
        run = order.start("o-1")
        run.result(timeout=20)
        (result,) = ended(other, "reserve", 1)
        assert result == "reserved o-1"
        assert app.runs(workflow="reserve") == []


def test_the_app_of_another_store_s_step_emits_at_once_and_once(app: App, other: App) -> None:
    attempts = []

    @app.step(retry_delay=0)
    def tell() -> str:
        attempts.append(1)
        event = other.emit("OrderCreated", {"id": "o-1"})
        if len(attempts) < 3:
            raise ConnectionError("again")
        return event

    reserves(other)
    with worker(other), worker(app):
        run = tell.start()
        event = run.result(timeout=20)
        assert ended(other, "reserve", 1) == ["reserved o-1"]
        found = other.store.domain_event(event)
        assert found is not None
        assert (found.app, found.correlation) == ("warehouse", run.correlation)


def test_an_event_is_kept_for_an_app_whose_workers_are_away(app: App, store: str) -> None:
    with worker(deploy(store, reserves)):
        pass
    app.emit("OrderCreated", {"id": "o-1"})
    later = deploy(store, reserves)
    with worker(later):
        assert ended(later, "reserve", 1) == ["reserved o-1"]


def test_an_event_is_not_for_those_who_listen_only_later(app: App, store: str) -> None:
    app.emit("OrderCreated", {"id": "before"})
    later = deploy(store, reserves)
    with worker(later):
        app.emit("OrderCreated", {"id": "after"})
        assert ended(later, "reserve", 1) == ["reserved after"]


def test_several_workers_start_one_run_each(app: App, store: str) -> None:
    one, two = deploy(store, reserves), deploy(store, reserves)
    with worker(one), worker(two):
        for i in range(50):
            app.emit("OrderCreated", {"id": f"{i:02}"})
        assert ended(one, "reserve", 50) == [f"reserved {i:02}" for i in range(50)]


def test_a_subscription_ends_when_the_code_that_knows_its_target_drops_it(app: App, store: str) -> None:
    with worker(deploy(store, reserves)):
        pass
    new = deploy(store, has_no_subscription, "2")
    with worker(new):
        app.emit("OrderCreated", {"id": "o-1"})
        assert app.store.domain_event(app.emit("OrderCreated", {"id": "o-2"})) is not None
        assert new.store.arrivals(10) == []
        assert new.runs() == []


def test_during_a_rolling_deploy_a_subscription_lasts_as_long_as_the_last_worker_that_declares_it(
    app: App, store: str
) -> None:
    old, new = deploy(store, reserves), deploy(store, has_no_subscription, "2")
    with worker(new):
        with worker(old):
            with worker(deploy(store, has_no_subscription, "2")):
                app.emit("OrderCreated", {"id": "o-1"})
                assert ended(new, "reserve", 1) == ["reserved o-1"]
        app.emit("OrderCreated", {"id": "o-2"})
        assert new.store.arrivals(10) == []
        assert len(new.runs()) == 1


def test_workers_with_other_code_of_the_same_app_leave_each_other_s_subscriptions_alone(app: App, store: str) -> None:
    with worker(deploy(store, reserves)):
        pass
    new = deploy(store, is_renamed, "2")
    with worker(new):
        app.emit("OrderCreated", {"id": "o-1"})
        assert ended(new, "set_aside", 1) == ["set aside o-1"]
    again = deploy(store, reserves)
    with worker(again):
        assert ended(again, "reserve", 1) == ["reserved o-1"]


def test_a_function_that_keeps_its_name_in_the_app_can_be_renamed(app: App, store: str) -> None:
    old, new = deploy(store, reserves), deploy(store, keeps_its_name, "2")
    with worker(old), worker(new):
        app.emit("OrderCreated", {"id": "o-1"})
        (result,) = ended(new, "reserve", 1)
        assert result in ("reserved o-1", "set aside o-1")


def test_a_changed_condition_holds_from_the_first_worker_that_has_it(app: App, store: str) -> None:
    def only_large(app: App) -> None:
        @app.on("OrderCreated", where={"large": True})
        @app.workflow
        def reserve(order: dict[str, Any]) -> str:
            return f"reserved {order['id']}"

    old, new = deploy(store, reserves), deploy(store, only_large, "2")
    with worker(old), worker(new):
        app.emit("OrderCreated", {"id": "small", "large": False})
        app.emit("OrderCreated", {"id": "large", "large": True})
        assert ended(new, "reserve", 1) == ["reserved large"]


def test_an_app_reads_what_another_has_sealed_if_it_has_the_key(app: App, store: str) -> None:
    class Rot:
        name = "rot"

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[::-1]

    def define(app: App) -> None:
        @app.on("OrderCreated", where={"id": "o-1"})
        @app.workflow
        def reserve(order: dict[str, Any]) -> str:
            return f"reserved {order['id']}"

    sender = App("sender", store, codec=Codec(transforms=[Rot()]))
    reader = App("reader", store, codec=Codec(transforms=[Rot()]))
    stranger = App("stranger", store)
    define(reader)
    define(stranger)
    with worker(reader), worker(stranger):
        sender.emit("OrderCreated", {"id": "o-1"})
        assert ended(reader, "reserve", 1) == ["reserved o-1"]
        until(lambda: not stranger.store.arrivals(1))
        assert stranger.runs() == []
    sender.close()
