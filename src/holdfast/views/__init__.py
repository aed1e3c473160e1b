"""The read model: what a history and a row say about a run, worked out once for handles, the command and a monitor.

Pure functions over events and rows, and frozen structs. Only `reading` and `details` talk to a store.
"""

from __future__ import annotations
