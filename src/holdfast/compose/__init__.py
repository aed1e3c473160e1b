"""Compositions of steps and workflows: library code over the workflow API, with no storage of its own."""

from __future__ import annotations
