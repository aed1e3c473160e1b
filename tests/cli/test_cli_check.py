"""`holdfast check`: new code against the runs that are open, before it is deployed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_driver import Cli, Said, eventually

from holdfast import App
from holdfast.testing import replay_open_runs, replaying

HEAD = """
from holdfast import App, hook, sleep, wf

app = App("gate", version="{version}")


@app.step
def charge(order: str) -> str:
    with open("executed", "a") as file:
        file.write(order)
    return f"payment of {{order}}"


@app.step
def check_address(order: str) -> None: ...


"""
FULFIL = """
@app.workflow
async def fulfil(order: str) -> str:
    payment = charge(order)
    await hook("packed")
    return payment
"""
REMIND = """
@app.workflow
async def remind(order: str) -> None:
    charge(order)
    await sleep("30d")
"""
Check = Callable[..., Said]


@pytest.fixture
def check(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Three runs of `fulfil` and one of `remind`, which wait, and the command with other code."""
    monkeypatch.syspath_prepend(tmp_path)

    def deployed(version: str, code: str) -> App:
        (tmp_path / f"gate_{version}.py").write_text(HEAD.format(version=version) + code)
        app: App = __import__(f"gate_{version}").app
        app.use_store(cli.store)
        return app

    app = deployed("1", FULFIL + REMIND)
    with app.worker():
        runs = [app.remote("fulfil").options(id=f"order-{each}").start(each) for each in "abc"]
        runs.append(app.remote("remind").options(id="later").start("d"))
        eventually(lambda: all(run.status == "WAITING" for run in runs))
    before = [run.history() for run in runs]
    versions = iter(range(2, 10))

    def run_check(code: str, *args: str, exit: int = 0) -> Said:
        version = str(next(versions))
        deployed(version, code).close()
        return cli.bare("-A", f"gate_{version}", "--store", cli.store, "check", *args, code=exit)

    yield run_check
    assert [run.history() for run in runs] == before
    assert sorted((tmp_path / "executed").read_text()) == ["a", "b", "c", "d"], "no step is executed again"
    app.close()
    for name in [name for name in sys.modules if name.startswith("gate_")]:
        del sys.modules[name]


def test_code_that_does_what_it_did_and_more_after_it_fits(check: Check) -> None:
    more = FULFIL.replace("    return payment", "    check_address(order)\n    return payment")
    patched = more.replace("    payment =", '    if wf.patched("first"):\n        check_address(order)\n    payment =')
    for code in (FULFIL, more, patched):
        assert check(code + REMIND).err == "4 open runs replayed with this code, all go on\n"


def test_what_would_be_set_aside_is_told_once_for_all_runs_that_are_alike(check: Check) -> None:
    other = FULFIL.replace("    payment =", "    check_address(order)\n    payment =")
    said = check(other + REMIND, exit=1)
    first, second = said.out.splitlines()
    assert first == "BAD  fulfil  order-c, order-b, order-a"
    assert "the history has step 'charge'" in second
    assert "the code asks for step 'check_address'" in second
    assert "guard the change with wf.patched" in second
    assert said.err == "4 open runs replayed with this code, 3 would not go on\n"
    assert check(other + REMIND, "--workflow", "remind").err == "1 open run replayed with this code, all go on\n"
    assert check(other + REMIND, "--limit", "1").err.startswith("1 open run ")


def test_changed_arguments_unfit_input_and_unknown_names_are_told(check: Check) -> None:
    facts = check(FULFIL.replace("charge(order)", 'charge(order + "!")') + REMIND, "--json", exit=1).json
    assert facts["replayed"] == 4
    assert [(each["workflow"], each["runs"]) for each in facts["unfit"]] == [
        ("fulfil", ["order-c", "order-b", "order-a"])
    ]
    said = check(FULFIL.replace("order: str)", "order: str, express: bool)") + REMIND, exit=1)
    assert "its input doesn't fit it" in said.out
    said = check(REMIND, exit=1)
    assert "fulfil" in said.out
    assert "known: " in said.out


def test_what_would_be_raised_is_told_with_the_line(check: Check) -> None:
    said = check(FULFIL + REMIND.replace('    await sleep("30d")', '    await slep("30d")'), exit=1)
    assert "BAD  remind  later" in said.out
    assert "its code would raise NameError: name 'slep' is not defined at " in said.out
    assert "in remind" in said.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("raise SystemExit(3)", "its code would raise"),
        ("return object()", "can't be recorded"),
        ('hook("never")', "never awaited"),
        ("await __import__('asyncio').get_running_loop().create_future()", "waits for nothing that can happen"),
        ("open('file', 'w')", "would be stuck: workflow code opens a file"),
        ("while True: pass", "would be stuck: workflow code has not yielded for 2 s"),
    ],
)
def test_what_a_worker_would_not_take_is_told(check: Check, line: str, said: str) -> None:
    assert said in check(FULFIL + REMIND.replace('await sleep("30d")', line), exit=1).out


def test_code_that_goes_another_way_from_here_on_fits(check: Check) -> None:
    for line in ("return", 'wf.continue_as_new("d")', 'await hook("another")', "check_address(order)"):
        assert check(FULFIL + REMIND.replace('await sleep("30d")', line)).err.endswith("all go on\n")


def test_a_run_between_two_attempts_fits(cli: Cli, tmp_path: Path) -> None:
    app = App("retried", cli.store)

    @app.workflow(max_retries=1, retry_delay="1h")
    async def fails() -> None:
        raise ValueError("no")

    with app.worker():
        run = fails.start()
        eventually(lambda: run.status == "RETRY")
    assert [each.error for each in replay_open_runs(app)] == [None]
    app.close()


def test_a_program_can_check_too(check: Check, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "AT_ONCE", 2)
    check(FULFIL + REMIND)
    app = sys.modules["gate_2"].app
    app.use_store(cli.store)
    found = list(replay_open_runs(app))
    assert [(each.run_id, each.error) for each in found] == [
        ("later", None), ("order-c", None), ("order-b", None), ("order-a", None),
    ]  # fmt: skip
    assert len(list(replay_open_runs(app, limit=3))) == 3
    app.close()


def test_without_code_there_is_nothing_to_check_with(cli: Cli) -> None:
    assert "-A" in cli.without_code("check", code=2).err
