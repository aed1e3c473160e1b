"""What runs publish: waited for, given at the start, searched by."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import App, ArgumentError, Codec, Prefix, Range, RunFinishedError, hook, sleep, wf
from holdfast.app import SystemClock
from holdfast.codec.ordering import order_key
from holdfast.ports import RunQuery, RunRow
from holdfast.testing import TestApp
from holdfast.views.filters import parse_filter

app = App("data", ":memory:")


@app.workflow
async def publishes(after: str, value: object) -> None:
    await sleep(after)
    wf.set_data("value", value)
    await hook("end")


@app.workflow
async def reads() -> Any:
    return [wf.get_data("tenant"), wf.get_data("amount", 0)]


@app.workflow
async def parent() -> Any:
    return await reads.options(data={"tenant": "kid", "amount": 1}).submit()


@pytest.fixture
def world() -> Iterator[TestApp]:
    with TestApp(app) as world:
        yield world


def test_what_a_run_will_publish_is_waited_for(world: TestApp) -> None:
    run = publishes.start("1h", {"id": 7})
    assert run.wait_data("value") == {"id": 7}
    assert run.status == "WAITING"
    assert asyncio.run(run.await_data("value")) == {"id": 7}


def test_what_a_run_has_not_published_in_time_or_ever_is_an_error(world: TestApp) -> None:
    run = publishes.start("1h", 1)
    with pytest.raises(TimeoutError, match=r"has not published 'value' within 0s; it is "):
        run.wait_data("value", timeout=0)
    ended = reads.start()
    with pytest.raises(RunFinishedError, match=r"has ended \(SUCCESS\) without having published 'x'"):
        ended.wait_data("x")


def test_whoever_waits_is_told_and_does_not_poll(tmp_path: Path) -> None:
    shop = App("told", str(tmp_path / "told.db"))

    @shop.workflow
    async def late() -> None:
        await hook("go")
        wf.set_data("here", 1)
        await hook("end")

    with shop.worker(grace=1):
        run = late.start()
        looked = 0
        client = run._client
        look = client.store.data

        def counted(run_id: str) -> dict[str, bytes]:
            nonlocal looked
            looked += 1
            if looked == 2:  # it has looked before and after it began to watch: now it waits
                run.send("go")
            return look(run_id)

        client.store.data = counted  # type: ignore[method-assign]
        assert run.wait_data("here", timeout=20) == 1
        assert looked <= 5
        run.cancel()
    shop.close()


def test_a_run_that_is_resumed_while_somebody_waits_is_not_taken_for_stuck(tmp_path: Path) -> None:
    shop = App("resumed", str(tmp_path / "resumed.db"))

    @shop.workflow
    async def late() -> None:
        await hook("go")
        wf.set_data("here", 1)
        await hook("end")

    with shop.worker(grace=1):
        run = late.start()
        store, reads = run._client.store, 0
        get = store.get

        def stuck_at_first(run_id: str) -> RunRow | None:
            """The row from before its resumption, which is over when orders are looked at."""
            nonlocal reads
            reads += 1
            row = get(run_id)
            if reads == 5:
                run.send("go")
            return msgspec.structs.replace(row, status="STUCK") if row is not None and reads in (1, 3) else row

        store.get = stuck_at_first  # type: ignore[method-assign]
        assert run.wait_data("here", timeout=20) == 1
        run.cancel()
    shop.close()


def test_data_that_is_given_at_the_start_is_read_and_found(world: TestApp) -> None:
    run = reads.options(id="r", data={"tenant": "acme", "amount": Decimal("9.90")}).start()
    assert run.result() == ["acme", Decimal("9.90")]
    assert run.data == {"tenant": "acme", "amount": Decimal("9.90")}
    assert app.runs(data={"tenant": "acme"}) == [run]
    assert parent.start().result() == ["kid", 1]
    assert [found.parent_id is not None for found in app.runs(data={"tenant": "kid"})] == [True]
    fork = run.fork(at=1, id="f")
    assert fork.result() == ["acme", Decimal("9.90")]
    assert len(app.runs(data={"tenant": "acme"})) == 2
    with pytest.raises(ArgumentError, match="give a dict of values by key"):
        reads.options(data=3)  # type: ignore[arg-type]


# -- searching


def moment(hour: int, zone: int | None = 0) -> dt.datetime:
    return dt.datetime(2026, 5, 1, hour, tzinfo=None if zone is None else dt.timezone(dt.timedelta(hours=zone)))


VALUES: dict[str, Any] = {
    "minus": -20, "half": 0.5, "nine": 9, "ten": Decimal("10.0"), "huge": 10**30, "yes": True, "none": None,
    "ann": "ann", "anna": "anna", "bob": "bob", "ten-text": "10", "long": "x" * 300, "list": [1, 2],
    "noon": moment(12), "noon-east": moment(14, 2), "one": moment(13), "day": dt.date(2026, 5, 1),
    "local": moment(12, None), "next": dt.date(2026, 5, 2),
}  # fmt: skip
ASKED: list[tuple[Any, str, set[str]]] = [
    (10, "data.v=10", {"ten"}),
    (Decimal("0.50"), "data.v=0.5", {"half"}),
    ("ann", "data.v=ann", {"ann"}),
    ("x" * 300, f"data.v={'x' * 300}", {"long"}),
    ([1, 2], "data.v=[1,2]", {"list"}),
    (True, "data.v=true", {"yes"}),
    (Range(above=9), "data.v>9", {"ten", "huge"}),
    (Range(at_least=9), "data.v>=9", {"nine", "ten", "huge"}),
    (Range(below=9), "data.v<9", {"minus", "half"}),
    (Range(at_most=9, above=-20), "data.v<=9 data.v>-20", {"half", "nine"}),
    (Prefix("ann"), "data.v=ann*", {"ann", "anna"}),
    (Range(at_least="anna"), 'data.v>="anna"', {"anna", "bob", "long"}),
    (moment(12), "", {"noon", "noon-east"}),
    (Range(above=moment(12)), "", {"one"}),
    (Range(at_most=moment(12)), "", {"noon", "noon-east"}),
    (Range(above=dt.date(2026, 5, 1)), "", {"local", "next"}),
    (Range(below=dt.date(2026, 5, 2)), "", {"day", "local"}),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_data_is_found_by_equality_beginning_and_range(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "found.db") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    found = App("found", url)

    @found.workflow
    async def one() -> None:
        return None

    for name, value in VALUES.items():
        one.options(id=name, data={"v": value}).start()
    for asked, text, expected in ASKED:
        assert {run.id for run in found.runs(data={"v": asked})} == expected, asked
        if text:
            rows = found.store.runs(parse_filter(text, SystemClock().now(), found.codec.encode))
            assert {row.id for row in rows} == expected, text
    after = {row.id for row in found.store.runs(parse_filter("data.v>2026-05-01", 0, found.codec.encode))}
    assert {"local", "next", "anna", "one"} <= after
    assert not after & {"day", "huge", "ten-text"}
    found.close()


def test_data_that_an_older_version_has_published_is_found_by_equality(tmp_path: Path) -> None:
    old = App("old", str(tmp_path / "old.db"))

    @old.workflow
    async def one() -> None:
        return None

    run = one.options(data={"n": 42, "who": "ann"}).start()
    with old.store.write("test") as db:  # type: ignore[attr-defined]
        db.execute("UPDATE attributes SET value = CAST(body AS TEXT)")
    assert old.runs(data={"n": 42, "who": "ann"}) == [run]
    assert old.runs(data={"n": 43}) == []
    old.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Range(),
        lambda: Range(above=1, at_least=2),
        lambda: app.runs(data={"x": Range(above=1, below="a")}),
        lambda: app.runs(data={"x": Range(above=[1])}),
        lambda: Prefix(""),
        lambda: Prefix(3),  # type: ignore[arg-type]
    ],
)
def test_bounds_that_mean_nothing_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        make()


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
numbers = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.decimals(allow_nan=False, allow_infinity=False, places=4)
)


@unhurried
@given(numbers, numbers)
def test_texts_of_numbers_compare_as_the_numbers_do(one: Any, other: Any) -> None:
    codec = Codec()
    a, b = order_key(codec.encode(one)), order_key(codec.encode(other))
    exact = [Decimal(repr(n)) if isinstance(n, float) else Decimal(n) for n in (one, other)]
    assert (a < b, a == b) == (exact[0] < exact[1], exact[0] == exact[1])


@unhurried
@given(st.datetimes(timezones=st.timezones()), st.datetimes(timezones=st.timezones()))
def test_texts_of_times_compare_as_the_times_do(one: dt.datetime, other: dt.datetime) -> None:
    codec = Codec()
    a, b = order_key(codec.encode(one)), order_key(codec.encode(other))
    assert (
        (a < b) == (one.astimezone(dt.UTC) < other.astimezone(dt.UTC)) if 1 < one.year < 9999 > other.year > 1 else True
    )


def test_a_filter_for_a_range_of_data_needs_a_value() -> None:
    with pytest.raises(ArgumentError, match="nothing comes after >"):
        parse_filter("data.x>", 0, Codec().encode)
    assert parse_filter("data.x>=1", 0, Codec().encode) != RunQuery()
