"""Signed texts that let whoever has them do one thing: answer a hook, finish a step."""

from __future__ import annotations

import base64
import hashlib
import hmac

import msgspec


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
    """An attempt of a step that ends elsewhere. `run_no` is the store's number of the run: another one may get its id."""

    app: str
    run_id: str
    run_no: int
    cmd: str
    step: str
    attempt: int
    started: int

    def write(self, secret: bytes) -> str:
        return sign(secret, msgspec.json.encode(self), _STEP)

    @classmethod
    def read(cls, secret: bytes, text: str) -> StepToken | None:
        body = unsign(secret, text, _STEP)
        return None if body is None else msgspec.json.decode(body, type=cls)
