"""Schedules."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import EncodeError
from holdfast.ports import RunQuery, ScheduleChange, ScheduleRow, Status, Store, WorkerRow
from holdfast.testing.contract.arranging import LEASE, NAMES, SECOND, Arranged, raised


class ScheduleContract(Arranged):
    """Tests of what the ports say of it."""

    def schedule(self, store: Store, name: str = "s", **given: Any) -> ScheduleRow:
        """A schedule that is there, as it was read."""
        row = ScheduleRow(**{"name": name, "workflow": "ship", "spec": b"{}", "next_at": self.clock.now(), **given})
        assert store.save_schedules([ScheduleChange(row=row)]) == [name]
        (found,) = store.schedules(name)
        return found

    def test_a_schedule_is_there_as_it_was_written(self, store: Store) -> None:
        assert store.schedules() == []
        texts: dict[str, Any] = {"spec": b'{"cron":"0 2 * * *"}', "reason": "naïve", "active": "s@1"}
        row = self.schedule(store, declared=True, paused=True, next_at=None, last_at=7, queued=[1, 2], **texts)
        assert (row.name, row.workflow, row.declared, row.paused) == ("s", "ship", True, True)
        assert (row.spec, row.reason, row.active) == tuple(texts.values())
        assert (row.next_at, row.last_at, row.queued, row.is_active) == (None, 7, [1, 2], False)
        self.schedule(store, "a")
        assert store.apps() == ["orders"]
        assert [found.name for found in store.schedules()] == ["a", "s"]
        assert store.schedules("nobody") == []

    def test_a_schedule_is_changed_by_whoever_is_first_and_starts_its_runs_with_that(self, store: Store) -> None:
        row = self.schedule(store)
        moved = ScheduleChange(row=_moved(row, 10), runs=[self.new("s@1")])
        assert store.save_schedules([moved]) == ["s"]
        assert store.save_schedules([ScheduleChange(row=_moved(row, 20), runs=[self.new("s@2")])]) == []
        (after,) = store.schedules("s")
        assert after.next_at == (row.next_at or 0) + 10
        assert after.revision > row.revision
        assert [run.id for run in store.runs(RunQuery())] == ["s@1"]
        assert len(store.payloads("s@1")) == 1

    def test_of_several_schedules_those_that_are_still_the_same_are_changed(self, store: Store) -> None:
        one, two = self.schedule(store, "one"), self.schedule(store, "two")
        store.save_schedules([ScheduleChange(row=_moved(one, 10))])
        changes = [ScheduleChange(row=_moved(row, 20), runs=[self.new(f"{row.name}@1")]) for row in (one, two)]
        assert store.save_schedules(changes) == ["two"]
        assert [run.id for run in store.runs(RunQuery())] == ["two@1"]

    def test_a_run_whose_id_is_taken_is_left_alone_by_a_schedule(self, store: Store) -> None:
        store.create(self.new("s@1", workflow="bill"))
        row = self.schedule(store)
        assert store.save_schedules([ScheduleChange(row=_moved(row, 10), runs=[self.new("s@1")])]) == ["s"]
        assert self.row(store, "s@1").workflow == "bill"

    def test_schedules_are_written_all_or_none(self, store: Store) -> None:
        row = self.schedule(store)
        changes = [
            ScheduleChange(row=_moved(row, 10), runs=[self.new("s@1")]),
            ScheduleChange(row=ScheduleRow(name="bad", workflow="ship", spec=b"{}", reason="\ud800")),
        ]
        assert raised(EncodeError, store.save_schedules, changes)
        assert store.schedules() == [row]
        assert store.runs(RunQuery()) == []

    def test_a_name_that_is_taken_is_not_taken_again(self, store: Store) -> None:
        self.schedule(store)
        assert store.save_schedules([ScheduleChange(row=ScheduleRow(name="s", workflow="bill", spec=b""))]) == []
        assert store.schedules("s")[0].workflow == "ship"

    def test_a_deleted_schedule_is_gone_and_who_has_read_it_before_can_not_bring_it_back(self, store: Store) -> None:
        row = self.schedule(store)
        self.clock.move(SECOND)
        assert store.save_schedules([ScheduleChange(row=_moved(row, 10))]) == ["s"]
        assert store.save_schedules([ScheduleChange(row=row, delete=True)]) == [], "it was changed meanwhile"
        (after,) = store.schedules("s")
        assert store.save_schedules([ScheduleChange(row=after, delete=True)]) == ["s"]
        assert store.save_schedules([ScheduleChange(row=_moved(after, 10), runs=[self.new("s@1")])]) == []
        assert store.schedules() == []
        self.clock.move(SECOND)
        assert self.schedule(store).revision not in (row.revision, after.revision)

    def test_what_is_due_is_not_paused_and_of_the_workflows_named(self, store: Store) -> None:
        now = self.clock.now()
        self.schedule(store, "later", next_at=now + 2 * SECOND)
        self.schedule(store, "paused", paused=True)
        self.schedule(store, "never", next_at=None)
        self.schedule(store, "other", workflow="other", next_at=now + SECOND)
        assert store.due_schedules(NAMES, 10) == []
        assert store.next_tick(NAMES) == now + 2 * SECOND
        assert store.next_tick(["other"]) == now + SECOND
        assert store.next_tick([]) is None
        self.clock.move(2 * SECOND)
        assert [row.name for row in store.due_schedules(NAMES, 10)] == ["later"]
        self.schedule(store, "sooner", next_at=now)
        assert [row.name for row in store.due_schedules(NAMES, 10)] == ["sooner", "later"]
        assert [row.name for row in store.due_schedules(NAMES, 1)] == ["sooner"]

    def test_what_is_queued_is_due_when_the_last_run_has_ended(self, store: Store) -> None:
        run = self.owned(store, "s@1")
        later = self.clock.now() + SECOND
        self.schedule(store, next_at=later, active="s@1", queued=[5])
        self.schedule(store, "paused", paused=True, next_at=None, active="gone", queued=[5])
        assert store.schedules("s")[0].is_active
        assert store.due_schedules(NAMES, 10) == []
        assert store.next_tick(NAMES) == later
        self.leave(store, run, Status.FAILURE)
        assert not store.schedules("s")[0].is_active
        assert [row.name for row in store.due_schedules(NAMES, 10)] == ["s"]
        assert store.next_tick(NAMES) == 0
        store.delete("s@1")
        assert store.next_tick(NAMES) == 0
        assert store.next_tick(["other"]) is None

    def test_runs_are_found_by_their_schedule(self, store: Store) -> None:
        store.create(self.new("s@1", attributes=[("schedule", "s", b"null")]))
        store.create(self.new("t@1", attributes=[("schedule", "t", b"null")]))
        store.create(self.new("s"))
        assert [row.id for row in store.runs(RunQuery(schedule="s"))] == ["s@1"]

    def test_a_worker_says_which_schedules_its_code_declares(self, store: Store) -> None:
        row = WorkerRow(id="w1", app=store.app, host="h", pid=1, build="1", names=["ship"], schedules=["nightly"])
        store.register(row, LEASE)
        assert [worker.schedules for worker in store.workers()] == [["nightly"]]


def _moved(row: ScheduleRow, by: int) -> ScheduleRow:
    return msgspec.structs.replace(row, next_at=(row.next_at or 0) + by)
