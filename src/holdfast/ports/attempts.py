"""Attempts that workers elsewhere execute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.ports.database import Database
from holdfast.ports.messages import Message


class NewAttempt(msgspec.Struct, kw_only=True, gc=False):
    """An attempt that a worker elsewhere is to execute: whoever serves its `queue`, those that are due first before the
    others. `body` is all that the worker needs to know of it, which no store reads."""

    token: str
    cmd: str
    step: str
    number: int
    queue: str
    due: int
    body: bytes


class AttemptRow(msgspec.Struct, kw_only=True, gc=False):
    """An attempt that waits since `due` for a worker, or that `worker` has claimed."""

    token: str
    run_no: int
    cmd: str
    step: str
    number: int
    queue: str
    due: int
    worker: str | None = None
    claimed_at: int | None = None


class ClaimedAttempt(msgspec.Struct, gc=False):
    """An attempt that now belongs to the worker that claimed it."""

    token: str
    body: bytes


class EndedAttempt(msgspec.Struct, gc=False):
    """An attempt with its outcome, as a message to its run."""

    token: str
    message: Message


class AttemptReport(msgspec.Struct, gc=False):
    """What an attempt says on its way: its `checkpoint`, its `progress`."""

    token: str
    kind: str
    body: bytes


class QueueRow(msgspec.Struct, kw_only=True):
    """How many attempts wait in a queue, and since when the first of them does; how many are claimed."""

    queue: str
    waiting: int
    since: int | None
    claimed: int


class AttemptQuery(Database, Protocol):
    """What people read of attempts."""

    def attempts(self, run_id: str) -> list[AttemptRow]:
        """The attempts of a run that workers elsewhere execute, or are to."""

    def queues(self) -> list[QueueRow]:
        """What there is in the queues of the app, by name."""


class AttemptStore(AttemptQuery, Protocol):
    """Rows of attempts: whoever has claimed one may execute it, and its outcome takes the row away."""

    def claim_attempts(
        self, worker_id: str, queues: Sequence[str], steps: Sequence[str], limit: int
    ) -> list[ClaimedAttempt]:
        """Make up to `limit` attempts of these steps in these queues the worker's own. Each belongs to one worker at a
        time. It survives the machine: nobody else executes what is claimed. Raises Fenced if the worker has been
        declared dead."""

    def claim_attempt(self, worker_id: str, token: str) -> ClaimedAttempt | None:
        """The same for one that somebody was told of; None if it is gone, or claimed already."""

    def end_attempts(self, worker_id: str, ended: Sequence[EndedAttempt]) -> dict[str, str | None]:
        """Of each attempt that belongs to that worker, delete the row and put the message into its run's inbox; those
        for which that was done, each with the owner of its run. An attempt has one outcome: it was cancelled, or others
        have taken it over, if it is not among them. Nothing is put into the inbox of a run that has ended. The worker
        itself may be gone."""

    def release_attempts(self, worker_id: str, tokens: Sequence[str]) -> None:
        """Give back attempts that were claimed and have not begun: others may claim them."""

    def report_attempts(self, worker_id: str, reports: Sequence[AttemptReport]) -> None:
        """Keep what attempts of that worker say on their way as attributes of their runs, under the command of each. Of
        those that it no longer has nothing is kept."""

    def held_attempts(self, worker_id: str) -> set[str]:
        """The attempts that belong to the worker. One that it had, and which is not among them, is not wanted."""

    def lost_attempts(self, limit: int) -> list[AttemptRow]:
        """Attempts whose worker is gone, by token."""

    def unclaimed(self, queues: Sequence[str], before: int, limit: int) -> list[AttemptRow]:
        """Attempts in these queues that nobody has claimed although they were due before `before`, oldest first; up to
        `limit` of each step in each queue."""
