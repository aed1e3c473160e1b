"""A small shop, on files in the folder that SITE_DIR names."""

from __future__ import annotations

import json
import os
from pathlib import Path

FOLDER = Path(os.environ["SITE_DIR"])
SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["blog", "shop", "holdfast.contrib.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
HOLDFAST = {"APP": "shop.flows:app", "STORE": FOLDER / "flows.db"}
if "SITE_HOLDFAST" in os.environ:
    HOLDFAST = json.loads(os.environ["SITE_HOLDFAST"])
