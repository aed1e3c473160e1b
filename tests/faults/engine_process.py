"""A worker with settings of its own: `python engine_process.py '{"sweep": 30}'`. With EFFECTS_HITS set it counts the
failpoints it passes, and leaves the counts in that file when it ends."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from effects import app

from holdfast import failpoints
from holdfast.engine.settings import Settings


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    counts: Counter[str] = Counter()
    if "EFFECTS_HITS" in os.environ:
        failpoints.hit = lambda name: counts.update([name])
    engine = app.make_engine(settings=Settings(**json.loads(sys.argv[1])))
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: engine.stop())
    engine.start()
    engine.run()
    if "EFFECTS_HITS" in os.environ:
        Path(os.environ["EFFECTS_HITS"]).write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
