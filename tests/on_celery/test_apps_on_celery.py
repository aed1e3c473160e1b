"""An app and its Celery app, without a broker."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.events import EventReceiver as Receiver
from celery.events.state import State
from celery.exceptions import ImproperlyConfigured

from holdfast import App, DefinitionError
from holdfast.executors.celery.events import CeleryTransport
from holdfast.telemetry import EventDispatcher, EventReceiver, LamportClock

NOWHERE = "redis://127.0.0.1:1/0"


def test_every_step_is_a_task_of_its_own_name_whenever_it_is_defined(tmp_path: Path) -> None:
    app = App("shop", str(tmp_path / "shop.db"), broker=NOWHERE)

    @app.step
    def early() -> None: ...

    celery = app.celery

    @app.step(name="late")
    def something() -> None: ...

    tasks = [celery.tasks[f"shop.{name}"] for name in ("early", "late")]
    assert [(task.acks_late, task.ignore_result) for task in tasks] == [(False, True)] * 2
    assert celery.conf.task_default_queue == "shop"


def test_an_app_of_ones_own_keeps_its_settings(tmp_path: Path) -> None:
    celery = Celery("mine", broker=NOWHERE, set_as_current=False)
    celery.conf.update(task_acks_late=True, task_default_queue="mine")
    app = App("shop", str(tmp_path / "shop.db"), celery=celery)

    @app.step
    def pay() -> None: ...

    assert app.celery is celery
    assert (celery.conf.task_acks_late, celery.tasks["shop.pay"].acks_late) == (True, False)
    assert celery.conf.task_default_queue == "mine"


def test_celerys_command_is_told_where_the_celery_app_is(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(
        "from holdfast import App\n"
        f"app = App('orders', {str(tmp_path / 'orders.db')!r}, broker={NOWHERE!r})\n"
        "celery = app.celery\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "orders", "worker"], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith("and say `celery -A orders:celery worker`")


def test_an_app_has_no_attributes_but_its_own(tmp_path: Path) -> None:
    app: Any = App("shop", str(tmp_path / "shop.db"))
    assert not hasattr(app, "user_options")
    with pytest.raises(AttributeError, match=r"^'App' object has no attribute 'stoer'$"):
        _ = app.stoer


@pytest.mark.parametrize("steps_are_there", [True, False])
def test_settings_that_name_a_step_hold_wherever_they_are_made(tmp_path: Path, steps_are_there: bool) -> None:
    app = App("shop", str(tmp_path / "shop.db"), broker=NOWHERE)
    settings = {"task_annotations": {"shop.pay": {"rate_limit": "10/s", "time_limit": 300}}}
    celery = app.celery
    if not steps_are_there:
        celery.conf.update(settings)

    @app.step
    def pay() -> None: ...

    if steps_are_there:
        celery.conf.update(settings)
    task = celery.tasks["shop.pay"]
    assert (task.rate_limit, task.time_limit) == ("10/s", 300)


def test_the_environment_may_name_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BROKER", "redis://elsewhere:1/3")
    app = App("shop", str(tmp_path / "shop.db"), broker=NOWHERE)
    assert app.on_celery
    assert app.celery.conf.broker_url == "redis://elsewhere:1/3"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"broker": NOWHERE, "celery": Celery(set_as_current=False)}, "both say where"),
        ({"celery": "redis://"}, "give a Celery app"),
        ({"broker": 3}, "broker="),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        App("shop", ":memory:", **given)


def test_an_app_without_a_broker_says_how_to_get_one() -> None:
    app = App("shop", ":memory:")
    assert not app.on_celery
    with pytest.raises(DefinitionError, match=r"App\(\.\.\., broker='redis://\.\.\.'\)"):
        _ = app.celery


@pytest.mark.parametrize("pool", ["gevent", "celery.concurrency.eventlet"])
def test_pools_that_replace_threads_are_refused(pool: str, tmp_path: Path) -> None:
    celery = App("shop", str(tmp_path / "shop.db"), broker=NOWHERE).celery
    (part,) = celery.steps["worker"]
    with pytest.raises(ImproperlyConfigured, match="use --pool prefork, threads or solo"):
        part(SimpleNamespace(pool_cls=pool))


def test_events_of_ones_own_go_through_the_event_exchange_and_celerys_own_tools_take_no_harm(
    tmp_path: Path, redis_url: str
) -> None:
    app = App("shop", str(tmp_path / "shop.db"), broker=redis_url)
    tool, celerys = State(), app.celery.connection_for_read()
    watching = Receiver(celerys, handlers={"*": tool.event}, app=app.celery)
    listening = threading.Thread(target=lambda: watching.capture(wakeup=False))
    pushed = CeleryTransport(app.celery, "shop").subscribe()
    others = CeleryTransport(app.celery, "another").subscribe()
    assert pushed.is_connected.wait(20)
    assert others.is_connected.wait(20)
    listening.start()
    received: list[Any] = []
    receiver = EventReceiver(app.telemetry)
    with EventDispatcher(app.telemetry, LamportClock(40), origin="me") as dispatcher:
        deadline = time.monotonic() + 20
        while not (received and tool.event_count) and time.monotonic() < deadline:  # they may not listen yet
            dispatcher.send("worker-heartbeat", freq=2, utcoffset=7200)
            received += pushed.receive(0.2) or ()
    heard: list[Any] = []
    while 41 not in [event["clock"] for event in heard] and time.monotonic() < deadline:
        receiver.capture({"worker-heartbeat": heard.append}, timeout=0.1)
    first = min(heard, key=lambda event: event["clock"])
    assert first.items() >= {"type": "worker-heartbeat", "origin": "me", "clock": 41, "utcoffset": 7200}.items()
    assert receiver.clock.value > max(event["clock"] for event in heard)
    assert received[0]["utcoffset"] == 7200
    assert tool.event_count >= 1
    assert not tool.workers
    assert others.receive(0) == [], "they are another app's"
    receiver.stop()
    watching.should_stop = True
    listening.join(20)
    celerys.release()
    for each in (pushed, others):
        each.close()
    while pushed.receive(0) is not None:  # what had come before
        assert time.monotonic() < deadline
    app.close()


def test_a_broker_that_is_away_costs_telemetry_nothing_but_a_warning_and_a_bounded_buffer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = App("shop", str(tmp_path / "shop.db"), broker=NOWHERE)
    receiver = EventReceiver(app.telemetry)
    exchange = app.event_exchange
    assert exchange is not None
    with EventDispatcher(app.telemetry, interval=None) as dispatcher:
        for n in range(30):
            for i in range(500):
                dispatcher.send("step-progress", id="s", done=n * 500 + i)
            assert dispatcher.flush(), "the store takes it all the same"
    heard: list[Any] = []
    receiver.capture({"*": heard.append}, limit=15_000, timeout=20)
    assert [event["done"] for event in heard] == list(range(15_000))
    assert exchange.dropped >= 5_000
    exchange.flush()
    assert not exchange.flush()
    receiver.stop()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert sum("can't be sent for now" in text for text in said) == 1, said
    app.close()


def test_a_broker_that_tells_only_one_listener_leaves_telemetry_to_the_store(tmp_path: Path) -> None:
    app = App("shop", str(tmp_path / "shop.db"), broker="memory://")
    assert app.event_exchange is None
    app.close()


def test_importing_holdfast_imports_no_celery() -> None:
    code = (
        "import sys, holdfast; holdfast.App('a', ':memory:');"
        "print([m for m in sys.modules if m.startswith(('celery', 'kombu', 'holdfast.executors.celery'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
