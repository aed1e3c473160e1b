"""The order process: `holdfast demo` plays it, and `orders.py` is meant to be read."""

from __future__ import annotations
