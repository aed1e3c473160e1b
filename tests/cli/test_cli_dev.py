"""`holdfast dev`: a worker and the monitor in one process, that begins anew with the code as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from cli_driver import Cli, eventually

COMMAND = [sys.executable, "-m", "holdfast", "-A", "greetings"]
CODE = """
from holdfast import App

app = App("greetings")


@app.workflow
def greet(name: str) -> str:
    return f"WORD {name}"
"""


def test_dev_works_shows_its_runs_and_goes_on_with_code_that_was_changed(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "greetings.py"
    file.write_text(CODE.replace("WORD", "hello"))
    process = subprocess.Popen(
        [*COMMAND, "dev", "--port", "0"], cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None

    def read_until(words: str) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            if words in line:
                return
        raise AssertionError(f"it has ended without saying {words!r}")

    def greeting() -> str:
        done = subprocess.run([*COMMAND, "run", "greet", '"ann"'], cwd=tmp_path, capture_output=True, timeout=60)
        return done.stdout.decode().strip()

    try:
        url = process.stdout.readline().strip()
        read_until("knows: greet")
        assert greeting() == '"hello ann"'
        with httpx.Client(timeout=20) as client:
            assert client.get(url, follow_redirects=True).status_code == 200
            file.write_text("def (")
            read_until("waiting for a change")  # code that can't be read is not the end
            file.write_text(CODE.replace("WORD", "good day"))
            read_until("knows: greet")
            assert greeting() == '"good day ann"'
            # The address and the token stay, so that a page that is open goes on.
            runs = eventually(lambda: client.get(url.partition("?")[0] + "api/runs")).json()["runs"]
            assert [run["status"] for run in runs] == ["SUCCESS", "SUCCESS"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
