from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "recurring_charges"


def test_a_night_with_failures_sends_one_mail_that_counts_them() -> None:
    ran = subprocess.run([sys.executable, str(FOLDER), "2026-11-17"], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "mail: 2026-11-17: 26 charged (257.40 EUR), 4 failed: 4 × CardExpired",
        "charges by attempts: {1: 24, 2: 6}",
        "executed once: ['summarize', 'send_mail']",
    ]
