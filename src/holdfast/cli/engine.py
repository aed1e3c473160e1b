"""The process of an engine beside a Celery worker, which starts it: `python -m holdfast.cli.engine`, told what to import
on its standard input. It ends with that worker."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time

from holdfast.cli.worker import Stopping, end_if_frozen, prepare_process, set_up_logging
from holdfast.engine.host import Host
from holdfast.executors.child import load

GRACE = 10.0


def _end_with(parent: int, host: Host) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        logging.getLogger("holdfast").warning("the Celery worker is gone, and its engine ends")
        host.stop(GRACE)

    threading.Thread(target=watch, name="holdfast-life", daemon=True).start()


def main() -> None:
    frame = json.load(sys.stdin)
    level = frame["log_level"] if frame["log_level"] in ("debug", "info", "warning", "error") else "warning"
    set_up_logging(level, "text")
    sys.path.insert(0, os.getcwd())  # where Celery finds the module too
    app = load(frame)
    prepare_process()
    host: Host = app.make_engine()  # type: ignore[attr-defined]
    stopping = Stopping([host], GRACE)
    stopping.listen()
    host.start()
    _end_with(frame["parent"], host)
    end_if_frozen()
    logging.getLogger("holdfast").info("engine %s of app %r on %s", host.worker_id, frame["app"], host.store.url)
    host.run()
    code = 0 if host.failure is None else 1
    stopping.is_over(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
