from __future__ import annotations

from site_settings import *  # noqa: F403
from site_settings import FOLDER

HOLDFAST = {"APP": "shop.flows:app", "STORE": FOLDER / "other.db"}
