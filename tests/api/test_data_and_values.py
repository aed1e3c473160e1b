"""Data of a run, and the values that go through steps, workflows, hooks and data."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import math
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from holdfast import (
    App,
    ArgumentError,
    Codec,
    EncodeError,
    FatalError,
    PayloadTooLargeError,
    StepError,
    hook,
    sleep,
    wf,
)
from holdfast.testing import TestApp


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Item:
    name: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Order:
    id: uuid.UUID
    items: list[Item]
    colour: Colour
    placed: dt.datetime
    note: str | None = None


class Point(NamedTuple):
    x: int
    y: int


class Model(pydantic.BaseModel):
    name: str
    at: dt.date


class Struct(msgspec.Struct):
    n: int


@attrs.define
class Attrs:
    n: int
    inner: Struct


class OddError(Exception):
    """Its constructor takes what can't be guessed from its args."""

    def __init__(self, code: int, *, hint: str) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


class NoArgsError(Exception):
    def __init__(self) -> None:
        super().__init__("fixed text", 42)


class StrangeError(Exception):
    def __init__(self, connection: object) -> None:
        super().__init__(connection)
        self.connection = connection

    def __str__(self) -> str:
        return "strange"


class RefusesError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("can't be pickled")


# -- data


def test_data_is_kept_with_the_run_and_read_back(app: App) -> None:
    @app.workflow
    def flow() -> list[Any]:
        wf.set_data("status", "started")
        wf.set_data("order", {"id": 1})
        before = wf.get_data("status")
        wf.set_data("status", "done")
        return [before, wf.get_data("status"), wf.get_data("nothing"), wf.get_data("nothing", 7)]

    with TestApp(app):
        run = flow.start()
        assert run.result() == ["started", "done", None, 7]
        assert run.data == {"status": "done", "order": {"id": 1}}


def test_data_can_be_seen_while_the_run_waits(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        wf.set_data("status", "waiting for approval")
        await hook("approval")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        assert run.data == {"status": "waiting for approval"}


def test_what_a_step_writes_arrives_with_its_outcome(app: App) -> None:
    @app.step(max_retries=1)
    def reserve() -> Any:
        before = wf.get_data("reservation")
        wf.set_data("reservation", f"attempt {before}")
        if before is None and wf.get_data("fail_once") and len(world.calls(reserve)) == 1:
            raise OSError("its writes are dropped")
        return [before, wf.get_data("reservation")]

    @app.workflow
    def flow() -> list[Any]:
        wf.set_data("fail_once", True)
        return [reserve(), wf.get_data("reservation")]

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == [[None, "attempt None"], "attempt None"]
        assert run.data == {"fail_once": True, "reservation": "attempt None"}


def test_a_step_that_fails_for_good_writes_nothing(app: App) -> None:
    @app.step(max_retries=0)
    def reserve() -> None:
        wf.set_data("reservation", "R")
        raise OSError("down")

    @app.workflow
    def flow() -> Any:
        try:
            reserve()
        except OSError:
            return wf.get_data("reservation", "nothing")

    with TestApp(app):
        run = flow.start()
        assert run.result() == "nothing"
        assert run.data == {}


def test_a_step_reads_the_data_as_of_its_scheduling(app: App) -> None:
    @app.step
    async def read() -> Any:
        await asyncio.sleep(0.01)
        return wf.get_data("n")

    @app.workflow
    async def flow() -> list[Any]:
        wf.set_data("n", 1)
        early = read.submit()
        await sleep(0)
        wf.set_data("n", 2)
        return [await early, await read()]

    with TestApp(app):
        assert flow.start().result() == [1, 2]


def test_values_that_are_read_back_are_copies(app: App) -> None:
    @app.workflow
    def flow() -> list[Any]:
        rows = [1]
        wf.set_data("rows", rows)
        rows.append(2)
        wf.get_data("rows").append(3)
        return list(wf.get_data("rows"))

    with TestApp(app):
        assert flow.start().result() == [1]


@pytest.mark.parametrize("key", ["", None, 5, b"x"])
def test_a_data_key_is_a_text(app: App, key: Any) -> None:
    @app.step(max_retries=0)
    def by_step() -> None:
        wf.set_data(key, 1)

    with TestApp(app):
        with pytest.raises(Exception, match=r"wf.set_data: key=.*: give a text that is not empty"):
            by_step.start().result()


def test_data_that_cannot_be_recorded_names_key_and_path(app: App) -> None:
    @app.workflow
    def flow() -> None:
        wf.set_data("cart", {"items": [1, object()]})

    with TestApp(app):
        with pytest.raises(EncodeError, match=r"data 'cart': \$\.items\[1\]: .*object"):
            flow.start().result()


# -- values


ORDER = Order(
    uuid.UUID(int=7),
    [Item("lamp", Decimal("19.90"), {"new", "blue"})],
    Colour.BLUE,
    dt.datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=dt.timezone(dt.timedelta(hours=2))),
)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**70, 1.5, "text", "", [], {}, [1, [2, [3]]], {"a": {"b": []}},
        dt.datetime(2030, 1, 1), dt.datetime(2030, 1, 1, tzinfo=dt.UTC), dt.date(2030, 1, 1), dt.time(1, 2, 3),
        dt.timedelta(days=-1, microseconds=5), Decimal("1.10"), 
        uuid.UUID(int=1), b"\x00\xff", (1, "a"), {1, 2}, frozenset({3}), {1: "a", (2, 3): "b"}, Path("/tmp/x"),
        Colour.RED, ORDER, Point(1, 2), Model(name="m", at=dt.date(2030, 1, 1)), Struct(5), Attrs(1, Struct(2)),
        "nul \x00 in text", "lone surrogate \ud800 here", "emoji 🙂 and ünïcode", {"$": "not a tag", "x": {"$": 1}},
        math.inf, -math.inf,
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:20]!r}",
)  # fmt: skip
def test_values_survive_arguments_results_data_hooks_and_replay(app: App, value: Any) -> None:
    app.codec.types.learn_hint(Order | Model | Struct | Attrs | Point | Colour)
    seen: list[Any] = []

    @app.step
    def echo(given: Any) -> Any:
        wf.set_data("by_step", given)
        return given

    @app.workflow
    async def flow(given: Any) -> list[Any]:
        wf.set_data("kept", given)
        out = [given, echo(given), wf.get_data("kept"), wf.get_data("by_step"), await hook("more")]
        seen.extend(out)
        return out

    with TestApp(app):
        run = flow.start(value)
        run.send("more", value)
        found = run.result()
        assert [type(each) for each in found] == [type(value)] * 5
        assert found == [value] * 5
        assert run.data == {"kept": value, "by_step": value}
        assert run.steps[0].args == (value,)


def test_nan_survives_too(app: App) -> None:
    @app.step
    def echo(given: Any) -> Any:
        return given

    with TestApp(app):
        assert math.isnan(echo.start(math.nan).result())
        assert math.isnan(echo.start({"x": [math.nan]}).result()["x"][0])


def test_annotations_are_honoured(app: App) -> None:
    @app.step
    def typed(order: Order, point: Point, plain: list[Item]) -> list[Item]:
        assert isinstance(order, Order)
        assert isinstance(point, Point)
        return [*order.items, *plain]

    @app.workflow
    def flow(order: Order) -> list[Item]:
        assert isinstance(order.items[0], Item)
        found = typed(order, Point(1, 2), [Item("rug", Decimal(5))])
        assert all(isinstance(item, Item) for item in found)
        return found

    with TestApp(app):
        items = flow.start(ORDER).result()
        assert [item.name for item in items] == ["lamp", "rug"]
        assert isinstance(items[0], Item)


def test_a_tuple_stays_a_tuple_and_a_list_a_list(app: App) -> None:
    @app.step
    def pair() -> tuple[int, list[tuple[int, int]]]:
        return (1, [(2, 3)])

    with TestApp(app):
        found = pair.start().result()
        assert found == (1, [(2, 3)])
        assert type(found) is tuple
        assert type(found[1][0]) is tuple


# -- exceptions


@pytest.mark.parametrize("where", ["step", "workflow", "child"])
def test_exceptions_with_unusual_constructors_are_rebuilt_without_calling_them(app: App, where: str) -> None:
    errors: dict[str, Any] = {
        "odd": lambda: OddError(7, hint="h"),
        "no args": NoArgsError,
        "strange": lambda: StrangeError(object()),
        "refuses": lambda: RefusesError("x"),
        "group": lambda: ExceptionGroup("several", [ValueError("a"), OddError(8, hint="i")]),
        "os": lambda: FileNotFoundError(2, "No such file", "/x"),
        "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "key": lambda: KeyError("k"),
    }

    @app.step(max_retries=0)
    def step(name: str) -> None:
        raise errors[name]()

    @app.workflow
    def child(name: str) -> None:
        step(name)

    @app.workflow
    def flow(name: str, where: str) -> None:
        if where == "step":
            step(name)
        elif where == "child":
            child(name)
        else:
            raise errors[name]()

    with TestApp(app):
        found = {}
        for name in errors:
            with pytest.raises(Exception) as caught:
                flow.start(name, where).result()
            found[name] = caught.value
    odd, group, missing, broken = found["odd"], found["group"], found["os"], found["unicode"]
    assert (type(odd), odd.code, odd.hint, str(odd)) == (OddError, 7, "h", "code 7")
    assert (type(found["no args"]), found["no args"].args) == (NoArgsError, ("fixed text", 42))
    assert (type(found["strange"]), str(found["strange"])) == (StrangeError, "strange")
    assert (type(found["refuses"]), str(found["refuses"])) == (RefusesError, "x")
    assert isinstance(group, ExceptionGroup)
    assert [str(each) for each in group.exceptions] == ["a", "code 8"]
    assert (type(missing), missing.errno, missing.filename) == (FileNotFoundError, 2, "/x")
    assert (type(broken), broken.start, broken.reason) == (UnicodeDecodeError, 0, "bad")
    assert (type(found["key"]), str(found["key"])) == (KeyError, "'k'")


def test_an_exception_whose_class_is_not_known_here_becomes_a_step_error(app: App) -> None:
    @app.step(max_retries=0)
    def step() -> None:
        class LocalError(Exception):  # a new class each time
            pass

        raise LocalError("only here")

    with TestApp(app):
        with pytest.raises(StepError, match="only here") as caught:
            step.start().result()
        assert caught.value.type_name.endswith("LocalError")
        assert "raise LocalError" in caught.value.traceback


def test_causes_notes_and_tracebacks_come_along(app: App) -> None:
    @app.step(max_retries=0)
    def step() -> None:
        try:
            int("x")
        except ValueError as error:
            wrapped = FatalError("wrapped")
            wrapped.add_note("look at the input")
            raise wrapped from error

    with TestApp(app):
        with pytest.raises(FatalError, match="wrapped") as caught:
            step.start().result()
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__notes__ == ["look at the input"]


# -- limits


def test_payloads_over_the_limit_are_refused_at_the_call(app: App) -> None:
    @app.step
    def echo(text: str) -> int:
        return len(text)

    big = "x" * (8 * 1024 * 1024)
    with TestApp(app):
        assert echo.start(big[:-1000]).result() == len(big) - 1000
        with pytest.raises(PayloadTooLargeError) as caught:
            echo.start(big)
        assert str(caught.value).startswith(
            "the arguments of step 'echo': takes 8,388,621 bytes, and the limit is 8,388,608; keep large data elsewhere"
        )
        assert len(app.runs()) == 1


def test_a_result_over_the_limit_fails_the_step_at_once(tmp_path: Path) -> None:
    app = App("shop", str(tmp_path / "shop.db"), codec=Codec(limit=1000))

    @app.step(max_retries=3)
    def big() -> str:
        return "x" * 2000

    @app.step(max_retries=3)
    def data() -> None:
        wf.set_data("big", "x" * 2000)

    @app.workflow
    def flow(what: str) -> str:
        if what == "step":
            return big()
        if what == "data":
            data()
        return "x" * 2000

    with TestApp(app) as world:
        with pytest.raises(
            PayloadTooLargeError, match=r"the result of step 'big': takes 2,002 bytes, .*limit is 1,000"
        ):
            flow.start("step").result()
        assert len(world.calls(big)) == 1, "the same again would not fit either"
        with pytest.raises(PayloadTooLargeError, match="data 'big'"):
            flow.start("data").result()
        assert len(world.calls(data)) == 1
        with pytest.raises(PayloadTooLargeError, match="the result of workflow 'flow'"):
            flow.start("workflow").result()
        run = flow.options(id="waits").start("step")
        with pytest.raises(PayloadTooLargeError, match="the payload of hook 'h'"):
            run.send("h", "x" * 2000)
        with pytest.raises(PayloadTooLargeError):
            run.result()


def test_what_a_step_says_it_returns_is_what_the_workflow_gets(app: App) -> None:
    @app.step
    async def find() -> Item:
        return {"name": "pen", "price": Decimal("1.5")}  # type: ignore[return-value]

    @app.workflow
    async def flow() -> str:
        return (await find()).name

    with app.worker():
        assert flow.start().result(timeout=10) == "pen"


# -- objects and dicts are checked alike


@dataclass
class Ware:
    name: str
    price: Decimal
    note: str = None  # type: ignore[assignment]
    weight: float = 1.0


@dataclass
class Basket:
    items: list[Ware]


def test_objects_are_checked_field_by_field_as_dicts_are(app: App) -> None:
    @app.step
    def count(basket: Basket) -> int:
        return len(basket.items)

    @app.workflow
    async def buy(basket: Basket, wrong: bool = False) -> int:
        if wrong:
            basket.items[0].price = 19.9  # type: ignore[assignment]
        return count(basket)

    good = Basket([Ware("tea", Decimal("1.5"), weight=2)])
    with TestApp(app):
        assert buy.start(good).result() == 1
        for bad, message in (
            (Ware(7, Decimal(1)), r"basket\.items\[0\]\.name: expected str, got 7 of type int"),
            (Ware("tea", 19.9), r"basket\.items\[0\]\.price: expected decimal\.Decimal, got 19\.9 of type float"),
            (Ware("tea", "19.9"), r"price: expected decimal\.Decimal, got '19\.9' of type str"),
        ):
            with pytest.raises(ArgumentError, match=message):
                buy.start(Basket([bad]))
        assert app.count() == 1
        with pytest.raises(ValueError, match=r"the arguments of step 'count': basket\.items\[0\]\.price: expected"):
            buy.start(good, wrong=True).result()


def test_exceptions_made_in_a_function_come_back_to_the_code_that_names_them(app: App) -> None:
    class Declined(Exception):
        pass

    @app.step(max_retries=0)
    def charge() -> None:
        raise Declined("no funds")

    @app.workflow
    async def buy(catch: bool) -> str:
        try:
            charge()
        except Declined as error:
            if catch:
                return f"caught {error}"
            raise
        return ""

    with TestApp(app):
        assert buy.start(True).result() == "caught no funds"
        with pytest.raises(Declined, match="no funds"):
            buy.start(False).result()
