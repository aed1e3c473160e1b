"""What the store has for this worker: runs that can be claimed, messages, domain events, ticks of schedules. It is asked for
where a source says that there may be something new."""

from __future__ import annotations

from holdfast.engine.announcer import Announcer
from holdfast.engine.arrivals import InboxHint
from holdfast.engine.environment import Environment
from holdfast.engine.live_runs import LiveRuns
from holdfast.engine.sources import Sources
from holdfast.errors import StoreError
from holdfast.ports import Change, Store, Topic


class Intake:
    """Asks the sources, gives what they have to runs in memory, and rings where others have to look."""

    def __init__(self, env: Environment[Store], sources: Sources, announcer: Announcer, live_runs: LiveRuns) -> None:
        self._app = env.app
        self._store = env.store
        self._reporter = env.reporter
        self._membership = env.membership
        self._backoff = env.backoff
        self._sources = sources
        self._announcer = announcer
        self._live_runs = live_runs

    def can_claim(self) -> bool:
        claims = self._sources.claims
        if claims.is_sure and not self._membership.has_peers:
            return True  # nobody else can have been faster
        return bool(self._backoff.ask("looking for runs", lambda: claims.look(self._membership.names)))

    def read_inbox(self) -> None:
        me = self._membership.me.worker
        for message in self._backoff.ask("reading inboxes", lambda: self._sources.inbox.poll(me)) or ():
            live = self._live_runs.by_no.get(message.run_no)
            if live is None or live.state.released:
                self._sources.claims.stale = True  # it is about to be released, and can be claimed at once
            if live is not None and live.state.inbox.add(message):
                self._live_runs.make_ready(live)
                if self._reporter.is_on:
                    self._reporter.messages(live.row, [message], self._store.now())

    def take_hint(self, hint: InboxHint) -> None:
        """There are messages to runs that this worker owned when that was told."""
        if hint.owner != self._membership.me.worker:
            return
        here = [no for no in hint.runs if no in self._live_runs.by_no]
        self._sources.inbox.told(here)
        if len(here) < len(hint.runs):  # released meanwhile: another worker may have claimed it, and was not told
            self._sources.look_at(Topic.INBOX)
            self._announcer.ring_peers(Topic.INBOX)

    def deliver_events(self) -> None:
        """Bring domain events to those of this app who listen: runs to start, runs that wait."""
        topic = self._backoff.ask("delivering events", self._sources.events.deliver)
        if topic is not None:
            self._sources.look_at(topic)
            self._announcer.ring_peers(topic)

    def reaches_listeners(self, changes: list[Change]) -> bool:
        """Whether runs can be claimed because of what these emit."""
        emitting = [change for change in changes if change.signals]
        if not emitting:
            return False
        return bool(self._backoff.ask("looking who listens", lambda: self._sources.events.reach(emitting)))

    def tick(self) -> None:
        """Let schedules start what is due."""
        if self._backoff.ask("starting what is scheduled", self._sources.ticks.fire):
            self._sources.look_at(Topic.INBOX)  # runs that go on may have been told to end
            self._announcer.ring_peers(Topic.INBOX)

    def look_at_definitions(self) -> None:
        """Something may have been defined since this engine has started, in a notebook for example, or what was told of it
        is damaged. Raises Fenced."""
        membership, revision = self._membership, self._app.revision
        if (revision == membership.revision and not membership.is_damaged) or self._backoff.is_on():
            return
        membership.names = sorted(self._app.known_names())
        self._sources.ticks.learn(membership.names)
        try:
            membership.tell_definitions(self._sources.ticks.names)
            self._sources.ticks.declare()
            self._sources.lines.declare()
        except StoreError as error:
            self._backoff.failed("making known what was defined", error)
            return
        membership.revision, membership.is_damaged, self._sources.claims.stale = revision, False, True
