"""Runs three nights: `python examples/etl_dag`, or prints the DAG: `python examples/etl_dag --mermaid` (or `--svg`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from warehouse import app, etl

from holdfast import DagFailed


def night(title: str, context: dict[str, Any]) -> None:
    run = etl.start(context)
    try:
        print(f"{title}: {run.result(timeout='60s')['summarize']}")
    except DagFailed as failed:
        print(f"{title}: {', '.join(f'{name} failed ({error})' for name, error in failed.failed.items())}")
    for step in run.steps:
        if step.status == "SKIPPED":
            print(f"  {step.key} was skipped: {step.reason}")
    print(f"  {run.steps['remove_files'].result}")


def main() -> None:
    if sys.argv[1:] == ["--mermaid"]:
        print(etl.to_mermaid(), end="")
        return
    if sys.argv[1:] == ["--svg"]:
        print(etl.to_svg(), end="")
        return
    with tempfile.TemporaryDirectory() as folder:
        app.use_store(str(Path(folder) / "warehouse.db"))
        with app.worker():
            night("a busy day", {"shops": ["north", "south", "east"]})
            night("a dry run", {"shops": ["south", "closed"], "dry_run": True})
            night("a broken file", {"shops": ["north", "broken"]})
        app.close()


if __name__ == "__main__":
    main()
