"""The replay core: history in, commands out. No clock, no I/O, no threads, no randomness of its own."""

from __future__ import annotations
