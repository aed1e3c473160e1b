"""Hooks: a workflow waits, somebody outside answers."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import (
    App,
    DefinitionError,
    EncodeError,
    HookError,
    HookNotFoundError,
    HookPayloadError,
    HookTokenError,
    RunFinishedError,
    RunNotFoundError,
    Sent,
    WrongContextError,
    define_hook,
    hook,
    sleep,
    wf,
)
from holdfast.testing import TestApp


class Decision(pydantic.BaseModel):
    approved: bool
    by: str
    amount: int = pydantic.Field(default=0, ge=0)


@dataclass
class Delivery:
    parcel: str
    at: dt.datetime
    weights: list[float]


class Note(msgspec.Struct):
    text: str


decision = define_hook("verdict", payload=Decision)
delivery = define_hook("delivery", payload=Delivery)
note = define_hook("note", payload=Note)
count = define_hook("count", payload=int)


# -- asking and answering


def test_a_workflow_waits_until_somebody_sends(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        return await hook("approval")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        assert (run.status, run.reason) == ("WAITING", "hook 'approval'")
        run.send("approval", {"ok": True, "by": "me"})
        assert run.result() == {"ok": True, "by": "me"}
        assert world.kinds(run) == ["RunStarted", "HookOpened", "HookReceived", "RunCompleted"]


def test_a_def_workflow_asks_in_a_plain_call(app: App) -> None:
    @app.workflow
    def flow() -> Any:
        return wf.hook("approval", key="order-1")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        app.send_hook(key="order-1", payload=5)
        assert run.result() == 5


def test_a_payload_may_be_nothing(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        return [await hook("go")]

    with TestApp(app):
        run = flow.start()
        run.send("go")
        assert run.result() == [None]


def test_nobody_within_the_timeout_raises_timeout_error(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        try:
            await hook("approval", timeout="2d")
        except TimeoutError as error:
            return str(error)
        return ""

    with TestApp(app) as world:
        begin = world.now
        assert flow.start().result() == "nobody answered hook 'approval' within 2d"
        assert world.now - begin == dt.timedelta(days=2)


def test_an_answer_before_the_timeout_ends_it(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        found = await hook("approval", timeout="2d")
        await sleep("10d")
        return found

    with TestApp(app) as world:
        begin = world.now
        run = flow.start()
        world.advance("1d")
        run.send("approval", "yes")
        assert run.result() == "yes"
        assert world.now - begin == dt.timedelta(days=11)


def test_payloads_that_come_before_the_workflow_asks_are_kept_in_order(app: App) -> None:
    @app.workflow
    async def flow() -> list[Any]:
        await sleep("1h")
        return [await hook("item") for _ in range(3)] + [await hook("other")]

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        for item in (1, 2):
            run.send("item", item)
        run.send("other", "o")
        run.send("item", 3)
        assert run.result() == [1, 2, 3, "o"]


def test_payloads_sent_before_a_worker_runs_are_kept_too(app: App) -> None:
    @app.workflow
    async def flow() -> list[Any]:
        return [await hook("item"), await hook("item")]

    run = flow.start()
    run.send("item", "a")
    run.send("item", "b")
    with app.worker():
        assert run.result(timeout=10) == ["a", "b"]


def test_several_hooks_of_one_name_are_answered_first_come_first_served(app: App) -> None:
    @app.workflow
    async def flow() -> list[Any]:
        return list(await asyncio.gather(hook("item"), hook("item"), hook("item")))

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        for item in "abc":
            run.send("item", item)
        assert run.result() == ["a", "b", "c"]


def test_hooks_race_and_the_loser_stays_unanswered(app: App) -> None:
    @app.workflow
    async def flow() -> str:
        approve, reject = (asyncio.ensure_future(hook(name)) for name in ("approve", "reject"))
        done, pending = await asyncio.wait([approve, reject], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return str(done.pop().result())

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        run.send("reject", "no")
        assert run.result() == "no"


def test_a_hook_that_timed_out_leaves_a_late_answer_for_the_next_one_who_asks(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        try:
            return await hook("approval", timeout="1h")
        except TimeoutError:
            await sleep("1h")
            return ["second", await hook("approval")]

    with TestApp(app) as world:
        run = flow.start()
        world.advance("90m")
        run.send("approval", "late")
        assert run.result() == ["second", "late"]


# -- keys


def test_a_key_is_an_address_that_others_know(app: App) -> None:
    @app.workflow
    async def flow(order: str) -> Any:
        return await hook("paid", key=order)

    with TestApp(app) as world:
        one, two = flow.start("o-1"), flow.start("o-2")
        world.settle()
        assert one.reason == "hook 'paid' key 'o-1'"
        app.send_hook(key="o-2", payload="second")
        assert two.result() == "second"
        assert one.status == "WAITING"
        one.send("paid", "direct", key="o-1")
        assert one.result() == "direct"


def test_a_payload_for_another_key_does_not_answer(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        return [await hook("paid", key="b"), await hook("paid", key="a"), await hook("paid")]

    with TestApp(app):
        run = flow.start()
        run.send("paid", 1, key="a")
        run.send("paid", 2)
        run.send("paid", 3, key="b")
        assert run.result() == [3, 1, 2]


def test_an_unknown_key_is_a_clear_error(app: App) -> None:
    @app.workflow
    async def flow() -> Any:
        return await hook("paid", key="o-1")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        with pytest.raises(HookNotFoundError, match="no run of app 'shop' waits for a hook with key 'o-9'"):
            app.send_hook(key="o-9")
        app.send_hook(key="o-1")
        run.result()
        with pytest.raises(HookNotFoundError, match="key 'o-1'"):
            app.send_hook(key="o-1")


def test_a_key_is_free_again_when_its_hook_timed_out_or_its_run_was_cancelled(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        try:
            await hook("paid", key="o-1", timeout="1h")
        except TimeoutError:
            await hook("paid", key="o-2")

    with TestApp(app) as world:
        run = flow.start()
        world.advance("1h")
        with pytest.raises(HookNotFoundError):
            app.send_hook(key="o-1")
        run.cancel()
        world.settle()
        with pytest.raises(HookNotFoundError):
            app.send_hook(key="o-2")


@pytest.mark.parametrize("key", ["o%' OR 1=1", "ключ", "a\nb", "x" * 200])
def test_keys_may_be_any_text(app: App, key: str) -> None:
    @app.workflow
    async def flow(key: str) -> Any:
        return await hook("paid", key=key)

    with TestApp(app) as world:
        run = flow.start(key)
        other = flow.start(key[:-1] + "?")
        world.settle()
        app.send_hook(key=key, payload="found")
        assert run.result() == "found"
        assert other.status == "WAITING"


def test_a_key_that_is_too_long_to_be_found_is_refused(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("paid", key="x" * 201)

    with TestApp(app):
        with pytest.raises(DefinitionError, match="a key is a text of 1 to 200 characters"):
            flow.start().result()


def test_several_hooks_may_wait_with_one_key_and_are_told_apart_by_name(app: App) -> None:
    @app.workflow
    async def flow() -> list[Any]:
        paid, cancelled = (asyncio.ensure_future(hook(name, key="o-1")) for name in ("paid", "cancelled"))
        return [await cancelled, await paid]

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        with pytest.raises(
            HookError, match="hooks cancelled, paid wait with key 'o-1'; say which is meant, with name="
        ):
            app.send_hook(key="o-1", payload=1)
        with pytest.raises(HookNotFoundError, match="waits for hook 'refunded' with key 'o-1'"):
            app.send_hook(key="o-1", name="refunded")
        app.send_hook(key="o-1", name="paid", payload="p")
        world.settle()
        app.send_hook(key="o-1", payload="c")
        assert run.result() == ["c", "p"]


def test_the_number_of_a_hook_is_not_its_key(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("paid")

    with TestApp(app) as world:
        run = flow.start()
        world.settle()
        number = next(event.cmd for event in run.history() if event.kind == "HookOpened")
        with pytest.raises(HookNotFoundError):
            app.send_hook(key=number)


# -- tokens


def waiting_run(app: App, **options: Any) -> Any:
    @app.workflow
    async def ask() -> Any:
        pending = hook("approval", **options)
        wf.set_data("token", pending.token)
        return await pending

    return ask


def test_a_token_for_a_link_answers_its_hook(app: App) -> None:
    ask = waiting_run(app)
    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        token = run.data["token"]
        assert all(c.isalnum() or c in "-_" for c in token), "fit for a URL"
        app.send_hook(token, {"ok": True})
        assert run.result() == {"ok": True}


def test_a_token_is_the_same_on_replay(app: App) -> None:
    tokens: list[str] = []

    @app.step
    def mail(token: str) -> None: ...

    @app.workflow
    async def ask() -> Any:
        pending = hook("approval", timeout="1d")
        tokens.append(pending.token)
        mail(pending.token)
        return await pending

    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        world.replay(run)
        assert len(set(tokens)) == 1
        app.send_hook(tokens[0], "yes")
        assert run.result() == "yes"


def test_an_altered_token_is_refused(app: App) -> None:
    ask = waiting_run(app)
    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        token = run.data["token"]
        data = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        for place in (0, 20, len(data) - 3):
            altered = bytearray(data)
            altered[place] ^= 1
            text = base64.urlsafe_b64encode(altered).decode().rstrip("=")
            with pytest.raises(HookTokenError, match="was altered, or made by another store; ask for a new link"):
                app.send_hook(text, "evil")
        for junk in ("", "x", "not a token", "é" * 20, token[:-5], token + "AAAA"):
            with pytest.raises(HookTokenError, match="was altered"):
                app.send_hook(junk, "evil")
        assert run.status == "WAITING"


def test_a_token_expires_with_its_hook(app: App) -> None:
    ask = waiting_run(app, timeout="1h")
    with TestApp(app, check_replay=False) as world:
        run = ask.start()
        world.settle()
        token = run.data["token"]
        world.advance("61m")
        with pytest.raises(HookTokenError, match="for hook 'approval' has expired; ask for a new link"):
            app.send_hook(token, "late")


def test_without_a_timeout_a_token_lives_for_thirty_days(app: App) -> None:
    ask = waiting_run(app)
    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        world.advance("29d")
        app.send_hook(run.data["token"], "in time")
        assert run.result() == "in time"
        run = ask.start()
        world.settle()
        world.advance("31d")
        with pytest.raises(HookTokenError, match="expired"):
            app.send_hook(run.data["token"], "late")


def test_a_token_of_another_app_is_refused_even_on_the_same_store(app: App, tmp_path: Path) -> None:
    other = App("other", str(tmp_path / "shop.db"))
    ask = waiting_run(app)
    run = ask.start()
    with app.worker():
        deadline = 200
        while "token" not in run.data and deadline:
            deadline -= 1
            with pytest.raises(TimeoutError):
                run.result(timeout=0.02)
        with pytest.raises(HookTokenError, match="this token is for app 'shop', not 'other'"):
            other.send_hook(run.data["token"], "evil")
        app.send_hook(run.data["token"], "good")
        assert run.result(timeout=10) == "good"
    other.close()


def test_a_token_of_another_store_is_refused(app: App) -> None:
    ask = waiting_run(app)
    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        token = run.data["token"]
    with TestApp(app):
        with pytest.raises(HookTokenError, match="made by another store"):
            app.send_hook(token, "evil")


def test_a_token_is_good_for_one_answer(app: App) -> None:
    @app.workflow
    async def ask() -> list[Any]:
        pending = hook("approval")
        wf.set_data("token", pending.token)
        first = await pending
        await sleep("1h")
        try:
            return [first, await hook("approval", timeout="1h")]
        except TimeoutError:
            return [first, "nothing more"]

    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        token = run.data["token"]
        app.send_hook(token, "first")
        world.settle()
        with pytest.raises(HookTokenError, match="was used already"):
            app.send_hook(token, "second")
        assert run.result() == ["first", "nothing more"]


def test_of_two_answers_at_once_one_counts(app: App) -> None:
    @app.workflow
    async def ask() -> list[Any]:
        pending = hook("approval")
        wf.set_data("token", pending.token)
        first = await pending
        try:
            return [first, await hook("approval", timeout="1h")]
        except TimeoutError:
            return [first, "nothing more"]

    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        run.pause()
        world.settle()
        token = run.data["token"]
        app.send_hook(token, "first")
        with pytest.raises(HookTokenError, match="was used already; it is good for one answer"):
            app.send_hook(token, "second")
        run.resume()
        assert run.result() == ["first", "nothing more"]


def test_a_token_answers_its_own_hook_and_no_other_of_the_name(app: App) -> None:
    @app.workflow
    async def ask() -> list[Any]:
        one, two = hook("approval"), hook("approval")
        wf.set_data("tokens", [one.token, two.token])
        return list(await asyncio.gather(one, two))

    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        first, second = run.data["tokens"]
        app.send_hook(second, "for two")
        app.send_hook(first, "for one")
        assert run.result() == ["for one", "for two"]


def test_send_hook_takes_a_token_or_a_key(app: App) -> None:
    with TestApp(app):
        with pytest.raises(TypeError, match=r"takes a token or a key .*, and not both"):
            app.send_hook()
        with pytest.raises(TypeError, match=r"takes a token or a key .*, and not both"):
            app.send_hook("t", key="k")


# -- typed payloads


@pytest.mark.parametrize(
    ("definition", "given", "received"),
    [
        (decision, {"approved": True, "by": "me"}, Decision(approved=True, by="me")),
        (decision, Decision(approved=False, by="you", amount=3), Decision(approved=False, by="you", amount=3)),
        (
            delivery,
            {"parcel": "p", "at": "2030-01-01T00:00:00Z", "weights": [1, 2.5]},
            Delivery("p", dt.datetime(2030, 1, 1, tzinfo=dt.UTC), [1.0, 2.5]),
        ),
        (note, {"text": "hello"}, Note("hello")),
        (count, 5, 5),
    ],
)
def test_payloads_arrive_as_the_hooks_type(app: App, definition: Any, given: Any, received: Any) -> None:
    seen: list[Any] = []

    @app.workflow
    async def flow() -> None:
        seen.append(await definition(timeout="1d"))

    with TestApp(app, check_replay=False):
        run = flow.start()
        run.send(definition.name, given)
        run.result()
    assert seen == [received]
    assert type(seen[0]) is type(received)


def test_a_hook_by_its_name_alone_gets_the_defined_type_too(app: App) -> None:
    seen: list[Any] = []

    @app.workflow
    async def flow() -> None:
        seen.append(await hook("verdict"))

    with TestApp(app, check_replay=False):
        run = flow.start()
        run.send("verdict", {"approved": True, "by": "me"})
        run.result()
    assert seen == [Decision(approved=True, by="me")]


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("verdict", {"approved": "perhaps", "by": "me"}, "hook 'verdict' takes Decision: .*approved"),
        ("verdict", {"approved": True}, "(?s)hook 'verdict' takes Decision: .*by"),
        ("verdict", {"approved": True, "by": "me", "amount": -1}, "hook 'verdict' takes Decision: .*amount"),
        ("verdict", 5, "hook 'verdict' takes Decision"),
        ("delivery", {"parcel": "p"}, "hook 'delivery' takes Delivery: .*at"),
        ("delivery", {"parcel": "p", "at": "soon", "weights": []}, "hook 'delivery' takes Delivery: .*at"),
        ("count", "five", "hook 'count' takes int"),
        ("note", None, "hook 'note' takes Note"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_when_it_is_sent(app: App, name: str, payload: Any, words: str) -> None:
    @app.workflow
    async def flow(name: str) -> None:
        await hook(name)

    with TestApp(app) as world:
        run = flow.start(name)
        world.settle()
        with pytest.raises(HookPayloadError, match=words):
            run.send(name, payload)
        assert "HookReceived" not in world.kinds(run)


def test_an_untyped_payload_that_cannot_be_recorded_is_refused(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("approval")

    with TestApp(app):
        run = flow.start()
        with pytest.raises(EncodeError, match=r"the payload of hook 'approval': \$\.x"):
            run.send("approval", {"x": object()})


def test_one_name_has_one_type_of_payload() -> None:
    with pytest.raises(
        DefinitionError, match=r"hook 'count' is defined with payload .*int.* already; use another name"
    ):
        define_hook("count", payload=str)
    assert repr(define_hook("count", payload=int)) == "<hook 'count' of <class 'int'>>"


def test_a_hook_needs_a_name(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("")

    with TestApp(app):
        with pytest.raises(DefinitionError, match="give the hook a name"):
            flow.start().result()
    with pytest.raises(DefinitionError, match="give the hook a name"):
        define_hook("", payload=int)


# -- where it can't work


def test_sending_to_a_finished_run_is_a_clear_error(app: App) -> None:
    @app.workflow
    async def flow() -> None: ...

    with TestApp(app):
        run = flow.start()
        run.result()
        with pytest.raises(
            RunFinishedError, match=rf"hook 'approval' can't be sent: run {run.id} has ended \(SUCCESS\)"
        ):
            run.send("approval", 1)


def test_sending_to_an_unknown_run_is_a_clear_error(app: App) -> None:
    @app.workflow
    async def flow() -> None:
        await hook("x")

    with TestApp(app) as world:
        run = flow.start()
        run.cancel()
        world.settle()
        run.delete()
        with pytest.raises(RunNotFoundError, match=rf"hook 'approval' can't be sent: no run '{run.id}' in app 'shop'"):
            run.send("approval", 1)


def test_a_token_of_a_run_that_has_ended_is_a_clear_error(app: App) -> None:
    ask = waiting_run(app)
    with TestApp(app) as world:
        run = ask.start()
        world.settle()
        token = run.data["token"]
        run.cancel()
        world.settle()
        with pytest.raises(RunFinishedError, match="CANCELLED"):
            app.send_hook(token, 1)


def test_a_hook_outside_a_run_names_the_test_app() -> None:
    with pytest.raises(WrongContextError, match=r"hook\('approval'\) works in a run; in a test, use holdfast\.testing"):
        hook("approval")


def test_async_twins_send_too(app: App) -> None:
    @app.workflow
    async def flow() -> list[Any]:
        return [await hook("a"), await hook("b", key="k")]

    async def main() -> list[Any]:
        async with TestApp(app) as world:
            run = await flow.astart()
            await run.asend("a", 1)
            await world.asettle()
            await app.asend_hook(key="k", payload=2)
            return await run

    assert asyncio.run(main()) == [1, 2]


# -- what nobody waits for


def test_sending_says_whether_the_run_waited_for_it(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.workflow
    async def order() -> str:
        return str(await hook("approval", key="c066"))

    with TestApp(app) as world:
        run = order.options(id="o-1").start()
        world.settle()
        for name, key in (("aproval", "c066"), ("approval", None), ("approval", "c06")):
            sent = run.send(name, 1, key=key)
            assert sent.awaited is False
            what = f"hook {name!r}" + (f" key {key!r}" if key else "")
            assert sent.note == (
                f"{what} is kept until run o-1 asks for it; now it waits for hook 'approval' key 'c066', so look at name and key"
            )
            assert caplog.messages[-1] == sent.note
            world.settle()
        assert len(caplog.messages) == 3
        assert run.send("approval", "yes", key="c066") == Sent(True)
        assert run.result() == "yes"
    assert len(caplog.messages) == 3


def test_what_is_sent_ahead_of_its_time_is_no_warning(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.workflow
    async def order() -> str:
        await sleep("1d")
        return str(await hook("approval"))

    with TestApp(app) as world:
        run = order.options(id="o-1").start()
        assert run.send("first", 1) == Sent(None)  # nobody has begun with it
        world.settle()
        assert run.send("approval", "early") == Sent(
            False, "hook 'approval' is kept until run o-1 asks for it; now it waits for sleep"
        )
        assert run.result() == "early"
    assert caplog.messages == []


def test_two_apps_may_have_hooks_of_one_name_with_payloads_of_their_own(app: App) -> None:
    other = App("other", ":memory:")
    mine, theirs = app.define_hook("verdict", int), other.define_hook("verdict", str)
    for each, definition in ((app, mine), (other, theirs)):

        @each.workflow(name="decides")
        async def decides(hook: Any = definition) -> Any:
            return await hook()

        with TestApp(each):
            run = each.start("decides")
            good, bad = (1, "no") if each is app else ("yes", 2)
            with pytest.raises(HookPayloadError, match="hook 'verdict' takes"):
                run.send("verdict", bad)
            run.send("verdict", good)
            assert run.result() == good
