"""What every store has to do about limits, as tests: a part of `StoreContract`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.errors import Fenced
from holdfast.ports import Ask, Change, LimitRow, Message, RunRow, Served, Status, Store
from holdfast.testing.contract.arranging import NAMES, SECOND, Arranged


class LimitContract(Arranged):
    """Tests of what the Store port says of limits."""

    # -- arranging

    def _limited(self, store: Store, concurrency: int = 0, name: str = "charge", **given: Any) -> None:
        store.declare_limits([LimitRow(name=name, concurrency=concurrency, **given)])

    def _ask(
        self,
        store: Store,
        row: RunRow,
        *cmds: str,
        key: str = "",
        fair: str = "",
        lines: Sequence[tuple[str, str, str]] = (),
        **more: Any,
    ) -> None:
        asks = [
            Ask(
                cmd=cmd,
                token=f"t-{cmd}",
                lines=lines or [("charge", key, fair)],
                message=json.dumps(cmd).encode(),
                **more,
            )
            for cmd in cmds
        ]
        columns: dict[str, Any] = {"limited": 1}
        store.commit(row.owner or "", [Change(no=row.no, asks=asks, columns=columns)], 0, NAMES)

    def _end(self, store: Store, row: RunRow, *cmds: str) -> list[tuple[str, str]]:
        return store.commit(row.owner or "", [Change(no=row.no, gives_back=cmds)], 0, NAMES).freed

    def _serve(self, store: Store, keys: Sequence[str] | None = ("",), name: str = "charge") -> list[str]:
        """Who gets a slot."""
        return _told(store.serve("w1", name, keys))

    def _in_use(self, store: Store, name: str = "charge") -> tuple[int, int]:
        (use,) = [use for use in store.limits(10) if use.limit.name == name]
        return use.in_use, use.waiting

    # -- slots

    def test_no_more_than_the_limit_get_a_slot_and_the_others_when_one_is_given_back(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 2)
        self._ask(store, row, "a", "b", "c", "d")
        assert self._serve(store) == ["a", "b"]
        assert self._in_use(store) == (2, 2)
        assert self._serve(store, None) == [], "whoever looks again finds nothing to give"
        assert self._end(store, row, "a") == [("charge", "")]
        assert self._serve(store) == ["c"]
        assert self._end(store, row, "b", "c") == [("charge", "")] * 2
        assert self._serve(store) == ["d"]
        assert self._end(store, row, "d", "unknown") == [("charge", "")]
        assert self._in_use(store) == (0, 0)

    def test_what_was_asked_for_twice_is_asked_for_once(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 5)
        self._ask(store, row, "a")
        self._ask(store, row, "a")
        assert self._serve(store) == ["a"]
        assert self._in_use(store) == (1, 0)

    def test_in_one_change_slots_are_given_back_before_others_are_asked_for(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        self._ask(store, row, "a")
        self._serve(store)
        ask = Ask(cmd="a", token="again", lines=[("charge", "", "")], message=b'"again"')
        store.commit("w1", [Change(no=row.no, gives_back=["a"], asks=[ask])], 0, NAMES)
        assert self._serve(store) == ["again"]

    def test_a_limit_that_was_changed_holds_for_those_who_wait(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        assert store.declare_limits([LimitRow(name="charge", concurrency=1)]) == []
        self._ask(store, row, "a", "b", "c")
        assert self._serve(store) == ["a"]
        assert store.declare_limits([LimitRow(name="charge", concurrency=2)]) == ["charge"]
        assert self._serve(store, None) == ["b"]

    def test_each_key_has_a_limit_of_its_own(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1, keyed=True)
        self._ask(store, row, "a1", "a2", key="ann")
        self._ask(store, row, "b1", "b2", key="bob")
        assert self._serve(store, ()) == ["a1", "b1"]
        self._end(store, row, "b1")
        assert self._serve(store, ["bob"]) == ["b2"]
        (use,) = store.limits(1)
        assert (use.in_use, use.waiting, use.keys) == (2, 1, 2)
        assert [(line.key, line.in_use, line.waiting) for line in use.lines] == [("ann", 1, 1)]

    def test_those_who_wait_take_turns_by_what_they_belong_to(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        self._ask(store, row, *(f"a{i}" for i in range(6)), fair="ann")
        order = self._serve(store)
        self._ask(store, row, "b0", "b1", fair="bob")
        self._serve(store)
        for _ in range(7):
            self._end(store, row, order[-1])
            order += self._serve(store)
        assert order == ["a0", "a1", "a2", "b0", "a3", "b1", "a4", "a5"], "one of each in turn, from the second on"

    def test_whoever_is_first_is_not_overtaken_however_many_come(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        self._ask(store, row, "x", "a0", "a1", fair="ann")
        order = self._serve(store)
        for i in range(12):
            self._ask(store, row, f"n{i}", fair=f"new{i}")
            self._serve(store)
            self._end(store, row, order[-1])
            order += self._serve(store)
        assert order.index("a1") <= 5

    def test_whoever_stands_in_several_lines_has_a_slot_once_it_has_all(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1, name="per", keyed=True)
        self._limited(store, 1)
        self._ask(store, row, "a", "b", lines=[("per", "ann", ""), ("charge", "", "ann")])
        self._ask(store, row, "c", lines=[("per", "cid", ""), ("charge", "", "cid")])
        first = store.serve("w1", "per", ())
        assert (_told(first), sorted(first.onward)) == ([], ["charge", "charge"])
        assert self._serve(store) == ["a"]
        assert {p.cmd: (p.limit, p.place) for p in store.places("r", 100) if p.place} == {
            "b": ("per", 1),
            "c": ("charge", 1),
        }
        assert sorted(self._end(store, row, "a")) == [("charge", ""), ("per", "ann")]
        assert self._serve(store) == ["c"]
        assert self._serve(store, ["ann"], "per") == []
        self._end(store, row, "c")
        assert self._serve(store) == ["b"]
        slots = {slot.cmd: slot for slot in store.slots([row.no])[row.no]}
        assert (slots["b"].granted, slots["b"].limits, slots["b"].token) == (True, ["per", "charge"], "t-b")

    # -- rates

    def test_a_rate_lets_one_begin_after_the_other(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, rate=2, period=SECOND)
        self._ask(store, row, "a", "b", "c")
        served = store.serve("w1", "charge", ())
        assert _told(served) == ["a"]
        assert served.due == {"": store.now() + SECOND // 2}
        self.clock.move(SECOND // 2 - 1)
        assert self._serve(store) == []
        self.clock.move(1)
        assert self._serve(store) == ["b"]
        (place,) = [place for place in store.places("r", 100) if place.place]
        assert (place.cmd, place.place, place.next_at) == ("c", 1, store.now() + SECOND // 2)
        self._end(store, row, "a", "b")
        assert self._serve(store) == [], "that one has ended makes none begin earlier"
        self.clock.move(10 * SECOND)
        assert self._serve(store) == ["c"]
        self._ask(store, row, "d")
        assert self._serve(store) == [], "a time in which none came is not made up for"

    def test_with_a_burst_some_begin_together_after_a_quiet_time(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, rate=1, period=SECOND, burst=3)
        self._ask(store, row, *"abcdefgh")
        assert self._serve(store, ()) == ["a", "b", "c"]
        self.clock.move(SECOND)
        assert self._serve(store) == ["d"]
        self.clock.move(10 * SECOND)
        assert self._serve(store) == ["e", "f", "g"]

    def test_a_clock_that_was_set_back_keeps_no_line_waiting(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, rate=1, period=SECOND)
        self._ask(store, row, "a", "b")
        assert self._serve(store) == ["a"]
        self.clock.move(-3_600 * SECOND)
        assert self._serve(store) == []
        self.clock.move(SECOND)
        assert self._serve(store) == ["b"]

    # -- what is done when none is free

    def test_whoever_does_not_want_to_wait_is_refused(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        self._ask(store, row, "a", "b", refusal=b'"no"')
        assert self._serve(store) == ["a", "no"]
        assert self._in_use(store) == (1, 0)

    def test_the_newest_may_have_the_oldest_cancelled(self, store: Store) -> None:
        old, *newer = (self.owned(store, name) for name in ("old", "new", "newest"))
        self._limited(store, 1)
        self._ask(store, old, "", eviction=b'"go"')
        assert self._serve(store) == [""]
        for row in newer:
            self._ask(store, row, "", eviction=b'"go"')
            served = store.serve("w1", "charge", ())
            assert served.posted
        told = [(message.run_no, message.kind, message.body) for message in store.inbox("w1")]
        assert told == [(old.no, "cancel", b'"go"'), (newer[0].no, "cancel", b'"go"')], "each is told once"
        self._end(store, old, "")
        assert store.serve("w1", "charge", [""]).messages == [(newer[1].no, b'""')], "who was told to go gets no slot"

    # -- who is told, and what is left

    def test_a_run_of_another_worker_or_of_nobody_is_told_in_its_inbox(self, store: Store) -> None:
        one, two = self.owned(store, "one"), self.owned(store, "two")
        self.worker(store, "w2")
        self._limited(store, 1)
        self._ask(store, one, "a")
        self._ask(store, two, "b")
        served = store.serve("w2", "charge", ())
        assert (served.messages, served.posted) == ([], True)
        assert [(message.run_no, message.kind, message.body) for message in store.inbox("w1")] == [
            (one.no, "slot", b'"a"')
        ]
        self.leave(store, two, Status.WAITING)
        assert store.next_wake(NAMES) is None
        self._end(store, one, "a")
        assert store.serve("w1", "charge", [""]).posted
        (claimed,) = store.commit("w2", [], 10, NAMES).claimed
        assert [message.body for message in claimed.messages] == [b'"b"']
        assert [(slot.cmd, slot.granted) for slot in claimed.slots] == [("b", True)]

    def test_whoever_was_declared_dead_gives_nothing(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        self._ask(store, row, "a")
        try:
            store.serve("gone", "charge", ())
        except Fenced:
            assert self._in_use(store) == (0, 1)
        else:
            raise AssertionError("a dead worker has served a limit")

    def test_a_run_that_ends_gives_all_back_and_one_that_is_held_what_it_does_not_use(self, store: Store) -> None:
        one, two = self.owned(store, "one"), self.owned(store, "two")
        self._limited(store, 10)
        self._ask(store, one, "", "a", "b")
        self._ask(store, two, "c")
        self._serve(store)
        store.commit("w1", [Change(no=one.no, keeps=["", "b"])], 0, NAMES)
        assert sorted(slot.cmd for slot in store.slots([one.no])[one.no]) == ["", "b"]
        freed = store.commit("w1", [Change(no=one.no, keeps=[]), Change(no=two.no, keeps=[])], 0, NAMES).freed
        assert freed == [("charge", "")] * 3
        assert self._in_use(store) == (0, 0)

    def test_the_outcome_of_a_step_of_a_held_run_gives_its_slot_back(self, store: Store) -> None:
        one, two = self.owned(store, "one"), self.owned(store, "two")
        self._limited(store, 2)
        self._ask(store, one, "a")
        self._ask(store, two, "b")
        self._serve(store)
        self.leave(store, one, Status.PAUSED)
        assert store.post(Message(run_id="one", kind="outcome", frees="a")).freed == [("charge", "")]
        assert store.post(Message(run_id="two", kind="outcome", frees="b")).freed == [], "its owner will do that"
        assert self._in_use(store) == (1, 0)

    def test_what_runs_leave_that_are_gone_is_found(self, store: Store) -> None:
        one, two, three = (self.owned(store, name) for name in ("one", "two", "three"))
        self._limited(store, 2)
        self._ask(store, one, "a")
        self._ask(store, two, "b")
        self._ask(store, three, "c")
        assert self._serve(store) == ["a", "b"]
        self.leave(store, one, Status.SUCCESS)
        store.delete("one")
        self.leave(store, two, Status.FAILURE)  # by somebody who knew nothing of slots
        assert self._serve(store, None) == ["c"]
        assert self._in_use(store) == (1, 0)

    def test_limits_belong_to_an_app(self, store: Store) -> None:
        row = self.owned(store)
        self._limited(store, 1)
        self._ask(store, row, "a")
        store.app = "another"
        try:
            assert store.limits(5) == []
            assert store.serve("w1", "charge", None).messages == []
        finally:
            store.app = "orders"
        assert self._serve(store) == ["a"]


def _told(served: Served) -> list[str]:
    return [json.loads(message) for _, message in served.messages]
