"""Test workflows without a database and without waiting: `TestApp` is an in-memory world with skipped time."""

from __future__ import annotations

from holdfast.testing.world import TestApp

__all__ = ["TestApp"]
