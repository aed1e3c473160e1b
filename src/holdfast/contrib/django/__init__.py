"""Holdfast in a Django project: `INSTALLED_APPS += ["holdfast.contrib.django"]`, and `HOLDFAST = {"APP": "shop.flows:app"}`.

It imports `steps.py` and `workflows.py` of every installed app, gives `manage.py` the command `holdfast`, and closes
database connections around attempts as Django does around requests.
"""

from __future__ import annotations
