"""What code says to others, recorded at once: data, items of its stream, domain events, payloads to hooks of other runs;
and what a composition decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
from msgspec import Raw

from holdfast.codec import Codec
from holdfast.core import commands as co
from holdfast.core import events as ev
from holdfast.core.comparison import Comparison
from holdfast.core.domain_events import event_id
from holdfast.core.journal import Journal


class Outputs:
    """Each is said once, however often it is replayed. `sent` is what earlier attempts have sent, and how often."""

    __slots__ = ("_codec", "_comparison", "_emitted", "_journal", "sent")

    def __init__(self, journal: Journal, comparison: Comparison, codec: Codec) -> None:
        self._journal = journal
        self._comparison = comparison
        self._codec = codec
        self._emitted: dict[tuple[str, bytes], int] = {}
        self.sent: dict[tuple[str, bytes], int] = {}

    def send(self, run_id: str, name: str, key: str, payload: Raw) -> None:
        """Send to a hook of another run; in all attempts of the run that send the same as often."""
        journal = self._journal
        sent = Raw(msgspec.json.encode([run_id, key, payload]))
        found = self._comparison.match("m", name, sent)
        look = (name, bytes(sent if found.recorded is None else found.recorded.args))
        again = self.sent.get(look, 0) > 0
        if again:
            self.sent[look] -= 1
        if found.recorded is None:
            journal.record(ev.HookSent, found.cmd, name=name, args=sent, run_id=run_id, key=key, again=again)
            if not again:
                journal.new_commands.append(
                    co.SendHook(cmd=found.cmd, run_id=run_id, name=name, key=key, payload=payload)
                )

    def set_data(self, key: str, value: Raw) -> None:
        journal = self._journal
        found = self._comparison.match("d", key, value)
        if found.recorded is None:
            journal.record(ev.DataSet, found.cmd, name=key, args=value)
            journal.new_commands.append(co.PublishData(cmd=found.cmd, key=key, value=value))
        journal.data = {**journal.data, key: value if found.recorded is None else found.recorded.args}

    def stream(self, item: Raw) -> None:
        """Give an item to those who watch."""
        found = self._comparison.match("o", "", item)
        if found.recorded is None:
            self._journal.record(ev.Streamed, found.cmd, args=item)
            self._journal.new_commands.append(co.StreamItem(cmd=found.cmd, item=item))

    def emit(self, name: str, payload: Raw, key: str | None) -> str:
        """Emit a domain event; its id. Without a key of its own it is the same event in every attempt of the run that
        emits the same payload as often."""
        journal = self._journal
        found = self._comparison.match("e", name, payload)
        if found.recorded is not None:
            payload = found.recorded.args
        look = (name, bytes(payload))
        nth = self._emitted[look] = self._emitted.get(look, 0) + 1
        if found.recorded is not None and isinstance(found.recorded.event, ev.EventEmitted):
            return found.recorded.event.event
        if key is None:
            digest = hashlib.sha256(payload).hexdigest()[:16]
            key = f"{journal.info.run_id}:{journal.mark}:{journal.beginning.seq}:{digest}:{nth}"
        event = event_id(journal.info.app, name, key)
        journal.record(ev.EventEmitted, found.cmd, name=name, args=payload, key=key, event=event)
        journal.new_commands.append(co.EmitEvent(cmd=found.cmd, name=name, key=key, payload=payload))
        return event

    # -- what a composition decides

    def plan(self, name: str, shape: Raw, key: str = "", check: Callable[[], None] | None = None) -> Raw:
        """Record what a composition is made of, or one of its steps (`key`). On replay it is what it was made of when
        the attempt began. `check` may refuse what is new, by raising."""
        found = self._comparison.match("g", name, shape, key)
        if found.recorded is not None:
            return found.recorded.args
        if check is not None:
            check()
        self._journal.record(ev.Planned, found.cmd, name=name, args=shape)
        return shape

    def skip_step(self, key: str, name: str, reason: str) -> None:
        """Record that a step of a composition is not executed."""
        found = self._comparison.match("k", name, ev.NO_ARGS, key)
        if found.recorded is None:
            self._journal.record(ev.StepSkipped, found.cmd, name=name, reason=reason)

    def refuse_step(self, key: str, name: str, error: BaseException) -> None:
        """Record that a step of a composition has failed before it could be executed."""
        found = self._comparison.match("x", name, ev.NO_ARGS, key)
        if found.recorded is None:
            encoded = Raw(self._codec.encode_error(error))
            self._journal.record(ev.StepRefused, found.cmd, name=name, error=encoded)
