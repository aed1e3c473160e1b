"""Runs one night: `python examples/recurring_charges [night]`."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from charges import SUBSCRIBERS, app, nightly


def main(night: str = "2026-11-16") -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.use_store(str(Path(folder) / "charges.db"))
        with app.worker():
            run = nightly(night, SUBSCRIBERS).options(id=f"night-{night}").start()
            print("mail:", run.result(timeout="60s"))
        attempts = Counter(step.attempts for step in run.steps if step.name == "charge")
        print(f"charges by attempts: {dict(sorted(attempts.items()))}")
        print(f"executed once: {[step.name for step in run.steps if step.name != 'charge']}")
        app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
