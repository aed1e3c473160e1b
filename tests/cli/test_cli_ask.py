"""`holdfast ask`."""

from __future__ import annotations

import cli_shop
import pytest
from cli_driver import Cli

from holdfast import RequestRefusedError, define_request, hook

pytestmark = pytest.mark.usefixtures("worker")
hello = define_request("cli.hello", cli_shop.Approval, cli_shop.Approval)


@cli_shop.app.workflow(name="greets")
async def greets() -> None:
    said: list[int] = []

    @hello.handle
    async def _(given: cli_shop.Approval) -> cli_shop.Approval:
        if not given.ok:
            raise RequestRefusedError("only if you mean it")
        said.append(1)
        if len(said) == 3:
            await hook("never")
        return cli_shop.Approval(len(said) > 1)

    await hook("end")


@cli_shop.app.workflow(name="counts")
async def counts() -> object:
    @define_request("cli.twice", int, int).handle
    async def _(given: int) -> int:
        return 2 * given

    return await hook("end")


def test_a_payload_may_be_a_negative_number_and_a_wrong_option_is_still_one(cli: Cli) -> None:
    cli("start", "counts", "--id", "c1")
    cli.wait_for("c1", "WAITING")
    assert cli("ask", "c1", "cli.twice", "-5").out == "-10\n"
    assert cli("ask", "c1", "cli.twice", "-5", "--timeout", "9s").out == "-10\n"
    for wrong in (["--tiemout", "5"], ["-5", "--tiemout", "5"], ["5", "--tiemout=5"]):
        said = cli("ask", "c1", "cli.twice", *wrong, code=2).err
        assert "No such option" in said
        assert "--timeout" in said, "what was meant"
    assert "'6' is one argument too many" in cli("ask", "c1", "cli.twice", "-5", "6", code=2).err
    cli("emit", "CountedDown", "-1")
    cli("runs", "send", "c1", "end", "-1.5")
    cli.wait_for("c1", "SUCCESS")
    assert cli("runs", "show", "c1", "--json").json["result"] == -1.5


@pytest.mark.parametrize("words", [["--kye=p5", "--"], ["--kye=p5", "--", "1"], ["-foo"], ["--", "1", "2", "--kye"]])
def test_two_dashes_make_text_of_what_follows_them_only(cli: Cli, words: list[str]) -> None:
    cli("start", "counts", "--id", "c1")
    said = cli("runs", "send", "c1", "end", *words, code=2).err
    assert ("write -- before it to mean the text" in said) == (words[0] != "--")


@pytest.mark.parametrize(
    ("words", "sent"), [(["--", "--kye=p5"], "--kye=p5"), (["--json", "--", "-foo"], "-foo"), (["--", ""], "")]
)
def test_what_follows_two_dashes_is_text(cli: Cli, words: list[str], sent: str) -> None:
    cli("start", "counts", "--id", "c1")
    cli.wait_for("c1", "WAITING")
    cli("runs", "send", "c1", "end", *words)
    cli.wait_for("c1", "SUCCESS")
    assert cli("runs", "show", "c1", "--json").json["result"] == sent


@pytest.mark.parametrize("code", [True, False])
def test_the_answer_is_printed_as_json_and_an_id_asks_once(cli: Cli, code: bool) -> None:
    cli_shop.app.start("greets")
    (run,) = cli_shop.app.runs()
    holdfast = cli if code else cli.without_code
    assert holdfast("ask", run.id, "cli.hello", '{"ok": true}', "--id", "q").out == '{"ok": false}\n'
    assert holdfast("ask", run.id, "cli.hello", '{"ok": true}', "--id", "q").out == '{"ok": false}\n'
    said = holdfast("ask", run.id, "cli.hello", '{"ok": true}', "--json").json
    assert said == {"run_id": run.id, "request": "cli.hello", "answer": {"ok": True}}
    assert "only if you mean it" in holdfast("ask", run.id, "cli.hello", '{"ok": false}', code=4).err
    assert "has not answered" in holdfast("ask", run.id, "cli.hello", '{"ok": true}', "--timeout", "0s", code=4).err
    assert cli("ask", "nobody", "cli.hello", code=3).err
    if code:
        assert "takes Approval" in cli("ask", run.id, "cli.hello", "maybe", code=2).err
    run.terminate("over")
