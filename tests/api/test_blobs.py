"""Large values live apart from the history: durable before they are named, and deleted when nobody names them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from holdfast import App, Codec, DefinitionError, Directory, PayloadTooLargeError, RunStuckError, hook, wf
from holdfast.codec.blobs import keys_in, store_mark, sweep
from holdfast.testing import TestApp

BIG = "x" * 10_000_000  # more than what a history takes


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".store")


def grow_old(folder: Path) -> None:
    for file in files(folder):
        os.utime(file, (time.time() - 90_000,) * 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def large(tmp_path: Path, folder: Path) -> Iterator[App]:
    app = App("large", str(tmp_path / "large.db"), codec=Codec(blobs=Directory(folder), blobs_over="1KB"))
    yield app
    app.close()


def test_arguments_results_and_data_may_be_larger_than_a_history_takes(large: App, folder: Path) -> None:
    @large.step
    def double(text: str) -> str:
        return text * 2

    @large.workflow
    async def flow(text: str) -> int:
        wf.set_data("text", text)
        twice = double(text)
        assert wf.get_data("text") == text
        assert twice == text * 2
        return len(await hook("go")) + len(twice)

    with large.worker():
        run = flow.start(BIG)
        again = flow.start(BIG)
        for each in (run, again):
            each.send("go", "now")
            assert each.result(timeout=60) == 2 * len(BIG) + 3
    assert len(files(folder)) == 3, "the call of the run, that of the step with its data, and the result"
    assert all(len(payload) < 2_000 for payload in large.store.payloads(run.id))
    assert run.data == {"text": BIG}
    assert run.steps["double"].result == BIG * 2
    assert run.history()[0].detail["input"] == (BIG,)


def test_what_is_kept_only_beside_histories_stays_inline(large: App, folder: Path) -> None:
    @large.workflow
    async def flow() -> object:
        return await hook("go")

    with TestApp(large):
        run = flow.start()
        with pytest.raises(PayloadTooLargeError, match=r"Codec\(blobs=\.\.\.\)"):
            run.send("go", BIG)
        run.send("go", "y" * 5_000)
        assert run.result() == "y" * 5_000


def test_blobs_that_no_run_names_are_deleted_and_others_stay(large: App, folder: Path) -> None:
    @large.step
    def same(text: str) -> str:
        return text + "!"

    with large.worker():
        one, two = same.start("a" * 5_000), same.start("b" * 5_000)
        shared = same.start("a" * 5_000)
        for run in (one, two, shared):
            run.result(timeout=30)
    large.codec.encode("never named" * 1_000, apart=True)
    assert len(files(folder)) == 5
    large.gc()
    assert len(files(folder)) == 5, "somebody may be about to name it"
    grow_old(folder)
    large.gc()
    assert len(files(folder)) == 4
    one.delete()
    two.delete()
    grow_old(folder)
    large.gc()
    assert len(files(folder)) == 2, "another run names what the first had"
    assert shared.result() == "a" * 5_000 + "!"
    shared.delete()
    grow_old(folder)
    large.gc()
    assert files(folder) == []


def test_what_waits_in_an_inbox_or_a_schedule_is_named(large: App, folder: Path) -> None:
    @large.workflow
    async def child() -> str:
        return "c" * 5_000

    @large.workflow
    async def parent() -> int:
        return len(await child())

    @large.workflow
    async def nightly(text: str) -> None: ...

    with TestApp(large) as world:
        large.schedules.put("@daily", nightly, "s" * 5_000)
        run = parent.start()
        run.pause()
        world.settle()
        grow_old(folder)
        large.gc()
        assert len(files(folder)) >= 1
        run.resume()
        assert run.result() == 5_000
        world.advance("2d")
        assert large.count(workflow="nightly", status="SUCCESS") == 2


def test_a_blob_that_is_put_again_while_it_is_deleted_stays(folder: Path) -> None:
    blobs = Directory(folder)
    blobs.put("ab" * 32, b"data")
    grow_old(folder)
    blobs.put("ab" * 32, b"data")
    assert not blobs.delete("ab" * 32, time.time() - 60), "it is young again"
    assert blobs.get("ab" * 32) == b"data"
    assert list(blobs.old(time.time() - 60)) == []
    assert blobs.delete("ab" * 32, time.time() + 60)
    assert not blobs.delete("ab" * 32, time.time() + 60)
    with pytest.raises(LookupError):
        blobs.get("ab" * 32)


def test_a_folder_belongs_to_one_store(large: App, folder: Path, tmp_path: Path) -> None:
    large.gc()
    other = App("other", str(tmp_path / "other.db"), codec=Codec(blobs=Directory(folder)))
    with pytest.raises(DefinitionError, match="belongs to another store"):
        other.gc()
    other.close()
    assert sweep(Directory(folder), store_mark(large.store.secret()), large.store.named_blobs) == 0


def test_a_blob_that_is_gone_or_damaged_sets_the_run_aside_and_it_goes_on_once_it_is_back(
    large: App, folder: Path
) -> None:
    @large.step
    def produce() -> str:
        return "z" * 5_000

    @large.workflow
    async def flow() -> int:
        text = produce()
        await hook("go")
        return len(text)

    with large.worker():
        run = flow.start()
        wait_until(lambda: run.status == "WAITING")
    (file,) = files(folder)
    kept = file.read_bytes()
    file.write_bytes(b"damage")
    run.send("go")
    with large.worker():
        with pytest.raises(RunStuckError, match="is damaged; restore it"):
            run.result(timeout=30)
        file.unlink()
        run.resume()
        with pytest.raises(RunStuckError, match="can't be read in Directory"):
            run.result(timeout=30)
        file.write_bytes(kept)
        run.resume()
        assert run.result(timeout=30) == 5_000


def test_a_crash_between_blob_and_commit_leaves_nothing_but_a_blob_to_collect(tmp_path: Path, folder: Path) -> None:
    code = (
        "import sys\n"
        "from holdfast import App, Codec, Directory, failpoints\n"
        "app = App('large', sys.argv[1], codec=Codec(blobs=Directory(sys.argv[2]), blobs_over=1000))\n"
        "@app.step\n"
        "def same(text: str) -> str:\n"
        "    return text\n"
        "same.options(id='r').start('q' * 5000)\n"
        "print('started')\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "large.db"), str(folder)]
    environment = {**os.environ, "HOLDFAST_FAILPOINT": "create.before_commit:1"}
    armed = code.replace("app = App", "failpoints.arm_from_environment()\napp = App")
    killed = subprocess.run(
        [*arguments[:2], armed, *arguments[3:]], env=environment, capture_output=True, text=True, timeout=60
    )
    assert killed.returncode != 0
    app = App("large", str(tmp_path / "large.db"), codec=Codec(blobs=Directory(folder), blobs_over=1000))
    assert app.count() == 0
    assert len(files(folder)) == 1
    again = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout == "started\n"
    grow_old(folder)
    app.gc()
    assert app.get_run("r").history()[0].detail["input"] == ("q" * 5000,)
    app.close()


def test_references_are_found_in_payloads_and_texts_that_look_like_them_are_not() -> None:
    key = "0" * 64
    assert keys_in(b'{"args":[{"$":"blob","v":["%b",5]}]}' % key.encode()) == [key]
    assert keys_in(Codec().encode('{"$":"blob","v":["' + key + '",5]}')) == []


@pytest.mark.parametrize("size", [0, -1, "many", "5TB", None, 1.5, "0KB"])
def test_a_size_that_is_none_is_refused(size: Any, folder: Path) -> None:
    with pytest.raises(DefinitionError, match="blobs_over="):
        Codec(blobs=Directory(folder), blobs_over=size)
