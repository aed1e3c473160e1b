"""gc, health and doctor."""

from __future__ import annotations

import cli_shop
import pytest
from cli_driver import Cli
from waiting import wait_until

from holdfast import App, hook
from holdfast.engine.settings import Settings


@pytest.mark.usefixtures("worker")
def test_health_is_good_where_a_worker_lives(cli: Cli) -> None:
    assert cli("health").out.startswith("ok: ")
    facts = cli.without_code("--app-name", "shop", "health", "--here", "--json").json
    assert facts["ok"] is True
    assert "total" in facts["workers"][0]["names"]


def test_health_without_a_worker_exits_with_5_and_says_how_to_start_one(cli: Cli) -> None:
    cli("start", "add", "1")
    assert f"holdfast -A cli_shop --store {cli.store} worker" in cli("health", code=5).err
    assert cli("health", "--json", code=5).json["ok"] is False


@pytest.mark.usefixtures("worker")
def test_doctor_finds_nothing_where_all_is_well(cli: Cli) -> None:
    cli("run", "add", "1")
    out = cli("doctor").out
    assert "BAD" not in out
    assert "1 alive" in out
    assert "knows add, asks" in out


def test_doctor_names_what_a_worker_knows_beside_what_comes_with_holdfast(cli: Cli) -> None:
    app = App("small", cli.store)

    @app.step
    def pay() -> None: ...

    with app.worker():
        assert cli.without_code("doctor").out.count("knows pay\n") == 1
    app.close()


def test_doctor_says_that_nobody_works(cli: Cli) -> None:
    cli("start", "add", "1")
    out = cli("doctor", code=1).out
    assert "no worker is alive" in out
    assert "1 unfinished, and nobody to go on with them" in out


def test_doctor_shows_runs_that_nobody_knows_and_why_runs_are_stuck(cli: Cli) -> None:
    cli_shop.app.use_store(cli.store)
    with cli_shop.app.worker(settings=Settings(unknown_after=0.3, sweep=0.1)):
        look_for_what_nobody_knows(cli)


def look_for_what_nobody_knows(cli: Cli) -> None:
    old = App("shop", cli.store)

    @old.workflow
    async def forgotten() -> None: ...

    run = old.start("forgotten")
    old.close()
    findings = cli("doctor", "--json", code=1).json
    (found,) = [f for f in findings if f["check"] in ("unknown", "stuck") and f["level"] == "bad"]
    assert "forgotten" in found["text"]
    # The engine sets it aside after a moment; then it is stuck, with the reason, and a watch ends.
    said = cli("runs", "watch", run.id, "--exit-status", code=1)
    assert said.lines[-1][2] == "STUCK"
    out = cli("doctor", code=1).out
    assert "is stuck: no live worker of app 'shop' knows 'forgotten'" in out
    assert "runs resume" in out


@pytest.mark.usefixtures("worker")
def test_gc_counts_what_it_deletes(cli: Cli) -> None:
    assert cli("gc").out == "deleted 0 runs\n"
    assert cli.without_code("--app-name", "shop", "gc", "--json").json == {"deleted": 0}


def test_doctor_names_runs_that_wait_for_children_that_are_gone(cli: Cli) -> None:
    app = App("family", cli.store)

    @app.workflow
    async def child() -> None:
        await hook("go")

    @app.workflow
    async def parent() -> None:
        done = child.options(id="done").submit()
        await done
        await child.options(id="lost").submit()

    with app.worker(settings=Settings(park_after=0.05)):
        run = parent.start()
        wait_until(lambda: any(each.id == "done" for each in app.runs()))
        app.get_run("done").send("go")
        wait_until(lambda: any(each.id == "lost" for each in app.runs()))
        assert "children" not in {f["check"] for f in cli.without_code("--app-name", "family", "doctor", "--json").json}
        lost = app.get_run("lost")
        lost.pause()
        wait_until(lambda: lost.status == "PAUSED")
        wait_until(lambda: app.store.get(run.id).owner is None)  # type: ignore[union-attr]
        app.store.delete("lost")  # as an older version did it: nobody is told
        findings = cli.without_code("--app-name", "family", "doctor", "--json", code=1).json
        (found,) = [f for f in findings if f["check"] == "children"]
        assert f"run {run.id} waits for children that were deleted" in found["text"]
        assert found["items"] == [f"{run.id} waits for lost"]
        run.cancel()
        wait_until(lambda: run.status == "CANCELLED")
    app.close()


def test_a_queue_that_nobody_serves_is_told_wherever_one_looks_and_then_served(cli: Cli) -> None:
    app = App("small", cli.store)

    @app.step(queue="gpu")
    def train(x: int) -> int:
        return x + 1

    with app.worker(settings=Settings(sweep=0.1, park_after=0.05)):
        run = train.start(1)
        wait_until(lambda: bool(app.store.attempts(run.id)), 20)
        out = cli.without_code("doctor", code=1).out
        assert "no worker serves queue 'gpu': 1 step waits" in out
        assert "worker --executor-only --queues gpu" in out
        assert "no worker serves queue 'gpu'" in cli.without_code("runs", "show", run.id).out
        (step,) = run.steps
        assert (step.name, step.state) == ("train", "PENDING")
        with app.executor(["gpu"]):
            assert run.result(timeout=20) == 2
            table = cli.without_code("workers").out
            assert [line.split()[1:3] for line in table.splitlines()] == [
                ["engine", "default"],
                ["executor", "gpu"],
            ]
            kinds = {worker["kind"]: worker["queues"] for worker in cli.without_code("workers", "--json").json}
            assert kinds == {"engine": ["default"], "executor": ["gpu"]}
            assert "1 engine and 1 executor alive" in cli.without_code("doctor").out
    assert "no worker of app 'small' is there" in cli.without_code("workers").out
    app.close()
