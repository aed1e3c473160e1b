"""Messages to runs from outside, and the orders among them: cancel, pause, resume, retry, terminate."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.api.checks import check_flag, check_text
from holdfast.api.reading import RunReader, Which
from holdfast.core.registry import Definitions
from holdfast.engine.records import control
from holdfast.errors import ArgumentError, RunError, RunFinishedError, WrongContextError
from holdfast.ports import FINAL, Message, Notifier, RunRow, Status, Store, Topic
from holdfast.telemetry.instruments import MessageReport


@dataclass(slots=True)
class Inbox:
    """Puts messages into the inboxes of runs. Orders are recorded as given `by` somebody, if that is said."""

    definitions: Definitions
    store: Store
    notifier: Notifier
    reader: RunReader
    by: str

    def post(self, message: Message, failure: str) -> bool:
        """Whether it was put into the run's inbox, and not a copy before it."""
        posted = self.store.post(message)
        if posted.status in FINAL and not message.late:
            # It may be about to begin again, and takes this then; or it has begun since.
            message.late = "retry" in self.store.orders(message.run_id)
            posted = self.store.post(message)
        if posted.status is None:
            raise self.reader.missing(Which(message.run_id, message.run_no), f"{failure}: ")
        if posted.status in FINAL and not message.late:
            raise RunFinishedError(
                f"{failure}: run {message.run_id} has ended ({posted.status})", run_id=message.run_id
            )
        if (tell := self.definitions.instruments.message_sent) is not None:
            tell(MessageReport(run_id=message.run_id, kind=message.kind))
        self.notifier.ring(Topic.INBOX)
        return posted.kept

    def cancel(self, run: Which, reason: str = "") -> None:
        self._order(run, "cancel", reason)

    def terminate(self, run: Which, reason: str) -> None:
        check_text("reason", reason)
        self._order(run, "terminate", reason)

    def pause(self, run: Which, reason: str = "", children: bool = False) -> None:
        check_flag("children", children, ArgumentError)
        refuse_without_history(self.reader.row(run), "paused")
        self._order(run, "pause", reason, children)

    def resume(self, run: Which, children: bool = False) -> None:
        check_flag("children", children, ArgumentError)
        row = self.reader.row(run)
        if row.status not in (Status.PAUSED, Status.STUCK):
            raise RunError(f"run {run.id} is {row.status}; only PAUSED and STUCK runs can be resumed", run_id=run.id)
        self._order(run, "resume", children=children)

    def retry(self, run: Which) -> None:
        row = self.reader.row(run)
        if row.status not in (Status.FAILURE, Status.CANCELLED, Status.STUCK):
            raise RunError(
                f"run {run.id} is {row.status}; only a run that has failed or was cancelled can be retried",
                run_id=run.id,
            )
        self._order(run, "retry", late=True)

    def _order(self, run: Which, kind: str, reason: str = "", children: bool = False, late: bool = False) -> None:
        check_text("reason", reason, empty=True)
        message = control(run.id, kind, reason, by=self.by, late=late, run_no=run.no, children=children)
        self.post(message, f"can't {kind} it")


def refuse_without_history(row: RunRow, what: str) -> None:
    if not row.durable:
        raise WrongContextError(
            f"run {row.id} can't be {what}: its workflow {row.workflow!r} has durable=False, so there is no history"
        )
