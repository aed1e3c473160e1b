"""`python -m holdfast.demo`: all scenarios, in a folder that is thrown away."""

from __future__ import annotations

import sys

from holdfast.demo.play import SCENARIOS, play


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(0 if play(list(SCENARIOS), None, False, _say) else 1)
