"""Executors: where steps execute. `local` runs them in the engine's own process and in processes beside it."""

from __future__ import annotations
