"""Pictures that scripts draw from the code show it as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_the_picture_of_the_parts_is_what_its_script_draws() -> None:
    drawn = runpy.run_path(str(PICTURES / "parts.py"))["draw"]()
    assert (PICTURES / "parts.svg").read_text() == drawn, "run docs/pictures/parts.py again, and look at the picture"
