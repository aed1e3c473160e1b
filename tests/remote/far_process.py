"""A worker of `far_steps` that is quick to notice things: `far_process.py engine|executor SETTINGS`."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import far_steps

from holdfast.engine.settings import Settings

if __name__ == "__main__":
    settings = Settings(**json.loads(sys.argv[2]))
    app = far_steps.app
    if sys.argv[1] == "engine":
        host = app.make_engine(settings=settings, concurrency=4)
    else:
        host = app.make_executor(["far"], settings=settings, concurrency=4)

    def stop(number: int, frame: Any) -> None:
        host.stop(10)

    signal.signal(signal.SIGTERM, stop)
    host.start()
    host.run()
    host.store.close()
