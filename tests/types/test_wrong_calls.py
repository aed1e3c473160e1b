"""Wrong calls fail type-checking, line by line as `wrong_calls.py` marks them, and right ones don't."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api as mypy

HERE = Path(__file__).parent
PYPROJECT = HERE.parents[1] / "pyproject.toml"
IGNORE = "# mypy: ignore-errors"


def errors_in(*files: Path, cache: Path) -> list[set[tuple[int, str]]]:
    """Line and code of each error in each file."""
    out, problems, _ = mypy.run(["--config-file", str(PYPROJECT), "--cache-dir", str(cache), *map(str, files)])
    assert not problems, problems
    found = [re.findall(rf"^{re.escape(str(file))}:(\d+): error: .*\[([\w-]+)\]$", out, re.MULTILINE) for file in files]
    assert sum(map(len, found)) == out.count(": error: "), out
    return [{(int(line), code) for line, code in each} for each in found]


def test_each_wrong_call_is_refused_and_exact_types_are_kept(tmp_path: Path) -> None:
    text = (HERE / "wrong_calls.py").read_text()
    assert text.startswith(IGNORE)
    marked = {
        (number, code)
        for number, line in enumerate(text.splitlines(), 1)
        for code in re.findall(r"# E: ([\w-]+)$", line)
    }
    assert len(marked) > 50
    copy = tmp_path / "wrong_calls.py"
    copy.write_text(text.replace(IGNORE, "", 1))
    assert errors_in(copy, HERE / "exact_types.py", cache=tmp_path / "cache") == [marked, set()]
