"""Signed texts that let whoever has them do one thing: answer a hook, finish a step."""

from __future__ import annotations

import base64
import hashlib
import hmac

import msgspec

from holdfast.core import events as ev
from holdfast.durations import SECOND
from holdfast.errors import HookTokenError
from holdfast.ports import RunRow

TOKEN_LIFETIME = 30 * 86_400 * SECOND  # of a hook that waits for ever


def sign(secret: bytes, body: bytes, purpose: bytes = b"") -> str:
    """`purpose` keeps what was signed for one thing from being good for another."""
    return base64.urlsafe_b64encode(_signature(secret, body, purpose) + body).decode().rstrip("=")


def unsign(secret: bytes, text: str, purpose: bytes = b"") -> bytes | None:
    """What was signed; None if it was altered, or signed with another secret or for another purpose."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    signature, body = data[:16], data[16:]
    return body if hmac.compare_digest(signature, _signature(secret, body, purpose)) else None


def _signature(secret: bytes, body: bytes, purpose: bytes) -> bytes:
    return hmac.new(secret, purpose + body, hashlib.sha256).digest()[:16]


_STEP = b"step\0"  # no body begins so: they are JSON


class StepToken(msgspec.Struct, array_like=True):
    """An attempt of a step that ends elsewhere. `run_no` is the store's number of the run: another one may get its id. `since`
    is the event that the attempt of the run began with; 0 in tokens of older versions."""

    app: str
    run_id: str
    run_no: int
    cmd: str
    step: str
    attempt: int
    started: int
    since: int = 0

    def write(self, secret: bytes) -> str:
        return sign(secret, msgspec.json.encode(self), _STEP)

    @classmethod
    def read(cls, secret: bytes, text: str) -> StepToken | None:
        body = unsign(secret, text, _STEP)
        return None if body is None else msgspec.json.decode(body, type=cls)


class HookToken(msgspec.Struct, array_like=True):
    """A hook that a run waits for. `run_no` is the store's number of the run: another run may get its id. It is 0 in tokens of
    older versions."""

    app: str
    run_id: str
    name: str
    key: str
    cmd: str
    expires: int
    run_no: int = 0

    def write(self, secret: bytes) -> str:
        return sign(secret, msgspec.json.encode(self))

    @classmethod
    def read(cls, secret: bytes, text: str, app: str, now: int) -> HookToken:
        try:
            token = msgspec.json.decode(unsign(secret, text) or b"", type=cls)
        except msgspec.MsgspecError:
            raise HookTokenError("this token was altered, or made by another store; ask for a new link") from None
        if token.app != app:
            raise HookTokenError(f"this token is for app {token.app!r}, not {app!r}")
        if token.expires < now:
            raise HookTokenError(f"this token for hook {token.name!r} has expired; ask for a new link")
        return token

    def is_of_run(self, row: RunRow, opened: ev.HookOpened | None) -> bool:
        """Whether it was made for this very run. `opened` is how the run asked for its hook. A token that doesn't
        tell the run is no older than the run if it is of it."""
        if self.run_no:
            return self.run_no == row.no
        if opened is None or (opened.name, opened.key) != (self.name, self.key):
            return False
        lifetime = TOKEN_LIFETIME if opened.expires is None else opened.expires - opened.ts
        return self.expires - lifetime >= row.created_at


def used_already(name: str, run_id: str) -> HookTokenError:
    return HookTokenError(f"this token for hook {name!r} of run {run_id} was used already; it is good for one answer")
