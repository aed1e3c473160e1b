"""Write the tables of docs/benchmarks.md from results: `python benchmarks/report.py`.

`make bench` and `make bench-peers` with `--json benchmarks/results/bench.json` and `.../peers.json` make those.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import bench_peers

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def own(found: dict[str, Any]) -> str:
    lines = [f"{found['date']}, Python {found['python']}, {found['machine']}, SQLite {found['sqlite']}.", ""]
    lines += ["| what | | against the floor | |", "|---|--:|--:|---|"]
    for row in found["rows"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} ×"
        lines.append(f"| {row['what']} | {number(row['value'])} {row['unit']} | {ratio} | {row['note']} |")
    return "\n".join(lines)


def overhead(found: dict[str, Any]) -> str:
    lines = ["| pattern | usually | here | against the floor | resumable |", "|---|---|--:|--:|---|"]
    for row in found["overhead"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} ×"
        lines.append(f"| {row['pattern']} | {row['usually']} | {row['here']} | {ratio} | {row['resumable']} |")
    return "\n".join(lines)


def peers(found: dict[str, Any]) -> str:
    where = f"{found['date']}, Python {found['python']}, {found['machine']}; the machine's load was {found['load']}."
    return f"{where}\n\n{bench_peers.table(found['results'])}"


def main() -> None:
    mine = json.loads((HERE / "results" / "bench.json").read_text())
    others = json.loads((HERE / "results" / "peers.json").read_text())
    text = PAGE.read_text()
    for name, table in (("own", own(mine)), ("overhead", overhead(mine)), ("peers", peers(others))):
        mark = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        assert mark.search(text), f"{PAGE} has no place for {name}"
        text = mark.sub(lambda found, table=table: f"{found[1]}\n{table}\n{found[2]}", text)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
