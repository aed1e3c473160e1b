"""Recorded stand-ins for arguments that are the results of other steps: those are in the history already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Reference:
    """What a history shows in place of such an argument. The same `digest` means the same value."""

    what: str
    digest: str

    def __repr__(self) -> str:
        return f"<{self.what}>"


def refer_to(values: Iterable[bytes], what: str) -> bytes:
    """A reference to values that are encoded already."""
    return msgspec.json.encode({"$": "ref", "v": {"what": what, "digest": digest(*values).hex()}})


def digest(*parts: bytes) -> bytes:
    """Names what was made of these parts, in this order."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()


def read_reference(data: dict[str, Any]) -> Reference:
    return Reference(**data["v"])
