"""Answering hooks from outside: of a run, by the token of a link, by a key."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from holdfast.api.checks import check_hook, check_key
from holdfast.api.hooks import encode_payload
from holdfast.api.inbox import Inbox
from holdfast.api.reading import Which
from holdfast.api.tokens import HookToken, used_already
from holdfast.core import events as ev
from holdfast.core.registry import Definitions
from holdfast.engine.records import HookMessage
from holdfast.errors import ArgumentError, HookError, HookNotFoundError, HookTokenError, RunNotFoundError
from holdfast.ports import Message, RunRow, Store
from holdfast.printing import show
from holdfast.views.entries import Sent
from holdfast.views.waits import awaits

logger = logging.getLogger("holdfast")


@dataclass(slots=True)
class HookSender:
    """Sends payloads to hooks."""

    definitions: Definitions
    store: Store
    inbox: Inbox

    def send(self, run: Which, name: str, payload: object, key: str | None = None) -> Sent:
        check_hook(name, key, what="send")
        met = self.store.get(run.id)  # before it is sent: afterwards the run may have gone on
        self._send(run, name, payload, key or "")
        return _met(met, name, key or "") if met is not None else Sent(None)

    def _send(self, run: Which, name: str, payload: object, key: str, token: str = "") -> None:
        definitions = self.definitions
        encoded = Raw(encode_payload(definitions.codec, definitions.hook_models, name, payload))
        body = HookMessage(name=name, key=key, payload=encoded, token=token, by=self.inbox.by)
        message = Message(
            run_id=run.id, run_no=run.no, kind="hook", body=msgspec.json.encode(body),
            dedupe=f"hook:{token}" if token else None, once=bool(token),
        )  # fmt: skip
        if not self.inbox.post(message, f"hook {name!r} can't be sent"):
            raise used_already(name, run.id)

    def send_by(self, token: str | None, payload: object, key: str | None, name: str | None) -> None:
        """By a token, or by a key: then perhaps to several runs."""
        if (token is None) == (key is None):
            raise ArgumentError("send_hook takes a token or a key (with the hook's name, if need be), and not both")
        if name is not None:
            check_hook(name, what="send_hook")
        if token is not None:
            found = self.check_token(token)
            self._send(Which(found.run_id, found.run_no or None), found.name, payload, found.key, found.cmd)
            return
        check_key("key", key)
        assert key is not None
        waiting = [(run_id, hook) for run_id, hook in self.store.find_hook(key) if name in (None, hook)]
        names = sorted({hook for _, hook in waiting})
        if not waiting:
            what = f"hook {name!r}" if name else "a hook"
            raise HookNotFoundError(
                f"no run of app {self.definitions.name!r} waits for {what} with key {key!r}; send it once the workflow asks, "
                "or at any time to the run itself: run.send(name, payload, key=...)"
            )
        if len(names) > 1:
            raise HookError(f"hooks {', '.join(names)} wait with key {key!r}; say which is meant, with name=...")
        for run_id, hook in waiting:
            self._send(Which(run_id), hook, payload, key)

    def check_token(self, text: str) -> HookToken:
        """What a token says, if the hook that it was made for can still be answered with it."""
        if type(text) is not str:
            raise ArgumentError(f"token={show(text)}: give the text that a hook's .token was")
        token = HookToken.read(self.store.secret(), text, self.definitions.name, self.store.now())
        row = self.store.get(token.run_id)
        if row is None:
            raise RunNotFoundError(f"the run of this token for hook {token.name!r} is gone", run_id=token.run_id)
        opened: ev.HookOpened | None = None
        for payload in self.store.payloads(token.run_id, kinds=["HookOpened", "HookReceived"]):
            event = ev.from_json(payload)
            if isinstance(event, ev.HookReceived) and event.token == token.cmd:
                raise used_already(token.name, token.run_id)
            if isinstance(event, ev.HookOpened) and event.cmd == token.cmd:
                opened = event
        if not token.is_of_run(row, opened):
            raise HookTokenError(
                f"this token for hook {token.name!r} was made for an earlier run {token.run_id!r}, which was deleted; ask for "
                "a new link"
            )
        return token


def _met(row: RunRow, name: str, key: str) -> Sent:
    """Whether something that was sent was waited for. It is kept in any case."""
    awaited = awaits(row, name, key)
    if awaited is not False:
        return Sent(awaited)
    what = f"hook {name!r}" + (f" key {key!r}" if key else "")
    note = f"{what} is kept until run {row.id} asks for it; now it waits for {row.reason}"
    if "hook " in row.reason:
        note += ", so look at name and key"
        logger.warning("%s", note)
    return Sent(False, note)
