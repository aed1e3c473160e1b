"""What users write with: steps, workflows, their context, handles of runs, hooks."""

from __future__ import annotations
