"""What an engine knows about clocks."""

from __future__ import annotations

AHEAD = 60 * 1_000_000
"""Clocks of machines differ by less: what is further in the future was told by a clock that was wrong."""
