"""Which app, which store, and what happens where there is none: options, environment, pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cli_driver import Cli

from holdfast.cli.main import COMMANDS, DB, RUNS, main

HERE = Path(__file__).parent


def sources(said: list[list[str]]) -> dict[str, tuple[str, str]]:
    return {line[0]: (line[1], line[2]) for line in said}


def test_config_says_where_each_value_comes_from(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nstore = "p.db"\nconcurrency = 3\nlog-level = "debug"\n')
    said = cli.bare("-A", "cli_shop", "config", env={"HOLDFAST_GRACE": "2"})
    found = sources(said.lines)
    assert found["app"] == ("cli_shop", "flag -A")
    assert found["store"] == ("p.db", "pyproject.toml [tool.holdfast] store")
    assert found["concurrency"] == ("3", "pyproject.toml [tool.holdfast] concurrency")
    assert found["log-level"] == ("debug", "pyproject.toml [tool.holdfast] log-level")
    assert found["grace"] == ("2.0", "environment HOLDFAST_GRACE")
    assert found["log-format"] == ("text", "default")
    assert found["app-name"] == ("shop", "the app's code")
    assert cli.bare("config", "--json").json[0] == {"name": "app", "value": None, "from": "not set"}


def test_config_says_where_the_build_gets_its_name_from(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(env: dict[str, str] | None = None) -> tuple[str, str]:
        return sources(cli.bare("-A", "cli_versioned", "config", env=env).lines)["version"]

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cli_versioned.py").write_text("from holdfast import App\napp = App('versioned', version='1.0')\n")
    assert version() == ("1.0", "the app's code")
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nversion = "2.0"\n')
    assert version() == ("2.0", "pyproject.toml [tool.holdfast] version")
    assert version({"HOLDFAST_VERSION": "3.0"}) == ("3.0", "environment HOLDFAST_VERSION")
    found = sources(cli.bare("-A", "cli_shop", "config").lines)["version"]
    assert found == ("2.0", "pyproject.toml [tool.holdfast] version")
    (tmp_path / "pyproject.toml").unlink()
    digest, origin = sources(cli.bare("-A", "cli_shop", "config").lines)["version"]
    assert (len(digest), origin) == (12, "a digest of the code")


def test_config_shows_no_passwords(cli: Cli, tmp_path: Path) -> None:
    for url in ("postgresql://u:secret@h/d", "postgresql://h/d?user=u&password=secret"):
        (tmp_path / "pyproject.toml").write_text(f'[tool.holdfast]\nstore = "{url}"\n')
        for said in (
            cli.bare("config"),
            cli.bare("--store", url, "config", "--json"),
            cli.bare("-A", "cli_shop", "config", env={"HOLDFAST_STORE": url}),
        ):
            assert "postgresql://" in said.out
            assert "secret" not in said.out


def test_config_shows_the_broker(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broker(module: str = "cli_brokered", env: dict[str, str] | None = None) -> tuple[str, str]:
        return sources(cli.bare("-A", module, "config", env=env).lines)["broker"]

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cli_brokered.py").write_text(
        "from holdfast import App\napp = App('brokered', broker='redis://:secret@a/0')\n"
    )
    (tmp_path / "cli_celery.py").write_text(
        "from celery import Celery\nfrom holdfast import App\n"
        "app = App('on-celery', celery=Celery('shop', broker='redis://b/0'))\n"
    )
    elsewhere = {"HOLDFAST_BROKER": "redis://:secret@c/0"}
    assert broker() == ("redis://:***@a/0", "the app's code")
    assert broker(env=elsewhere) == ("redis://:***@c/0", "environment HOLDFAST_BROKER")
    assert broker("cli_celery", elsewhere) == ("redis://b/0", "the app's code")
    assert broker("cli_shop", elsewhere) == ("redis://:***@c/0", "environment HOLDFAST_BROKER")
    assert broker("cli_shop") == ("", "not set")


def test_a_flag_beats_the_environment_which_beats_pyproject(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\napp = "cli_shop"\nstore = "p.db"\n')
    cli.bare("start", "add", "1", "--id", "in-pyproject")
    cli.bare("start", "add", "1", "--id", "in-environment", env={"HOLDFAST_STORE": "e.db"})
    cli.bare("--store", "f.db", "start", "add", "1", "--id", "by-flag", env={"HOLDFAST_STORE": "e.db"})
    for store, run in (("p.db", "in-pyproject"), ("e.db", "in-environment"), ("f.db", "by-flag")):
        assert [line[0] for line in cli.bare("--store", store, "runs", "list").lines] == [run]


def test_without_any_the_apps_own_store_is_used(cli: Cli, tmp_path: Path) -> None:
    import cli_shop

    cli_shop.app.use_store("shop.db")
    cli.bare("-A", "cli_shop:app", "start", "add", "1")
    assert (tmp_path / "shop.db").exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["runs", "list"], 2, "holdfast -A MODULE"),
        (["--store", "x.db", "start", "add", "1"], 2, "needs the app's code"),
        (["-A", "nosuch", "runs", "list"], 2, "no module named 'nosuch'"),
        (["-A", "cli_shop:nosuch", "runs", "list"], 2, "no 'nosuch' in module 'cli_shop'; its apps: cli_shop:app"),
        (["-A", "cli_shop:App", "runs", "list"], 2, "'App' is no App in module 'cli_shop'"),
        (["-A", "json", "runs", "list"], 2, "0 apps"),
        (["--store", "x.db", "runs", "list"], 5, "there is no store at"),
        (["-A", "cli_shop", "--store", "x.db", "runs", "list"], 5, "holdfast -A cli_shop --store x.db worker"),
        (["-A", "cli_shop", "--store", ":memory:", "runs", "list"], 2, "use a file"),
        (["-A", "cli_shop", "--store", "mongodb://x", "runs", "list"], 5, "mongodb://x"),
        (["-A", "cli_shop", "--store", "sqlite://x.db", "runs", "list"], 5, "say sqlite:///x.db"),
        (["--store", "sqlite://x.db", "db", "status"], 5, "say sqlite:///x.db"),
        (["-A", "cli_shop", "--store", "no/such/folder.db", "start", "add", "1"], 5, "doesn't exist"),
        (["runs", "list", "-A", "cli_shop"], 2, "-A comes before the command"),
        (["runs", "lst"], 2, "known: list, show"),
        (["nosuch"], 2, "known: dev, worker, start"),
        (["runs", "list", "--since", "yesterday"], 2, "how long ago"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(cli: Cli, args: list[str], code: int, words: str) -> None:
    if "--since" in args:
        cli("start", "add", "1")
        args = ["--store", cli.store, *args]
    said = cli.bare(*args, code=code)
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_looking_leaves_no_empty_store_behind(cli: Cli, tmp_path: Path) -> None:
    for command in (["runs", "list"], ["runs", "show", "x"], ["doctor"], ["health"], ["gc"]):
        cli(*command, code=5)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_program_is_not_touched(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes that are no database, and long enough to be one\n" * 20)
    said = cli.bare("--store", "notes.txt", "runs", "list", code=5)
    assert "is not a SQLite database" in said.err


def test_pyproject_with_an_unknown_setting_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.holdfast]\nstoer = "p.db"\n')
    assert "known: app, store" in cli.bare("config", code=2).err
    (tmp_path / "pyproject.toml").write_text("[tool.holdfast\n")
    assert "can't be read" in cli.bare("config", code=2).err


def test_a_module_that_fails_is_named_with_its_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cli_broken.py").write_text("x = 1\ny = x / 0\n")
    said = cli.bare("-A", "cli_broken", "worker", code=2)
    assert "importing 'cli_broken' failed: ZeroDivisionError" in said.err
    assert "cli_broken.py, line 2" in said.err
    assert "Traceback" not in said.err
    assert "Traceback" in cli.bare("--debug", "-A", "cli_broken", "worker", code=2).err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("with app.worker(): pass", "a worker is started"),
        ("payday.start()", "a run of 'payday' is started"),
        ("import asyncio; asyncio.run(payday.astart())", "a run of 'payday' is started"),
        ("(payday.s() | payday.si()).start()", "a run of 'holdfast.chain' is started"),
    ],
)
@pytest.mark.parametrize("command", [["runs", "list"], ["config"], ["worker"]])
def test_a_module_that_works_when_it_is_imported_is_refused_with_its_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str, command: list[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "cli_unguarded"  # an import that failed leaves no module behind
    (tmp_path / f"{name}.py").write_text(
        f"from holdfast import App\napp = App('bank')\n@app.workflow\ndef payday() -> None: ...\n{line}\n"
    )
    said = cli.bare("-A", name, *command, code=0 if command == ["config"] else 2)
    assert f"{words} while a command imports {name!r}" in said.err
    assert "put it under `if __name__ == '__main__':`" in said.err
    assert f"{name}.py, line 5" in said.err
    assert not (tmp_path / "bank.db").exists()


def test_every_command_can_be_loaded_and_its_help_says_what_the_table_says(cli: Cli) -> None:
    for path in [[name] for name in COMMANDS] + [["runs", name] for name in RUNS] + [["db", name] for name in DB]:
        assert "Usage: holdfast" in cli.bare(*path, "--help").out


def test_every_command_that_prints_data_can_print_json(cli: Cli) -> None:
    without = {"worker", "dev", "runs", "schedules", "db", "monitor", "demo", "completion", "export"}
    for path in [[name] for name in COMMANDS] + [["runs", name] for name in RUNS] + [["db", name] for name in DB]:
        if path[-1] not in without:
            assert "--json" in cli.bare(*path, "--help").out, path


def test_help_imports_click_and_nothing_else() -> None:
    code = """
import sys
from holdfast.cli import main
for args in (["--help"], ["runs", "--help"]):
    main(args, standalone_mode=False)
heavy = [name for name in ("rich", "asyncio", "sqlite3", "msgspec", "holdfast.app") if name in sys.modules]
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_completion_knows_commands_runs_and_workflows(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    cli("start", "add", "1", "--id", "order-17")

    def complete(*words: str) -> list[str]:
        shell = ShellComplete(main, {}, "holdfast", "_HOLDFAST_COMPLETE")
        return [item.value for item in shell.get_completions([*words[:-1]], words[-1])]

    place = ("-A", "cli_shop", "--store", cli.store)
    assert complete("do") == ["doctor"]
    assert complete("runs", "s") == ["show", "send"]
    assert complete(*place, "runs", "show", "or") == ["order-17"]
    assert complete(*place, "run", "to") == ["total"]
    assert complete("-A", "nosuch", "run", "") == []
    assert "holdfast" in cli.bare("completion", "zsh").out
