"""`python -m holdfast.demo`: all scenarios, in a folder that stays, so that their runs can be looked at."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from holdfast.demo.play import SCENARIOS, play


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    sys.exit(0 if play(list(SCENARIOS), folder, False, _say) else 1)
