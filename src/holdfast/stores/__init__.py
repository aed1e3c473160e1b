"""Stores: SQLite, PostgreSQL. Database drivers are imported here and nowhere else."""

from __future__ import annotations
