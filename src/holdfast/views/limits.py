"""Limits as JSON data, and in words."""

from __future__ import annotations

from typing import Any

from holdfast.durations import in_words
from holdfast.ports import LimitRow, LimitUse
from holdfast.views.times import iso


def limit_summary(use: LimitUse) -> dict[str, Any]:
    limit = use.limit
    return {
        "name": limit.name,
        "of": "runs" if limit.of_runs else "steps",
        "concurrency": limit.concurrency or None,
        "rate_limit": _rate(limit) or None,
        "burst": limit.burst if limit.rate else None,
        "per_key": limit.keyed,
        "in_use": use.in_use,
        "waiting": use.waiting,
        "keys": use.keys if limit.keyed else None,
        "lines": [
            {"key": line.key, "in_use": line.in_use, "waiting": line.waiting, "next_at": iso(line.next_at)}
            for line in use.lines
        ],
    }


def allowed(limit: LimitRow) -> str:
    """What a limit allows, in words."""
    said = [f"{limit.concurrency} at once"] if limit.concurrency else []
    if limit.rate:
        said.append(_rate(limit) + (f" (burst {limit.burst})" if limit.burst > 1 else ""))
    return ", ".join(said) + (" per key" if limit.keyed else "")


def _rate(limit: LimitRow) -> str:
    if not limit.rate:
        return ""
    period = in_words(limit.period)
    return f"{limit.rate}/{period[1:] if period in ('1s', '1m', '1h', '1d') else period}"
