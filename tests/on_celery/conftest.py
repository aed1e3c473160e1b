from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery_outside import Shop

from holdfast.executors.celery.attachment import make_celery


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, redis_databases: Callable[[], str]) -> Iterator[Shop]:
    """With a worker that tests share, on SQLite."""
    folder = tmp_path_factory.mktemp("shop")
    shop = Shop(folder, str(folder / "shop.db"), redis_databases())
    shop.start_worker("-c", "2")
    yield shop
    shop.close()


@pytest.fixture
def shops(tmp_path: Path, redis_url: str) -> Iterator[Callable[..., Shop]]:
    """Shops of one's own, on a store that the test names."""
    made: list[Shop] = []

    def make(store: str, broker: str = redis_url, **options: Any) -> Shop:
        made.append(Shop(tmp_path, store, broker, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.close()


@pytest.fixture
def celery(redis_url: str) -> Any:
    return make_celery("shop", redis_url)
