"""What a store says of itself while and after its runs are moved to another one, by two keys of its table `meta`:
`moved_to` in the old store, `incoming` in the new one as long as the old one may still be the one that counts.

Both carry the same token, so that a move that was interrupted can be finished by whoever sees both.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import Any

from holdfast.errors import StoreMovedError

MARKS = ("moved_to", "incoming")


@dataclass(frozen=True)
class Mark:
    """The other store's address, without its password, and when this was written."""

    url: str
    token: str
    at: int

    def encode(self) -> bytes:
        return json.dumps({"url": self.url, "token": self.token, "at": self.at}).encode()

    @property
    def day(self) -> str:
        return f"{dt.datetime.fromtimestamp(self.at / 1e6, dt.UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class Move:
    """Where the runs of a store have gone, and where others are coming from."""

    moved_to: Mark | None = None
    incoming: Mark | None = None


def move_of(db: Any) -> Move:
    rows = db.execute("SELECT key, value FROM meta WHERE key IN ('moved_to', 'incoming')").fetchall()
    return Move(**{key: Mark(**json.loads(bytes(value))) for key, value in rows})


def refuse_moved(url: str, move: Move) -> None:
    if move.moved_to is not None:
        raise StoreMovedError(moved_text(url, move.moved_to))
    if move.incoming is not None:
        raise StoreMovedError(
            f"runs are being copied to {url} from {move.incoming.url} since {move.incoming.day}; wait until that is done; if "
            "it was interrupted, say the same `holdfast db copy` again, which finishes it or begins anew"
        )


def moved_text(url: str, mark: Mark) -> str:
    return (
        f"the runs of {url} were moved to {mark.url} on {mark.day}, and go on there; set HOLDFAST_STORE, or the store of "
        "your app, to that"
    )
