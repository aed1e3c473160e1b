"""The monitor: pages and a JSON API over the read model, as an ASGI app that serves alone or within another one.

web.mount("/ops", monitor(orders, authorize=is_staff))
"""

from __future__ import annotations

from holdfast.monitor.safety import Authorize
from holdfast.monitor.server import monitor

__all__ = ["Authorize", "monitor"]
