"""Apps, steps and workflows: how they are defined, named, found and refused."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import functools
import importlib
import inspect
import linecache
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import process_steps
import pytest
from waiting import wait_until

import holdfast
from holdfast import (
    App,
    ArgumentError,
    DefinitionError,
    DuplicateNameError,
    FatalError,
    UnknownNameError,
    WrongContextError,
    this_step,
    wf,
)
from holdfast.default_app import default_app
from holdfast.testing import TestApp

# -- the four kinds of functions


def test_sync_and_async_functions_are_steps_and_workflows(app: App) -> None:
    @app.step
    def plain(n: int) -> int:
        return n + 1

    @app.step
    async def awaited(n: int) -> int:
        return n * 10

    @app.workflow
    async def async_one(n: int) -> int:
        return plain(n) + await awaited(n)

    @app.workflow
    def sync_one(n: int) -> int:
        return plain(n) + plain(n)

    with TestApp(app):
        assert async_one.start(2).result() == 23
        assert sync_one.start(2).result() == 6


def test_classes_with_call_are_steps_and_workflows(app: App) -> None:
    @app.step
    class Charge:
        def __init__(self) -> None:
            self.currency = "EUR"

        def __call__(self, amount: int) -> str:
            return f"{amount} {self.currency}"

    @app.step(max_retries=0)
    class Notify:
        async def __call__(self, text: str, *, loud: bool = False) -> str:
            return text.upper() if loud else text

    @app.workflow
    class Fulfil:
        async def __call__(self, amount: int) -> str:
            self.paid = Charge(amount)
            return await Notify(self.paid, loud=True)

    @app.workflow(name="refund")
    class Refund:
        def __call__(self, amount: int) -> str:
            return Charge(-amount)

    assert (Charge.name, Notify.name, Fulfil.name, Refund.name) == ("Charge", "Notify", "Fulfil", "refund")
    assert str(inspect.signature(Charge)) == "(amount: 'int') -> 'str'"
    with TestApp(app):
        assert Fulfil.start(3).result() == "3 EUR"
        assert Refund.start(3).result() == "-3 EUR"
        with pytest.raises(ArgumentError, match=r"Charge\(amount: 'int'\).*missing.*'amount'"):
            Charge.start()


def test_a_class_is_made_anew_for_every_execution(app: App) -> None:
    @app.step
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def __call__(self) -> int:
            self.count += 1
            return self.count

    @app.workflow
    class Twice:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def __call__(self) -> list[int]:
            self.seen.append(Counter())
            self.seen.append(Counter())
            return self.seen

    with TestApp(app):
        assert Twice.start().result() == [1, 1]
        assert Twice.start().result() == [1, 1]


def test_a_partial_or_callable_object_is_a_step_when_it_is_named(app: App) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        async def __call__(self, n: int) -> int:
            return n * self.factor

    add_five = app.step(name="add_five")(functools.partial(add, 5))
    double = app.step(name="double")(Scale(2))

    @app.workflow
    async def both(n: int) -> int:
        return add_five(n) + await double(n)

    with TestApp(app):
        assert both.start(1).result() == 8


def test_decorators_work_with_and_without_parentheses(app: App) -> None:
    @app.step
    def one() -> int:
        return 1

    @app.step()
    def two() -> int:
        return 2

    @app.step(max_retries=0)
    def three() -> int:
        return 3

    @app.workflow()
    def total() -> int:
        return one() + two() + three()

    @app.workflow(timeout="1h")
    def timed() -> int:
        return total()

    with TestApp(app):
        assert timed.start().result() == 6


def test_the_environment_names_the_build_before_the_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_VERSION", "abc123")
    assert App("versioned", version="1.0").build == App("versioned").build == "abc123"
    monkeypatch.setenv("HOLDFAST_VERSION", "")
    assert App("versioned", version="1.0").build == "1.0"


def test_the_package_has_the_same_decorators_on_a_default_app() -> None:
    @holdfast.step(name="default_app_step")
    def add(a: int, b: int) -> int:
        return a + b

    @holdfast.workflow(name="default_app_workflow")
    async def compute(a: int) -> int:
        return add(a, 1)

    @holdfast.workflow
    async def default_app_bare_workflow(a: int) -> int:
        return add(a, 2)

    assert default_app.store_url == "holdfast.db"
    with TestApp(default_app):
        assert compute.start(1).result() == 2
        assert default_app_bare_workflow.start(1).result() == 3


def test_a_run_that_waits_for_a_worker_says_how_its_app_is_called(tmp_path: Path) -> None:
    for name, said in (("shop", "with app.worker"), (default_app.name, "with default_app.worker")):
        app = App(name, str(tmp_path / f"{name}.db"))
        app.step(name="size")(abs)
        with pytest.raises(TimeoutError, match=said):
            app.start("size", -1).result(timeout=0.01)
        app.close()


# -- calls outside a run are plain calls


def test_outside_a_run_a_call_is_a_plain_call(app: App) -> None:
    @app.step
    def plain(n: int) -> int:
        return n + 1

    @app.step
    async def awaited(n: int) -> int:
        return n * 10

    @app.workflow
    async def flow(n: int) -> int:
        return plain(await awaited(n))

    assert plain(1) == 2
    assert asyncio.run(awaited(1)) == 10
    assert asyncio.run(flow(1)) == 11
    assert not Path("shop.db").exists()


def test_what_a_plain_call_keeps_is_gone_when_the_outermost_one_ends(app: App) -> None:
    @app.step
    def inner() -> tuple[str, Any]:
        return this_step.idempotency_key, wf.get_data("seen")

    @app.step
    def plain() -> tuple[Any, Any, Any]:
        before = wf.get_data("seen"), this_step.last_checkpoint
        wf.set_data("seen", True)
        this_step.checkpoint(3)
        return before, this_step.idempotency_key, inner()

    @app.step
    async def awaited() -> tuple[Any, Any, Any]:
        first = plain()
        await asyncio.sleep(0)
        assert (wf.get_data("seen"), this_step.last_checkpoint) == (True, 3)
        return first

    @app.workflow
    async def flow() -> tuple[Any, Any, Any]:
        return await awaited()

    async def both() -> list[Any]:
        return [await awaited(), *await asyncio.gather(awaited(), flow())]

    def look() -> None:
        wf.set_data("seen", "outside")
        calls = [plain(), plain(), *asyncio.run(both())]
        for before, key, called in calls:
            assert before == (None, None)
            assert called == (key, True)
        assert len({key for _, key, _ in calls}) == 5
        assert wf.get_data("seen") == "outside"

    contextvars.Context().run(look)


def test_a_plain_call_of_async_code_can_be_closed_cancelled_and_forgotten(app: App) -> None:
    @app.step
    async def awaited() -> None:
        await asyncio.sleep(60)

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(awaited(), 0.01)

    awaited().close()
    asyncio.run(cancelled())
    with pytest.warns(RuntimeWarning, match=r"awaited' was never awaited"):
        awaited()
    with pytest.raises(TypeError, match="positional argument"):
        awaited(1)  # type: ignore[call-arg]


def test_decorated_functions_keep_name_doc_and_signature(app: App) -> None:
    @app.step
    def charge(order: str, amount: int = 5) -> str:
        """Take the money."""
        return order

    assert charge.__name__ == "charge"
    assert charge.__doc__ == "Take the money."
    assert list(inspect.signature(charge).parameters) == ["order", "amount"]
    assert repr(charge) == "<step 'charge' of app 'shop'>"


def test_steps_are_pickled_by_where_they_are_found_and_a_copy_is_the_step_itself(app: App) -> None:
    @app.step
    def local() -> None: ...

    for found in (process_steps.pid_of, process_steps.async_pid_of):
        assert pickle.loads(pickle.dumps(found)) is found
        assert copy.deepcopy([found]) == [found]
    assert (copy.copy(local), copy.deepcopy(local)) == (local, local)
    with pytest.raises((pickle.PicklingError, AttributeError), match="local"):
        pickle.dumps(local)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(process_steps.pid_of).result() != os.getpid()


def test_async_steps_and_workflows_are_seen_as_coroutine_functions(app: App) -> None:
    @app.step
    async def awaited() -> None: ...

    @app.workflow
    async def flow() -> None: ...

    @app.step
    def plain() -> None: ...

    is_async = asyncio.iscoroutinefunction if sys.version_info < (3, 12) else inspect.iscoroutinefunction
    assert is_async(awaited)
    assert is_async(flow)
    assert not is_async(plain)


def test_a_step_called_in_a_step_is_a_plain_call(app: App) -> None:
    @app.step
    def inner(n: int) -> int:
        return n + 1

    @app.step
    def outer(n: int) -> int:
        return inner(n) * 10

    @app.workflow
    def flow() -> int:
        return outer(1)

    with TestApp(app) as world:
        run = flow.start()
        assert run.result() == 20
        assert [step.name for step in run.steps] == ["outer"]
        assert world.calls(inner) == []


# -- names


def test_names_default_to_the_function_and_can_be_given(app: App) -> None:
    @app.step
    def charge() -> None: ...

    @app.step(name="orders.charge")
    def other() -> None: ...

    assert charge.name == "charge"
    assert other.name == "orders.charge"


def test_what_is_defined_while_a_worker_runs_is_known_to_it(app: App) -> None:
    heard: list[int] = []
    with app.worker():

        @app.step
        def double(n: int) -> int:
            return 2 * n

        @app.workflow
        async def late(n: int) -> int:
            return double(n)

        assert late.start(2).result(timeout=10) == 4

        @app.on("Later")
        @app.step
        def hear(n: int) -> None:
            heard.append(n)

        wait_until(lambda: any("hear" in worker.names for worker in app.store.workers()))
        app.emit("Later", 5)
        wait_until(lambda: heard == [5])


def test_a_second_definition_of_a_name_shows_both_places(app: App) -> None:
    @app.step
    def charge() -> None: ...

    first = inspect.getsourcelines(charge.__wrapped__)[1]
    with pytest.raises(DuplicateNameError) as caught:

        @app.step(name="charge")
        def charge_again() -> None: ...

    second = inspect.currentframe().f_lineno - 3  # type: ignore[union-attr]
    text = str(caught.value)
    assert f"{__file__}:{first}" in text
    assert f"{__file__}:{second}" in text
    assert "name='...'" in text


def test_a_workflow_may_not_take_the_name_of_a_step(app: App) -> None:
    @app.step
    def charge() -> None: ...

    with pytest.raises(
        DuplicateNameError, match=r"app 'shop' has a step 'charge' at .*, and a workflow of that name at"
    ):

        @app.workflow(name="charge")
        def flow() -> None: ...


def test_the_same_name_in_two_apps_is_fine(app: App, tmp_path: Path) -> None:
    other = App("other", str(tmp_path / "other.db"))

    @app.step(name="charge")
    def ours() -> str:
        return "ours"

    @other.step(name="charge")
    def theirs() -> str:
        return "theirs"

    with TestApp(app), TestApp(other):
        assert ours.start().result() == "ours"
        assert theirs.start().result() == "theirs"


def test_a_lambda_needs_a_name(app: App) -> None:
    with pytest.raises(DefinitionError, match=r"lambda.*name='\.\.\.'"):
        app.step(lambda n: n)
    double = app.step(name="double")(lambda n: n * 2)
    with TestApp(app):
        assert double.start(2).result() == 4


def test_start_by_name_takes_workflows_and_steps(app: App) -> None:
    @app.step
    def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    def flow(a: int, *, b: int = 1) -> int:
        return add(a, b)

    with TestApp(app):
        assert app.start("flow", 1, b=4).result() == 5
        assert app.start("add", 1, 2).result() == 3
        assert asyncio.run(_start_and_wait(app)) == 3


async def _start_and_wait(app: App) -> int:
    run = await app.astart("add", 1, 2)
    return await run


def test_start_by_an_unknown_name_lists_the_known_ones(app: App) -> None:
    @app.workflow
    def fulfil() -> None: ...

    @app.step
    def refund() -> None: ...

    with TestApp(app):
        with pytest.raises(UnknownNameError) as caught:
            app.start("fulfill")
    assert str(caught.value) == "no workflow or step named 'fulfill' in app 'shop'; known: fulfil, refund"


def test_start_by_name_refuses_wrong_arguments_at_the_call(app: App) -> None:
    @app.workflow
    def fulfil(order: str) -> None: ...

    with TestApp(app):
        with pytest.raises(ArgumentError, match=r"fulfil\(order.*missing a required argument: 'order'"):
            app.start("fulfil")
        assert app.runs() == []


# -- bad definitions


@pytest.mark.parametrize("name", ["", "two words", "a/b", "1st", None, 5])
def test_an_app_has_a_plain_name(name: object) -> None:
    with pytest.raises(DefinitionError, match="letters, digits"):
        App(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_retries": -1}, "max_retries=-1: give a number of 0 or more"),
        ({"max_retries": True}, "max_retries=True"),
        ({"max_retries": "three"}, "max_retries='three'"),
        ({"max_losses": -1}, "max_losses=-1"),
        ({"retry_delay": "soon"}, "retry_delay: cannot read 'soon'; .*'exponential'"),
        ({"retry_delay": []}, "at least one delay"),
        ({"retry_delay": -1}, "retry_delay: -1 is negative"),
        ({"retry_jitter": 2}, "retry_jitter=2.*between 0 and 1"),
        ({"retry_jitter": "much"}, "retry_jitter='much'"),
        ({"retry_max_delay": "never"}, "retry_max_delay: cannot read 'never'"),
        ({"timeout": "soon"}, "timeout: cannot read 'soon'; give seconds as a number"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("inf")}, "timeout: inf is not a finite duration"),
        ({"stall_timeout": "x"}, "stall_timeout: cannot read 'x'"),
        ({"retry_for": [ValueError, "KeyError"]}, "retry_for: 'KeyError' is not an exception class"),
        ({"retry_for": 5}, "retry_for=5"),
        ({"no_retry_for": (int,)}, "no_retry_for: <class 'int'> is not an exception class"),
        ({"retry_for": [SystemExit]}, "retry_for: SystemExit is never retried, as it is no Exception"),
        ({"retry_for": [OSError, FatalError]}, "retry_for: FatalError is a FatalError, which is never retried"),
        ({"pool": "fibre"}, "pool='fibre': give 'thread' or 'process'"),
        ({"max_retry": 5}, "max_retry.*did you mean 'max_retries'"),
        ({"name": ""}, "name=''"),
        ({"name": 5}, "name=5"),
        ({"name": "a\nb"}, "name="),
    ],
)
def test_bad_step_options_are_refused_where_they_are_written(app: App, options: dict[str, object], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):

        @app.step(**options)
        def step() -> None: ...


def test_an_exception_that_a_process_can_not_find_is_refused_where_it_would_never_match(app: App) -> None:
    class Local(Exception):
        pass

    for option in ("retry_for", "no_retry_for"):
        with pytest.raises(DefinitionError, match=rf"{option}: .*Local is made in a function.*top of a module"):
            app.step(pool="process", **{option: [Local]})  # type: ignore[call-overload]
        app.step(name=option, **{option: [Local]})(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_retries": -1}, "max_retries=-1"),
        ({"retry_delay": "soon"}, "retry_delay: cannot read 'soon'"),
        ({"retry_for": ["X"]}, "retry_for: 'X' is not an exception class"),
        ({"timeout": "soon"}, "timeout: cannot read 'soon'"),
        ({"retain": "long"}, "retain: cannot read 'long'"),
        ({"durable": "yes"}, "durable='yes': give True or False"),
        ({"pool": "process"}, "pool.*known: .*max_retries"),
        ({"name": ""}, "name=''"),
    ],
)
def test_bad_workflow_options_are_refused_where_they_are_written(
    app: App, options: dict[str, object], words: str
) -> None:
    with pytest.raises(DefinitionError, match=words):

        @app.workflow(**options)
        def flow() -> None: ...


def test_generators_can_be_neither_steps_nor_workflows(app: App) -> None:
    def numbers():  # type: ignore[no-untyped-def]
        yield 1

    async def later():  # type: ignore[no-untyped-def]
        yield 1

    for function in (numbers, later):
        with pytest.raises(DefinitionError, match=r"a generator can't be one; return a list"):
            app.step(function)
        with pytest.raises(DefinitionError, match="generator"):
            app.workflow(function)


def test_what_is_not_a_function_is_refused(app: App) -> None:
    class NoCall:
        pass

    with pytest.raises(DefinitionError, match="5 is not a function or a class"):
        app.step(5)  # type: ignore[call-overload]
    with pytest.raises(DefinitionError, match=r"NoCall: a class needs a __call__ method"):
        app.workflow(NoCall)


def test_a_class_that_needs_arguments_to_be_made_is_refused(app: App) -> None:
    class Client:
        def __init__(self, url: str) -> None:
            self.url = url

        def __call__(self) -> str:
            return self.url

    with pytest.raises(DefinitionError, match=r"Client.*__init__.*'url'.*app\.step\(.*Client\(\.\.\.\)\)"):
        app.step(Client)


def test_a_method_is_refused_when_it_is_used(app: App) -> None:
    class Service:
        @app.step
        def charge(self) -> None: ...

    with pytest.raises(DefinitionError, match="'charge' is defined in a class; define it at the top of a module"):
        Service().charge()


def test_decorating_twice_is_refused(app: App) -> None:
    @app.step
    def charge() -> None: ...

    with pytest.raises(
        DefinitionError, match="<step 'charge' of app 'shop'> can't be made a workflow too; decorate a function once"
    ):
        app.workflow(charge)


# -- include


def test_included_modules_are_imported_when_a_name_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: App
) -> None:
    (tmp_path / "shop_extras.py").write_text(
        "from __future__ import annotations\n"
        "from holdfast.core.registry import find_app\n"
        "app = find_app('shop_with_extras')\n"
        "@app.workflow\n"
        "def wrap(n: int) -> str:\n"
        "    return f'<{n}>'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    extended = App("shop_with_extras", str(tmp_path / "x.db"), include=["shop_extras"])
    assert "shop_extras" not in sys.modules
    with TestApp(extended):
        assert extended.start("wrap", 5).result() == "<5>"
    monkeypatch.delitem(sys.modules, "shop_extras")


def test_a_module_that_cannot_be_included_is_an_error_each_time(tmp_path: Path) -> None:
    app = App("x", str(tmp_path / "x.db"), include=["no_such_module_of_this_shop"])
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_module_of_this_shop"):
            app.start("flow")


def test_include_takes_a_list_of_names(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"include='orders': give a list"):
        App("x", str(tmp_path / "x.db"), include="orders")


def test_a_function_of_another_app_is_refused_in_workflow_code(app: App, tmp_path: Path) -> None:
    other = App("other", str(tmp_path / "other.db"))

    @other.step
    def theirs() -> int:
        return 1

    @app.workflow
    def flow() -> int:
        return theirs()

    with TestApp(app):
        with pytest.raises(WrongContextError, match="'theirs' belongs to app 'other', but this run to 'shop'"):
            flow.start().result()


# -- the app itself


def test_the_store_defaults_to_a_file_of_the_apps_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    app = App("orders")
    assert app.store_url == "orders.db"
    assert repr(app) == "<App 'orders' on orders.db>"

    @app.workflow
    def flow() -> None: ...

    flow.start()
    app.close()
    assert (tmp_path / "orders.db").is_file()


def test_the_environment_can_name_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", str(tmp_path / "elsewhere.db"))
    assert App("orders", "orders.db").store_url == str(tmp_path / "elsewhere.db")


def test_the_version_names_the_build_and_else_the_code_does(app: App, tmp_path: Path) -> None:
    assert App("x", version="2024-05").build == "2024-05"

    @app.workflow
    def flow() -> None: ...

    assert len(app.build) == 12


def test_a_function_that_defines_a_step_each_time_it_is_called_defines_two(app: App) -> None:
    def adder(n: int) -> object:
        @app.step
        def add(x: int) -> int:
            return x + n

        return add

    adder(1)
    with pytest.raises(DuplicateNameError, match=r"has a step 'add' at .*already, where it is defined once more; give"):
        adder(2)


BASE = "from holdfast import App, every\napp = App('shop', ':memory:')\n"
CHARGE = "@app.step\ndef charge(n): return n\n"
FLOW = "@app.workflow(schedule=every('{}'))\nasync def flow(n=1): return charge(n)\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Writes a module, and imports or reloads it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file of the same size, within a second, is another one
    (tmp_path / "edited_base.py").write_text(BASE)

    def load(source: str) -> Any:
        (tmp_path / "edited_shop.py").write_text(f"from edited_base import app, every\n{source}")
        importlib.invalidate_caches()
        linecache.checkcache()
        known = sys.modules.get("edited_shop")
        return importlib.reload(known) if known is not None else importlib.import_module("edited_shop")

    yield load
    for name in ("edited_shop", "edited_base"):
        sys.modules.pop(name, None)


def test_a_module_that_was_edited_can_be_reloaded(module: Callable[[str], Any]) -> None:
    module(CHARGE + FLOW.format("1h"))
    again = module("# a line more\n" + CHARGE.replace("return n", "return n + 1") + FLOW.format("2h"))
    with TestApp(again.app, schedules=False):
        assert again.flow.start(1).result() == 2


def test_two_of_one_name_in_one_file_are_refused_also_when_it_is_reloaded(module: Callable[[str], Any]) -> None:
    twice = CHARGE + "\n" + CHARGE
    for _ in range(2):
        with pytest.raises(DuplicateNameError, match=r"has a step 'charge' at .*:\d+, and another one at .*:\d+; give"):
            module(twice)


@pytest.mark.parametrize("name", ["<stdin>", "<ipython-input-{}>", "/tmp/ipykernel_1/{}.py"])
def test_who_works_in_a_console_or_notebook_defines_things_again(name: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}

    def enter(number: int, source: str) -> None:
        exec(compile(source, name.format(number), "exec"), names)

    enter(1, BASE + CHARGE + FLOW.format("1h"))
    enter(2, CHARGE.replace("return n", "return n + 1"))
    enter(3, FLOW.format("2h").replace("charge(n)", "charge(n) * 10"))
    with TestApp(names["app"], schedules=False):
        assert names["flow"].start(1).result() == 20


def test_what_another_file_defines_under_the_same_name_is_refused(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate([BASE + CHARGE, CHARGE]):
        path = tmp_path / f"shop_{number}.py"
        path.write_text(source)
        with pytest.raises(DuplicateNameError) if number else contextlib.nullcontext():
            exec(compile(source, path, "exec"), names)


def test_a_worker_tells_of_annotations_that_cannot_be_evaluated(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.workflow
    def flow(order: Order) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with app.worker():
        pass
    told = [record.getMessage() for record in caplog.records if "annotation" in record.getMessage()]
    assert len(told) == 1
    assert "the annotation 'Order' of parameter 'order' of" in told[0]
    assert "import what it names at run time, not under TYPE_CHECKING" in told[0]
