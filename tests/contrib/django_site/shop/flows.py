from __future__ import annotations

from holdfast import App

app = App("shop")
