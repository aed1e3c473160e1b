"""Holdfast inside other frameworks: ASGI (FastAPI, Starlette) and Django. Each module needs only what its framework needs."""

from __future__ import annotations
