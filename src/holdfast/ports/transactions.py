"""What a step writes itself, in the store."""

from __future__ import annotations

from typing import Any, Protocol


class StepTransaction(Protocol):
    """What a step writes itself, committed together with its outcome. Of all attempts of one step, wherever and whenever
    they execute, one commits."""

    @property
    def connection(self) -> Any:
        """The driver's connection to the store's database, inside the transaction, which begins when this is first asked
        for. Whoever gets it must not end the transaction."""

    @property
    def has_begun(self) -> bool: ...

    def recorded(self) -> bytes | None:
        """The outcome that an attempt of this step has committed, if one has."""

    def commit(self, body: bytes) -> bytes | None:
        """Commit what was written, with `body` as the outcome. What is given is what counts: `body`, or what another
        attempt has recorded, and then nothing of this one is kept; None if the run is gone, and nothing is kept either. A
        StoreError means that nothing happened: a commit in doubt is waited for."""

    def rollback(self) -> None:
        """Keep nothing. It never fails."""
