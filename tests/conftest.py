"""What tests of all folders share: a PostgreSQL server, and a schema of it for each test; a Redis server, and a database of
it for each test."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

import redis_server
from postgres_server import Missing, shared_server

_numbers = itertools.count(1)

# Tests start hundreds of processes. Where no bytecode may be written, each would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell hands on to what it starts in the background that this one is ignored; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples each time, however slow the machine is. Others: HOLDFAST_EXAMPLES=1000.
settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

MADE_ONCE = {"browser", "many", "stream", "undisturbed"}
"""Fixtures of modules that take long."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a module that share what takes long to make are left to one process."""
    for item in items:
        shared = MADE_ONCE.intersection(getattr(item, "fixturenames", ()))
        if shared and not any(item.iter_markers("torture")) and not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(f"{min(shared)} of {item.path.stem}"))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") == "loadgroup" and pytest.version_tuple >= (9, 2):
        raise pytest.UsageError(
            f"pytest-xdist doesn't keep groups together with pytest {pytest.__version__}, so that several browsers would be at "
            "work at once; install the version that pyproject.toml asks for"
        )


def pytest_collection_finish() -> None:
    """Thousands of tests are there to stay: no collection of garbage needs to look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.getbasetemp()
    try:
        return shared_server(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place)
    except Missing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture
def postgres_schemas(postgres_server: str) -> Iterator[Callable[[], str]]:
    """URLs of empty schemas, which are dropped at the end of the test."""
    import psycopg

    made: list[str] = []

    def make() -> str:
        made.append(f"test_{os.getpid()}_{next(_numbers)}")
        joint = "&" if "?" in postgres_server else "?"
        return f"{postgres_server}{joint}schema={made[-1]}&application_name={made[-1]}"

    yield make
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for schema in made:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture
def postgres_url(postgres_schemas: Callable[[], str]) -> str:
    return postgres_schemas()


@pytest.fixture(scope="session")
def redis_databases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """URLs of databases that no other test of this run uses."""
    place = tmp_path_factory.getbasetemp()
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    try:
        url = redis_server.shared_server(place.parent if "PYTEST_XDIST_WORKER" in os.environ else place)
    except redis_server.Missing as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    given = "HOLDFAST_TEST_REDIS" in os.environ
    first = int(worker.removeprefix("gw")) * (4 if given else 64)
    numbers = itertools.count()
    return lambda: f"{url}/{(first + next(numbers)) % (16 if given else 1024)}"


@pytest.fixture
def redis_url(redis_databases: Callable[[], str]) -> str:
    return redis_databases()
