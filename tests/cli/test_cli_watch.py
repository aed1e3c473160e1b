"""Watching: a line per change, progress, the tree as it grows."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import cli_shop
import pytest
from cli_driver import Cli, eventually

from holdfast import hook
from holdfast.app import App
from holdfast.cli.output import Line, print_table, short_ids
from holdfast.cli.tree import Painter
from holdfast.ports import RunRow
from holdfast.testing import TestApp
from holdfast.views.details import read_details
from holdfast.views.reading import RunTree
from holdfast.views.tree import TreeNode
from holdfast.views.values import PlainReader

SECOND = 1_000_000


@pytest.mark.usefixtures("worker")
def test_a_run_that_has_ended_is_told_from_its_beginning(cli: Cli) -> None:
    cli("run", "buy", '{"id": "o1", "qty": 2}', "--id", "b1")
    told = cli("runs", "watch", "b1").lines
    assert [line[2] for line in told if line[1] == "b1"] == [
        "RunStarted", "DataSet", "ChildStarted", "ChildCompleted", "RunCompleted", "SUCCESS"
    ]  # fmt: skip
    assert {"RunStarted", "StepCompleted"} <= {line[2] for line in told if line[1].startswith("b1.ship")}


@pytest.mark.usefixtures("worker")
def test_the_exit_code_is_the_runs_own_only_if_asked_for(cli: Cli) -> None:
    cli("run", "fails", "x", "--id", "f1", code=1)
    cli("runs", "watch", "f1")
    cli("runs", "watch", "f1", "--exit-status", code=1)


@pytest.mark.usefixtures("worker")
def test_a_run_is_followed_until_it_ends_with_its_progress(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cli("start", "packs", str(gate), "--id", "p1")
    eventually(lambda: cli("runs", "show", "p1", "--json").json["steps"])
    tree = cli("runs", "tree", "p1").out
    assert "━━━━━━━━━━━━━━━───── 75% 3/4  boxes" in tree
    threading.Timer(0.1, gate.touch).start()
    changes = [json.loads(line) for line in cli("runs", "watch", "p1", "--json").out.splitlines()]
    assert {"done": 3, "total": 4, "note": "boxes"} in [change.get("progress") for change in changes]
    assert changes[-1]["status"] == "SUCCESS"


@pytest.mark.usefixtures("worker")
def test_watching_ends_at_the_push_and_not_at_the_next_look(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.watch.FALLBACK", 60.0)
    cli("start", "asks", "bob", "--id", "a1")
    cli.wait_for("a1", "WAITING")
    threading.Timer(0.2, answer, (cli.store,)).start()
    assert cli("runs", "watch", "a1").lines[-1][2] == "SUCCESS"


def answer(store: str) -> None:
    someone = App("shop", store)
    someone.get_run("a1").send("shop-approval", {"ok": True})
    someone.close()


@pytest.mark.usefixtures("worker")
def test_a_status_that_is_over_is_not_told_and_times_go_forward(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(RunTree):
        """The run goes on after its row was read, and before its events are."""

        def _read(self, row: RunRow, depth: int) -> None:
            if row.status == "WAITING":
                answer(cli.store)
                eventually(lambda: self.store.get("a1").status == "SUCCESS")  # type: ignore[union-attr]
            super()._read(row, depth)

    monkeypatch.setattr("holdfast.cli.watch.RunTree", Late)
    cli("start", "asks", "bob", "--id", "a1")
    cli.wait_for("a1", "WAITING")
    told = cli("runs", "watch", "a1").lines
    assert [line[2] for line in told] == ["RunStarted", "HookOpened", "HookReceived", "RunCompleted", "SUCCESS"]
    assert [line[0] for line in told] == sorted(line[0] for line in told)


@pytest.mark.usefixtures("worker")
def test_a_retried_run_and_its_retried_child_are_read_anew(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cli("run", "outer", str(gate), "--id", "o1", code=1)
    shop = App("shop", cli.store)
    tree = RunTree(shop.store, PlainReader(shop.codec), "o1")
    assert [node.state for node in tree.read().children] == ["FAILURE"]
    gate.touch()
    cli("runs", "retry", "o1")
    cli.wait_for("o1", "SUCCESS")
    root = tree.read()
    shop.close()
    assert (root.state, root.attempt) == ("SUCCESS", 2)
    first, second = root.children
    assert [(node.name, node.state) for node in root.children] == [("attempt 1", "FAILURE"), ("attempt 2", "SUCCESS")]
    assert [(node.name, node.state) for node in first.children] == [("inner", "FAILURE")]
    (inner,) = second.children
    assert (inner.name, inner.state) == ("inner", "SUCCESS")
    assert [(node.name, [step.state for step in node.children]) for node in inner.children] == [
        ("attempt 1", ["FAILURE"]),
        ("attempt 2", ["SUCCESS"]),
    ]
    assert [run_id for run_id, _ in root.steps()] == [inner.run_id, inner.run_id]


def test_who_waits_without_a_worker_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.watch.WARN_AFTER", 0.0)
    cli("start", "add", "1", "--id", "x")
    told = threading.Event()

    def late_worker() -> None:
        told.wait(20)
        app = App("shop", cli.store)
        app.step(cli_shop.add.__wrapped__)
        with app.worker():
            app.get_run("x").result(20)
        app.close()

    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        told.set()

    monkeypatch.setattr("holdfast.cli.watch.note", note)
    helper = threading.Thread(target=late_worker)
    helper.start()
    assert cli.without_code("runs", "watch", "x").lines[-1][2] == "SUCCESS"
    helper.join()
    assert said == [f"no worker is alive; start one: holdfast -A MODULE --store {cli.store} worker"]


# -- the tree as lines


def text(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line) for line in lines]


def tree() -> TreeNode:
    steps = [TreeNode("charge", "SUCCESS", attempt=2, started_at=0, ended_at=SECOND)]
    steps += [TreeNode("pack", "SUCCESS", started_at=0, ended_at=SECOND // 2) for _ in range(30)]
    steps += [TreeNode("notify", "RETRY", started_at=0, detail="retry 12:00:00 (in 3.0s); OSError: gone")]
    label = TreeNode("label", "STARTED", started_at=SECOND, progress={"done": 1, "total": 2, "note": "pdf"})
    child = TreeNode("ship", "RUNNING", run_id="o1.ship.7c0", started_at=SECOND, children=[label])
    return TreeNode("fulfil", "RUNNING", run_id="o1", started_at=0, children=[*steps, child])


def test_fans_that_are_done_are_folded_and_all_that_is_done_where_there_is_no_room() -> None:
    assert len(Painter(2 * SECOND).paint(tree())) == 35
    assert text(Painter(2 * SECOND, height=100).paint(tree()))[:4] == [
        "● fulfil  o1  RUNNING  2.0s",
        "├─ ✓ charge  SUCCESS  attempt 2  1.0s",
        "├─ ✓ 30 done: pack × 30",
        "├─ ↻ notify  RETRY  2.0s  retry 12:00:00 (in 3.0s); OSError: gone",
    ]
    assert text(Painter(2 * SECOND, height=5).paint(tree())) == [
        "● fulfil  o1  RUNNING  2.0s",
        "├─ ✓ 31 done: pack × 30, charge",
        "├─ ↻ notify  RETRY  2.0s  retry 12:00:00 (in 3.0s); OSError: gone",
        "└─ ● ship  o1.ship.7c0  RUNNING  1.0s",
        "   └─ ● label  STARTED  1.0s  ━━━━━━━━━━────────── 50% 1/2  pdf",
    ]


def test_the_upper_part_is_left_out_where_folding_is_not_enough() -> None:
    root = TreeNode("many", "RUNNING", run_id="m", children=[TreeNode(f"s{i}", "STARTED") for i in range(50)])
    lines = text(Painter(0, height=5, crop=True).paint(root))
    assert lines == ["● many  m  RUNNING", "  47 lines above ...", *lines[2:]]
    assert lines[-1] == "└─ ● s49  STARTED"
    assert len(lines) == 5


def test_a_terminal_without_unicode_gets_ascii() -> None:
    lines = text(Painter(2 * SECOND, height=10, unicode=False).paint(tree()))
    assert lines[0] == "* fulfil  o1  RUNNING  2.0s"
    assert lines[-1] == "   `- * label  STARTED  1.0s  ##########.......... 50% 1/2  pdf"
    assert all(line.replace("×", "x").isascii() for line in lines)


def test_ids_are_short_for_eyes() -> None:
    run_id = "6f04b7a1-52d6-473c-bd30-92140f0a7847"
    root = TreeNode("a", "RUNNING", run_id, children=[TreeNode("b", "RUNNING", run_id=f"{run_id}.b.3c0")])
    assert text(Painter(0, short_ids=True).paint(root)) == [
        "● a  6f04b7a1  RUNNING",
        "└─ ● b  6f04b7a1….b.3c0  RUNNING",
    ]


def test_a_table_for_a_pipe_keeps_each_row_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["A", "B"], [["x\ny", "z\tz"]])
    assert capsys.readouterr().out == "x y\tz z\n"


@pytest.mark.parametrize(
    ("columns", "heads"),
    [
        (100, ["RUN", "WORKFLOW", "CREATED", "TOOK", "DOING"]),
        (70, ["RUN", "WORKFLOW", "TOOK", "DOING"]),
        (60, ["RUN", "WORKFLOW", "DOING"]),
        (34, ["RUN", "WORKFLOW", "DOING"]),
    ],
)
def test_on_a_narrow_terminal_columns_are_left_out_and_lines_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, heads: list[str]
) -> None:
    monkeypatch.setattr("holdfast.cli.output.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ["6f04b7a1", "a-long-name-of-a-workflow", "3m10s ago", "2m59s", "waiting for hook 'approval', until tomorrow"]
    print_table(["RUN", "WORKFLOW", "CREATED", "TOOK", "DOING"], [row], left_out_first=("CREATED", "TOOK"))
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == heads
    assert max(len(first), len(second)) <= columns
    assert second.startswith("6f04b7a1  ")


def test_ids_in_a_list_are_short_and_tell_parents_from_children() -> None:
    one, other = "6f04b7a1-52d6-473c-bd30-92140f0a7847", "7c0e9d20-52d6-473c-bd30-92140f0a7847"
    assert short_ids([one, f"{one}.ship.7c0", other, "order-1"]) == {
        one: "6f04b7a1…7847", f"{one}.ship.7c0": "6f04b7a1….ship.7c0", other: "7c0e9d20", "order-1": "order-1",
    }  # fmt: skip
    twin = "6f04b7a1-0000-473c-bd30-92140f0a7847"
    assert short_ids([one, twin]) == {one: one, twin: twin}


def test_children_are_shown_as_what_they_do_however_many_there_are(tmp_path: Path) -> None:
    app = App("crowd", str(tmp_path / "crowd.db"))

    @app.workflow
    async def one(number: int) -> object:
        return await hook(f"go-{number}")

    @app.workflow
    async def crowd() -> None:
        await asyncio.gather(*(one(number) for number in range(30)))

    with TestApp(app, check_replay=False) as world:
        run = crowd.start()
        world.settle()
        reader = PlainReader(app.codec)
        root = RunTree(app.store, reader, run.id).read()
        assert {(node.state, node.detail.split(" '")[0]) for node in root.children} == {("WAITING", "waiting for hook")}
        assert len(root.children) == 30
        row = app.store.get(run.id)
        assert row is not None
        steps = read_details(app.store, row, reader)["steps"]
        assert {(step["child_status"], step["child_reason"].split(" '")[0]) for step in steps} == {("WAITING", "hook")}
        run.cancel()
    app.close()
