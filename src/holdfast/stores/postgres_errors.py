"""What PostgreSQL and its driver raise, in words that say what to do."""

from __future__ import annotations

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from holdfast.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreMovedError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from holdfast.stores.postgres_connections import LONGEST_WAIT


class Conflict(StoreBusyError):
    """Refused because of another transaction. It did not happen, and can be tried again as it is."""


def in_our_words(error: Exception, where: str, size: int) -> StoreError:
    """Of a StoreBusyError it is certain that nothing has happened. `size` is that of the pool."""
    text, code = str(error).strip(), getattr(error, "sqlstate", None) or ""
    if code in ("55P03", "57014") or (code.startswith("40") and code != "40003"):
        return Conflict(f"{where} refused a transaction because of others ({text}); it is tried again")
    if isinstance(error, PoolTimeout | TooManyRequests):
        return StoreBusyError(
            f"no connection to {where} within {LONGEST_WAIT:g} s: the server is down, or all {size} of this process "
            "are in use; raise ?pool="
        )
    if isinstance(error, psycopg.Error) and code == "HF001":  # of our own, see copying.py
        return StoreMovedError(error.diag.message_primary or text)
    if code == "53100":
        return StoreFullError(f"the server of {where} has no room left ({text}); free some, runs go on by themselves")
    if code in ("25006", "42501"):
        return StoreReadOnlyError(f"{where} can't be written ({text}); connect to the primary, with a role that may")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | PoolClosed):
        return StoreUnavailableError(f"{where} can't be reached ({text}); start the server, or check the address")
    return StoreError(f"{where}: {text}")
