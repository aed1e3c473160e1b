"""Real Celery workers, a real broker, and what becomes of them. The ledger says what was executed how often."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery_outside import Shop

from holdfast.executors.celery.attachment import make_celery
from holdfast.executors.celery.broker import Broker, Parcel
from redis_server import own_server

Shops = Callable[..., Shop]


def children(shop: Shop) -> list[int]:
    return [worker.pid for worker in shop.app.store.workers() if worker.kind == "executor"]


def is_over(runs: list[Any]) -> Callable[[], bool]:
    return lambda: all(run.status == "SUCCESS" for run in runs)


def check(shop: Shop, runs: list[Any], exactly_once: bool) -> None:
    assert [run.result(timeout=120) for run in runs] == [5 * n + 10 for n in range(len(runs))]
    effects = shop.effects()
    assert len(effects) == 5 * len(runs)
    if exactly_once:
        assert set(effects.values()) == {1}
    assert shop.app.store.queues() == []


def lose_and_double(shop: Shop, count: int, seconds: float, rounds: int, seed: int) -> list[Any]:
    """Runs, while all messages are lost again and again, and come twenty times."""
    chance = random.Random(seed)
    broker, client = Broker(make_celery("shop", shop.broker), "shop"), redis.Redis.from_url(shop.broker)
    runs = [shop.start("five", n, seconds) for n in range(count)]
    shop.wait_until(lambda: bool(shop.effects()))
    for _ in range(rounds):
        before = len(shop.ledger())
        client.flushdb()
        waiting = [attempt for run in chance.sample(runs, min(5, count)) for attempt in shop.app.store.attempts(run.id)]
        broker.publish([Parcel(attempt.token, "shop.effect", "", 0) for attempt in waiting for _ in range(20)])
        shop.wait_until(lambda before=before: len(shop.ledger()) > before or is_over(runs)())  # type: ignore[misc]
    broker.close()
    client.close()
    return runs


def test_messages_that_are_lost_or_doubled_change_nothing_while_processes_come_and_go(
    postgres_url: str, shops: Shops
) -> None:
    shop = shops(postgres_url)
    shop.start_worker("-c", "2", "--max-tasks-per-child", "12")
    check(shop, lose_and_double(shop, count=8, seconds=0.01, rounds=2, seed=1), exactly_once=True)


def test_killed_processes_and_killed_workers_lose_nothing(postgres_url: str, shops: Shops) -> None:
    shop = shops(postgres_url)
    worker = shop.start_worker("-c", "2")
    runs = [shop.start("five", n, 0.05) for n in range(6)]
    shop.wait_until(lambda: len(children(shop)) == 2 and len(shop.effects()) > 3)
    os.kill(children(shop)[0], signal.SIGKILL)
    shop.wait_until(lambda: len(shop.effects()) > 10)
    shop.kill(worker)  # with what it has prefetched
    shop.start_worker("-c", "2")
    check(shop, runs, exactly_once=False)


def test_a_broker_that_is_away_only_delays(shops: Shops, tmp_path: Path) -> None:
    with own_server() as server:
        shop = shops(str(tmp_path / "shop.db"), f"{server.url}/0")
        server.stop()
        shop.start_worker("-P", "solo")
        runs = [shop.start("five", 0)]
        shop.wait_until(lambda: any(row.waiting for row in shop.app.store.queues()))
        server.start()
        shop.wait_until(is_over(runs))
        server.stop()
        runs += [shop.start("five", 1), shop.start("five", 2)]
        shop.wait_until(lambda: sum(row.waiting for row in shop.app.store.queues()) == 2)
        server.start()
        check(shop, runs, exactly_once=True)


def test_a_worker_that_is_told_to_end_finishes_its_step_and_leaves_the_rest(shops: Shops, tmp_path: Path) -> None:
    shop = shops(str(tmp_path / "shop.db"))
    worker = shop.start_worker("-c", "1")
    runs = [shop.start("five", n, 0.2) for n in range(2)]
    shop.wait_for("begin")
    assert shop.stop(worker) == 0, shop.logs()
    assert len([line for line in shop.ledger() if line.startswith("begin")]) == sum(shop.effects().values())
    assert shop.app.store.workers() == [], "the engine and the pool have said goodbye"
    runs += [shop.start("five", 2, 0.3)]
    begun = len(shop.ledger())
    worker = shop.start_worker("-c", "1")
    shop.wait_until(lambda: len(shop.ledger()) > begun)
    worker.send_signal(signal.SIGQUIT)  # at once: what executes is interrupted, and has not failed
    worker.wait(30)
    shop.start_worker("-P", "threads", "-c", "2")
    check(shop, runs, exactly_once=False)
    assert all(step.attempts == 1 for run in runs for step in run.steps)


@pytest.mark.torture
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_runs_survive_all_of_it(postgres_url: str, shops: Shops, pool: str, seed: int) -> None:
    chance = random.Random(seed)
    shop = shops(postgres_url)
    options = ("-P", pool, "-c", "2", *(["--max-tasks-per-child", "50"] if pool == "prefork" else []))
    workers = [shop.start_worker(*options) for _ in range(2)]
    runs = lose_and_double(shop, count=1_000 if pool != "solo" else 200, seconds=0.0, rounds=4, seed=seed)
    for _ in range(4):
        before = len(shop.ledger())
        shop.wait_until(lambda before=before: len(shop.ledger()) > before + 100 or is_over(runs)(), 120)  # type: ignore[misc]
        if chance.random() < 0.5 and pool == "prefork":
            found = children(shop)
            if found:
                os.kill(chance.choice(found), signal.SIGKILL)
        else:
            victim = workers.pop(chance.randrange(len(workers)))
            shop.kill(victim)
            workers.append(shop.start_worker(*options))
    check(shop, runs, exactly_once=False)
