"""An app and its Celery app, without a broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

from holdfast import App, DefinitionError

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


def test_importing_holdfast_imports_no_celery() -> None:
    code = "import sys, holdfast; holdfast.App('a', ':memory:'); print([m for m in sys.modules if 'celery' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
