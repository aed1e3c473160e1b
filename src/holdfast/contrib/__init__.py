"""Holdfast inside other frameworks: ASGI (FastAPI, Starlette). Each module needs only what its framework needs."""

from __future__ import annotations
