"""What people read, and what runs are found by."""

from __future__ import annotations

from typing import Any

from holdfast.ports import Answer, DataSpan, Message, RunQuery, Status, Store
from holdfast.testing.contract.arranging import SECOND, Arranged, record


class QueryContract(Arranged):
    """Tests of what the ports say of it."""

    def test_a_datum_has_one_value_and_a_hook_may_have_many(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, attributes=[("data.a", "1", b"1"), ("hook", "k1", b'["x"]'), ("hook", "k2", b'["y"]')])
        self.change(store, row, attributes=[("data.a", "2", b"2"), ("data.b", '"t"', b'"t"')])
        assert store.data("r") == {"a": b"2", "b": b'"t"'}
        assert store.attributes("r", "hook") == {"k1": b'["x"]', "k2": b'["y"]'}
        assert store.find_hook("k2") == [("r", "y")]
        self.change(store, row, dropped_attributes=[("hook", "k2")])
        assert store.find_hook("k2") == []
        assert [found.id for found in store.runs(RunQuery(data={"a": "2"}))] == ["r"]
        assert store.runs(RunQuery(data={"a": "1"})) == []
        assert store.runs(RunQuery(data={"a": "2", "b": '"other"'})) == []

    def test_a_request_is_taken_once_and_its_first_answer_stands(self, store: Store) -> None:
        row = self.owned(store)
        asked = Message(run_id="r", kind="ask", body=b"1", request="q")
        assert store.post(asked).kept
        assert not store.post(asked).kept
        assert store.answer("r", "q") is None
        (message,) = store.inbox("w1")
        self.change(store, row, consumed=[message.id], answers=[Answer("q", 3, b'{"answer":1}')])
        self.change(store, row, answers=[Answer("q", 4, b'{"answer":2}'), Answer("unasked", 5, b"{}")])
        assert store.answer("r", "q") == b'{"answer":1}'
        assert store.answer("r", "unasked") is None
        assert not store.post(asked).kept
        assert store.inbox("w1") == []

    def test_a_run_is_created_with_messages_in_its_inbox(self, store: Store) -> None:
        asked = Message(run_id="r", kind="ask", body=b"1", request="q")
        assert store.create(self.new(messages=[asked])) is None
        assert store.create(self.new(messages=[asked])) is not None
        self.worker(store)
        (claimed,) = self.claim(store)
        assert [message.body for message in claimed.messages] == [b"1"]

    def test_what_is_forgotten_of_a_history_is_gone_with_its_answers(self, store: Store) -> None:
        row = self.owned(store)
        for request in ("old", "new"):
            store.post(Message(run_id="r", kind="ask", request=request))
        self.change(
            store, row, records=[record(2), record(3)], answers=[Answer("old", 2, b"1"), Answer("new", 3, b"2")]
        )
        self.change(store, row, records=[record(4)], forget_before=3, columns={"base_seq": 4})
        assert len(store.payloads("r")) == 2
        assert (store.answer("r", "old"), store.answer("r", "new")) == (None, b"2")
        assert store.post(Message(run_id="r", kind="ask", request="old")).kept

    def test_who_sends_to_a_run_that_has_ended_is_told_if_wanted(self, store: Store) -> None:
        row = self.owned(store)
        self.leave(store, self.owned(store, "ended"), Status.SUCCESS)
        back = Message(run_id="r", kind="undelivered", body=b"lost")
        for target in ("ended", "nobody"):
            told = Message(run_id=target, kind="hook", if_gone=back, or_ended=True)
            untold = Message(run_id=target, kind="hook", if_gone=None)
            self.change(store, row, messages=[told, untold])
        self.change(store, row, messages=[Message(run_id="ended", kind="hook", if_gone=back)])
        assert [message.body for message in store.inbox("w1")] == [b"lost", b"lost"]

    def test_data_is_found_between_two_values(self, store: Store) -> None:
        for run_id, value in (("a", "N1"), ("b", "N2"), ("c", "N3"), ("d", "S2")):
            store.create(self.new(run_id, attributes=[("data.v", value, b"x")]))

        def found(**span: Any) -> list[str]:
            return sorted(row.id for row in store.runs(RunQuery(spans=[DataSpan(key="v", **span)])))

        assert found(low="N", high="O") == ["a", "b", "c"]
        assert found(low="N1", high="N3") == ["a", "b"]
        assert found(low="N1", high="N3", above=True, upto=True) == ["b", "c"]
        assert found(low="N3", high="O", others=(DataSpan(key="v", low="S", high="T"),)) == ["c", "d"]
        assert store.runs(RunQuery(spans=[DataSpan(key="w", low="N", high="O")])) == []

    def test_an_attribute_dropped_and_set_in_one_change_is_set(self, store: Store) -> None:
        row = self.owned(store)
        self.change(store, row, attributes=[("hook", "k", b'["x"]')])
        self.change(store, row, dropped_attributes=[("hook", "k")], attributes=[("hook", "k", b'["y"]')])
        assert store.find_hook("k") == [("r", "y")]

    def test_long_values_are_found_too(self, store: Store) -> None:
        row = self.owned(store)
        value = "x" * 5_000
        self.change(store, row, attributes=[("data.long", value, value.encode())])
        assert store.data("r") == {"long": value.encode()}
        assert len(store.runs(RunQuery(data={"long": value}))) == 1
        assert store.runs(RunQuery(data={"long": value + "y"})) == []

    def test_lists_are_paged_newest_first(self, store: Store) -> None:
        for number in range(7):
            store.create(self.new(f"r{number}"))
        first = store.runs(RunQuery(limit=3))
        assert [row.id for row in first] == ["r6", "r5", "r4"]
        store.create(self.new("newer"))
        second = store.runs(RunQuery(limit=3, after=first[-1].no))
        assert [row.id for row in second] == ["r3", "r2", "r1"], "a page is not moved by what came since"
        assert [row.id for row in store.runs(RunQuery(limit=3, after=second[-1].no))] == ["r0"]

    def test_lists_are_filtered(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("a-1"))
        (claimed,) = self.claim(store)
        self.leave(store, claimed.row, Status.SUCCESS)
        self.clock.move(SECOND)
        since = self.clock.now()
        store.create(self.new("a-2", workflow="bill", parent_id="a-1"))
        self.claim(store)
        store.create(self.new("b_1"))

        def ids(**given: Any) -> list[str]:
            return [row.id for row in store.runs(RunQuery(**given))]

        assert ids() == ["b_1", "a-2", "a-1"]
        assert ids(statuses=[Status.SUCCESS]) == ["a-1"]
        assert ids(statuses=[Status.SUCCESS, Status.PENDING]) == ["b_1", "a-1"]
        assert ids(workflow="bill") == ["a-2"]
        assert ids(workflow="bi*") == ["a-2"]
        assert ids(workflow="b%*") == []
        assert ids(workflow="*") == ["b_1", "a-2", "a-1"]
        assert ids(parent="a-1") == ["a-2"]
        assert ids(since=since) == ["b_1", "a-2"]
        assert ids(until=since) == ["a-1"]
        assert ids(prefix="a-") == ["a-2", "a-1"]
        assert ids(prefix="b%") == []
        assert ids(owner="w1") == ["a-2"]
        assert ids(prefix="a-", statuses=[Status.SUCCESS]) == ["a-1"]

    def test_runs_are_found_by_what_they_wait_for(self, store: Store) -> None:
        for run_id, reason in (
            ("a", "hook 'x', sleep"),
            ("b", "Hook 'x'"),
            ("c", "child 'c' and 2 more"),
            ("d", "100%"),
        ):
            self.change(store, self.owned(store, run_id), columns={"reason": reason})

        def ids(*reasons: str, limit: int = 9) -> list[str]:
            return [row.id for row in store.runs(RunQuery(reasons=reasons, limit=limit))]

        assert ids("hook ") == ["a"]
        assert ids("hook ", " more") == ["c", "a"]
        assert ids("hook ", " more", limit=1) == ["c"]
        assert ids("%") == ["d"]
        assert ids("nothing of this") == []
        assert sum(store.counts(RunQuery(reasons=["hook "]), 10).values()) == 1

    def test_runs_are_counted_by_status_up_to_a_limit(self, store: Store) -> None:
        self.worker(store)
        store.create(self.new("done"))
        (claimed,) = self.claim(store)
        self.leave(store, claimed.row, Status.SUCCESS)
        for number in range(4):
            store.create(self.new(f"r{number}", workflow="bill" if number else "ship"))
        counts = store.counts(RunQuery(limit=1, after=1), 3)
        assert (counts["PENDING"], counts["SUCCESS"], counts["FAILURE"]) == (3, 1, 0), (
            "a page has nothing to do with it"
        )
        assert store.counts(RunQuery(), 100)["PENDING"] == 4
        assert store.counts(RunQuery(workflow="bill"), 100)["PENDING"] == 3
        assert store.counts(RunQuery(workflow="bill"), 2)["PENDING"] == 2
        assert store.counts(RunQuery(statuses=[Status.SUCCESS]), 100) == {"SUCCESS": 1}

    def test_lists_are_filtered_by_several_things_at_once(self, store: Store) -> None:
        self.worker(store)
        for number in range(6):
            self.clock.move(SECOND)
            odd = str(number % 2)
            attributes = [("data.odd", odd, odd.encode())]
            store.create(self.new(f"r{number}", workflow=("ship", "bill", "shop")[number % 3], attributes=attributes))
        since = self.clock.now() - 3 * SECOND

        def ids(**given: Any) -> list[str]:
            return [row.id for row in store.runs(RunQuery(**given))]

        assert ids(workflow="sh*") == ["r5", "r3", "r2", "r0"]
        assert ids(workflow="sh*", limit=2) == ["r5", "r3"]
        assert ids(workflow="sh*", limit=2, after=4) == ["r2", "r0"]
        assert ids(workflow="sh*", statuses=[Status.PENDING, Status.SUCCESS], data={"odd": "1"}) == ["r5", "r3"]
        assert ids(data={"odd": "0"}, prefix="r4") == ["r4"]
        assert ids(since=since, data={"odd": "1"}) == ["r5", "r3"]
        assert ids(since=since, until=since + 2 * SECOND) == ["r3", "r2"]
        assert ids(until=since, workflow="s*", after=2) == ["r0"]
        assert store.counts(RunQuery(workflow="sh*", since=since), 100)["PENDING"] == 3

    def test_runs_are_found_by_time_although_a_clock_was_a_little_ahead(self, store: Store) -> None:
        at = self.clock.now()
        for i, created in enumerate((at + 30 * SECOND, at, at + 40 * SECOND, at + 10 * SECOND)):
            store.create(self.new(f"r{i}", created_at=created))
        found = store.runs(RunQuery(since=at + 20 * SECOND))
        assert [row.id for row in found] == ["r2", "r0"]
        assert [row.id for row in store.runs(RunQuery(until=at + 20 * SECOND))] == ["r3", "r1"]

    def test_runs_are_counted_over_time(self, store: Store) -> None:
        self.worker(store)
        for i, seconds in enumerate((0, 1, 12, 25)):
            store.create(self.new(f"r{i}", created_at=1_000 * SECOND + seconds * SECOND))
        counted = store.counts_over_time(RunQuery(), 10 * SECOND, 100)
        assert counted == [
            (1_000 * SECOND, "PENDING", 2), (1_010 * SECOND, "PENDING", 1), (1_020 * SECOND, "PENDING", 1),
        ]  # fmt: skip
        assert store.counts_over_time(RunQuery(), 10 * SECOND, 1) == [(1_020 * SECOND, "PENDING", 1)]
        assert store.counts_over_time(RunQuery(workflow="none"), 10 * SECOND, 1) == []

    def test_histories_of_several_runs_are_read_at_once(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            store.create(self.new(name, records=[record(1, "A"), record(2, "B")]))
        a, c = self.row(store, "a").no, self.row(store, "c").no
        assert store.histories([a, c, 999]) == {
            a: [b'{"seq":1}', b'{"seq":2}'],
            c: [b'{"seq":1}', b'{"seq":2}'],
            999: [],
        }
        assert store.histories([a, c], ["B"]) == {a: [b'{"seq":2}'], c: [b'{"seq":2}']}
        assert store.histories([]) == {}

    def test_a_history_can_be_read_in_part(self, store: Store) -> None:
        store.create(self.new(records=[record(1, "A"), record(2, "B"), record(3, "A")]))
        assert store.payloads("r", after=1) == [b'{"seq":2}', b'{"seq":3}']
        assert store.payloads("r", kinds=["A"]) == [b'{"seq":1}', b'{"seq":3}']
        assert store.payloads("r", after=1, kinds=["A"]) == [b'{"seq":3}']
        assert store.payloads("r", after=1, until=2) == [b'{"seq":2}']

    def test_texts_and_payloads_come_back_as_they_were(self, store: Store) -> None:
        payload = bytes(range(256)) * 4_000
        name = 'naïve "名前" \\ % _ \x01 \U0001f600'
        self.worker(store)
        store.create(self.new(name, records=[record(1, payload=payload)]))
        assert store.payloads(name) == [payload]
        (claimed,) = self.claim(store)
        self.change(store, claimed.row, columns={"reason": name, "owner": None, "status": Status.WAITING})
        assert self.row(store, name).reason == name

    def test_a_saved_view_is_its_apps_and_the_last_filter_under_a_name_counts(self, store: Store) -> None:
        assert store.saved_views() == {}
        store.save_view("Mine", "status:failed")
        store.save_view("naïve % _", "data.name=é")
        store.save_view("Mine", "status:stuck")
        assert store.saved_views() == {"Mine": "status:stuck", "naïve % _": "data.name=é"}
        store.save_view("Mine", None)
        store.save_view("nobody's", None)
        assert store.saved_views() == {"naïve % _": "data.name=é"}

    def test_forks_are_found_by_what_they_were_made_from(self, store: Store) -> None:
        store.create(self.new("r"))
        store.create(self.new("fork", attributes=[("forked_from", "r", b"")]))
        store.create(self.new("other", attributes=[("forked_from", "r2", b"")]))
        assert [row.id for row in store.runs(RunQuery(forked_from="r"))] == ["fork"]
        assert store.runs(RunQuery(forked_from="fork")) == []
