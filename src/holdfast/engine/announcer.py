"""Telling others what was committed: workers that there is something for them, programs that a run has changed.

All of it are hints: one that is lost costs time, nothing else.
"""

from __future__ import annotations

from holdfast import failpoints
from holdfast.engine.membership import Membership
from holdfast.engine.run import LiveRun
from holdfast.engine.sources import Sources
from holdfast.ports import FINAL, Carrier, Change, Message, MessageStore, Notifier, Reach, Status, Topic

_WORTH_TELLING = (*FINAL, Status.PAUSED, Status.STUCK)


class Announcer:
    """Others are told through the notifier, this engine's own sources directly."""

    def __init__(
        self, store: MessageStore, notifier: Notifier, carrier: Carrier | None, membership: Membership, sources: Sources
    ) -> None:
        self._store = store
        self._notifier = notifier
        self._carrier = carrier
        self._membership = membership
        self._sources = sources

    def committed(self, changes: list[tuple[LiveRun, Change]], emitted: bool) -> None:
        changed = []
        sources = self._sources
        to_runs = to_inboxes = to_executors = dropped = False
        for live, change in changes:
            columns = change.columns
            if change.is_plain and not columns:  # most are
                continue
            if change.attempts:
                to_executors = True
            if change.dropped_attempts:
                dropped = True
            if change.streamed or columns.get("status") in _WORTH_TELLING or change.answers or _has_data(change):
                changed.append(live.row.id)
            to_runs = to_runs or live.state.released
            if change.messages:
                to_inboxes = True
            if change.children:
                to_runs, to_inboxes = True, to_inboxes or any(child.if_taken for child in change.children)
            for signal in change.signals:
                if isinstance(signal, Reach):
                    to_runs, to_inboxes = to_runs or bool(signal.runs), to_inboxes or bool(signal.messages)
            if live.options.schedule and columns.get("status") in FINAL:
                sources.ticks.look()  # a tick may wait for this end
            due = columns.get("wake_at")
            if due is not None:
                sources.claims.released(due)
        if changed:
            self.announce(changed)
        if to_inboxes:
            sources.inbox.look()
            self.ring_peers(Topic.INBOX)
        elif to_runs:
            self.ring_peers(Topic.RUNS)
        if to_executors:
            if self._carrier is not None:
                self._carrier.carry([attempt for _, change in changes for attempt in change.attempts])
            self.ring_peers(Topic.ATTEMPTS)
        if dropped:
            self.ring_peers(Topic.DROPPED)
        if emitted:
            sources.events.stale = True
            self.ring(Topic.EVENTS, everyone=True)

    def post(self, message: Message) -> None:
        """Put a message into the inbox of a run, whoever owns it."""
        failpoints.hit("engine.before_post")
        self._sources.lines.freed(self._store.post(message).freed)
        self.posted()

    def posted(self) -> None:
        """Something was put into inboxes: those of runs here, perhaps."""
        self._sources.look_at(Topic.INBOX)
        self.ring(Topic.INBOX)

    def announce(self, run_ids: list[str]) -> None:
        failpoints.hit("engine.before_announce")
        self._notifier.announce(run_ids)

    def ring_peers(self, topic: Topic) -> None:
        if self._membership.has_peers:
            self.ring(topic)

    def ring(self, topic: Topic, everyone: bool = False) -> None:
        failpoints.hit("engine.before_ring")
        self._notifier.ring(topic, everyone)


def _has_data(change: Change) -> bool:
    """Whether data is published, for which others may wait."""
    return any(key.startswith("data.") for key, _, _ in change.attributes)
