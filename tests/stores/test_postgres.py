"""What only PostgreSQL has: transactions that overtake each other, connections that break, a server that restarts."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from waiting import wait_until

from holdfast.app import SystemClock
from holdfast.errors import EncodeError, StoreBusyError, StoreError, StoreReadOnlyError, StoreUnavailableError
from holdfast.ports import Change, Emission, Message, NewRun, Record, RunQuery, Subscription, Topic, WorkerRow
from holdfast.stores import postgres, postgres_connections
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres_connections import Connections
from holdfast.stores.postgres_life import ServerClock, key_of
from holdfast.stores.postgres_notifier import PostgresNotifier
from holdfast.stores.postgres_sql import ENGINES, PROGRAMS, channel_of
from holdfast.testing import MovableClock
from postgres_server import own_server

LEASE = 10_000_000


def record(seq: int) -> Record:
    return Record(seq, "Thing", "", "", 0, 1, "w", seq, b"{}")


def new(store: PostgresStore, run_id: str = "r", **given: Any) -> NewRun:
    now = store.now()
    return NewRun(
        id=run_id, workflow="ship", records=[record(1)], wake_at=now, created_at=now, fingerprint=b"f", **given
    )


def register(store: PostgresStore, worker: str, *subscriptions: Subscription) -> None:
    row = WorkerRow(id=worker, app=store.app, host="h", pid=1, build="1", names=["ship"])
    store.register(row, LEASE, subscriptions)


def owned(store: PostgresStore, run_id: str = "r") -> int:
    store.create(new(store, run_id))
    (claimed,) = store.commit("w1", [], 1, ["ship"]).claimed
    return claimed.row.no


class Late(threading.Thread):
    """Something that is done beside the test; `wait` gives its result or raises its error."""

    def __init__(self, action: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._action, self._found, self._error = action, None, None
        self.start()

    def run(self) -> None:
        try:
            self._found = self._action()
        except BaseException as error:
            self._error = error

    def wait(self) -> Any:
        self.join(20)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._found


@pytest.fixture
def open_store(postgres_url: str) -> Iterator[Callable[..., PostgresStore]]:
    opened: list[PostgresStore] = []

    def make(url: str = "", **given: Any) -> PostgresStore:
        opened.append(PostgresStore("orders", url or postgres_url, SystemClock(), **{"judge_after": 0, **given}))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., PostgresStore]) -> PostgresStore:
    store = open_store()
    register(store, "w1")
    return store


@pytest.fixture
def other(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody else's."""
    with closing(store.database.connect()) as connection:
        yield connection


WAITING = (
    "SELECT DISTINCT pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE NOT granted AND application_name = current_setting('application_name')"
)


def until_somebody_waits(connection: psycopg.Connection[Any], number: int = 1) -> None:
    deadline = time.monotonic() + 20
    while len(connection.execute(WAITING).fetchall()) < number:
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- races that the statements of a transaction don't show


def test_two_commits_that_start_the_same_children_never_wait_for_each_other(
    store: PostgresStore, open_store: Callable[..., PostgresStore], other: psycopg.Connection[Any], monkeypatch: Any
) -> None:
    second = open_store()
    register(second, "w2")
    monkeypatch.setattr(postgres.PostgresDatabase, "pauses", ())  # nothing is tried again
    other.execute("BEGIN")
    other.execute(
        "INSERT INTO runs (app, id, workflow, status, options, fingerprint, created_at) "
        "VALUES ('orders', 'y', 'ship', 'PENDING', '', '', 0)"
    )
    with closing(store.database.connect()) as watching:
        one = Late(lambda: store.commit("w1", [Change(no=0, children=[new(store, i) for i in "xyz"])], 0, ["ship"]))
        until_somebody_waits(watching, 1)
        two = Late(lambda: second.commit("w2", [Change(no=0, children=[new(store, i) for i in "zyx"])], 0, ["ship"]))
        until_somebody_waits(watching, 2)
    other.execute("ROLLBACK")
    one.wait()
    two.wait()
    assert sorted(row.id for row in store.runs(RunQuery())) == ["x", "y", "z"]


def test_a_run_is_claimed_with_the_history_of_its_last_owner(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    """The claim waits for nobody: its history is read by a later statement, with a newer view than the claim's."""
    no = owned(store)
    register(store, "w2")
    other.execute("BEGIN")
    other.execute("LOCK TABLE workers IN ACCESS EXCLUSIVE MODE")  # the claim's first statement waits, its view is made
    claim = Late(lambda: store.commit("w2", [], 1, ["ship"]).claimed)
    with closing(store.database.connect()) as watching:
        until_somebody_waits(watching)
    other.execute(
        "INSERT INTO history SELECT run, 2, kind, name, cmd, cause, attempt, worker, ts, payload FROM history"
    )
    other.execute("UPDATE runs SET owner = NULL, wake_at = 1, status = 'PENDING'")
    other.execute("COMMIT")
    (claimed,) = claim.wait()
    assert claimed.row.no == no
    assert len(claimed.payloads) == 2


def test_a_worker_renews_its_lease_while_its_own_commit_waits(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    """The commit has locked the row of its worker, so that nobody declares it dead meanwhile."""
    no = owned(store)
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM runs FOR UPDATE")
    commit = Late(
        lambda: store.commit("w1", [Change(no=no, records=[record(2)], columns={"status": "WAITING"})], 0, ["ship"])
    )
    with closing(store.database.connect()) as watching:
        until_somebody_waits(watching)
        # What an UPDATE of the row takes, but without waiting: a commit that holds it up gives up after a while.
        assert watching.execute("SELECT 1 FROM workers WHERE id = 'w1' FOR NO KEY UPDATE NOWAIT").fetchall()
    assert Late(lambda: store.beat("w1", LEASE)).wait()
    assert commit.is_alive()
    other.execute("COMMIT")
    commit.wait()


def test_after_a_lost_connection_it_is_waited_for_what_the_server_still_does(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    no = owned(store)
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM runs FOR UPDATE")
    descriptors: list[int] = []
    borrowed = store.database._borrow

    def noting() -> Any:
        context = borrowed()

        class Noting:
            def __enter__(self) -> Any:
                connection = context.__enter__()
                descriptors.append(connection.fileno())
                return connection

            def __exit__(self, *error: Any) -> Any:
                return context.__exit__(*error)

        return Noting()

    store.database._borrow = noting  # type: ignore[method-assign]
    change = Change(no=no, records=[record(2)], columns={"status": "WAITING"})
    commit = Late(lambda: store.commit("w1", [change], 0, ["ship"]))
    with closing(store.database.connect()) as watching:
        until_somebody_waits(watching)
    with socket.socket(fileno=os.dup(descriptors[-1])) as line:
        line.shutdown(socket.SHUT_RDWR)
    with pytest.raises(StoreError) as lost:
        commit.wait()
    assert not isinstance(lost.value, StoreBusyError), "it is not certain that nothing has happened"
    assert len(store.payloads("r")) == 1, "nor that it has"
    settled = Late(lambda: store.settle("w1"))
    with closing(store.database.connect()) as watching:
        until_somebody_waits(watching, 2)
    assert settled.is_alive()
    other.execute("COMMIT")
    settled.wait()
    assert len(store.payloads("r")) == 2


def test_what_is_refused_because_of_others_is_tried_again_as_it_is(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    no = owned(store)
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM runs FOR UPDATE")
    change = Change(no=no, records=[record(2)], columns={"status": "WAITING"})
    commit = Late(lambda: store.commit("w1", [change], 0, ["ship"]))
    with closing(store.database.connect()) as watching:
        until_somebody_waits(watching)
        ((pid,),) = watching.execute(WAITING).fetchall()
        watching.execute("SELECT pg_cancel_backend(%s)", (pid,))
        until_somebody_waits(watching)
    other.execute("COMMIT")
    commit.wait()
    assert len(store.payloads("r")) == 2


def test_what_is_certainly_not_done_says_so(
    open_store: Callable[..., PostgresStore], other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres.PostgresDatabase, "pauses", (0.001,))
    monkeypatch.setattr(postgres_connections, "LONGEST_WAIT", 0.05)
    store = open_store()
    no = owned(store)
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM runs FOR UPDATE")
    with pytest.raises(StoreBusyError):
        store.commit("w1", [Change(no=no, records=[record(2)], columns={"status": "WAITING"})], 0, ["ship"])
    other.execute("COMMIT")
    assert len(store.payloads("r")) == 1


def test_what_others_have_locked_is_left_to_them(store: PostgresStore, other: psycopg.Connection[Any]) -> None:
    store.create(new(store, "locked"))
    other.execute("BEGIN")
    other.execute("SELECT 1 FROM runs FOR UPDATE")
    store.create(new(store, "free"))
    store.post(Message(run_id="locked", kind="hook"))
    assert [claimed.row.id for claimed in store.commit("w1", [], 10, ["ship"]).claimed] == ["free"]
    other.execute("COMMIT")


def test_an_event_reaches_the_subscriptions_there_were_whatever_their_numbers(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    """A wait may get a number before one that is committed earlier."""
    first, second = owned(store, "first"), owned(store, "second")
    other.execute("BEGIN")
    other.execute(
        "INSERT INTO subscriptions (app, event, target, run, cmd, path, lookup, spec, declared_at) "
        "VALUES ('orders', 'Paid', '', %s, '1h0', '', '', '{}', 0)",
        (first,),
    )
    store.commit("w1", [Change(no=second, signals=[Subscription(event="Paid", cmd="1h0")])], 0, ["ship"])

    def emit(key: str) -> None:
        assert store.emit(Emission(id=key, name="Paid", key=key, payload=b"{}", correlation="", ts=0))

    emit("before")
    other.execute("COMMIT")
    emit("after")
    third = owned(store, "third")
    store.commit("w1", [Change(no=third, signals=[Subscription(event="Paid", cmd="1h0")])], 0, ["ship"])
    before, after = store.arrivals(10)
    assert {one.run_id for one in store.listeners(before, [""], 10)} >= {"second"}
    assert [one.run_id for one in store.listeners(after, [""], 10)] == ["first", "second"]
    assert all(one.run_id != "third" for event in (before, after) for one in store.listeners(event, [""], 10))


# -- life


def test_a_restart_of_the_server_lets_nobody_declare_anybody_dead() -> None:
    with own_server() as server:
        one, two = (PostgresStore("orders", server.url, SystemClock()) for _ in range(2))
        with closing(one), closing(two):
            register(one, "w1")
            register(two, "w2")
            for mode in ("fast", "immediate"):
                server.restart(mode)
                assert _reached(lambda: two.declare_dead("w2")) == []
                assert two.declare_dead("w2") == [], "whoever looks first has only noted that it was started"
                assert [worker.id for worker in two.workers()] == ["w1", "w2"]
            assert one.beat("w1", LEASE), "which takes the lock again"
            two.database.lives._judge_after = 0
            assert two.declare_dead("w2", by_lease=False) == []


def test_a_crash_of_the_server_counts_as_a_restart(open_store: Callable[..., PostgresStore]) -> None:
    """It lets go of all locks, and the server doesn't say that it was started again."""
    with own_server() as server:
        one, two = (PostgresStore("orders", server.url, SystemClock(), judge_after=5) for _ in range(2))
        with closing(one), closing(two):
            register(one, "w1")
            register(two, "w2")
            with closing(two.database.connect()) as connection:
                os.kill(connection.info.backend_pid, 9)
            _reached(lambda: two.runs(RunQuery()))
            assert _reached(lambda: two.declare_dead("w2")) == []
            with two.read() as db:
                (up, held) = db.execute(two.database.q["life_locks"]).fetchone()
            assert up < 5
            assert held == []


def _reached(action: Callable[[], Any]) -> Any:
    """What an action gives as soon as the server is back."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return action()
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_who_waits_until_others_have_made_the_tables_sees_them_at_any_level_of_isolation(
    postgres_url: str, open_store: Callable[..., PostgresStore]
) -> None:
    url = f"{postgres_url}&options=-c%20default_transaction_isolation%3Dserializable"
    connections = postgres_connections.Connections(url)
    lock = (key_of(connections.schema, "migrate"),)
    with closing(connections.connect()) as other:
        other.execute("SELECT pg_advisory_lock(%s)", lock)
        opening = [Late(lambda: open_store(url)) for _ in range(2)]
        until_somebody_waits(other, 2)
        other.execute("SELECT pg_advisory_unlock(%s)", lock)
    for each in opening:
        current, newest = each.wait().schema_versions()
        assert current == newest


def test_a_worker_of_another_schema_is_another_worker(
    postgres_schemas: Callable[[], str], open_store: Callable[..., PostgresStore]
) -> None:
    one, two = open_store(postgres_schemas()), open_store(postgres_schemas())
    register(one, "w1")
    register(two, "w1")
    register(two, "w2")
    two.release_lock("w1")
    assert two.declare_dead("w2", by_lease=False) == ["w1"]


def test_behind_a_pooler_of_transactions_the_lease_tells_who_is_dead(
    open_store: Callable[..., PostgresStore], postgres_url: str
) -> None:
    """A lock would stay with the session, which is somebody else's next."""
    one, two = (open_store(f"{postgres_url}&pooler=transaction") for _ in range(2))
    register(one, "w1")
    register(two, "w2")
    owned(one)
    with two.read() as db:
        _, held = db.execute(two.database.q["life_locks"]).fetchone()
    assert not {key_of(two.database.schema, name) for name in ("w1", "w2")} & set(held)
    one.release_lock("w1")
    assert two.declare_dead("w2") == []
    assert one.beat("w1", LEASE)
    with closing(two.database.connect()) as connection:
        assert connection.prepare_threshold is None
        connection.execute(f"UPDATE {two.database.schema}.workers SET lease_until = 0 WHERE id = 'w1'")
    assert two.declare_dead("w2") == ["w1"]
    assert [claimed.row.id for claimed in two.commit("w2", [], 10, ["ship"]).claimed] == ["r"]


# -- time


def test_time_is_the_databases(store: PostgresStore, other: psycopg.Connection[Any]) -> None:
    asked = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    before = other.execute(asked).fetchone()[0]  # type: ignore[index]
    now = store.now()
    after = other.execute(asked).fetchone()[0]  # type: ignore[index]
    assert before - 1_000_000 < now < after + 1_000_000


def test_a_clock_that_is_an_hour_wrong_is_corrected(
    open_store: Callable[..., PostgresStore], postgres_url: str
) -> None:
    class Wrong(SystemClock):
        def now(self) -> int:
            return super().now() - 3_600_000_000

    store = PostgresStore("orders", postgres_url, Wrong())
    with closing(store):
        assert abs(store.now() - SystemClock().now()) < 60_000_000


class TwoClocks(MovableClock):
    """A time of day that can be set, and a steady clock that may stand still."""

    def __init__(self) -> None:
        super().__init__()
        self.steady = 5_000_000

    def monotonic(self) -> float:
        return self.steady / 1_000_000

    def random(self) -> float:
        return 0.5

    def pass_by(self, us: int) -> None:
        self.move(us)
        self.steady += us


def test_time_does_not_jump_as_long_as_it_may_be_right() -> None:
    local = TwoClocks()
    clock = ServerClock(local)
    start, day = local.steady, local.now()
    assert clock.now() == day, "until the server is asked"
    clock.set(start, day + 1_050, start + 100)
    assert clock.now() == day + 1_000
    clock.set(start, day + 1_090, start + 200)
    assert clock.now() == day + 1_000
    clock.set(start, day + 3_000, start + 200)
    assert clock.now() == day + 2_900
    local.pass_by(100)
    assert clock.now() == day + 3_000


HOUR = 3_600_000_000


@pytest.mark.parametrize("by", [HOUR, -HOUR])
def test_a_time_of_day_that_is_set_moves_nothing(postgres_url: str, by: int) -> None:
    local = TwoClocks()
    with closing(PostgresStore("orders", postgres_url, local)) as store:
        before = store.now()
        local.move(by)
        assert store.now() == before
        store.get("r")
        assert abs(store.now() - before) < 60_000_000, "nor when the server is asked again"


def test_a_steady_clock_that_stood_still_is_noticed_when_the_store_is_used(postgres_url: str) -> None:
    """As while a laptop sleeps, where there is no better clock."""
    local = TwoClocks()
    with closing(PostgresStore("orders", postgres_url, local)) as store:
        local.steady -= HOUR
        assert store.now() < SystemClock().now() - HOUR // 2
        store.get("r")
        assert abs(store.now() - SystemClock().now()) < 60_000_000


# -- errors


def test_a_wrong_address_is_told_at_once_without_the_password() -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="can't be reached") as refused:
        PostgresStore("orders", "postgresql://me:secret@localhost:1/nowhere", SystemClock())
    assert time.monotonic() - begun < 20
    assert "secret" not in str(refused.value)


def test_what_says_which_server_it_is_is_shown_wherever_it_stands() -> None:
    shown = Connections("postgresql://me:secret@/shop?password=hidden&host=/run/a&port=5433&sslmode=disable").shown
    assert shown == "postgresql:///shop?host=/run/a&port=5433&schema=holdfast"
    assert Connections("postgresql://me@db.example/shop").shown == "postgresql://db.example/shop?schema=holdfast"


@pytest.mark.parametrize("option", ["schema=No-Schema", "pool=1", "pool=many", "pooler=statement"])
def test_a_wrong_option_is_refused(postgres_server: str, option: str) -> None:
    with pytest.raises(StoreUnavailableError, match=rf"\?{option.partition('=')[0]}="):
        PostgresStore("orders", f"{postgres_server}&{option}", SystemClock())


def test_a_pool_that_is_empty_is_a_busy_store(
    open_store: Callable[..., PostgresStore], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "LONGEST_WAIT", 0.2)
    store = open_store(f"{postgres_url}&pool=2")
    with store.read(), store.read():
        with pytest.raises(StoreBusyError, match=r"raise \?pool="):
            store.get("r")
    assert store.get("r") is None


def test_a_step_waits_for_a_connection_that_other_steps_have(
    open_store: Callable[..., PostgresStore], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "LONGEST_WAIT", 0.2)
    database = open_store(f"{postgres_url}&pool=2").database
    may_end, begun = threading.Event(), threading.Semaphore(0)

    def step() -> str:
        with database.step_write():
            begun.release()
            assert may_end.wait(20)
            return "done"

    steps = [Late(step) for _ in range(5)]
    assert begun.acquire(timeout=10)
    assert begun.acquire(timeout=10)
    assert not begun.acquire(timeout=1), "there are two connections"
    may_end.set()
    assert [late.wait() for late in steps] == ["done"] * 5


def test_a_step_does_not_wait_for_ever_for_a_connection_that_it_has_itself(
    open_store: Callable[..., PostgresStore], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connections, "LONGEST_WAIT", 0.2)
    database = open_store(f"{postgres_url}&pool=2").database
    with database.step_write(), database.step_write():
        with pytest.raises(StoreBusyError), database.step_write():
            pass
    with database.step_write(), database.step_write():
        pass


def test_a_database_that_can_not_be_written_says_so(
    store: PostgresStore, open_store: Callable[..., PostgresStore], postgres_url: str
) -> None:
    standby = open_store(f"{postgres_url}&options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(StoreReadOnlyError, match="connect to the primary"):
        standby.create(new(standby))
    assert standby.runs(RunQuery()) == []


def test_a_broken_connection_is_replaced(store: PostgresStore, other: psycopg.Connection[Any]) -> None:
    store.create(new(store))
    other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid() AND query LIKE '%runs%'"
    )
    assert _reached(lambda: store.get("r")) is not None


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_connections_that_were_idle_while_the_server_was_restarted_are_replaced_unseen(mode: str) -> None:
    with own_server() as server, closing(PostgresStore("orders", f"{server.url}&pool=4", SystemClock())) as store:
        store.create(new(store))
        with store.read(), store.read(), store.read(), store.database.step_write():
            pass  # so many are idle now
        server.restart(mode)
        begun = time.monotonic()
        store.create(new(store, "another"))
        with store.database.step_write() as (_, connection):
            connection.execute("SELECT 1")
        assert [row.id for row in store.runs(RunQuery())] == ["another", "r"]
        assert time.monotonic() - begun < 5


def test_a_name_with_nul_is_refused_and_its_run_alone(store: PostgresStore) -> None:
    no = owned(store)
    with pytest.raises(EncodeError, match="NUL"):
        store.commit("w1", [Change(no=no, columns={"reason": "a\0b"})], 0, ["ship"])


def test_a_forked_process_opens_connections_of_its_own(store: PostgresStore) -> None:
    store.create(new(store))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if store.get("r") is not None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.get("r") is not None
    assert store.beat("w1", LEASE)


# -- damage


@pytest.mark.parametrize("damage", ["{", "[1", "", '["a', '["a", 2]', "null"])
def test_a_damaged_row_of_a_worker_is_one_that_knows_nothing(
    store: PostgresStore, other: psycopg.Connection[Any], damage: str
) -> None:
    other.execute("UPDATE workers SET names = %s, schedules = %s, listens = %s", (damage, damage, damage))
    (row,) = store.workers()
    assert (row.names, row.schedules) == ([], [])
    assert "names and schedules" in row.damage
    store.create(new(store, "one"))
    assert [run.id for run in store.orphans(store.now() + 1_000_000)] == ["one"]
    store.unregister("w1")
    assert store.workers() == []


def test_what_workers_know_is_read_whatever_their_names_are_made_of(
    store: PostgresStore, other: psycopg.Connection[Any]
) -> None:
    names = ['"quoted"', "back\\slash", "ünï", "new\nline", "a, b", "[]", "\U0001f600"]
    other.execute("UPDATE workers SET names = %s", (json.dumps(names),))
    for number, name in enumerate(names):
        run = new(store, str(number))
        run.workflow = name
        store.create(run)
    assert store.orphans(store.now() + 1_000_000) == []


class Listening:
    """What somebody hears who cares for these topics."""

    def __init__(self, store: PostgresStore, *topics: Topic) -> None:
        self.notifier = PostgresNotifier(store.database)
        self.topics: list[Topic] = []
        self.told: list[tuple[str, list[int]]] = []
        self.notifier.listen(topics, self.topics.append, lambda owner, runs: self.told.append((owner, list(runs))))


@pytest.fixture
def heard(store: PostgresStore) -> Iterator[tuple[Listening, Listening, PostgresNotifier]]:
    """By an engine, by an executor; and who tells it."""
    engine, executor = Listening(store, Topic.RUNS, Topic.INBOX), Listening(store, Topic.ATTEMPTS, Topic.DROPPED)
    sender = PostgresNotifier(store.database)
    yield engine, executor, sender
    for notifier in (sender, engine.notifier, executor.notifier):
        notifier.close()


def test_a_hint_wakes_those_who_care_for_it_and_nobody_else(
    heard: tuple[Listening, Listening, PostgresNotifier],
) -> None:
    engine, executor, sender = heard
    for _ in range(10):  # at first as it comes, then on a connection for that
        sender.ring(Topic.ATTEMPTS)
        sender.announce(["r1"])
    sender.tell("w1", [5, 3])
    sender.ring(Topic.EVERYTHING)
    wait_until(lambda: engine.topics == [Topic.EVERYTHING] and Topic.EVERYTHING in executor.topics, 20)
    assert engine.told == [("w1", [3, 5])]
    assert set(executor.topics) == {Topic.ATTEMPTS, Topic.EVERYTHING}
    assert executor.told == []


@pytest.mark.parametrize(
    "note",
    [
        "hello", "", "5", "[" * 5_000, '["x", "ring", "orders", {}]', '["x", "ring", [], []]',
        '["x", "told", "orders", "w1", [], "a", null, 1e999]', '["x", "runs", "orders", [], {}, 5]',
    ],
)  # fmt: skip
def test_a_note_that_says_nothing_is_not_the_last_that_is_heard(
    store: PostgresStore, heard: tuple[Listening, Listening, PostgresNotifier], note: str
) -> None:
    engine, _, sender = heard
    engine.notifier.watch("r").close()  # it listens to all there is
    with closing(store.database.connect()) as other:
        for whom in (ENGINES, PROGRAMS):
            other.execute("SELECT pg_notify(%s, %s)", (channel_of(store.database.schema, whom), note))
    sender.ring(Topic.RUNS)
    wait_until(lambda: Topic.RUNS in engine.topics, 5)


def test_a_hint_is_heard_again_after_the_connection_that_tells_it_was_lost(
    store: PostgresStore, heard: tuple[Listening, Listening, PostgresNotifier]
) -> None:
    engine, _, sender = heard
    for _ in range(10):
        sender.ring(Topic.RUNS)
    assert sender._line is not None
    with closing(store.database.connect()) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (sender._line._connection.info.backend_pid,))
    wait_until(lambda: len(engine.topics) >= 1, 20)
    engine.topics.clear()

    def ring_again() -> bool:
        sender.ring(Topic.RUNS)  # the first one may be lost
        return bool(engine.topics)

    wait_until(ring_again, 20)
