"""What can be done to runs from outside, put together: over a store and a notifier, with no engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.api.asking import Asker
from holdfast.api.checks import check_text
from holdfast.api.deleting import Deleter
from holdfast.api.emitting import Emitter
from holdfast.api.forking import Forker
from holdfast.api.handed_over import HandedOverSteps
from holdfast.api.handles import Run, RunPage
from holdfast.api.inbox import Inbox
from holdfast.api.options import StartOptions
from holdfast.api.reading import RunReader, Which
from holdfast.api.results import Waiter
from holdfast.api.sending import HookSender
from holdfast.api.starting import Starter
from holdfast.core.registry import Definitions
from holdfast.ports import Notifier, RunQuery, Store


class Client:
    """Everything that a handle needs. What is done to runs is recorded as done `by` somebody, if that is said."""

    def __init__(self, definitions: Definitions, store: Store, notifier: Notifier, by: str = "") -> None:
        check_text("by", by, empty=True)
        self.app = definitions.name
        self.by = by
        self.store = store
        self.notifier = notifier
        self.reader = reader = RunReader(definitions, store)
        self.waiter = Waiter(definitions, store, notifier, reader)
        self.inbox = inbox = Inbox(definitions, store, notifier, reader, by)
        self.hooks = HookSender(definitions, store, inbox)
        self.handed_over = HandedOverSteps(definitions, store, inbox, reader)
        self.starter = Starter(definitions, store, notifier, inbox, by)
        self.asker = Asker(definitions, store, inbox, reader, self.waiter, self.starter)
        self.forker = Forker(definitions, store, notifier, reader, by)
        self.deleter = Deleter(definitions, store, notifier, reader)
        self.emitter = Emitter(definitions, store, notifier)
        self._definitions = definitions

    def inside(self, connection: object) -> Client:
        """The same in a transaction of somebody else's, if there is one."""
        return self if connection is None else Client(self._definitions, *self.store.join(connection), by=self.by)

    def acting_as(self, by: str) -> Client:
        """The same in somebody's name."""
        return Client(self._definitions, self.store, self.notifier, by)

    # -- handles

    def start(self, name: str, call: bytes, options: StartOptions) -> Run[Any]:
        return Run(self, *self.inside(options.connection).starter.start(name, call, options))

    def start_many(self, calls: Sequence[tuple[str, bytes, StartOptions]]) -> list[Run[Any]]:
        """One commit for all of them, with the connection of the first."""
        connection = calls[0][2].connection if calls else None
        return [Run(self, *each) for each in self.inside(connection).starter.start_many(calls)]

    def get(self, run_id: str) -> Run[Any]:
        check_text("run_id", run_id)
        return Run(self, run_id, self.reader.row(Which(run_id)).no)

    def runs(self, query: RunQuery) -> RunPage:
        rows, cursor = self.reader.page(query)
        page = RunPage(Run(self, row.id, row.no) for row in rows)
        page.cursor = cursor
        return page
