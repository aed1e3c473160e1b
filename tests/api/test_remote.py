"""Starting by name, from a program that doesn't have the workers' code."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast import App, ArgumentError, EncodeError, RunExistsError, RunStuckError, WrongContextError, wf


@dataclass
class Order:
    id: str
    total: Decimal


@dataclass
class Receipt:
    order: Order
    at: dt.date


class Declined(Exception):
    pass


def define(app: App) -> None:
    """What the workers know."""

    @app.step
    def charge(order: Order) -> Decimal:
        return order.total

    @app.workflow
    async def fulfil(order: Order, *, copies: int = 1) -> Receipt:
        wf.set_data("order", order)
        charge(order)
        return Receipt(Order(order.id, order.total * copies), dt.date(2026, 1, 31))

    @app.workflow
    async def refuse() -> None:
        raise Declined("no funds")


@pytest.fixture
def api(app: App) -> Iterator[App]:
    """The same app without its code, while a worker that has it works."""
    define(app)
    with app.worker():
        other = App(app.name, app.store_url)
        yield other
        other.close()


def test_a_run_is_started_by_name_and_its_result_is_plain_data(api: App) -> None:
    run = api.remote("fulfil").options(id="order-17").start({"id": "17", "total": "19.90"}, copies=2)
    assert run.result(timeout=20) == {"order": {"id": "17", "total": Decimal("39.80")}, "at": dt.date(2026, 1, 31)}
    assert run.id == "order-17"
    assert run.data == {"order": {"id": "17", "total": Decimal("19.90")}}
    assert run.steps["charge"].args == ({"id": "17", "total": Decimal("19.90")},)
    assert run.history()[-1].detail["result"]["order"]["id"] == "17"
    again = api.remote("fulfil").options(id="order-17")
    assert again.start({"id": "17", "total": "19.90"}, copies=2) == run
    with pytest.raises(RunExistsError):
        again.start({"id": "18", "total": "1"})
    assert api.get_run("order-17").result() == run.result()
    assert api.remote("charge").start({"id": "1", "total": 5}).result(timeout=20) == Decimal(5)


def test_arguments_that_do_not_fit_fail_the_run_with_what_is_wrong(api: App) -> None:
    for start, message in (
        (lambda: api.remote("fulfil").start({"id": "17"}), r"workflow 'fulfil' don't fit fulfil\(order: .*'total'"),
        (lambda: api.remote("fulfil").start(), "missing a required argument: 'order'"),
        (
            lambda: api.remote("charge").start({"id": 1, "total": 1}),
            r"step 'charge' don't fit .*o?rder\.id: expected str",
        ),
        (lambda: api.remote("charge").start(order=3, more=1), "the arguments of step 'charge' don't fit"),
    ):
        run = start()
        with pytest.raises(ArgumentError, match=message):
            run.result(timeout=20)
        assert run.status == "FAILURE"
        assert run.steps == []


def test_exceptions_and_names_nobody_knows_are_told_on_the_handle(api: App) -> None:
    with pytest.raises(Declined, match="no funds"):
        api.remote("refuse").start().result(timeout=20)
    with pytest.raises(RunStuckError, match="fulfill"):
        api.remote("fulfill").start().result(timeout=20)


def test_celery_spells_it_send_task(api: App) -> None:
    run = api.send_task("fulfil", ({"id": "1", "total": 1},), {"copies": 3}, task_id="t1", countdown=0)
    assert run.result(timeout=20)["order"]["total"] == 3
    assert run.id == "t1"
    assert api.remote("charge").delay({"id": "1", "total": 2}).result(timeout=20) == 2
    with pytest.raises(ArgumentError, match="has no option 'expire_at'"):
        api.send_task("fulfil", expire_at=5)


def test_many_are_started_by_name_with_one_commit(api: App) -> None:
    runs = api.remote("charge").start_many([{"id": str(n), "total": n} for n in range(20)])
    assert [run.result(timeout=20) for run in runs] == list(range(20))
    started = asyncio.run(api.remote("charge").astart({"id": "x", "total": 7}))
    assert started.result(timeout=20) == 7


def test_what_is_started_by_name_takes_data_a_trace_and_a_transaction_of_the_caller(app: App) -> None:
    bare = App(app.name, app.store_url)
    charge = bare.remote("charge").options(data={"customer": "ann"}, traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
    assert charge.start({"id": "1", "total": 1}).data == {"customer": "ann"}
    with sqlite3.connect(app.store_url) as connection:
        connection.execute("BEGIN IMMEDIATE")
        bare.remote("charge").options(id="rolled-back", connection=connection).start({"id": "2", "total": 2})
        connection.rollback()
    assert bare.count() == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'on_parent_close'; known: id, delay"):
        bare.remote("charge").options(on_parent_close="cancel")  # type: ignore[call-arg]
    bare.close()


def test_what_can_not_be_recorded_or_is_known_here_and_wrong_is_refused_at_once(app: App) -> None:
    bare = App(app.name, app.store_url)
    with pytest.raises(EncodeError, match=r"the arguments of 'fulfil'.*Order.* isn't known"):
        bare.remote("fulfil").start(Order("1", Decimal(1)))
    for name in ("", 5, "holdfast.chain"):
        with pytest.raises(ArgumentError):
            bare.remote(name)  # type: ignore[arg-type]
    define(app)
    with pytest.raises(ArgumentError, match="missing a required argument"):
        app.remote("fulfil").start()
    assert app.count() == 0
    bare.close()

    @app.workflow
    async def wrong() -> None:
        app.remote("charge").start({"id": "1", "total": 1})

    with app.worker(), pytest.raises(WrongContextError, match="ask in a step"):
        wrong.start().result(timeout=20)


def test_another_process_needs_nothing_but_the_name_of_the_app_and_its_store(api: App, tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from holdfast import App\n"
        "app = App('shop', sys.argv[1])\n"
        "run = app.remote('fulfil').start({'id': '9', 'total': 2}, copies=4)\n"
        "print(json.dumps(run.result(timeout=20), default=str))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, api.store_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(ran.stdout) == {"order": {"id": "9", "total": "8"}, "at": "2026-01-31"}
