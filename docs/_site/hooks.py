"""What mkdocs has to be told about the pages: the marks that the tests read in fences, and the list of decisions."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).parent))
from api_page import page as api_page

_PYTHON = re.compile(r"^```python[^\n]*\n(?:# (\w+\.py)\n)?", re.MULTILINE)


def on_config(config: Any) -> None:
    docs = Path(config["docs_dir"])
    config["nav"].append({"Decisions": sorted(str(page.relative_to(docs)) for page in (docs / "adr").glob("*.md"))})


def on_files(files: Any, *, config: Any) -> Any:
    files.append(File.generated(config, "api.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """`python no-run`, `# orders.py` in the first line, and `output`, as mkdocs says it."""
    if page.file.src_uri.startswith("adr/"):
        page.meta["search"] = {"boost": 0.3}  # who looks for cron wants to use it
    if "side-by-side" in markdown:
        page.meta["hide"] = ["toc"]  # room for two columns
    markdown = _PYTHON.sub(lambda found: f'```python title="{found[1]}"\n' if found[1] else "```python\n", markdown)
    return markdown.replace("```output\n", '```text title="prints"\n')
