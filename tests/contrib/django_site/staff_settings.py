"""The shop with users and sessions."""

from __future__ import annotations

from site_settings import *  # noqa: F403
from site_settings import INSTALLED_APPS as OTHERS

INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", *OTHERS]
