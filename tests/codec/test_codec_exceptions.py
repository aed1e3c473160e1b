"""An exception raised elsewhere is raised here: same class, same state, its traceback in view."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import sys
import traceback
import urllib.error
from decimal import Decimal
from typing import Any

import attrs
import codec_models as m
import pydantic
import pytest

from holdfast import errors
from holdfast.codec import Codec, RemoteTraceback
from holdfast.codec.exceptions import own_frames
from holdfast.errors import DecodeError, EncodeError, StepError


@pytest.fixture
def codec() -> Codec:
    codec = Codec()
    codec.types.register(m.Order)
    return codec


def raised(exc: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is not None:
            raise exc from cause
        raise exc
    except BaseException as caught:
        return caught


def there_and_back(codec: Codec, exc: BaseException) -> BaseException:
    return codec.decode_error(codec.encode_error(exc))


def state(exc: BaseException) -> dict[str, Any]:
    return {k: v for k, v in vars(exc).items() if k != "__holdfast_traceback__"}


HOLDFAST = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)]


@pytest.mark.parametrize("cls", [c for c in HOLDFAST if issubclass(c, Exception)], ids=lambda cls: cls.__name__)
def test_every_error_of_holdfast_comes_back_with_its_fields(codec: Codec, cls: Any) -> None:
    fields = inspect.getfullargspec(cls.__init__).kwonlyargs if inspect.isfunction(cls.__init__) else []
    exc = cls("what happened", **{name: 5 if name == "retry_after" else f"some {name}" for name in fields})
    again = there_and_back(codec, raised(exc))
    assert type(again) is cls
    assert (again.args, str(again), state(again)) == (exc.args, str(exc), state(exc))


def os_error() -> OSError:
    try:
        open("/no/such/file")  # noqa: SIM115
    except OSError as exc:
        return exc
    raise AssertionError


def decode_error() -> UnicodeDecodeError:
    try:
        b"a\xff".decode()
    except UnicodeDecodeError as exc:
        return exc
    raise AssertionError


def syntax_error() -> SyntaxError:
    try:
        compile("a b", "some.py", "exec")
    except SyntaxError as exc:
        return exc
    raise AssertionError


@attrs.define
class AttrsError(Exception):
    code: int
    detail: str = "x"


ORDINARY = [
    ValueError("bad"),
    ValueError(),
    ValueError("a", 1, (2, b"x")),
    KeyError("key"),
    os_error(),
    OSError("only text"),
    ConnectionRefusedError(111, "refused"),
    FileExistsError(17, "exists", "a", None, "b"),
    decode_error(),
    UnicodeEncodeError("ascii", "ü", 0, 1, "why"),
    syntax_error(),
    ImportError("no", name="x", path="/y"),
    ModuleNotFoundError("no", name="x"),
    AttributeError("no", name="x", obj=object()),
    NameError("no", name="x"),
    TimeoutError(),
    m.AppError(code=3, order=m.Order(1)),
    m.SlotError("slots", None),
    m.OwnNewError(1, 2),
    m.OwnNewError.InnerError("nested class"),
    AttrsError(3),
    urllib.error.URLError("down"),
    json.JSONDecodeError("bad", "doc", 1),
    asyncio.IncompleteReadError(b"x", 5),
    asyncio.QueueFull(),
]


@pytest.mark.parametrize("exc", ORDINARY, ids=lambda exc: type(exc).__name__)
def test_an_exception_comes_back_whatever_its_constructor_asks_for(codec: Codec, exc: Exception) -> None:
    again = there_and_back(codec, raised(exc))
    assert type(again) is type(exc)
    assert (again.args, str(again), state(again)) == (exc.args, str(exc), state(exc))
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "start", "end", "object", "lineno",
                 "text", "where", "sum", "code", "reason", "pos", "partial"):  # fmt: skip
        assert getattr(again, name, None) == getattr(exc, name, None)


class OddError(Exception):
    pass


def local_error() -> Exception:
    class LocalError(Exception):
        pass

    return LocalError("local")


@pytest.mark.parametrize(
    "exc",
    [
        StopIteration(1), StopAsyncIteration(), GeneratorExit(), asyncio.CancelledError("c"), KeyboardInterrupt(),
        SystemExit(3), local_error(), m.UnprintableError(), errors.Suspended(),
        errors.ContinueAsNew((1,), {}), m.BrokenOnceRebuiltError(m.Handle(1)),
        BaseExceptionGroup("b", [KeyboardInterrupt()]), type("Stop", (StopIteration,), {})(),
    ],
    ids=lambda exc: type(exc).__name__,
)  # fmt: skip
def test_what_cannot_or_must_not_be_rebuilt_becomes_a_step_error(codec: Codec, exc: BaseException) -> None:
    again = there_and_back(codec, raised(exc))
    assert type(again) is StepError
    cls = type(exc)
    assert again.type_name == f"{cls.__module__}:{cls.__qualname__}"
    assert cls.__name__ in again.traceback
    if not isinstance(exc, m.UnprintableError | BaseExceptionGroup):
        assert str(again) == f"{cls.__name__}: {exc}".removesuffix(": ")
    twice = there_and_back(codec, again)
    assert (type(twice), str(twice), state(twice)) == (StepError, str(again), state(again))


def test_a_class_whose_module_is_not_loaded_is_not_imported(codec: Codec) -> None:
    sys.modules.pop("wave", None)
    again = codec.decode_error(b'{"type":"wave:Error","message":"bad header","args":["bad header"]}')
    assert type(again) is StepError
    assert (str(again), again.type_name) == ("Error: bad header", "wave:Error")
    assert "wave" not in sys.modules


@pytest.mark.parametrize(
    "name",
    ["os:system", "builtins:object", "builtins:Exception.mro", "builtins:KeyboardInterrupt", "builtins:", ":", "x",
     "no.such:Thing", "builtins:nope", "holdfast.codec.codec:Codec.encode", ""],
)  # fmt: skip
def test_only_exception_classes_are_ever_made(codec: Codec, name: str) -> None:
    again = codec.decode_error(json.dumps({"type": name, "message": "m", "args": ["echo pwned"]}).encode())
    assert type(again) is StepError
    assert str(again).endswith("m")


@pytest.mark.parametrize(
    "record",
    [
        {}, {"type": 5}, {"type": "builtins:ValueError", "args": 5}, {"type": "builtins:ValueError", "state": [1]},
        {"type": "builtins:ValueError", "notes": 3, "cause": 1, "context": "x"}, {"type": "builtins:ExceptionGroup"},
        {"type": "builtins:ExceptionGroup", "group": [1]}, {"message": None, "traceback": 5},
        {"type": "builtins:UnicodeDecodeError", "state": {"start": "x"}},
        {"type": "builtins:OSError", "state": {"errno": {}, "__class__": 1}},
        {"type": "__main__:X"}, {"type": "__main__:X", "main": 5},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_record_still_gives_an_exception(codec: Codec, record: dict[str, Any]) -> None:
    again = codec.decode_error(json.dumps(record).encode())
    assert isinstance(again, Exception)
    str(again)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"\xff", b'{"$":"tuple","v":[]}', b"[" * 100_000])
def test_what_is_no_record_is_a_decode_error(codec: Codec, data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^error: "):
        codec.decode_error(data)


def test_the_remote_traceback_is_kept_and_printed(codec: Codec) -> None:
    def charge_card() -> None:
        raise ValueError("declined")

    with pytest.raises(ValueError) as caught:
        charge_card()
    again = there_and_back(codec, caught.value)
    assert "in charge_card" in again.__holdfast_traceback__  # type: ignore[attr-defined]
    assert isinstance(again.__cause__, RemoteTraceback)
    printed = "".join(traceback.format_exception(raised(again)))
    assert "in charge_card" in printed
    assert printed.endswith("ValueError: declined\n")


def test_the_remote_traceback_shows_only_the_users_own_lines_if_there_are_any() -> None:
    ours = '  File "/x/site-packages/holdfast/core/loop.py", line 1, in throw\n    return 1\n           ^^^^\n'
    own = '  File "/home/ann/orders.py", line 2, in charge\n    raise ValueError\n'
    text = f"Traceback (most recent call last):\n{ours}{own}{ours}ValueError: no\n"
    assert own_frames(text) == f"Traceback (most recent call last):\n{own}ValueError: no"
    assert str(RemoteTraceback(text)) == f'\n"""\n{own_frames(text)}\n"""'
    assert RemoteTraceback(text).text == text
    assert ours in str(RemoteTraceback(f"Traceback (most recent call last):\n{ours}ValueError: no\n"))


def test_the_remote_traceback_survives_being_raised_and_recorded_again(codec: Codec) -> None:
    def deep_inside() -> None:
        raise ValueError("declined")

    with pytest.raises(ValueError) as caught:
        deep_inside()
    exc: BaseException = caught.value
    for _ in range(3):
        exc = there_and_back(codec, raised(exc))
    assert type(exc) is ValueError
    assert "in deep_inside" in exc.__holdfast_traceback__  # type: ignore[attr-defined]
    assert isinstance(exc.__cause__, RemoteTraceback)


def test_causes_and_contexts_are_rebuilt(codec: Codec) -> None:
    inner = raised(KeyError("inner"))
    again = there_and_back(codec, raised(ValueError("outer"), raised(m.AppError(code=1), inner)))
    middle = again.__cause__
    assert type(middle) is m.AppError
    assert middle.code == 1
    assert type(middle.__cause__) is KeyError
    assert isinstance(middle.__cause__.__cause__, RemoteTraceback)
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")
    except ValueError as exc:
        again = there_and_back(codec, exc)
    assert type(again.__context__) is KeyError
    try:
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("shown") from None
    except ValueError as exc:
        again = there_and_back(codec, exc)
    assert again.__context__ is None


def test_a_long_or_circular_chain_is_cut(codec: Codec) -> None:
    exc: BaseException = ValueError("0")
    for i in range(1, 100):
        exc = raised(ValueError(str(i)), exc)
    assert len(codec.encode_error(exc)) < 100_000
    a, b = ValueError("a"), KeyError("b")
    a.__cause__, b.__cause__ = b, a
    a.other, b.other = b, a  # type: ignore[attr-defined]
    again = there_and_back(codec, a)
    assert type(again.__cause__) is KeyError
    a.args = (a, b)
    assert type(there_and_back(codec, a)) is ValueError


def test_groups_come_back_with_their_members(codec: Codec) -> None:
    members = [raised(ValueError("a")), m.AppError(code=2), ExceptionGroup("inner", [KeyError("k")])]
    members[0].__context__ = KeyError("ctx")  # type: ignore[attr-defined]
    again = there_and_back(codec, raised(ExceptionGroup("outer", members)))  # type: ignore[type-var]
    assert type(again) is ExceptionGroup
    assert str(again) == "outer (3 sub-exceptions)"
    assert [type(e) for e in again.exceptions] == [ValueError, m.AppError, ExceptionGroup]
    assert again.exceptions[1].code == 2
    matched, rest = again.split(KeyError)
    assert matched is not None
    assert rest is not None


def test_notes_come_back(codec: Codec) -> None:
    exc = ValueError("x")
    exc.add_note("while paying")
    again = there_and_back(codec, exc)
    assert again.__notes__ == ["while paying"]


def test_what_cannot_be_recorded_shows_as_its_repr(codec: Codec) -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError

    exc = ValueError("x", object(), m.Text("t"))
    exc.rude = Rude()  # type: ignore[attr-defined]
    exc.fine = (1, 2)  # type: ignore[attr-defined]
    again = there_and_back(codec, exc)
    assert type(again) is ValueError
    assert again.args[0] == "x"
    assert str(again.args[1]).startswith("<object object")
    assert repr(again.args[2]) == "'t'"
    assert state(again) == {"rude": again.rude, "fine": (1, 2)}  # type: ignore[attr-defined]
    assert repr(again.rude).startswith("<Rude instance at")  # type: ignore[attr-defined]


class Response:
    status_code = 404

    def __repr__(self) -> str:
        return "<Response [404]>"


class StatusError(Exception):
    def __init__(self, response: Response) -> None:
        super().__init__("not found")
        self.response = response


def test_who_asks_for_more_of_what_could_not_be_recorded_is_told_why_it_is_not_there(codec: Codec) -> None:
    again: Any = there_and_back(codec, StatusError(Response()))
    for response in (
        again.response,
        there_and_back(codec, raised(again)).response,
        pickle.loads(pickle.dumps(again.response)),
    ):  # type: ignore[attr-defined]
        assert (str(response), repr(response)) == ("<Response [404]>", "<Response [404]>")
        assert f"{response:>18}" == "  <Response [404]>"
        assert response == again.response
        with pytest.raises(AttributeError) as caught:
            _ = response.status_code
        assert "StatusError.response (test_codec_exceptions.Response) could not be recorded" in str(caught.value)
        assert "in the step" in str(caught.value)
    with pytest.raises(EncodeError, match="a part of an exception that could not be recorded"):
        codec.encode({"status": again.response})
    assert codec.plain(codec.encode_error(again))["state"] == {"response": "<Response [404]>"}


def test_what_was_recorded_as_the_text_of_its_repr_is_still_read(codec: Codec) -> None:
    record = json.loads(codec.encode_error(StatusError(Response())))
    record["state"] = {"response": "<Response [404]>"}
    again = codec.decode_error(json.dumps(record).encode())
    assert type(again) is StatusError
    assert state(again) == {"response": "<Response [404]>"}


def test_recording_never_fails_not_even_past_the_limit() -> None:
    codec = Codec(limit=5000)
    again = there_and_back(codec, ValueError("x" * 100_000, ["y"] * 100_000))
    assert type(again) is ValueError
    assert "characters left out" in str(again)
    codec = Codec()
    for exc in (ValueError("\ud800"), ValueError("\0"), m.UnprintableError(), RecursionError("deep")):
        assert isinstance(there_and_back(codec, exc), Exception)
    assert str(there_and_back(codec, ValueError("\ud800"))) == "\ud800"


def test_a_huge_traceback_keeps_its_two_ends(codec: Codec) -> None:
    again = there_and_back(codec, raised(ValueError("a" * 200_000 + "the end")))
    text = again.__holdfast_traceback__  # type: ignore[attr-defined]
    assert len(text) < 40_000
    assert text.startswith("Traceback")
    assert text.endswith("the end\n")


def test_an_exception_carrying_something_unknown_here_is_not_hidden_by_it() -> None:
    writer, reader = Codec(), Codec()
    writer.types.register(m.Order)
    again = reader.decode_error(writer.encode_error(raised(m.AppError(code=3, order=m.Order(1)))))
    assert type(again) is StepError
    assert str(again) == "AppError: app error 3"
    assert "codec_models" in again.type_name
    assert "AppError" in again.traceback


def test_a_script_under_multiprocessing_is_still_the_main_script(codec: Codec) -> None:
    cls = type("ScriptError", (Exception,), {"__module__": "__mp_main__"})
    assert json.loads(codec.encode_error(cls()))["type"] == "__main__:ScriptError"


def test_exceptions_are_values_too(codec: Codec) -> None:
    results = [1, raised(m.AppError(code=3, order=m.Order(2))), {"x": KeyError("k")}]
    again = codec.decode(codec.encode(results))
    assert again[0] == 1
    assert type(again[1]) is m.AppError
    assert (again[1].code, again[1].order) == (3, m.Order(2))
    assert isinstance(again[1].__cause__, RemoteTraceback)
    assert type(again[2]["x"]) is KeyError
    assert codec.decode(codec.encode(again[1]), Exception).code == 3


class Signal(BaseException):
    pass


class HostileError(Exception):
    """One that raises what is no Exception, whatever is asked of it."""

    def __str__(self) -> str:
        raise Signal

    __repr__ = __str__

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise Signal

    @property
    def __notes__(self) -> Any:
        raise Signal


class Wrapping(Exception):
    def __init__(self) -> None:
        super().__init__(HostileError())
        self.other = HostileError()


@pytest.mark.parametrize("exc", [HostileError(), Wrapping(), ExceptionGroup("g", [HostileError()])])
def test_an_exception_that_raises_anything_when_it_is_looked_at_is_recorded(codec: Codec, exc: BaseException) -> None:
    for error in (raised(exc), raised(ValueError("x"), cause=exc)):
        again = there_and_back(codec, error)
        assert isinstance(again, Exception)
        assert type(error).__name__ in json.loads(codec.encode_error(error))["type"]


def test_a_class_that_raises_anything_when_it_is_rebuilt_is_a_clear_error(codec: Codec) -> None:
    class Sullen:
        pass

    def refuse(data: Any) -> Any:
        raise Signal

    codec.types.register(Sullen, encode=lambda value: 1, decode=refuse)
    with pytest.raises(DecodeError, match="can't be rebuilt"):
        codec.decode(codec.encode(Sullen()))


# -- pydantic's own


class Priced(pydantic.BaseModel):
    price: int
    extras: dict[str, Decimal] = {}


def test_a_validation_error_of_pydantic_comes_back_as_one() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Priced(price="a {lot}", extras={"{gift}": object()})  # type: ignore[arg-type, dict-item]
    codec = Codec()
    back = codec.decode_error(codec.encode_error(caught.value))
    assert type(back) is pydantic.ValidationError
    assert back.title == "Priced"
    before, after = caught.value.errors(), back.errors()
    assert [(e["type"], e["loc"], e["msg"]) for e in after] == [(e["type"], e["loc"], e["msg"]) for e in before]
    assert after[0]["input"] == "a {lot}"
    assert repr(after[1]["input"]).startswith("<object object")
    assert "2 validation errors for Priced" in str(back)
    again = codec.decode_error(codec.encode_error(back))
    assert str(again) == str(back)


def test_one_that_was_recorded_before_that_is_told_as_it_was() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Priced(price="x")  # type: ignore[arg-type]
    codec = Codec()
    record = json.loads(codec.encode_error(caught.value))
    del record["validation"]
    back = codec.decode_error(json.dumps(record).encode())
    assert type(back) is StepError
    assert "1 validation error for Priced" in str(back)


# -- what can't come back


@pytest.mark.parametrize(
    ("error", "text"), [(SystemExit(3), "SystemExit: 3"), (KeyboardInterrupt(), "KeyboardInterrupt")]
)
def test_a_stand_in_names_the_type_that_it_stands_for(error: BaseException, text: str) -> None:
    codec = Codec()
    back = codec.decode_error(codec.encode_error(error))
    assert type(back) is StepError
    assert str(back) == text
    again = codec.decode_error(codec.encode_error(back))
    assert (type(again), str(again)) == (StepError, text)


def test_a_stand_in_for_a_class_made_in_a_function_names_it() -> None:
    class Local(Exception):
        pass

    codec = Codec()
    assert str(codec.decode_error(codec.encode_error(Local("x")))) == "Local: x"
