"""Named places where a test can stop, kill or delay the process.

Before and after every commit and every hand-over there is one, so that a fault campaign can visit all of
them. Production pays one comparison: nothing is armed unless HOLDFAST_FAILPOINT says so.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """Run what is armed at `name`, if anything is."""
    if _armed and (action := _armed.get(name)) is not None:
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Run `action` each time `name` is hit, until `disarm`."""
    _armed[name] = action


def disarm() -> None:
    _armed.clear()


def arm_from_environment() -> None:
    """HOLDFAST_FAILPOINT=`name:nth` kills this process at the nth hit of `name`, `name:nth:stop` stops it there."""
    text = os.environ.get("HOLDFAST_FAILPOINT", "")
    if not text:
        return
    name, nth, *how = text.split(":")
    left = int(nth)
    number = signal.SIGSTOP if how == ["stop"] else signal.SIGKILL

    def strike() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
            time.sleep(0.1)  # another thread may be the one that takes the signal, a moment later

    arm(name, strike)
