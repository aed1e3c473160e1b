"""`make docs` ends with this: the built site must not load anything from another host."""

from __future__ import annotations

import re
import sys
from pathlib import Path

LOADS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*\bsrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)"""
)


def main(site: Path) -> int:
    found = [
        f"{file}: {next(filter(None, match.groups()))}"
        for file in sorted(site.rglob("*"))
        if file.suffix in (".html", ".css", ".svg")
        for match in LOADS.finditer(file.read_text())
    ]
    sys.stdout.write("".join(f"{line}\n" for line in found) or f"{site} loads nothing from other hosts\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
