"""The JSON API is what its description says, whatever it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import monitor_shop
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from monitor_shop import sleeps, total
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from holdfast.monitor import monitor
from holdfast.monitor.actions import BULK, NAMES
from holdfast.monitor.openapi import described

TOKEN = "a-token-of-the-tests"
EXAMPLES = 2  # of each operation
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LIKE_OTHERS = ("terminate", "pause", "resume", "retry", "delete", "pause_schedule", "resume_schedule")
OPERATIONS = [
    pytest.param(path, method, marks=[pytest.mark.torture] if path.endswith(LIKE_OTHERS) else [])
    for path, methods in described("")["paths"].items()
    for method in methods
]
site = monitor(monitor_shop.app, token=TOKEN)
schema = schemathesis.openapi.from_dict(described(""))
schema.app = site


def test_all_that_can_be_asked_is_described() -> None:
    there = {route.path for route in site.routes if isinstance(route, Route) and route.path.startswith("/api/")}
    there -= {"/api/openapi.json", "/api/changes", "/api/inspect", "/api/actions/{name}", "/api/bulk/{name}"}
    there |= {f"/api/actions/{name}" for name in NAMES} | {f"/api/bulk/{name}" for name in BULK}
    assert set(described("")["paths"]) == there


@pytest.fixture(scope="module")
def _runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("openapi")
    monitor_shop.app.use_store(str(folder / "shop.db"))
    sleeps.options(id="0").start()
    total.options(id="1").start(1)
    yield
    monitor_shop.app.close()


@pytest.mark.xdist_group("openapi")
@pytest.mark.usefixtures("_runs")
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_one_that_is_described(path: str, method: str) -> None:
    @given(case=schema[path][method].as_strategy())
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(headers={"authorization": f"Bearer {TOKEN}"})
        case.validate_response(response, checks=CHECKS)

    ask()
