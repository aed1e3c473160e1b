"""Steps that end elsewhere: whoever has the token of one finishes it, lets it fail, or gives a sign of life."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Raw

from holdfast.api.checks import check_text, progress_of
from holdfast.api.inbox import Inbox
from holdfast.api.reading import RunReader, Which
from holdfast.api.tokens import StepToken
from holdfast.core import events as ev
from holdfast.core.registry import Definitions
from holdfast.engine.records import BeatMessage, OutcomeMessage, attempt_key
from holdfast.errors import ArgumentError, StepError, StepTokenError
from holdfast.ports import Message, Store
from holdfast.printing import show


@dataclass(slots=True)
class HandedOverSteps:
    """Tells runs about their steps that were handed over."""

    definitions: Definitions
    store: Store
    inbox: Inbox
    reader: RunReader

    def finish(self, token: str, result: object) -> None:
        found = self.check_token(token)
        encoded = self.definitions.codec.encode(result, f"the result of step {found.step!r}", apart=True)
        self._end(found, Raw(encoded), ev.NULL)

    def fail(self, token: str, error: BaseException | str) -> None:
        found = self.check_token(token)
        if isinstance(error, str):
            check_text("error", error)
            error = StepError(error)
        if not isinstance(error, BaseException):
            raise ArgumentError(f"error={show(error)}: give an exception, or its text")
        self._end(found, ev.NULL, Raw(self.definitions.codec.encode_error(error)))

    def _end(self, token: StepToken, result: Raw, error: Raw) -> None:
        body = OutcomeMessage(
            run_no=token.run_no, cmd=token.cmd, attempt=token.attempt, worker="", started=token.started, result=result,
            error=error, step=token.step, since=token.since, outside=True,
        )  # fmt: skip
        message = Message(
            run_id=token.run_id, run_no=token.run_no, kind="outcome", body=msgspec.json.encode(body),
            dedupe=f"step:{attempt_key(token.cmd, token.attempt, token.since)}", once=True,
        )  # fmt: skip
        if not self.inbox.post(message, f"step {token.step!r} can't be ended"):
            raise StepTokenError(f"step {token.step!r} of run {token.run_id} was ended with this token before")

    def beat(self, token: str, done: float | None, total: float | None, note: str) -> None:
        found = self.check_token(token)
        progress = ev.NULL if done is None else Raw(progress_of("beat_step", done, total, note))
        body = BeatMessage(
            run_no=found.run_no, cmd=found.cmd, attempt=found.attempt, progress=progress, since=found.since
        )
        message = Message(run_id=found.run_id, run_no=found.run_no, kind="beat", body=msgspec.json.encode(body))
        self.inbox.post(message, f"step {found.step!r} gives a sign of life in vain")

    def check_token(self, text: str) -> StepToken:
        """What a token says, if its run is there."""
        if type(text) is not str:
            raise ArgumentError(f"token={show(text)}: give the text that this_step.hand_over() has made")
        token = StepToken.read(self.store.secret(), text)
        if token is None:
            raise StepTokenError(
                "this token was altered, or made by another store, or is of something else than a step"
            )
        if token.app != self.definitions.name:
            raise StepTokenError(f"this token is of app {token.app!r}, not {self.definitions.name!r}")
        self.reader.row(Which(token.run_id, token.run_no))
        return token
