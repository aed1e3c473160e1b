"""A real Django project: a worker by `manage.py`, requests over HTTP, steps that write with the ORM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

SITE = Path(__file__).parent / "django_site"


class Site:
    """The project in `django_site`, on files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        hidden = ("HOLDFAST_", "DJANGO_", "PYTEST_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
        self.environment["SITE_DIR"] = str(folder)

    def manage(self, *words: str, code: int = 0, **environment: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *words], cwd=SITE, env=self.environment | environment,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert ran.returncode == code, f"{words} ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout + ran.stderr

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words], cwd=SITE, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def worker(site: Site) -> Iterator[Site]:
    """The project with its tables, and a worker beside it."""
    site.manage("migrate", "-v", "0")
    process = site.begin("manage.py", "holdfast", "worker", "--concurrency", "1")
    assert process.stdout is not None
    said = process.stdout.readline()
    assert "knows: " in said, said + process.stdout.read()
    mine = {"count_orders", "fulfil", "has_connection", "has_connection_async", "look_at", "pack", "ship", "weigh"}
    assert mine <= set(said.split("knows: ")[1].strip().split(", "))
    yield site
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0, rest
    assert "has stopped" in rest


def test_a_request_starts_a_run_whose_steps_write_with_the_orm(worker: Site) -> None:
    server = worker.begin("serve.py")
    try:
        assert server.stdout is not None
        with httpx.Client(base_url=f"http://127.0.0.1:{int(server.stdout.readline())}", timeout=60) as http:
            made = http.post("/orders", data={"item": "tea"})
            assert (made.status_code, made.json()) == (202, {"order": 1})
            seen = http.get("/orders/1").json()
            assert seen["status"] == "shipped"
            assert seen["result"]["item"] == "tea"
            assert seen["result"]["open"] == [False, False]
            assert http.get("/runs/1").json() == {"status": "SUCCESS"}
    finally:
        server.terminate()
        server.communicate(timeout=30)
    listed = json.loads(worker.manage("holdfast", "runs", "list", "--json"))
    assert [run["id"] for run in listed] == ["order-1"]
    assert "1\n" in worker.manage("holdfast", "run", "count_orders")


def test_the_command_knows_the_project_s_app_and_its_settings(site: Site) -> None:
    config = {setting["name"]: setting for setting in json.loads(site.manage("holdfast", "config", "--json"))}
    assert config["app"] == {"name": "app", "value": "shop.flows:app", "from": 'settings HOLDFAST["APP"]'}
    assert config["store"]["value"] == str(site.folder / "flows.db")
    other = site.manage("holdfast", "config", "--settings=other_settings")
    assert str(site.folder / "other.db") in other
    assert str(site.folder / "other.db") in site.manage("holdfast", "--settings", "other_settings", "config")
    chosen = site.manage("holdfast", "config", HOLDFAST_STORE=str(site.folder / "chosen.db"))
    assert "chosen.db" in chosen
    assert "flows.db" not in chosen
    assert "Usage: manage.py holdfast" in site.manage("help", "holdfast")
    assert "Usage: manage.py holdfast runs list" in site.manage("holdfast", "runs", "list", "--help")
    assert "`manage.py holdfast worker` makes it" in site.manage("holdfast", "runs", "list", code=5)


def test_code_can_call_the_command(site: Site) -> None:
    site.manage("holdfast", "start", "pack", "1")
    said = site.manage(
        "shell", "-v", "0", "-c",
        "from django.core.management import call_command, CommandError\n"
        "call_command('holdfast', 'runs', 'list', '--status', 'PENDING')\n"
        "try: call_command('holdfast', 'runs', 'show', 'nonsense')\n"
        "except CommandError as error: print(error.returncode, error)\n",
    )  # fmt: skip
    assert "pack" in said
    assert "3 no run has the id 'nonsense'" in said


def test_a_model_instance_is_refused_with_what_to_pass_instead(site: Site) -> None:
    said = site.manage(
        "shell", "-v", "0", "-c",
        "from shop.steps import look_at\n"
        "from shop.models import Order\n"
        "for each in (Order(item='tea'), Order.objects.all()):\n"
        "    try: look_at.start(each)\n"
        "    except ValueError as error: print(error)\n",
    )  # fmt: skip
    assert (
        "order: <Order: Order object (None)> of type shop.models.Order can't be recorded; pass its primary key" in said
    )
    assert "pass list(queryset.values_list('pk', flat=True))" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("null", 'settings.HOLDFAST is None; name the app that your steps are defined on: HOLDFAST = {"APP": "shop'),
        ('{"APPS": 1}', "settings.HOLDFAST has no key 'APPS'; known: APP, STORE, MODULES"),
        ('{"APP": "shop.flows"}', """settings.HOLDFAST["APP"] is 'shop.flows'; give "module:name\""""),
        ('{"APP": "shop.flows:nothing"}', 'settings.HOLDFAST["APP"]: shop.flows.nothing is None, not an App'),
        ('{"APP": "shop.flows:app", "STORE": 3}', 'settings.HOLDFAST["STORE"] is 3; give a path or a URL'),
        ('{"APP": "shop.flows:app", "MODULES": "steps"}', """settings.HOLDFAST["MODULES"] is 'steps'; give a list"""),
    ],
)
def test_wrong_settings_say_what_to_write(site: Site, given: str, said: str) -> None:
    assert f"ImproperlyConfigured: {said}" in site.manage("check", code=1, SITE_HOLDFAST=given)


def test_the_tests_of_a_project_run_its_workflows(site: Site) -> None:
    assert "Ran 3 tests" in site.manage("test", "shop", "-v", "0")


def test_the_monitor_asks_djangos_users_who_they_are(site: Site) -> None:
    process = site.begin("-W", "error", "serve_monitor.py")
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        url = f"http://127.0.0.1:{said['port']}"

        def status(who: str, path: str, **order: str) -> int:
            cookies = {"sessionid": said.get(who, who)}
            with httpx.Client(base_url=url, cookies=cookies, timeout=20) as client:
                if not order:
                    return client.get(path).status_code
                return client.post(path, json=order, headers={"x-holdfast-action": "cancel"}).status_code

        assert [status(who, "/ops/api/runs") for who in ("nobody", "ann", "bob", "eve")] == [401, 401, 200, 200]
        assert status("bob", "/ops/workflows/runs") == 200
        assert status("bob", "/ops/api/actions/cancel", id="none") == 403
        assert status("eve", "/ops/api/actions/cancel", id="none") == 404
        assert status("eve", "/opsother") == 404  # Django's own
    finally:
        process.terminate()
        process.communicate(timeout=20)
