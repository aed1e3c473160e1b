"""`holdfast config`."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from holdfast.cli.failures import Failure
from holdfast.cli.output import Styled, json_option, note, print_json, print_table
from holdfast.cli.target import find_app
from holdfast.cli.worker import worker
from holdfast.printing import without_password


@click.command()
@json_option
@click.pass_context
def config(context: click.Context, as_json: bool) -> None:
    """Each setting, its value, and where that comes from: a flag, the environment, pyproject.toml (or a framework's
    settings), the app's code or the default."""
    root = context.find_root()
    settings = [
        _setting(root, "app", "target"),
        _setting(root, "store", "store"),
        _setting(root, "app-name", "app_name"),
    ]
    broker = os.environ.get("HOLDFAST_BROKER")
    origin = "environment HOLDFAST_BROKER" if broker else "not set"
    settings.append({"name": "broker", "value": broker or None, "from": origin})
    of_worker = worker.make_context("worker", [], parent=root)
    settings += [_setting(of_worker, p.name.replace("_", "-"), p.name) for p in worker.params if p.name]
    problem = _fill_in_from_code(root, settings)
    for setting in settings:
        if setting["name"] in ("store", "broker") and setting["value"]:
            setting["value"] = without_password(setting["value"])
    if as_json:
        print_json(settings)
    else:
        print_table(
            ["SETTING", "VALUE", "FROM"],
            [[Styled(s["name"], "bold"), Styled(_shown(s["value"])), Styled(s["from"], "dim")] for s in settings],
        )
    if problem:
        note(problem)


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _setting(context: click.Context, name: str, parameter: str) -> dict[str, Any]:
    option = next(p for p in context.command.params if p.name == parameter)
    source, value = context.get_parameter_source(parameter), context.params[parameter]
    origin = "default" if value is not None else "not set"
    if source is ParameterSource.COMMANDLINE:
        origin = f"flag {option.opts[0]}"
    elif source is ParameterSource.ENVIRONMENT:
        origin = f"environment {option.envvar}"
    elif source is ParameterSource.DEFAULT_MAP:
        origin = (context.obj or {}).get(parameter, f"pyproject.toml [tool.holdfast] {name}")
    return {"name": name, "value": value, "from": origin}


def _fill_in_from_code(root: click.Context, settings: list[dict[str, Any]]) -> str:
    """What the app's code says where nothing else does; why that can't be read, if it can't."""
    by_name = {setting["name"]: setting for setting in settings}
    if by_name["processes"]["value"] is None:
        by_name["processes"] |= {"value": "one per core", "from": "default"}
    target = root.params["target"]
    if not target:
        return ""
    try:
        app = find_app(target)
        build, broker = app.build, app.broker_url
    except Failure as error:
        return error.format_message()
    if by_name["store"]["value"] is None:
        by_name["store"] |= {"value": app.store_url, "from": "the app's code, or its name"}
    if broker != by_name["broker"]["value"]:
        by_name["broker"] |= {"value": broker, "from": "the app's code"}
    by_name["app-name"] |= {"value": app.name, "from": "the app's code"}
    if by_name["version"]["value"] is None:
        origin = "the app's code" if app.version is not None else "a digest of the code"
        by_name["version"] |= {"value": build, "from": origin}
    return ""
