"""What is sent to the broker, and when it is sent again: a real Redis, and no worker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from holdfast import App
from holdfast.executors.celery import carrier
from holdfast.executors.celery.broker import Broker, Parcel
from holdfast.executors.celery.carrier import CLAIMED_WITHIN, LONGEST, CeleryCarrier
from holdfast.ports import Change, NewAttempt, NewRun, Store, WorkerRow


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
        yield client


@pytest.fixture
def broker(celery: Any) -> Iterator[Broker]:
    broker = Broker(celery, "shop")
    yield broker
    broker.close()


def messages(client: Any, queue: str = "shop") -> list[Any]:
    return [json.loads(each) for each in reversed(client.lrange(queue, 0, -1))]


def parcels(*tokens: str, queue: str = "", priority: int = 0) -> list[Parcel]:
    return [Parcel(token, "shop.pay", queue, priority) for token in tokens]


def comparable(message: Any) -> Any:
    """Without what is made anew for each message."""
    del message["properties"]["delivery_tag"]
    return message


def test_a_batch_is_made_of_the_messages_that_celery_would_have_sent(broker: Broker, celery: Any, client: Any) -> None:
    broker.publish(parcels("1:2s0:1:aa", "1:3s0:1:bb"))
    batched = messages(client)
    client.flushdb()
    celery.conf.task_send_sent_event = True  # which Celery does for each message by itself
    broker.publish(parcels("1:2s0:1:aa", "1:3s0:1:bb"))
    assert [comparable(each) for each in batched] == [comparable(each) for each in messages(client)]
    assert [each["headers"]["id"] for each in batched] == ["1:2s0:1:aa", "1:3s0:1:bb"]


def test_a_message_has_nothing_of_an_attempt_but_its_token(broker: Broker, client: Any) -> None:
    broker.publish(parcels("1:2s0:1:aa"))
    (message,) = messages(client)
    headers = message["headers"]
    assert (headers["id"], headers["task"], headers["holdfast"]) == ("1:2s0:1:aa", "shop.pay", "shop")
    assert (headers["argsrepr"], headers["ignore_result"]) == ("", True)
    args, kwargs, _ = json.loads(base64.b64decode(message["body"]))
    assert (args, kwargs) == ([], {})


def test_routes_say_where_a_step_goes_and_a_step_that_names_a_queue_goes_there(
    broker: Broker, celery: Any, client: Any
) -> None:
    celery.conf.task_routes = {"shop.pay": {"queue": "money"}}
    broker.publish([*parcels("a"), Parcel("b", "shop.ship", "", 0), Parcel("c", "shop.ship", "boats", 0)])
    for queue, token in (("money", "a"), ("shop", "b"), ("boats", "c")):
        assert [each["headers"]["id"] for each in messages(client, queue)] == [token]


def test_more_priority_goes_first_in_redis_where_less_is_more(broker: Broker, celery: Any, client: Any) -> None:
    celery.conf.task_default_priority = 6
    broker.publish([*parcels("low"), *parcels("high", priority=5)])
    assert [each["headers"]["id"] for each in messages(client, "shop\x06\x166")] == ["low"]
    assert [each["headers"]["id"] for each in messages(client, "shop")] == ["high"]
    assert broker.ready("shop") == 2


# -- what nobody claims


class Waiting:
    """A store with attempts that wait, and a carrier whose time is what the test says."""

    def __init__(self, store: Store, broker: Broker) -> None:
        self.store = store
        self.carrier = CeleryCarrier(broker, "shop.{}".format)
        self.now = 1_000.0
        store.register(WorkerRow(id="w", app="shop", host="h", pid=1, build="", names=["f"]), 60_000_000)

    def ask(self, *tokens: str, step: str = "pay", queue: str = "") -> None:
        now = self.store.now()
        self.store.create(NewRun(id=tokens[0], workflow="f", records=[], wake_at=now, created_at=now, fingerprint=b""))
        (claimed,) = self.store.commit("w", [], 1, ["f"]).claimed
        asked = [
            NewAttempt(token=token, cmd=f"{i}s0", step=step, number=1, queue=queue, due=self.store.now(), body=b"{}")
            for i, token in enumerate(tokens)
        ]
        self.store.commit("w", [Change(no=claimed.row.no, attempts=asked)], 0, [])

    def sweep(self, after: float) -> None:
        self.now += after
        self.carrier.sweep(self.store, self.now)


@pytest.fixture
def waiting(tmp_path: Path, broker: Broker, client: Any) -> Iterator[Waiting]:
    app = App("shop", str(tmp_path / "shop.db"))
    yield Waiting(app.store, broker)
    app.close()


def ids(client: Any) -> list[str]:
    return [each["headers"]["id"] for each in messages(client)]


def test_an_attempt_whose_message_is_lost_is_told_of_again_with_growing_pauses(waiting: Waiting, client: Any) -> None:
    waiting.ask("a")
    waiting.sweep(0)
    assert ids(client) == [], "its message may be on its way"
    waiting.sweep(CLAIMED_WITHIN)
    assert ids(client) == ["a"]
    client.flushdb()
    waiting.sweep(CLAIMED_WITHIN)
    assert ids(client) == [], "the second pause is longer"
    waiting.sweep(CLAIMED_WITHIN)
    assert ids(client) == ["a"]


def test_messages_that_a_worker_has_taken_along_are_not_counted(waiting: Waiting, client: Any) -> None:
    waiting.ask("a", "b", "c")
    waiting.sweep(0)
    waiting.carrier._broker.publish([Parcel("c", "shop.pay", "", 0)])
    client.hset("unacked", "a", "{}")  # where kombu keeps what a worker has not acknowledged, dead or alive
    client.hset("unacked", "b", "{}")
    waiting.sweep(CLAIMED_WITHIN)
    assert ids(client) == ["c", "a", "b"], "two are missing: the oldest"


def test_an_attempt_that_may_be_in_a_queue_full_of_other_messages_is_told_of_after_a_long_time(
    waiting: Waiting, client: Any
) -> None:
    waiting.ask("a")
    waiting.carrier._broker.publish([Parcel("other", "shop.other", "", 0)])
    waiting.sweep(0)
    waiting.sweep(CLAIMED_WITHIN)
    assert ids(client) == ["other"]
    waiting.sweep(LONGEST)
    assert ids(client) == ["other", "a"]


def test_many_that_nobody_serves_do_not_keep_others_from_being_told_of_again(
    waiting: Waiting, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrier, "LOOKED_AT", 2)
    waiting.ask("far1", "far2", "far3", queue="gpu")
    waiting.ask("routed1", "routed2", "routed3", step="render")
    waiting.ask("a", "b")
    waiting.carrier._broker._celery.conf.task_routes = {"shop.render": {"queue": "films"}}
    waiting.sweep(0)
    waiting.sweep(CLAIMED_WITHIN)
    assert ids(client) == ["a", "b"]


def test_what_was_claimed_is_not_told_of_again(waiting: Waiting, client: Any) -> None:
    waiting.ask("a")
    waiting.sweep(0)
    assert waiting.store.claim_attempt("w", "a") is not None
    waiting.sweep(LONGEST)
    assert ids(client) == []
