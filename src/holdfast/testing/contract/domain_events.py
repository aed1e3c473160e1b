"""Domain events, and who is told of them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.errors import StoreError
from holdfast.ports import (
    Change,
    Committed,
    Delivery,
    Message,
    Reach,
    RunRow,
    Status,
    Store,
    Subscription,
    Unsubscription,
    WorkerRow,
)
from holdfast.testing.contract.arranging import LEASE, NAMES, SECOND, Arranged, raised, record


class EventContract(Arranged):
    """Tests of what the ports say of it."""

    def listen(self, store: Store, *subscriptions: Subscription, worker_id: str = "w1", **given: Any) -> None:
        """A worker whose code declares these."""
        names = given.get("names", NAMES)
        row = WorkerRow(id=worker_id, app=store.app, host="h", pid=1, build="1", names=list(names))
        store.register(row, LEASE, subscriptions)

    def awaits(self, store: Store, run_id: str, cmd: str = "1h0", **given: Any) -> RunRow:
        """A run of worker w1 that waits for the event `Paid`."""
        row = self.owned(store, run_id)
        self.change(store, row, signals=[Subscription(event="Paid", cmd=cmd, **given)])
        return row

    def listeners(self, store: Store, *lookups: str) -> list[tuple[str, str | None]]:
        """Who has yet to get the oldest event."""
        arrivals = store.arrivals(10)
        found = store.listeners(arrivals[0], lookups or [""], 10) if arrivals else []
        return [(listener.target, listener.run_id) for listener in found]

    def test_an_event_is_recorded_once_and_kept(self, store: Store) -> None:
        assert store.domain_event("Paid-1") is None
        assert store.emit(self.emission(payload=b"1", run_id="r", cmd="1e0", quiet=True))
        assert not store.emit(self.emission(payload=b"2"))
        event = store.domain_event("Paid-1")
        assert event is not None
        assert (event.app, event.name, event.key, event.payload) == ("orders", "Paid", "1", b"1")
        assert (event.correlation, event.run_id, event.cmd, event.quiet) == ("orders:r", "r", "1e0", True)
        assert event.ts == self.clock.now()
        assert store.arrivals(10) == [], "nobody listens"

    def test_an_event_arrives_at_the_subscriptions_there_are(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"), Subscription(event="Packed", target="ship"))
        store.emit(self.emission())
        self.listen(store, Subscription(event="Paid", target="bill"), worker_id="w2")
        (arrival,) = store.arrivals(10)
        assert (arrival.event.id, arrival.after, arrival.paths) == ("Paid-1", 0, [""])
        assert self.listeners(store) == [("ship", None)]
        store.deliver([Delivery(arrival=arrival, reached=None)])
        assert store.arrivals(10) == []

    def test_an_event_reaches_what_its_emitter_declares_although_no_worker_was_there(self, store: Store) -> None:
        subscription = Subscription(event="Paid", target="ship", spec=b"1")
        store.emit(self.emission(), [subscription])
        assert self.listeners(store) == [("ship", None)]
        self.listen(store, msgspec.structs.replace(subscription, spec=b"2"))
        assert self.listeners(store) == [("ship", None)], "a worker has it too, and it is the same"
        (arrival,) = store.arrivals(10)
        store.emit(self.emission(key="2"), [subscription])
        assert [listener.spec for listener in store.listeners(arrival, [""], 10)] == [b"2"], "a worker knows better"

    def test_a_worker_that_knows_the_target_has_the_last_word_on_what_it_listens_to(self, store: Store) -> None:
        self.worker(store)
        store.emit(self.emission(), [Subscription(event="Paid", target="ship")])
        assert store.arrivals(10) == []
        store.emit(self.emission(key="2"), [Subscription(event="Paid", target="elsewhere")])
        assert self.listeners(store) == [("elsewhere", None)]

    def test_an_event_is_not_delivered_twice(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        first = self.new("started", correlation="orders:r")
        store.deliver([Delivery(arrival=arrival, reached=None, runs=[first])])
        store.deliver([Delivery(arrival=arrival, reached=None, runs=[self.new("again")])])
        assert self.row(store, "started").correlation == "orders:r"
        assert store.get("again") is None

    def test_a_long_delivery_goes_on_where_it_was(self, store: Store) -> None:
        self.listen(store, *(Subscription(event="Paid", target=f"t{i}") for i in range(3)), names=["t0", "t1", "t2"])
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        first, second = store.listeners(arrival, [""], 2)
        store.deliver([Delivery(arrival=arrival, reached=second.no)])
        assert first.target == "t0"
        assert self.listeners(store) == [("t2", None)]
        store.deliver([Delivery(arrival=arrival, reached=None)])
        assert self.listeners(store) == [("t2", None)], "another worker has come further"

    def test_events_arrive_in_the_order_they_were_emitted(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        for key in "123":
            store.emit(self.emission(key=key))
        assert [arrival.event.key for arrival in store.arrivals(2)] == ["1", "2"]

    def test_a_run_waits_until_an_event_reaches_it(self, store: Store) -> None:
        row = self.awaits(store, "r", path="n", lookup="n=1")
        self.awaits(store, "other", path="n", lookup="n=2")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        assert arrival.paths == ["n"]
        assert self.listeners(store, "") == []
        assert self.listeners(store, "", "n=1") == [("", "r")]
        (listener,) = store.listeners(arrival, ["n=1"], 10)
        message = Message(run_id="r", kind="hook", body=b'"paid"')
        store.deliver([Delivery(arrival=arrival, reached=None, messages=[(listener.no, message)])])
        assert [(message.run_no, message.body) for message in store.inbox("w1")] == [(row.no, b'"paid"')]
        store.emit(self.emission(key="2"))
        assert self.listeners(store, "n=1") == [], "it got what it waited for"

    def test_a_wait_that_has_ended_gets_nothing(self, store: Store) -> None:
        row = self.awaits(store, "r")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        (listener,) = store.listeners(arrival, [""], 10)
        self.change(store, row, signals=[Unsubscription(cmd="1h0")])
        message = Message(run_id="r", kind="hook")
        store.deliver([Delivery(arrival=arrival, reached=None, messages=[(listener.no, message)])])
        assert store.inbox("w1") == []

    def test_a_wait_is_deleted_with_its_run(self, store: Store) -> None:
        row = self.awaits(store, "r")
        self.leave(store, row, Status.PAUSED)
        store.delete("r")
        store.emit(self.emission())
        assert store.arrivals(10) == []

    def test_the_signals_of_a_change_keep_their_order(self, store: Store) -> None:
        row = self.owned(store)
        wait = Subscription(event="Paid", cmd="1h0")
        self.change(store, row, signals=[self.emission(key="before"), wait, self.emission(key="after")])
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["after"]

    def who_listens(self, store: Store) -> Reach:
        """To `Paid`, as an event of that name tells it."""
        store.emit(self.emission(key="to look"))
        arrival = store.arrivals(10)[-1]
        found = store.listeners(arrival, [""], 10)
        store.deliver([Delivery(arrival=arrival, reached=None)])
        functions = [(listener.no, listener.spec) for listener in found if listener.target]
        return Reach(name="Paid", upto=arrival.upto, functions=functions, runs=[], messages=[])

    def reaches(self, store: Store, row: RunRow, key: str, known: Reach, claim: int = 0, **parts: Any) -> Committed:
        """A commit that emits an event, and tells those of this app who are known to listen."""
        reach = replace(known, **parts)
        return store.commit("w1", [Change(no=row.no, signals=[self.emission(key=key), reach])], claim, NAMES)

    def test_who_listens_is_known_before_an_event(self, store: Store) -> None:
        self.listen(store, Subscription(event="Packed", target="ship"))
        self.awaits(store, "r", path="n", lookup="n=1")
        known = store.listening("Paid")
        if known is not None:  # else numbers say nothing
            assert known == (self.who_listens(store).upto, ["n"])
            assert store.listening("Lost") == (0, [])

    def test_an_event_reaches_those_who_listen_in_the_commit_that_emits_it(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        row, known = self.owned(store), self.who_listens(store)
        committed = self.reaches(store, row, "1", known, claim=10, runs=[self.new("started")])
        assert [claimed.row.id for claimed in committed.claimed] == ["started"]
        assert not committed.emitted, "nobody is left to be told"
        assert store.arrivals(10) == []
        assert store.domain_event("Paid-1") is not None
        self.reaches(store, row, "1", known, runs=[self.new("again")])
        assert store.get("again") is None, "it is there already"

    def test_those_who_listen_since_then_are_told_as_usual(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        row, known = self.owned(store), self.who_listens(store)
        self.listen(store, Subscription(event="Paid", target="bill"), worker_id="w2")
        assert self.reaches(store, row, "1", known, runs=[self.new("started")]).emitted
        assert store.get("started") is not None
        assert self.listeners(store) == [("bill", None)]

    def test_all_are_told_as_usual_if_what_starts_something_has_changed(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        row, known = self.owned(store), self.who_listens(store)
        self.listen(store, Subscription(event="Paid", target="ship", spec=b'{"where":[{"n":1}]}'), worker_id="w2")
        assert self.reaches(store, row, "1", known, runs=[self.new("started")]).emitted
        assert store.get("started") is None
        assert self.listeners(store) == [("ship", None)]

    def test_an_event_overtakes_no_older_one(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        row, known = self.owned(store), self.who_listens(store)
        store.emit(self.emission(key="1"))
        assert self.reaches(store, row, "2", known, runs=[self.new("started")]).emitted
        assert store.get("started") is None
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["1", "2"]

    def test_a_wait_that_has_ended_meanwhile_is_not_reached(self, store: Store) -> None:
        row = self.awaits(store, "r")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        (listener,) = store.listeners(arrival, [""], 10)
        store.deliver([Delivery(arrival=arrival, reached=None)])
        message = Message(run_id="r", kind="hook", body=b'"paid"')
        known = self.who_listens(store)
        self.reaches(store, row, "2", known, messages=[(listener.no, message)])
        self.reaches(store, row, "3", known, messages=[(listener.no, message)])
        assert [message.body for message in store.inbox("w1")] == [b'"paid"'], "the first one has ended it"

    def test_what_a_change_emits_is_written_with_it_or_not_at_all(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, records=[record(2)], signals=[self.emission()])
        assert store.domain_event("Paid-1") is not None
        bad = Change(no=row.no, records=[record(2)], signals=[self.emission(key="2")])
        assert raised(StoreError, store.commit, "w1", [bad], 0, NAMES), "there is an event 2 already"
        assert store.domain_event("Paid-2") is None

    def test_news_become_events_if_somebody_listens(self, store: Store) -> None:
        news = [self.emission(name) for name in ("run.failed", "run.succeeded")]
        row = self.owned(store)
        assert not store.commit("w1", [Change(no=row.no, news=news)], 0, NAMES).emitted
        assert store.domain_event("run.failed-1") is None
        self.listen(store, Subscription(event="run.failed", target="ship"), worker_id="w2")
        assert store.commit("w1", [Change(no=row.no, news=news)], 0, NAMES).emitted
        assert store.domain_event("run.failed-1") is not None
        assert store.domain_event("run.succeeded-1") is None

    def test_a_run_set_aside_is_news(self, store: Store) -> None:
        self.listen(store, Subscription(event="run.stuck", target="ship"))
        store.create(self.new())
        no = self.row(store).no
        assert store.set_aside(no, "why", "unknown", self.emission("run.stuck"))
        assert not store.set_aside(no, "why", "unknown", self.emission("run.stuck", "2"))
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["1"]

    def test_subscriptions_stay_while_no_worker_lives(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        store.unregister("w1")
        store.emit(self.emission())
        assert self.listeners(store) == [("ship", None)]

    def test_a_subscription_ends_with_the_last_worker_that_declares_it_if_others_know_better(
        self, store: Store
    ) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        self.listen(store, worker_id="w2")
        store.emit(self.emission())
        assert self.listeners(store) == [("ship", None)]
        store.unregister("w1")
        assert self.listeners(store) == []

    def test_a_subscription_of_unknown_code_stays_for_a_day(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="gone"), names=["gone"])
        store.emit(self.emission())
        store.unregister("w1")
        self.listen(store, worker_id="w2")
        assert self.listeners(store) == [("gone", None)]
        self.clock.move(25 * 3600 * SECOND)
        self.listen(store, worker_id="w3")
        assert self.listeners(store) == []

    def test_the_last_worker_that_came_says_how_a_subscription_is_meant(self, store: Store) -> None:
        for number, spec in enumerate((b"1", b"2")):
            self.listen(store, Subscription(event="Paid", target="ship", spec=spec), worker_id=f"w{number}")
        store.emit(self.emission())
        (arrival,) = store.arrivals(10)
        assert [listener.spec for listener in store.listeners(arrival, [""], 10)] == [b"2"]

    def test_a_process_is_found_by_its_correlation(self, store: Store) -> None:
        store.create(self.new("r"))
        store.create(self.new("child", parent_id="r", correlation="orders:r"))
        store.create(self.new("stranger", correlation="orders:x"))
        store.emit(self.emission())
        store.emit(self.emission(key="2", correlation="orders:x"))
        runs, events = store.trace("orders:r", 10)
        assert [row.id for row in runs] == ["r", "child"]
        assert [event.key for event in events] == ["1"]
        assert len(store.trace("orders:r", 1)[0]) == 1

    def test_old_events_are_forgotten(self, store: Store) -> None:
        self.listen(store, Subscription(event="Paid", target="ship"))
        store.emit(self.emission())
        self.clock.move(20 * 86_400 * SECOND)
        store.emit(self.emission(key="2"))
        assert store.collect(10).events == 0
        assert store.domain_event("Paid-1") is not None
        self.clock.move(11 * 86_400 * SECOND)
        assert store.collect(10).events == 1
        assert store.domain_event("Paid-1") is None
        assert [arrival.event.key for arrival in store.arrivals(10)] == ["2"]

    def test_old_events_are_forgotten_in_batches(self, store: Store) -> None:
        for number in range(3):
            store.emit(self.emission(key=str(number)))
        self.clock.move(31 * 86_400 * SECOND)
        assert [store.collect(2).events for _ in range(3)] == [2, 1, 0]
