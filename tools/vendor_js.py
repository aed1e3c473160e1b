"""Bring the libraries of the monitor's pages up to date: `python tools/vendor_js.py`. Needs npm; nothing else does.

Each is one ES module, with its licence beside it. Names of packages in imports become paths, as no build step does that.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path

TARGET = Path(__file__).parent.parent / "src/holdfast/monitor/static/vendor"
MODULES = {
    "preact": ("preact", "dist/preact.mjs"),
    "preact/hooks": ("preact", "hooks/dist/hooks.mjs"),
    "@preact/signals-core": ("@preact/signals-core", "dist/signals-core.mjs"),
    "@preact/signals": ("@preact/signals", "dist/signals.mjs"),
    "htm": ("htm", "dist/htm.mjs"),
    "@dagrejs/dagre": ("@dagrejs/dagre", "dist/dagre.esm.js"),
}


def file_name(module: str) -> str:
    return module.removeprefix("@").replace("/", "-") + ".js"


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "install", "--silent", *sorted({package for package, _ in MODULES.values()})]
        subprocess.run(command, cwd=folder, check=True)
        packages = Path(folder, "node_modules")
        for module, (package, path) in MODULES.items():
            text = (packages / package / path).read_text()
            text = re.sub(r"\n?//# sourceMappingURL=\S+\s*$", "\n", text)
            text = re.sub(r'(from\s*)"([^"./][^"]*)"', lambda found: f'{found[1]}"./{file_name(found[2])}"', text)
            (TARGET / file_name(module)).write_text(text)
            versions[package] = json.loads((packages / package / "package.json").read_text())["version"]
            licence = (packages / package / "LICENSE").read_text()
            (TARGET / f"{file_name(package).removesuffix('.js')}.LICENSE").write_text(licence)
    lines = [f"{package} {version}" for package, version in sorted(versions.items())]
    (TARGET / "VERSIONS").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
