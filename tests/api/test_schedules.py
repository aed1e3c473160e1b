"""Schedules: declared, made at run time, missed, overlapping, paused, backfilled. Time is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import MovedClock, wait_until

from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    DuplicateNameError,
    Every,
    Schedule,
    ScheduleError,
    ScheduleNotFoundError,
    Status,
    every,
    hook,
    sleep,
    wf,
)
from holdfast.engine.settings import Settings
from holdfast.ports import ScheduleChange
from holdfast.testing import TestApp

MAY = dt.datetime(2026, 5, 4, tzinfo=dt.UTC)  # a Monday
SPRING = dt.datetime(2026, 3, 27, 12, tzinfo=dt.UTC)


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def ids(app: App, **given: Any) -> list[str]:
    return [run.id for run in reversed(app.runs(**given))]


# -- ticking


def test_a_nightly_workflow_runs_each_night_where_it_lives(app: App) -> None:
    @app.workflow(schedule="0 2 * * *", tz="Europe/Berlin")
    async def nightly() -> str:
        assert wf.scheduled_at is not None
        return wf.scheduled_at.isoformat()

    with TestApp(app, start=SPRING) as world:
        world.advance("3d")
        assert ids(app) == [
            "nightly@2026-03-28T02:00:00+01:00",
            "nightly@2026-03-29T03:00:00+02:00",
            "nightly@2026-03-30T02:00:00+02:00",
        ]
        assert [run.result() for run in app.runs()] == [run.id.partition("@")[2] for run in app.runs()]


def test_a_step_can_be_scheduled_and_so_can_a_plain_workflow(app: App) -> None:
    @app.step(schedule=every("15m"))
    def poll() -> int:
        return 1

    @app.workflow(schedule="@hourly")
    def tidy() -> int:
        return poll()

    with TestApp(app, start=MAY) as world:
        world.advance("1h")
        assert len(app.runs(workflow="poll")) == 4
        assert [run.result() for run in app.runs(schedule="tidy")] == [1]


def test_a_workflow_may_have_several_schedules_with_arguments_of_their_own(app: App) -> None:
    @app.workflow(schedule=["@daily", Schedule("@weekly", name="digest", tz="Asia/Tokyo")])
    async def report(region: str = "all", *, currency: str = "EUR") -> str:
        return f"{region} {currency}"

    app.schedules.declare(Schedule("0 12 * * *", name="report-us"), report, "us", currency="USD")
    with TestApp(app, start=MAY) as world:
        world.advance("23h")
        assert [(run.id, run.result()) for run in app.runs()] == [("report-us@2026-05-04T12:00:00+00:00", "us USD")]
        world.advance("6d")
        assert len(app.runs(schedule="report")) == 6
        assert len(app.runs(schedule="report-us")) == 7
        assert ids(app, schedule="digest") == ["digest@2026-05-10T00:00:00+09:00"]
        info = app.schedules.get("report-us")
        assert (info.args, info.kwargs, info.workflow) == (("us",), {"currency": "USD"}, "report")


@pytest.mark.parametrize(
    ("when", "first"),
    [
        (every("15m"), "2026-05-04T00:15:00+00:00"),
        (every("15m", offset="5m"), "2026-05-04T00:05:00+00:00"),
        (every("1w", anchor=at("2020-01-01T09:00+00:00")), "2026-05-06T09:00:00+00:00"),
        ("@daily", "2026-05-05T00:00:00+00:00"),
        ("@monthly", "2026-06-01T00:00:00+00:00"),
        ("0 9 * * mon-fri", "2026-05-04T09:00:00+00:00"),
        ("0 9 L * *", "2026-05-31T09:00:00+00:00"),
    ],
)
def test_the_next_tick(app: App, when: str | Every, first: str) -> None:
    @app.workflow(schedule=when)
    async def job() -> None: ...

    with TestApp(app, start=MAY):
        info = app.schedules.get("job")
        assert info.next_at == at(first)
        assert info.upcoming(3)[0] == at(first)


def test_the_tick_is_the_same_over_retries_and_continuations_and_none_elsewhere(app: App) -> None:
    seen: list[str] = []

    @app.step
    def note(what: str) -> None:
        seen.append(what)

    @app.workflow(schedule="0 6 * * *", tz="Asia/Kathmandu", max_retries=1, retry_delay="1h")
    async def job(left: int = 1) -> None:
        note(f"{wf.attempt} {left} {wf.scheduled_at}")
        if wf.attempt == 1:
            raise ConnectionError("the first attempt fails")
        if left:
            wf.continue_as_new(left - 1)

    with TestApp(app, start=MAY) as world:
        world.advance("5h")
        assert seen == [f"{n} 2026-05-04 06:00:00+05:45" for n in ("1 1", "2 1", "1 0", "2 0")]
        job.options(max_retries=0).start()
        world.settle()
        assert seen[-1] == "1 1 None"


def test_jitter_begins_a_run_a_little_later_and_its_tick_stays(app: App) -> None:
    @app.workflow(schedule=Schedule("@hourly", jitter="20m"))
    async def job() -> str:
        return str(wf.scheduled_at)

    with TestApp(app, start=MAY) as world:
        world.advance("20h")
        begun = [(run.started_at, run.result()) for run in app.runs(status=Status.SUCCESS)]
    delays = [(moment - at(tick)).total_seconds() for moment, tick in begun if moment is not None]
    assert len(delays) >= 19
    assert len(set(delays)) == len(delays)
    assert 0 <= min(delays) < max(delays) <= 1_200


# -- what was missed


@pytest.mark.parametrize(("missed", "expected"), [("skip", 0), ("once", 1), ("all", 3)])
def test_ticks_that_came_while_no_worker_ran(app: App, missed: Any, expected: int) -> None:
    clock = app.storage.clock = MovedClock()
    anchor = dt.datetime.now(dt.UTC) - dt.timedelta(hours=12)

    @app.workflow(schedule=Schedule(every("1d", anchor=anchor), missed=missed, overlap="allow"))
    async def job() -> str:
        return str(wf.scheduled_at)

    with app.worker():
        assert app.schedules.get("job").next_at is not None
    clock.move(days=3)
    first = app.schedules.get("job").next_at
    assert first is not None
    with app.worker():
        wait_until(lambda: app.schedules.get("job").next_at != first)
        wait_until(lambda: len(app.runs(status=Status.SUCCESS)) == expected)
        ticks = [first + dt.timedelta(days=n) for n in range(3)]
        assert [at(run.result(timeout=5)) for run in reversed(app.runs())] == (ticks[-expected:] if expected else [])


@pytest.mark.parametrize("worker_runs", [True, False])
def test_a_clock_that_was_ahead_for_a_while_does_not_silence_a_schedule(app: App, worker_runs: bool) -> None:
    clock = app.storage.clock = MovedClock()

    @app.workflow(schedule=Schedule(every("100ms"), overlap="allow"))
    async def declared() -> None: ...

    @app.workflow
    async def made() -> None: ...

    def tick() -> None:
        before = {each.name: each.last_at for each in app.schedules.list()}
        wait_until(lambda: all(each.last_at != before[each.name] for each in app.schedules.list()))

    with contextlib.ExitStack() as first:
        first.enter_context(app.worker(settings=Settings(sweep=0.05)))
        app.schedules.put(Schedule(every("100ms"), overlap="allow"), made)
        clock.move(days=30)
        tick()
        if not worker_runs:
            first.close()
        clock.move(days=-30)
        with contextlib.nullcontext() if worker_runs else app.worker():
            tick()
            tick()


# -- overlap


def slow_job(app: App, **policy: Any) -> None:
    @app.workflow(schedule=Schedule("@hourly", **policy))
    async def job() -> str:
        await sleep("150m")
        return str(wf.utc_now())


def test_a_tick_is_skipped_while_the_last_run_goes_on(app: App) -> None:
    slow_job(app)
    with TestApp(app, start=MAY) as world:
        world.advance("6h10m")
        assert ids(app) == ["job@2026-05-04T01:00:00+00:00", "job@2026-05-04T04:00:00+00:00"]
        assert app.schedules.get("job").is_active


def test_a_tick_is_queued_until_the_last_run_has_ended(app: App) -> None:
    slow_job(app, overlap="queue")
    with TestApp(app, start=MAY) as world:
        world.advance("6h")
        begun = [run.started_at - MAY for run in reversed(app.runs()) if run.started_at is not None]
        assert [hours / dt.timedelta(hours=1) for hours in begun] == [1, 3.5, 6]
        assert [run.id[-14:-6] for run in reversed(app.runs())] == ["01:00:00", "02:00:00", "03:00:00"]
        info = app.schedules.get("job")
        assert [tick.hour for tick in info.queued] == [4, 5, 6]
        assert info.last_run_id == "job@2026-05-04T03:00:00+00:00"


def test_a_queue_goes_on_when_a_run_fails_or_is_cancelled(app: App) -> None:
    @app.workflow(schedule=Schedule("@hourly", overlap="queue"))
    async def job() -> None:
        if await hook("go") == "fail":
            raise ValueError("told to")

    with TestApp(app, start=MAY) as world:
        world.advance("3h30m")
        (first,) = app.runs()
        first.send("go", "fail")
        world.settle()
        second = app.runs()[0]
        second.cancel()
        world.settle()
        third = app.runs()[0]
        assert [run.status for run in (first, second, third)] == [Status.FAILURE, Status.CANCELLED, Status.WAITING]
        assert [run.id[-14:-9] for run in (first, second, third)] == ["01:00", "02:00", "03:00"]


def test_runs_may_overlap_if_they_are_allowed_to(app: App) -> None:
    slow_job(app, overlap="allow")
    with TestApp(app, start=MAY) as world:
        world.advance("3h")
        assert [run.status for run in app.runs()] == [Status.WAITING] * 3


# -- changing them


def test_a_schedule_is_made_changed_and_deleted_at_run_time(app: App) -> None:
    @app.workflow
    async def greet(name: str, *, loudly: bool = False) -> str:
        return name.upper() if loudly else name

    with TestApp(app, start=MAY) as world:
        made = app.schedules.put(Schedule("0 3 * * *", name="morning"), greet, "ann", loudly=True)
        assert (made.name, made.when, made.declared) == ("morning", "0 3 * * *", False)
        assert repr(made) == "<schedule 'morning' of 'greet': 0 3 * * *, 2026-05-04 03:00:00+00:00>"
        world.advance("1d")
        assert [run.result() for run in app.runs()] == ["ANN"]
        changed = app.schedules.put(Schedule(every("6h"), name="morning", tz="Europe/Berlin"), "greet", "bob")
        assert (changed.when, changed.tz, changed.args) == ("every 6h", "Europe/Berlin", ("bob",))
        assert (changed.last_at, changed.next_at) == (at("2026-05-04T03:00+00:00"), at("2026-05-05T06:00+00:00"))
        world.advance("6h")
        assert ids(app)[1:] == ["morning@2026-05-05T08:00:00+02:00"]
        app.schedules.put("@daily", greet, "eve")
        assert [info.name for info in app.schedules.list()] == ["greet", "morning"]
        app.schedules.delete("morning")
        world.advance("1d")
        assert len(app.runs()) == 3
        with pytest.raises(ScheduleNotFoundError, match="no schedule named 'morning' in app 'shop'; known: greet"):
            app.schedules.get("morning")


def test_a_paused_schedule_starts_nothing_until_it_is_resumed_and_skips_the_time_between(app: App) -> None:
    slow_job(app, overlap="queue")
    with TestApp(app, start=MAY) as world:
        world.advance("2h10m")
        app.schedules.pause("job", "holidays")
        info = app.schedules.get("job")
        assert (info.paused, info.reason, info.next_at, info.upcoming()) == (True, "holidays", None, [])
        world.advance("10h")
        assert len(app.runs()) == 1
        app.schedules.resume("job")
        app.schedules.resume("job")
        world.settle()
        assert ids(app)[1:] == ["job@2026-05-04T02:00:00+00:00"], "what was queued goes on"
        assert app.schedules.get("job").next_at == at("2026-05-04T13:00+00:00")


def test_trigger_starts_one_now_whatever_the_clock_says(app: App) -> None:
    @app.workflow(schedule="@yearly")
    async def job() -> str:
        return str(wf.scheduled_at)

    with TestApp(app, start=MAY):
        app.schedules.pause("job")
        first, second = app.schedules.trigger("job"), app.schedules
        assert first.id == "job@2026-05-04T00:00:00+00:00"
        assert first.result() == "2026-05-04 00:00:00+00:00"
        assert second.trigger("job").id == "job@2026-05-04T00:00:00.000001+00:00", "time stands still here"
        assert second.get("job").last_at == at("2026-05-04T00:00:00.000001+00:00")


def test_trigger_does_not_break_the_promise_that_runs_do_not_overlap(app: App) -> None:
    slow_job(app)
    with TestApp(app, start=MAY) as world:
        run = app.schedules.trigger("job")
        with pytest.raises(ScheduleError, match=r"has not ended.*wait for it, or cancel it"):
            app.schedules.trigger("job")
        world.advance("2h")
        assert len(app.runs()) == 1, "a tick meanwhile is skipped"
        run.result()
        assert app.schedules.trigger("job").id != run.id


def test_a_backfill_starts_what_has_no_run_one_after_the_other(app: App) -> None:
    @app.workflow(schedule="0 2 * * *", tz="Europe/Berlin")
    async def nightly() -> str:
        await sleep("1h")
        return str(wf.scheduled_at)

    with TestApp(app, start=SPRING) as world:
        world.advance("1d")
        made = app.schedules.backfill("nightly", at("2026-03-26T02:00+01:00"))
        assert made == ["nightly@2026-03-26T02:00:00+01:00", "nightly@2026-03-27T02:00:00+01:00"], "both ends included"
        world.settle()
        assert len(app.schedules.get("nightly").queued) == 1
        world.advance("3h")
        assert [app.get_run(run_id).result()[:10] for run_id in made] == ["2026-03-26", "2026-03-27"]
        assert app.schedules.backfill("nightly", at("2026-03-20T00:00Z"), at("2026-03-20T00:30Z")) == []
        assert app.schedules.backfill("nightly", at("2026-03-26T00:00Z")) == []


def test_a_backfill_of_runs_that_may_overlap_starts_all_at_once(app: App) -> None:
    slow_job(app, overlap="allow")
    with TestApp(app, start=MAY):
        assert len(app.schedules.backfill("job", at("2026-05-02T00:30+00:00"), at("2026-05-03T00:30+00:00"))) == 24
        assert len(app.runs()) == 24


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        ("2026-05-05T00:00Z", None, "begins before it ends, and ends by now"),
        ("2026-05-03T00:00Z", "2026-05-02T00:00Z", "begins before it ends"),
        ("2026-05-03T00:00Z", "2026-05-09T00:00Z", "ends by now"),
        ("2026-01-01T00:00Z", None, "more than 1000 ticks; give a shorter range"),
        ("2026-01-01T00:00", None, "has no time zone"),
        ("0001-01-01T00:00Z", None, "no calendar goes back so far"),
    ],
)
def test_a_range_that_can_not_be_is_refused(app: App, start: str, end: str | None, words: str) -> None:
    slow_job(app)
    with TestApp(app, start=MAY):
        with pytest.raises(ArgumentError, match=words):
            app.schedules.backfill("job", at(start), None if end is None else at(end))
        assert app.runs() == []


def test_a_backfill_that_would_not_fit_into_the_queue_is_refused(app: App) -> None:
    slow_job(app, overlap="queue")
    with TestApp(app, start=MAY):
        assert len(app.schedules.backfill("job", MAY - dt.timedelta(hours=900), MAY - dt.timedelta(hours=1))) == 900
        with pytest.raises(ScheduleError, match=r"899 ticks of schedule 'job' wait already.*shorter range"):
            app.schedules.backfill("job", MAY - dt.timedelta(hours=1_200), MAY - dt.timedelta(hours=901))


def test_a_paused_schedule_is_not_backfilled(app: App) -> None:
    slow_job(app)
    with TestApp(app, start=MAY):
        app.schedules.pause("job")
        with pytest.raises(ScheduleError, match="resume it before a backfill"):
            app.schedules.backfill("job", MAY)


def test_schedules_from_async_code(app: App) -> None:
    @app.workflow
    async def greet(name: str) -> str:
        return name

    async def scenario() -> None:
        schedules = app.schedules
        async with TestApp(app, start=MAY) as world:
            made = await schedules.aput(Schedule("@daily", name="g"), greet, "ann")
            assert [info.name for info in await schedules.alist()] == [made.name]
            await schedules.apause("g", "now")
            assert (await schedules.aget("g")).reason == "now"
            await schedules.aresume("g")
            assert await (await schedules.atrigger("g")) == "ann"
            await schedules.abackfill("g", MAY - dt.timedelta(days=1))
            await world.aadvance("1d")
            assert len(await app.aruns(schedule="g")) == 3
            await schedules.adelete("g")
            assert await schedules.alist() == []

    asyncio.run(scenario())


# -- code that is deployed again


Deploy = Callable[..., App]


@pytest.fixture
def deploy(app: App) -> Iterator[Deploy]:
    """The same app, as another version of its code defines it."""
    versions: list[App] = []

    def define(*schedules: Schedule) -> App:
        fresh = App(app.name, app.store_url)
        versions.append(fresh)

        @fresh.workflow(schedule=list(schedules) or None)
        async def job() -> None: ...

        return fresh

    yield define
    for version in versions:
        version.close()


def restart(app: App) -> list[Any]:
    """What the schedules are once a worker with that code has started."""
    with app.worker():
        return app.schedules.list()


def test_a_pause_survives_a_deploy(app: App, deploy: Deploy) -> None:
    restart(deploy(Schedule("@daily")))
    app.schedules.pause("job", "not now")
    (info,) = restart(deploy(Schedule("@hourly")))
    assert (info.when, info.paused, info.reason, info.next_at) == ("0 * * * *", True, "not now", None)


def test_what_code_says_of_a_schedule_is_what_holds(app: App, deploy: Deploy) -> None:
    (first,) = restart(deploy(Schedule("@yearly")))
    (same,) = restart(deploy(Schedule("@yearly", overlap="queue")))
    assert (same.next_at, same.overlap) == (first.next_at, "queue")
    (other,) = restart(deploy(Schedule("@hourly")))
    assert other.next_at < first.next_at


def test_a_schedule_that_is_no_longer_in_the_code_goes_with_the_last_worker_that_declares_it(
    app: App, deploy: Deploy
) -> None:
    old, new = deploy(Schedule("@daily")), deploy()
    with old.worker():
        assert [info.name for info in restart(new)] == ["job"], "the old code still runs"
        with pytest.raises(ScheduleError, match=r"declared in the code.*remove it there.*or pause it"):
            app.schedules.delete("job")
    assert restart(new) == []


def test_a_worker_that_does_not_know_a_workflow_leaves_its_schedule_alone(app: App, deploy: Deploy) -> None:
    restart(deploy(Schedule("@daily")))
    assert [info.name for info in restart(app)] == ["job"]


def test_what_code_declares_is_changed_in_the_code(app: App, deploy: Deploy) -> None:
    ours = deploy(Schedule("@daily"))
    restart(ours)
    with pytest.raises(
        ScheduleError, match="declared in the code of app 'shop'; change it there, or choose another name"
    ):
        ours.schedules.put("@hourly", "job")
    with pytest.raises(ScheduleError, match="declared in the code"):
        ours.schedules.delete("job")


def test_code_takes_over_a_schedule_that_was_made_at_run_time(app: App, deploy: Deploy) -> None:
    deploy().schedules.put("@hourly", "job")
    (info,) = restart(deploy(Schedule("@daily")))
    assert (info.when, info.declared) == ("0 0 * * *", True)


def test_a_schedule_that_can_not_be_read_is_paused_and_the_others_go_on(app: App) -> None:
    @app.workflow(schedule="@hourly")
    async def good() -> None: ...

    @app.workflow(schedule="@hourly")
    async def bad() -> None: ...

    with TestApp(app, start=MAY) as world:
        (row,) = app.store.schedules("bad")
        row.spec = b'{"tz":"Mars/Olympus","cron":"0 * * * *"}'
        app.store.save_schedules([ScheduleChange(row=row)])
        world.advance("2h")
        assert len(app.runs(schedule="good")) == 2
        (row,) = app.store.schedules("bad")
        assert row.paused
        assert "ZoneInfoNotFoundError" in row.reason


# -- in tests


def test_waiting_for_a_run_lets_schedules_tick_on_the_way_but_does_not_wait_for_them(app: App) -> None:
    @app.workflow(schedule="@daily")
    async def job() -> None: ...

    @app.workflow
    async def naps(days: int) -> None:
        await sleep(f"{days}d")

    @app.workflow
    async def asks() -> None:
        await hook("never")

    with TestApp(app, start=MAY):
        naps.start(3).result()
        assert len(app.runs(schedule="job")) == 3
        with pytest.raises(TimeoutError, match="nothing more will happen"):
            asks.start().result()
    with TestApp(app, start=MAY, schedules=False) as world:
        world.advance("3d")
        assert app.runs() == []
        app.schedules.trigger("job").result()


# -- refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schedule": "61 * * * *"}, "bad minute; give five fields"),
        ({"schedule": "* * *"}, "wrong number of fields; give five fields"),
        ({"schedule": "@reboot"}, "or @yearly, .*@hourly; or every"),
        ({"schedule": "0 0 31 2 *"}, "bad day-of-month"),
        ({"schedule": "0 0 */20 2 3L"}, "never comes"),
        ({"schedule": "*/10 * * * * *"}, r"six fields; for less than a minute there is every\('10s'\)"),
        ({"schedule": 15}, "give five fields"),
        ({"schedule": "@daily", "tz": "Europe/Berln"}, "is no time zone.*did you mean 'Europe/Berlin'"),
        ({"schedule": "@daily", "tz": "../etc/passwd"}, "is no time zone"),
        ({"schedule": "@daily", "tz": ""}, "is no time zone"),
        ({"tz": "Europe/Berlin"}, "add schedule="),
        ({"schedule": Schedule("@daily"), "tz": "Europe/Berlin"}, r"say it there: Schedule\(..., tz='Europe/Berlin'\)"),
    ],
)
def test_a_schedule_that_can_not_be_is_refused_where_it_is_defined(app: App, given: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        app.workflow(**given)


FIELDS = st.lists(st.text("0123456789*/-,#LWmonjan?", min_size=1, max_size=6), min_size=4, max_size=6)
LIKELY = st.lists(
    st.sampled_from(["*", "1", "*/7", "L", "LW", "31", "2", "5L", "1#5", "L/2", "*/20"]), min_size=5, max_size=5
)


@given((FIELDS | LIKELY).map(" ".join))
@settings(max_examples=500, deadline=None)
def test_whatever_is_written_is_a_schedule_or_a_definition_error(text: str) -> None:
    with contextlib.suppress(DefinitionError):
        Schedule(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: every("10ms"), "shortest interval is 100ms"),
        (lambda: every("often"), "cannot read 'often'"),
        (lambda: every("1h", offset="5m", anchor=MAY), "give one of them"),
        (lambda: Schedule("@daily", missed="some"), "missed='some': give 'skip', 'once' or 'all'"),  # type: ignore[arg-type]
        (lambda: Schedule("@daily", overlap="end"), "give 'skip', 'queue', 'allow' or 'cancel'"),  # type: ignore[arg-type]
        (lambda: Schedule("@daily", missed="all"), "add overlap='queue'"),
        (lambda: Schedule("@daily", name="two words"), "without spaces"),
        (lambda: Schedule("@daily", jitter="soon"), "jitter: cannot read 'soon'"),
    ],
)
def test_a_policy_that_can_not_be_is_refused(make: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        make()


def test_arguments_have_to_fit_the_function(app: App) -> None:
    with pytest.raises(DefinitionError, match=r"missing a required argument: 'region'.*declare it after the function"):

        @app.workflow(schedule="@daily")
        async def report(region: str) -> None: ...

    @app.workflow
    async def other(region: str) -> None: ...

    with pytest.raises(ArgumentError, match="missing a required argument: 'region'"):
        app.schedules.declare("@daily", other)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match="give a workflow or a step of app 'shop'"):
        app.schedules.declare("@daily", print)
    with pytest.raises(DefinitionError, match="use the schedules of its own app"):
        App("elsewhere").schedules.declare("@daily", other, "eu")
    assert app.definitions.declared_schedules() == []


def test_two_schedules_need_two_names(app: App) -> None:
    @app.workflow
    async def job(n: int) -> None: ...

    app.schedules.declare("@daily", job, 1)
    app.schedules.declare("@daily", job, 1)
    with pytest.raises(DuplicateNameError, match=r"two schedules named 'job'; give each its own: Schedule\(..., name"):
        app.schedules.declare("@daily", job, 2)


# -- the next run takes the place of the last; dates


def test_a_tick_cancels_the_run_that_goes_on(app: App) -> None:
    @app.workflow(schedule=Schedule(every("1h"), name="poll", overlap="cancel"))
    async def poll() -> None:
        await sleep("90m")

    with TestApp(app) as world:
        world.advance("3h")
        last, *others = app.runs(schedule="poll")
        assert last.status == "WAITING"
        assert {(run.status, run.reason) for run in others} == {("CANCELLED", "the next run of schedule 'poll' begins")}
        assert len(others) == 2
        next_one = app.schedules.trigger("poll")
        world.advance("1s")
        assert (last.status, next_one.status) == ("CANCELLED", "WAITING")
        app.schedules.pause("poll")
        world.advance("2h")
        assert next_one.status == "SUCCESS"
    with pytest.raises(DefinitionError, match="would start one and cancel the others"):
        Schedule("@daily", missed="all", overlap="cancel")


def test_a_schedule_begins_and_ends_on_its_dates(app: App) -> None:
    @app.workflow
    async def poll() -> None: ...

    with TestApp(app) as world:
        now = dt.datetime.fromtimestamp(app.store.now() / 1e6, dt.UTC)
        start, end = now + dt.timedelta(hours=3), now + dt.timedelta(hours=5)
        info = app.schedules.put(Schedule(every("1h", anchor=now), name="season", start=start, end=end), poll)
        assert (info.next_at, info.start, info.end) == (start, start, end)
        assert len(info.upcoming(9)) == 3
        world.advance("1d")
        assert app.count(schedule="season") == 3
        assert app.schedules.get("season").next_at is None
        app.schedules.put(Schedule(every("1h", anchor=now), name="season"), poll)
        world.advance("2h")
        assert app.count(schedule="season") == 5, "it goes on if its end is taken away"
    with pytest.raises(DefinitionError, match="begins before it ends"):
        Schedule("@daily", start=end, end=start)
    with pytest.raises(DefinitionError, match="none between its start= and end="):
        Schedule("@yearly", start=dt.datetime(2026, 2, 1, tzinfo=dt.UTC), end=dt.datetime(2026, 3, 1, tzinfo=dt.UTC))
