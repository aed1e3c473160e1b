"""What mkdocs has to be told about the pages: the marks that the tests read in fences, and the list of decisions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PYTHON = re.compile(r"^```python[^\n]*\n(?:# (\w+\.py)\n)?", re.MULTILINE)


def on_config(config: Any) -> None:
    docs = Path(config["docs_dir"])
    config["nav"].append({"Decisions": sorted(str(page.relative_to(docs)) for page in (docs / "adr").glob("*.md"))})


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """`python no-run`, `# orders.py` in the first line, and `output`, as mkdocs says it."""
    if "side-by-side" in markdown:
        page.meta["hide"] = ["toc"]  # room for two columns
    markdown = _PYTHON.sub(lambda found: f'```python title="{found[1]}"\n' if found[1] else "```python\n", markdown)
    return markdown.replace("```output\n", '```text title="prints"\n')
