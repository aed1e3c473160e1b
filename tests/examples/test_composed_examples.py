"""The examples of sagas and DAGs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

EXAMPLES = Path(__file__).parents[2] / "examples"


def said(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_what_was_booked_is_cancelled_if_the_rest_can_not_be_had() -> None:
    lines = said("trip_booking").splitlines()
    assert lines[:8] == [
        "to Rome",
        "  booked: ROM-ada, room-ada, car-ada",
        "to Oslo, where there is no car",
        "  failed at car: no car in Oslo",
        "  compensated: hotel, flight",
        "  hotel room-ada cancelled, attempt 3",
        "  flight OSL-ada cancelled, attempt 1",
        "to Venice, all at once, where there is no room",
    ]
    assert lines[8] == "  failed at book_hotel: no room in Venice"
    assert sorted(lines[10:]) == ["  car car-ada cancelled, attempt 1", "  flight VEN-ada cancelled, attempt 1"]


def test_an_etl_skips_what_is_not_needed_and_always_cleans_up() -> None:
    assert said("etl_dag").splitlines() == [
        "a busy day: 64 EUR in 6 sales, 1 refunds, refreshed with 6 rows",
        "  files removed",
        "a dry run: 30 EUR in 1 sales, no refunds, dry run",
        "  report_refunds was skipped: its condition is not met",
        "  load was skipped: its condition is not met",
        "  refresh_dashboards was skipped: 'load' was skipped",
        "  files removed",
        "a broken file: fetch failed (the file of broken can't be read)",
        "  clean was skipped: 'fetch' failed",
        "  report_refunds was skipped: 'clean' was skipped",
        "  load was skipped: 'clean' was skipped",
        "  refresh_dashboards was skipped: 'load' was skipped",
        "  summarize was skipped: 'clean' did not succeed",
        "  files removed",
    ]


def test_a_dag_is_drawn() -> None:
    assert said("etl_dag", "--mermaid").startswith("flowchart TD\n")
    ElementTree.fromstring(said("etl_dag", "--svg"))
