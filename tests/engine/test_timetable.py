"""When schedules tick, over changes of the clock too."""

from __future__ import annotations

import datetime as dt
import itertools
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.timetable import (
    LIMIT,
    Spec,
    jitter,
    latest_ticks,
    local,
    next_tick,
    ticks_after,
    ticks_between,
    ticks_to_take,
)

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND


def us(text: str) -> int:
    """A moment given with its offset from UTC."""
    return (dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def ticks(spec: Spec, after: str, count: int) -> list[str]:
    return [local(tick, spec).isoformat() for tick in itertools.islice(ticks_after(spec, us(after)), count)]


# -- the clock is put forward: an hour is left out


def test_a_time_of_day_that_is_left_out_comes_right_after() -> None:
    nightly = Spec(cron="30 2 * * *", tz="Europe/Berlin")
    assert ticks(nightly, "2026-03-28T00:00+01:00", 3) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_two_times_of_day_that_are_left_out_are_one_tick() -> None:
    twice = Spec(cron="0,30 2 * * *", tz="Europe/Berlin")
    assert ticks(twice, "2026-03-29T00:00+01:00", 2) == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]


def test_midnight_may_be_left_out_too() -> None:
    daily = Spec(cron="0 0 * * *", tz="America/Santiago")
    assert ticks(daily, "2026-09-05T12:00-04:00", 2) == ["2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"]


def test_a_clock_may_be_put_forward_by_half_an_hour() -> None:
    daily = Spec(cron="15 2 * * *", tz="Australia/Lord_Howe")
    assert ticks(daily, "2026-10-03T12:00+10:30", 2) == ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]


def test_every_so_many_minutes_just_goes_on() -> None:
    half_hourly = Spec(cron="*/30 * * * *", tz="Europe/Berlin")
    assert ticks(half_hourly, "2026-03-29T01:20+01:00", 3) == [
        "2026-03-29T01:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T03:30:00+02:00",
    ]


# -- the clock is put back: an hour comes twice


def test_a_time_of_day_that_comes_twice_is_one_tick() -> None:
    nightly = Spec(cron="30 2 * * *", tz="Europe/Berlin")
    first = ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    assert ticks(nightly, "2026-10-25T00:00+02:00", 2) == first
    assert ticks(nightly, "2026-10-25T02:30+02:00", 1) == first[1:], "not once more after the first"
    assert ticks(nightly, "2026-10-25T02:10+01:00", 1) == first[1:], "nor for who asks in the second hour"


def test_what_ticks_each_hour_ticks_in_both() -> None:
    hourly = Spec(cron="0 * * * *", tz="America/New_York")
    assert ticks(hourly, "2026-11-01T00:30-04:00", 3) == [
        "2026-11-01T01:00:00-04:00",
        "2026-11-01T01:00:00-05:00",
        "2026-11-01T02:00:00-05:00",
    ]


@pytest.mark.parametrize("begin", ["2026-03-28T12:00+01:00", "2026-10-24T12:00+02:00"])
def test_an_interval_is_time_as_it_passes(begin: str) -> None:
    found = list(itertools.islice(ticks_after(Spec(every=4 * HOUR, tz="Europe/Berlin"), us(begin)), 20))
    assert {late - early for early, late in itertools.pairwise(found)} == {4 * HOUR}


# -- laws

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe", "Asia/Kathmandu"]
MOMENTS = st.integers(us("2026-01-01T00:00+00:00"), us("2028-01-01T00:00+00:00"))
CHANGES = [us("2026-03-29T01:00+00:00"), us("2026-10-25T01:00+00:00"), us("2026-11-01T06:00+00:00")]
NEAR = st.builds(lambda change, by: change + by, st.sampled_from(CHANGES), st.integers(-3 * HOUR, 3 * HOUR))


@given(st.sampled_from(ZONES), st.sampled_from(["*/7 * * * *", "* * * * *", "13 * * * *", "*/20 */3 * * *"]), NEAR)
@settings(max_examples=100, deadline=None)
def test_with_a_star_each_minute_that_looks_like_it_is_a_tick(tz: str, cron: str, begin: int) -> None:
    minute, hour = cron.split()[:2]

    def fits(value: int, field: str) -> bool:
        return field == "*" or (value % int(field[2:]) == 0 if "/" in field else value == int(field))

    expected = []
    for moment in range(begin - begin % MINUTE, begin + 6 * HOUR, MINUTE):
        wall = dt.datetime.fromtimestamp(moment // SECOND, ZoneInfo(tz))
        if moment > begin and fits(wall.minute, minute) and fits(wall.hour, hour):
            expected.append(moment)
    assert list(ticks_between(Spec(cron=cron, tz=tz), begin + 1, begin + 6 * HOUR - 1)) == expected


@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), MOMENTS)
@settings(max_examples=100, deadline=None)
def test_a_time_of_day_comes_once_on_each_day(tz: str, hour: int, minute: int, begin: int) -> None:
    spec = Spec(cron=f"{minute} {hour} * * *", tz=tz)
    days = [local(tick, spec).date() for tick in itertools.islice(ticks_after(spec, begin), 400)]
    assert days == [days[0] + dt.timedelta(days=n) for n in range(400)]


@given(
    st.sampled_from(ZONES), st.sampled_from(["0,30 1-3 * * *", "*/30 * * * *", "5 2 * * 0", "0 */2 * * *"]), NEAR, NEAR
)
@settings(max_examples=100, deadline=None)
def test_ticks_do_not_depend_on_where_one_begins_to_look(tz: str, cron: str, one: int, other: int) -> None:
    spec = Spec(cron=cron, tz=tz)
    early, late = sorted((one, other))
    late = min(late, early + 10 * DAY)
    end = late + DAY
    assert [t for t in ticks_between(spec, early, end) if t >= late] == list(ticks_between(spec, late, end))


@given(st.integers(HOUR // 100, 40 * DAY), st.integers(0, 40 * DAY), MOMENTS)
def test_intervals_are_counted_from_the_epoch_and_the_offset(every: int, offset: int, after: int) -> None:
    tick = next_tick(Spec(every=every, offset=offset % every), after)
    assert tick is not None
    assert after < tick <= after + every
    assert (tick - offset) % every == 0


@given(
    st.sampled_from(["*/5 * * * *", "0 2 * * *", "0 0 1 * *"]), MOMENTS, st.integers(0, 400 * DAY), st.integers(1, 50)
)
@settings(max_examples=50, deadline=None)
def test_the_latest_ticks_are_the_end_of_all_ticks(cron: str, first: int, length: int, limit: int) -> None:
    spec = Spec(cron=cron, tz="Europe/Berlin")
    length = min(length, 20 * DAY) if cron.startswith("*/5") else length
    assert latest_ticks(spec, first, first + length, limit) == list(ticks_between(spec, first, first + length))[-limit:]


# -- what was missed

NOON = us("2026-06-01T12:00+00:00")


def hourly(missed: str) -> Spec:
    return Spec(cron="0 * * * *", missed=missed)  # type: ignore[arg-type]


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_what_is_on_time_is_always_taken(missed: str) -> None:
    assert ticks_to_take(hourly(missed), NOON, NOON) == [NOON]
    assert ticks_to_take(hourly(missed), NOON, NOON + 59 * SECOND) == [NOON]
    every = Spec(every=SECOND, missed=missed)  # type: ignore[arg-type]
    assert ticks_to_take(every, NOON, NOON + 5 * SECOND) == [NOON + n * SECOND for n in range(6)]


def test_of_what_was_missed_as_much_is_made_up_for_as_is_said() -> None:
    since, now = NOON - 3 * HOUR, NOON + 10 * MINUTE
    assert ticks_to_take(hourly("skip"), since, now) == []
    assert ticks_to_take(hourly("once"), since, now) == [NOON]
    assert ticks_to_take(hourly("all"), since, now) == [NOON - n * HOUR for n in (3, 2, 1, 0)]


def test_a_tick_on_time_does_not_take_the_place_of_those_that_were_missed() -> None:
    since, now = NOON - 3 * HOUR, NOON + SECOND
    assert ticks_to_take(hourly("skip"), since, now) == [NOON]
    assert ticks_to_take(hourly("once"), since, now) == [NOON - HOUR, NOON]
    assert ticks_to_take(hourly("all"), since, now) == [NOON - n * HOUR for n in (3, 2, 1, 0)]


def test_ticks_before_the_start_and_after_the_end_do_not_count() -> None:
    for spec in (
        Spec(cron="0 * * * *", start=NOON, end=NOON + 2 * HOUR), Spec(every=HOUR, start=NOON, end=NOON + 2 * HOUR)
    ):  # fmt: skip
        assert [*ticks_after(spec, 0)] == [NOON, NOON + HOUR, NOON + 2 * HOUR]
        assert next_tick(spec, NOON - DAY) == NOON
        assert next_tick(spec, NOON) == NOON + HOUR
        assert next_tick(spec, NOON + 2 * HOUR) is None
        assert ticks_to_take(spec, NOON, NOON + 9 * HOUR) == [NOON + 2 * HOUR]
        assert spec.timing != Spec(cron=spec.cron, every=spec.every).timing


def test_no_more_than_a_limit_is_made_up_for_however_long_it_was() -> None:
    spec = Spec(cron="* * * * *", missed="all")
    found = ticks_to_take(spec, NOON - 3_000 * DAY, NOON)
    assert len(found) == LIMIT + 2
    assert found[-3:] == [NOON - 2 * MINUTE, NOON - MINUTE, NOON]
    assert len(ticks_to_take(Spec(every=SECOND, missed="once"), NOON - 3_000 * DAY, NOON)) == 62


def test_jitter_is_the_same_for_the_same_tick_and_spread_over_others() -> None:
    spec = Spec(every=HOUR, jitter=10 * MINUTE)
    delays = [jitter(spec, "nightly", NOON + n * HOUR) for n in range(200)]
    assert delays == [jitter(spec, "nightly", NOON + n * HOUR) for n in range(200)]
    assert min(delays) >= 0
    assert min(delays) < MINUTE
    assert 9 * MINUTE < max(delays) <= 10 * MINUTE
