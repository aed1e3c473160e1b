from __future__ import annotations

from behaviour_steps import make_app

made = make_app("celery", {})
app = made.app
