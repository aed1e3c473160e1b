"""From those who send telemetry events to those who listen: nothing blocks, nothing grows, nothing breaks the sender."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest

from holdfast.telemetry import (
    ClusterState,
    EventDispatcher,
    EventReceiver,
    InMemoryTransport,
    LamportClock,
    Subscription,
    Transport,
)

Events = list[dict[str, Any]]


class BrokenTransport(InMemoryTransport):
    """Fails as long as it is told to."""

    broken = True
    tries = 0

    def publish(self, events: Sequence[Any]) -> None:
        self.tries += 1
        if self.broken:
            raise ConnectionError("no route to the broker")
        super().publish(events)


def received(subscription: Subscription) -> Events:
    return list(subscription.receive(0) or [])


def manual(transport: Transport, **options: Any) -> EventDispatcher:
    """A dispatcher that sends when it is told to."""
    return EventDispatcher(transport, interval=None, **options)


# -- sending


def test_an_event_says_who_sent_it_when_and_where() -> None:
    transport = InMemoryTransport()
    listener = transport.subscribe()
    dispatcher = manual(transport, clock=LamportClock(41))
    before = time.time()
    dispatcher.send("step-started", id="a", attempt=2)
    assert dispatcher.flush()
    (event,) = received(listener)
    assert (event["type"], event["id"], event["attempt"], event["clock"]) == ("step-started", "a", 2, 42)
    assert (event["pid"], event["hostname"], event["origin"]) == (os.getpid(), os.uname().nodename, dispatcher.origin)
    assert before <= event["timestamp"] <= time.time()
    offset = datetime.now().astimezone().utcoffset()
    assert offset is not None
    assert event["utcoffset"] == offset.total_seconds()


def test_a_blind_event_has_no_clock_and_moves_none() -> None:
    dispatcher = manual(InMemoryTransport())
    assert "clock" not in dispatcher.send("worker-heartbeat", blind=True)
    assert dispatcher.clock.value == 0


def test_what_the_sender_says_itself_stays() -> None:
    dispatcher = manual(InMemoryTransport(), origin="w1")
    event = dispatcher.send("step-started", timestamp=1.5, clock=7, origin="w2")
    assert (event["timestamp"], event["clock"], event["origin"]) == (1.5, 7, "w2")


@pytest.mark.parametrize("wrong", ["", None, 7])
def test_an_event_without_a_type_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="such as 'step-started'"):
        manual(InMemoryTransport()).send(wrong)


def test_events_are_plain_data_when_they_leave() -> None:
    class Order:
        def __repr__(self) -> str:
            return "an order"

    event = manual(InMemoryTransport()).send("step-sent", id="a", args=(1, Order(), {2: b"x"}), nothing=None)
    assert json.loads(json.dumps(event)) == event
    assert event["args"] == [1, "an order", {"2": "b'x'"}]


def test_a_thread_carries_events_away_without_being_asked() -> None:
    transport = InMemoryTransport()
    listener = transport.subscribe()
    with EventDispatcher(transport, interval=0.01) as dispatcher:
        dispatcher.send("step-started", id="a")
        assert [event["id"] for event in listener.receive(30) or []] == ["a"]


def test_closing_sends_what_waits() -> None:
    transport = InMemoryTransport()
    listener = transport.subscribe()
    with EventDispatcher(transport, interval=3600) as dispatcher:
        for n in range(1234):
            dispatcher.send("step-started", id=str(n))
    assert [event["id"] for event in received(listener)] == [str(n) for n in range(1234)]
    dispatcher.send("step-started", id="late")
    assert dispatcher.flush()
    assert received(listener) == []
    assert dispatcher.dropped == 1
    dispatcher.close()


def test_a_full_buffer_loses_its_oldest_events_and_counts_them() -> None:
    transport = InMemoryTransport()
    listener = transport.subscribe()
    dispatcher = manual(transport, limit=10)
    for n in range(25):
        dispatcher.send("step-started", id=str(n))
    assert dispatcher.dropped == 15
    dispatcher.flush()
    assert [event["id"] for event in received(listener)] == [str(n) for n in range(15, 25)]


def test_trouble_of_the_transport_is_logged_once_and_what_waited_is_sent_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport = BrokenTransport()
    listener = transport.subscribe()
    dispatcher = manual(transport, limit=3)
    with caplog.at_level(logging.WARNING, "holdfast.telemetry"):
        for n in range(5):
            dispatcher.send("step-started", id=str(n))
            assert not dispatcher.flush()
        assert len(caplog.records) == 1
        transport.broken = False
        assert dispatcher.flush()
    assert [event["id"] for event in received(listener)] == ["2", "3", "4"]
    assert dispatcher.dropped == 2
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "telemetry events can't be sent for now, work goes on without",
        "telemetry events are sent again; 2 were dropped so far",
    ]


def test_a_transport_that_hangs_keeps_neither_the_sender_nor_the_end_of_the_process() -> None:
    release = threading.Event()
    entered = threading.Event()

    class HangingTransport(InMemoryTransport):
        def publish(self, events: Sequence[Any]) -> None:
            entered.set()
            release.wait(60)

    dispatcher = EventDispatcher(HangingTransport(), interval=0.001, limit=100)
    dispatcher.send("step-started", id="first")
    assert entered.wait(30)
    for n in range(1000):
        dispatcher.send("step-started", id=str(n))
    assert dispatcher.dropped == 900
    dispatcher.close(timeout=0.01)
    release.set()


def test_a_process_that_can_not_start_a_thread_can_send_and_close(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    transport = InMemoryTransport()
    listener = transport.subscribe()
    dispatcher = EventDispatcher(transport)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    dispatcher.send("step-started", id="a")
    dispatcher.close()
    dispatcher.flush()
    assert [event["id"] for event in received(listener)] == ["a"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_sends_its_own_events_under_its_own_name() -> None:
    transport = InMemoryTransport()
    dispatcher = manual(transport)
    dispatcher.send("step-started", id="of the parent")
    reader, writer = os.pipe()
    with dispatcher._lock:  # as if another thread were sending
        child = os.fork()
        if child == 0:
            listener = InMemoryTransport()
            dispatcher.transport = listener
            own = listener.subscribe()
            dispatcher.send("step-started", id="of the child")
            dispatcher.flush()
            os.write(writer, json.dumps(received(own)).encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    (event,) = json.loads(os.read(reader, 100_000))
    os.close(reader)
    assert (event["id"], event["pid"]) == ("of the child", child)
    assert event["origin"] != dispatcher.origin


def test_events_of_many_threads_are_sent_in_the_order_of_their_clocks() -> None:
    transport = InMemoryTransport()
    listener = transport.subscribe()
    dispatcher = manual(transport)

    def work() -> None:
        for _ in range(500):
            dispatcher.send("step-progress", id="a")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dispatcher.flush()
    assert [event["clock"] for event in received(listener)] == list(range(1, 2001))


# -- receiving


def test_receiving_adjusts_the_clock() -> None:
    transport = InMemoryTransport()
    receiver = EventReceiver(transport, LamportClock(3))
    transport.publish([{"type": "step-started", "id": "a", "clock": 10}])
    seen: Events = []
    assert receiver.capture({"*": seen.append}, timeout=0) == 1
    assert (seen[0]["clock"], receiver.clock.value) == (10, 11)


@pytest.mark.parametrize(
    "clock", [{}, {"clock": None}, {"clock": -1}, {"clock": "7"}, {"clock": 2**80}, {"clock": True}]
)
def test_an_event_without_a_clock_gets_the_receivers_next(clock: dict[str, Any]) -> None:
    receiver = EventReceiver(InMemoryTransport(), LamportClock(5))
    event = receiver.receive({"type": "worker-heartbeat", **clock})
    assert event is not None
    assert (event["clock"], receiver.clock.value) == (6, 6)


@pytest.mark.parametrize("type", ["step-sent", "run-sent"])
def test_a_client_s_event_without_a_clock_is_before_all(type: str) -> None:
    receiver = EventReceiver(InMemoryTransport(), LamportClock(5))
    assert (receiver.receive({"type": type, "id": "a"}) or {})["clock"] == 0
    assert receiver.clock.value == 5


def test_a_client_s_event_is_placed_the_same_by_every_receiver() -> None:
    sent = {"type": "step-sent", "id": "a", "timestamp": 1.0, "name": "f"}
    follows = {"type": "step-received", "id": "a", "clock": 50, "timestamp": 2.0}
    states = []
    for start, events in ((0, [sent, follows]), (1000, [follows, sent])):
        transport, state = InMemoryTransport(), ClusterState()
        receiver = EventReceiver(transport, LamportClock(start))
        assert (receiver.receive(sent) or {})["clock"] == 0
        transport.publish(events)
        receiver.capture({"*": state.apply}, timeout=0)
        states.append(state)
    assert dict(states[0].steps) == dict(states[1].steps)
    assert (states[0].steps["a"].name, states[0].steps["a"].clock) == ("f", 50)


def test_an_event_goes_to_the_handler_of_its_type_and_to_the_one_for_all() -> None:
    transport = InMemoryTransport()
    receiver = EventReceiver(transport)
    transport.publish([{"type": "step-started", "id": "a"}, {"type": "step-failed", "id": "a"}])
    failed: Events = []
    everything: Events = []
    receiver.capture({"step-failed": failed.append, "*": everything.append}, timeout=0)
    assert [event["type"] for event in failed] == ["step-failed"]
    assert [event["type"] for event in everything] == ["step-started", "step-failed"]


def test_times_are_localised_and_the_timestamp_stays_the_same_for_all() -> None:
    event = EventReceiver(InMemoryTransport()).receive({"type": "step-started", "timestamp": 1_700_000_000.5})
    assert event is not None
    assert event["timestamp"] == 1_700_000_000.5
    local = datetime.fromisoformat(event["local_time"])
    assert local.timestamp() == 1_700_000_000.5
    assert local.utcoffset() == datetime.fromtimestamp(1_700_000_000.5).astimezone().utcoffset()
    assert time.time() - 60 < event["received_at"] <= time.time()


@pytest.mark.parametrize("timestamp", [None, "x", True, float("nan"), 1e300, -1e300, 10**400])
def test_a_wrong_time_is_no_local_time(timestamp: Any) -> None:
    event = EventReceiver(InMemoryTransport()).receive({"type": "step-started", "timestamp": timestamp})
    assert event is not None
    assert event["local_time"] is None


def test_what_is_no_event_is_skipped() -> None:
    transport = InMemoryTransport()
    subscription = transport.subscribe()
    subscription._events.extend([None, 7, "x", [], {"id": "a"}, {"type": 3}, {"type": "step-started"}])  # type: ignore[list-item]
    transport.subscribe = lambda: subscription  # type: ignore[method-assign]
    assert EventReceiver(transport).capture({}, timeout=0) == 1


def test_capture_ends_after_as_many_events_as_asked_for_and_goes_on_there() -> None:
    transport = InMemoryTransport()
    receiver = EventReceiver(transport)
    transport.publish([{"type": "step-started", "id": str(n)} for n in range(5)])
    seen: Events = []
    assert receiver.capture({"*": seen.append}, limit=2) == 2
    assert receiver.capture({"*": seen.append}, timeout=0) == 3
    assert [event["id"] for event in seen] == ["0", "1", "2", "3", "4"]


def test_what_a_handler_raises_goes_to_the_caller_who_can_go_on_with_the_next_event() -> None:
    transport = InMemoryTransport()
    receiver = EventReceiver(transport)
    transport.publish([{"type": "step-started", "id": str(n)} for n in range(3)])

    def fail(event: dict[str, Any]) -> None:
        raise KeyError(event["id"])

    with pytest.raises(KeyError, match="0"):
        receiver.capture({"*": fail}, timeout=0)
    seen: Events = []
    receiver.capture({"*": seen.append}, timeout=0)
    assert [event["id"] for event in seen] == ["1", "2"]


def test_a_receiver_that_is_stopped_comes_back() -> None:
    receiver = EventReceiver(InMemoryTransport())
    thread = threading.Thread(target=receiver.capture, args=({},))
    thread.start()
    receiver.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_closing_the_transport_ends_every_listener_once_it_has_received_all() -> None:
    transport = InMemoryTransport()
    receiver = EventReceiver(transport)
    transport.publish([{"type": "step-started", "id": "a"}])
    transport.close()
    transport.close()
    seen: Events = []
    assert receiver.capture({"*": seen.append}) == 1
    with pytest.raises(RuntimeError, match="closed"):
        transport.publish([])
    with pytest.raises(RuntimeError, match="closed"):
        transport.subscribe()


def test_a_listener_that_is_too_slow_loses_the_oldest_events_and_the_others_none() -> None:
    transport = InMemoryTransport(limit=3)
    slow, quick = transport.subscribe(), transport.subscribe()
    seen = []
    for n in range(5):
        transport.publish([{"type": "step-started", "id": str(n)}])
        seen += received(quick)
    assert [event["id"] for event in seen] == ["0", "1", "2", "3", "4"]
    assert [event["id"] for event in received(slow)] == ["2", "3", "4"]
    assert (slow.lost, quick.lost) == (2, 0)


def test_what_one_listener_does_to_an_event_the_others_do_not_see() -> None:
    transport = InMemoryTransport()
    one, other = transport.subscribe(), transport.subscribe()
    transport.publish([{"type": "step-started", "id": "a"}])
    received(one)[0]["id"] = "b"
    assert received(other)[0]["id"] == "a"


def test_a_closed_subscription_costs_the_transport_nothing() -> None:
    transport = InMemoryTransport()
    transport.subscribe().close()
    transport.publish([{"type": "step-started"}])
    assert transport._subscriptions == []
