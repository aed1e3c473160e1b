"""What a run's code may know of its run from the beginning, beside its history."""

from __future__ import annotations

import msgspec


class RunInfo(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """`run_no` is the store's number of this run, which no other run ever gets. With `strict`, changed arguments are an
    error. `same_build` says whether this code has made the history; None if that is not known. `is_new` says that no code of
    this run has gone anywhere before, though its history may come from another one."""

    run_id: str
    run_no: int = 0
    app: str = ""
    parent_id: str | None = None
    root_id: str = ""
    secret: bytes = b""
    durable: bool = True
    strict: bool = False
    same_build: bool | None = None
    is_new: bool = False
