"""Books three trips: `python examples/trip_booking`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from trips import app, book_at_once, trip

from holdfast import Run, SagaFailed


def tell(title: str, run: Run[Any]) -> None:
    print(title)
    try:
        print("  result:", run.result(timeout="60s"))
    except SagaFailed as failed:
        print(f"  failed at {failed.step}: {failed.cause}")
        print(f"  compensated: {', '.join(failed.compensated)}")
        for step in run.steps:
            if step.undoes:
                print(f"  {step.result}, attempt {step.attempts}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app.use_store(str(Path(folder) / "trips.db"))
        with app.worker():
            done = trip.start({"traveller": "ada", "to": "Rome"})
            print(f"to Rome\n  {done.result(timeout='60s')['mail']}")
            tell("to Oslo, where there is no car", trip.start({"traveller": "ada", "to": "Oslo"}))
            tell("to Venice, all at once, where there is no room", book_at_once.start("ada", "Venice"))
        app.close()


if __name__ == "__main__":
    main()
