"""The files in examples/deploy can be read by those that they are for, and name commands, options, variables and files that
there are."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from holdfast.cli.main import main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
SOURCE = "".join(file.read_text() for file in (ROOT / "src" / "holdfast").rglob("*.py"))


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name)
    return parser


def lists(value: Any) -> Iterator[list[str]]:
    """All lists of texts in a document."""
    if isinstance(value, dict):
        for each in value.values():
            yield from lists(each)
    elif isinstance(value, list):
        if all(isinstance(each, str) for each in value):
            yield value
        for each in value:
            yield from lists(each)


def commands() -> Iterator[tuple[str, list[str]]]:
    for name in ("compose.yaml", "kubernetes.yaml"):
        for words in lists(documents(name)):
            if "holdfast" in words:
                yield name, words[words.index("holdfast") + 1 :]
    for file in FOLDER.glob("*.service"):
        program, *words = shlex.split(unit(file.name)["Service"]["ExecStart"])
        assert program.endswith("/holdfast")
        yield file.name, words
    (told,) = re.findall(r"^CMD (.*)$", (FOLDER / "Dockerfile").read_text(), re.MULTILINE)
    yield "Dockerfile", json.loads(told)[1:]


def parse(words: list[str]) -> None:
    context: click.Context = main.make_context("holdfast", list(words))
    command: click.Command = main
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


@pytest.mark.parametrize(
    ("file", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_the_commands_that_are_named_exist_with_their_options(file: str, words: list[str]) -> None:
    parse(words)


def test_a_command_that_does_not_exist_would_be_found() -> None:
    for words in (["work"], ["worker", "--gracious", "3"], ["db", "downgrade"]):
        with pytest.raises(click.ClickException):
            parse(words)


def test_there_are_commands_in_every_file() -> None:
    assert {file for file, _ in commands()} == {
        file.name for file in FOLDER.iterdir() if file.suffix not in (".py", "")
    } | {"Dockerfile"}


def test_the_variables_that_are_set_are_known() -> None:
    files = [file for file in FOLDER.iterdir() if file.is_file()]
    named = {name for file in files for name in re.findall(r"\bHOLDFAST_\w+", file.read_text())}
    assert named == {"HOLDFAST_STORE", "HOLDFAST_APP", "HOLDFAST_MONITOR_TOKEN"}
    assert all(f'"{name}"' in SOURCE for name in named)


def test_the_services_of_the_compose_file_need_each_other() -> None:
    (compose,) = documents("compose.yaml")
    services = compose["services"]
    assert {"postgres", "redis", "upgrade", "worker", "monitor"} == set(services)
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        if "build" in service:
            context = FOLDER / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    store = services["worker"]["environment"]["HOLDFAST_STORE"]
    database = services["postgres"]["environment"]
    assert store == (
        f"postgresql://{database['POSTGRES_USER']}:{database['POSTGRES_PASSWORD']}@postgres/{database['POSTGRES_DB']}"
    )


def seconds(text: Any) -> float:
    return float(str(text).removesuffix("s"))


def test_a_worker_has_more_time_to_stop_than_it_gives_its_steps() -> None:
    (compose,) = documents("compose.yaml")
    worker = compose["services"]["worker"]
    pairs = [(worker["command"], worker["stop_grace_period"])]
    for document in documents("kubernetes.yaml"):
        if document["metadata"]["name"] == "orders-worker":
            pod = document["spec"]["template"]["spec"]
            pairs.append((pod["containers"][0]["command"], pod["terminationGracePeriodSeconds"]))
    service = unit("holdfast-worker@.service")["Service"]
    pairs.append((shlex.split(service["ExecStart"]), service["TimeoutStopSec"]))
    assert len(pairs) == 3
    for command, patience in pairs:
        assert seconds(command[command.index("--grace") + 1]) + 20 <= seconds(patience)


def test_kubernetes_knows_whom_it_selects() -> None:
    found = {(document["kind"], document["metadata"]["name"]): document for document in documents("kubernetes.yaml")}
    assert {kind for kind, _ in found} == {"Secret", "Job", "Deployment", "Service"}
    for (kind, _), document in found.items():
        if kind == "Deployment":
            spec = document["spec"]
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    selector = found["Service", "orders-monitor"]["spec"]["selector"]
    assert selector == found["Deployment", "orders-monitor"]["spec"]["selector"]["matchLabels"]


def test_the_app_runs_as_it_is_deployed(postgres_url: str) -> None:
    environment = {**os.environ, "HOLDFAST_STORE": postgres_url, "HOLDFAST_APP": "orders"}

    def holdfast(*words: str) -> str:
        command = [sys.executable, "-m", "holdfast", *words]
        done = subprocess.run(
            command, env=environment, cwd=FOLDER, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    assert "became" in holdfast("db", "upgrade")
    code = (
        "import orders\nwith orders.app.worker(): print(orders.fulfil.start('order-1', wait='0s').result(timeout=30))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "order-1 is on its way, thanks to the payment of order-1\n"
    assert json.loads(holdfast("db", "status", "--json"))["apps"][0]["ended"] == 1
