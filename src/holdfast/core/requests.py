"""The requests that others make of a run, and the code that takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Raw

from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.comparison import Comparison
from holdfast.core.journal import Journal
from holdfast.core.loop import Future
from holdfast.core.pending import PUT_BACK
from holdfast.errors import DefinitionError, WrongContextError


class Requests:
    """By name: `listening` waits for the next one, a handler is told of every one, beside the main flow. Those that nothing
    has taken are unread, and unanswered from when something has."""

    __slots__ = ("_comparison", "_handlers", "_journal", "_unanswered", "_unread", "listening")

    def __init__(self, journal: Journal, comparison: Comparison) -> None:
        self._journal = journal
        self._comparison = comparison
        self._handlers: dict[str, Callable[[ev.RequestReceived], None]] = {}
        self._unread: dict[str, deque[ev.RequestReceived]] = {}
        self._unanswered: dict[str, ev.RequestReceived] = {}
        self.listening: dict[str, deque[Future[ev.RequestReceived]]] = {}

    def next(self, name: str) -> Future[ev.RequestReceived]:
        """The next request of that name, once there is one."""
        loop = self._journal.loop
        loop.refuse_if_closed()
        waiting = self.listening.setdefault(name, deque())
        future: Future[ev.RequestReceived] = Future(loop)
        future.on_cancel = lambda: waiting.remove(future) if future in waiting else None
        if unread := self._unread.get(name):
            future.set_result(self._take(unread.popleft()))
        else:
            waiting.append(future)
        return future

    def handle(self, name: str, handler: Callable[[ev.RequestReceived], None]) -> None:
        """Give every request of that name to `handler`, those that came early first."""
        self._journal.loop.refuse_if_closed()
        if name in self._handlers:
            run_id = self._journal.info.run_id
            raise DefinitionError(f"request {name!r} has a handler in run {run_id} already; one is enough")
        self._handlers[name] = handler
        for event in self._unread.pop(name, ()):
            handler(self._take(event))

    def expected(self) -> list[str]:
        """The names that the code waits for."""
        heard = [*self._handlers, *(name for name, waiting in self.listening.items() if waiting)]
        return list(dict.fromkeys(heard))

    def _take(self, event: ev.RequestReceived) -> ev.RequestReceived:
        self._unanswered[event.request] = event
        return event

    def put_back(self, event: ev.RequestReceived) -> None:
        """Whatever waited for it is gone: the next one gets it."""
        del self._unanswered[event.request]
        waiting = self.listening.get(event.name)
        if waiting and PUT_BACK in self._journal.beginning.flags:
            waiting.popleft().set_result(self._take(event))
        else:
            self._unread.setdefault(event.name, deque()).appendleft(event)

    def is_unanswered(self, event: ev.RequestReceived) -> bool:
        return event.request in self._unanswered

    def answer(self, event: ev.RequestReceived, answer: Raw, error: Raw = ev.NULL) -> None:
        """Answer it, or refuse with an `error`; once, however often this is replayed."""
        journal = self._journal
        journal.loop.refuse_if_closed()
        if self._unanswered.pop(event.request, None) is None:
            raise WrongContextError(f"request {event.name!r} ({event.request}) was answered already; answer it once")
        found = self._comparison.match("a", event.name, answer)
        if found.recorded is None:
            journal.record(
                ev.RequestAnswered, found.cmd, name=event.name, args=answer, request=event.request, error=error
            )
            journal.new_commands.append(
                co.GiveAnswer(cmd=found.cmd, request=event.request, seq=journal.last_seq, answer=answer, error=error)
            )

    # -- what arrives

    def receive(self, event: ev.RequestReceived) -> None:
        waiting = self.listening.get(event.name)
        if waiting:
            waiting.popleft().set_result(self._take(event))
        elif event.name in self._handlers:
            self._handlers[event.name](self._take(event))
        else:
            self.keep(event)

    def keep(self, event: ev.RequestReceived) -> None:
        self._unread.setdefault(event.name, deque()).append(event)

    def bring_over(self, left: Sequence[ev.RequestReceived]) -> None:
        """What the run has not answered of what it was asked before it continued as new. It comes first."""
        for request in reversed(left):
            self._unread.setdefault(request.name, deque()).appendleft(request)

    def left(self) -> tuple[ev.RequestReceived, ...]:
        """What has no answer, for a run that continues as new."""
        return ev.unnumbered([*self._unanswered.values(), *(event for box in self._unread.values() for event in box)])

    def clear(self) -> None:
        self.listening.clear()
        self._handlers.clear()
