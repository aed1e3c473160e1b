"""The ids of runs that derive from others."""

from __future__ import annotations

import uuid

from holdfast.core.reuse import origin_of


def child_run_id(parent_id: str, name: str, cmd: str, attempt: int, mark: str) -> str:
    """A child's id: readable, and the same whenever the same command is asked for."""
    place = origin_of(cmd, attempt).replace(":", "-")
    text = f"{parent_id}.{name}.{place}-{mark}"
    if len(text) <= 200:
        return text
    return f"{name[:80]}.{uuid.uuid5(uuid.NAMESPACE_OID, text).hex}"
