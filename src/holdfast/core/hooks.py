"""The hooks that code waits for, and payloads that have come before it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec
from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.comparison import Comparison
from holdfast.core.domain_events import Scalar
from holdfast.core.journal import Journal
from holdfast.core.loop import Future
from holdfast.core.pending import PUT_BACK, PendingHook
from holdfast.core.reuse import Reuse


class Hooks:
    """`answered` are the tokens whose one payload has arrived."""

    __slots__ = ("_comparison", "_journal", "_mailbox", "_reuse", "answered", "pending")

    def __init__(self, journal: Journal, comparison: Comparison, reuse: Reuse) -> None:
        self._journal = journal
        self._comparison = comparison
        self._reuse = reuse
        self._mailbox: dict[tuple[str, str], deque[ev.HookReceived]] = {}
        self.answered: set[str] = set()
        self.pending: dict[str, PendingHook] = {}

    def ask(self, name: str, key: str, expires: int | None, where: dict[str, Scalar] | None = None) -> PendingHook:
        """Wait for a payload; one that came early is there at once. With `where`, for that of a domain event."""
        journal = self._journal
        address = Raw(msgspec.json.encode(key)) if key else ev.NO_ARGS
        found = self._comparison.match("h", name, address)
        cmd, bound = found.cmd, True
        if found.recorded is None:
            journal.record(
                ev.HookOpened, cmd, name=name, key=key, args=address, expires=expires, where=where, bound=True
            )
            journal.new_commands.append(co.OpenHook(cmd=cmd, name=name, key=key, where=where))
        elif isinstance(found.recorded.event, ev.HookOpened):  # others know it as it was when it was opened
            opened = found.recorded.event
            key, where, bound = opened.key, opened.where, opened.bound
        future: Future[Raw] = Future(journal.loop, lambda: self.close(cmd))
        hook = PendingHook(cmd, name, key, future, expires, found.recorded is None, where, bound)
        self.pending[cmd] = hook
        # In order of arrival: what came before this history, what earlier attempts received, what came since.
        waiting = self._mailbox.get((name, key))
        if not (waiting and waiting[0].seq == 0):
            self._reuse.claim("h", name, key.encode(), cmd)
        if waiting and cmd not in self._reuse.promised:
            self.answer(hook, waiting.popleft())
        return hook

    def close(self, cmd: str) -> None:
        """The code doesn't wait for it any more: what was promised to it is for the next that waits for the same."""
        hook = self.pending.pop(cmd, None)
        if hook is None or self._journal.loop.closed:
            return
        self._reuse.give_back(cmd)
        for other in self.pending.values():
            if (other.name, other.key) == (hook.name, hook.key) and other.cmd not in self._reuse.promised:
                self._reuse.claim("h", other.name, other.key.encode(), other.cmd)
        self._closed(hook)

    def answer(self, hook: PendingHook, event: ev.HookReceived) -> None:
        del self.pending[hook.cmd]
        self._closed(hook)
        hook.answer = event
        hook.future.set_result(event.payload)

    def put_back(self, hook: PendingHook) -> None:
        """Whoever has asked for it doesn't wait any more: its payload, if it has got one, is for the next."""
        event, hook.answer = hook.answer, None
        if event is None or self._journal.loop.closed or PUT_BACK not in self._journal.beginning.flags:
            return
        if not self._give(event, self.pending.values()):
            self._mailbox.setdefault((event.name, event.key), deque()).appendleft(event)

    def _closed(self, hook: PendingHook) -> None:
        """It is not to be answered any more. On replay that has been said, unless it was opened only now."""
        others = hook.where is None and any(
            (other.name, other.key) == (hook.name, hook.key) for other in self.pending.values()
        )
        if (self._journal.is_live or hook.is_new) and not (hook.key and others):
            command = co.CloseHook(cmd=hook.cmd, name=hook.name, key=hook.key, where=hook.where)
            self._journal.new_commands.append(command)

    def take_up(self) -> None:
        """Open all of them for this run: another one has opened them, which it was forked from."""
        self._journal.new_commands += [
            co.OpenHook(cmd=hook.cmd, name=hook.name, key=hook.key, where=hook.where) for hook in self.pending.values()
        ]

    # -- what arrives

    def receive(self, event: ev.HookReceived) -> None:
        if event.token:
            self.answered.add(event.token)
        # A token is for one hook; once the run has been retried, for whichever asks for the same.
        own = self.pending.get(event.token)
        if not self._give(event, [own] if own is not None else self.pending.values()):
            self._keep(event)

    def _give(self, event: ev.HookReceived, hooks: Iterable[PendingHook]) -> bool:
        """Whether one of these takes it: the first that waits for such a payload, and has none promised."""
        for hook in hooks:
            if (hook.name, hook.key) == (event.name, event.key) and hook.cmd not in self._reuse.promised:
                self.answer(hook, event)
                return True
        return False

    def _keep(self, event: ev.HookReceived) -> None:
        self._mailbox.setdefault((event.name, event.key), deque()).append(event)

    def bring_over(self, unread: Iterable[ev.HookReceived]) -> None:
        """What the run has not read of what it got before it continued as new."""
        for event in unread:
            self.answered.add(event.token)
            self._keep(event)

    def unread(self) -> tuple[ev.HookReceived, ...]:
        """What has arrived and was not asked for, for a run that continues as new."""
        unread = [event for box in self._mailbox.values() for event in box]
        if self._reuse.earlier is not None:
            unread += self._reuse.earlier.unread()
        return ev.unnumbered(unread)
