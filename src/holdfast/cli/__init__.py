"""The `holdfast` command."""

from __future__ import annotations

from holdfast.cli.main import main

__all__ = ["main"]
