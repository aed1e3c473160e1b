"""The codec that the rest of Holdfast uses: values, calls and exceptions to bytes of JSON, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.codec.blobs import Apart, Blobs, size_of
from holdfast.codec.chain import Chain, SignedPickle, Transform
from holdfast.codec.exceptions import ErrorWriter, clip, learn_errors, message_of, rebuild, stand_in, type_name
from holdfast.codec.hints import SCALARS, CallHints, Conformer
from holdfast.codec.paths import Misfit, explain
from holdfast.codec.references import read_reference
from holdfast.codec.types import TypeRegistry
from holdfast.codec.unrecorded import read_unrecorded
from holdfast.codec.untagged import error_facts, untagged
from holdfast.codec.values import READERS, LooseTagger, Tagger, mend_text, refusal
from holdfast.errors import ArgumentError, DecodeError, EncodeError, PayloadTooLargeError, ValueCodecError
from holdfast.printing import show

Data = bytes | memoryview | msgspec.Raw

_dumps = msgspec.json.Encoder().encode
_loads = msgspec.json.Decoder().decode


class Codec:
    """One per app. `types` says which classes may be recorded; `limit` is the most bytes a value may take, a number or a
    text such as "64MiB".

    `transforms` compress or encrypt. With `blobs`, arguments, results and data that take more than `blobs_over` bytes are
    kept there and not in the history, so that the limit is not for them. `pickle_key` allows pickles, signed with it.
    """

    def __init__(
        self,
        *,
        transforms: Sequence[Transform] = (),
        limit: int | str = "8MiB",
        pickle_key: bytes | None = None,
        blobs: Blobs | None = None,
        blobs_over: int | str = "64KB",
    ) -> None:
        self.types = TypeRegistry(reserved=[*READERS, "blob", "exc", "pickle", "ref", "unrecorded", "x"])
        self.limit = size_of("limit", limit)
        self._apart = None if blobs is None else Apart(blobs, size_of("blobs_over", blobs_over))
        self._chain = Chain(transforms)
        self._has_transforms = bool(transforms)
        self._pickle = None if pickle_key is None else SignedPickle(pickle_key)
        self._tagger = Tagger(self.types)
        self._tagger.other = self._write_other
        self._tagger.readers["exc"] = lambda data: rebuild(data["v"])
        self._tagger.readers["pickle"] = self._read_pickle
        self._tagger.readers["ref"] = read_reference
        self._tagger.readers["unrecorded"] = read_unrecorded
        self._tagger.readers["blob"] = lambda data: self._load(self._fetch(data))
        self._tagger.readers["x"] = lambda data: self._load(self._chain.open(data))
        self._loose = LooseTagger(self.types)
        self._loose.readers = self._tagger.readers
        self._conformer = Conformer(self.types)

    @property
    def blobs(self) -> Blobs | None:
        """Where large values are kept, if not in the history."""
        return None if self._apart is None else self._apart.blobs

    def encode(self, value: object, what: str = "value", *, apart: bool = False) -> bytes:
        """`value` as JSON. Raises EncodeError, which says what in it can't be recorded, and where. With `apart` it may be
        kept among the blobs: that is for what a history names."""
        try:
            return self._finish(self._tagger.tag(value), what, apart)
        except ValueCodecError:
            raise
        except Exception as exc:
            raise EncodeError(explain(exc, what)) from exc.__cause__

    def decode(self, data: Data, hint: Any = Any) -> Any:
        """What `encode` wrote. With a `hint`, plain data becomes what the annotation asks for."""
        try:
            convert = self._conformer.converter(hint)  # before reading, as it makes the hint's classes known
            return convert(self._load(data))
        except (Misfit, RecursionError) as exc:
            raise DecodeError(explain(exc, "value", recorded=True)) from exc.__cause__

    def decode_loosely(self, data: Data) -> Any:
        """`decode`, for those who look without the code: instances of classes that aren't known here are plain data."""
        try:
            value, tagged = self._read(data)
            return self._loose.untag(value) if tagged else value
        except (Misfit, RecursionError) as exc:
            raise DecodeError(explain(exc, "value", recorded=True)) from exc.__cause__

    def from_plain(self, data: Any, hint: Any = Any) -> Any:
        """JSON from outside, as bytes or as objects, as what `hint` asks for. Type tags mean nothing in it,
        so that whoever sends it can't choose what is built."""
        try:
            if isinstance(data, bytes | bytearray | memoryview | msgspec.Raw):
                data = _parse(data)
            return self._conformer.converter(hint)(data)
        except (Misfit, RecursionError) as exc:
            raise DecodeError(explain(exc, "value")) from exc.__cause__

    def plain(self, data: Data) -> Any:
        """What `encode` wrote as plain JSON, without its types."""
        try:
            return untagged(self._read(data)[0])
        except (Misfit, RecursionError) as exc:
            raise DecodeError(explain(exc, "value")) from exc.__cause__

    def error_text(self, data: Data) -> str:
        """What `encode_error` wrote, on one line: the exception's name and message."""
        record = self.plain(data)
        facts = error_facts(record) if isinstance(record, dict) else {"type": "", "message": ""}
        return f"{facts['type']}: {facts['message']}"

    def hints_for(self, fn: Callable[..., Any], without: Collection[str] = ()) -> CallHints:
        """What `fn`'s annotations ask for; the classes they reach may be recorded from now on. Parameters `without`
        which it is recorded are no part of it."""
        learn_errors(fn)
        return CallHints(fn, self.types, self._conformer, without)

    def encode_call(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        what: str = "arguments",
        signature: CallHints | None = None,
    ) -> bytes:
        """A call's arguments. With its `signature`, an error names a positional argument by its parameter."""
        call: dict[str, Any] = {}
        if not (isinstance(args, tuple) and isinstance(kwargs, dict)):  # type: ignore[redundant-expr]
            raise EncodeError(f"{what}: expected a tuple and a dict, got {show(args)} and {show(kwargs)}")
        try:
            if args:
                call["args"] = self._tagger.tag_list(args, 0)
            if kwargs:
                call["kwargs"] = self._tagger.tag_dict(kwargs, 0)
            return self._finish(call, what, apart=True)
        except ValueCodecError:
            raise
        except Exception as exc:
            if isinstance(exc, Misfit) and exc.steps:
                exc.steps[-1] = _argument(exc.steps[-1], signature)
            raise EncodeError(explain(exc, what, root="")) from exc.__cause__

    def check_call(
        self, args: tuple[object, ...], kwargs: dict[str, object], what: str, signature: CallHints, after: int = 0
    ) -> None:
        """Refuse what `decode_call` could not make what the annotations ask for. `after` so many arguments that are
        not known yet."""
        try:
            signature.fit(list(args), dict(kwargs), after)
            signature.check(args, kwargs, after)
        except (Misfit, RecursionError) as exc:
            raise ArgumentError(explain(exc, what, root="")) from exc.__cause__

    def misfit(self, value: object, hint: Any, what: str) -> str:
        """Why a value can't be what an annotation asks for; empty if it is, or can be made so."""
        if hint is Any or (type(value) is hint and hint in SCALARS):  # the most common
            return ""
        try:
            self._conformer.converter(hint)(value)
            self._conformer.check(value)
        except (Misfit, RecursionError) as exc:
            return explain(exc, what, root="")
        return ""

    def decode_call(
        self, data: Data, signature: CallHints | None = None, of_step: str | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, each as its parameter's annotation asks. An error names the step that they are of."""
        try:
            call = self._load(data)
            args, kwargs = (call.get("args", []), call.get("kwargs", {})) if type(call) is dict else (None, None)
            if type(args) is not list or type(kwargs) is not dict:
                raise Misfit(f'expected {{"args": [...], "kwargs": {{...}}}}, got {show(call)}')
            if signature is not None:
                signature.fit(args, kwargs)
                if of_step is not None:
                    signature.check(args, kwargs)
            return tuple(args), kwargs
        except (Misfit, RecursionError) as exc:
            what = "arguments" if of_step is None else f"the arguments of step {show(of_step)}"
            raise DecodeError(explain(exc, what, root="", recorded=True)) from exc.__cause__

    def join_list(self, values: Iterable[bytes]) -> bytes:
        """A list of values that are encoded already."""
        return b"[" + b",".join(values) + b"]"

    def join_dict(self, items: Mapping[str, bytes]) -> bytes:
        """A dict whose values are encoded already."""
        members = {key: msgspec.Raw(value) for key, value in items.items()}
        return _dumps({"$": "map", "v": list(members.items())} if "$" in members else members)

    def join_call(self, args: Sequence[bytes], kwargs: Mapping[str, bytes]) -> bytes:
        """A call whose arguments are encoded already. Each of them was held to the limit; the whole is not."""
        call: dict[str, Any] = {}
        if args:
            call["args"] = [msgspec.Raw(arg) for arg in args]
        if kwargs:
            call["kwargs"] = {name: msgspec.Raw(arg) for name, arg in kwargs.items()}
        return _dumps(call)

    def encode_error(self, exc: BaseException) -> bytes:
        """`exc` with its cause and traceback. Never raises: of what can't be recorded, its repr is."""
        try:
            return self._finish(ErrorWriter(self._tagger).write(exc), "error")
        except BaseException:  # too large, too deep, or its class raises; the least that can be said is always said
            message = clip(message_of(exc), 2000)
        try:
            return self._chain.seal(_error_record(exc, message))
        except BaseException as why:  # the app's transforms: what they were to hide is left out
            return _error_record(
                exc, f"its text could not be recorded: a transform of the codec raised {type_name(why)}"
            )

    def encode_error_value(self, exc: BaseException) -> bytes:
        """An exception as a value among others: `decode` gives it back. Never raises."""
        return b'{"$":"exc","v":' + self.encode_error(exc) + b"}"

    def decode_error(self, data: Data) -> BaseException:
        """The exception to raise here: of its own class if that is loaded and can be made, else StepError."""
        try:
            record, tagged = self._read(data)
            if type(record) is not dict or "$" in record:
                raise Misfit(f"expected an exception's record, got {show(record)}")
            try:
                return rebuild(self._tagger.untag(record) if tagged else record)
            except Misfit:  # it carries something unknown here, which must not hide what went wrong
                return stand_in(self._read(data)[0])
        except (Misfit, RecursionError) as why:
            raise DecodeError(explain(why, "error")) from why.__cause__

    def _finish(self, tagged: Any, what: str, apart: bool = False) -> bytes:
        try:
            data = _dumps(tagged)
        except UnicodeEncodeError:
            data = _dumps(mend_text(tagged))
        if self._has_transforms:
            data = self._chain.seal(data)
        if apart and self._apart is not None and len(data) > self._apart.over:
            return self._apart.keep(data)
        if len(data) > self.limit:
            raise PayloadTooLargeError(
                f"{what}: takes {len(data):,} bytes, and the limit is {self.limit:,}; keep large data "
                "elsewhere (a file, an object store) and record its address, let the codec do so with Codec(blobs=...), or raise "
                "the app's limit: App(..., codec=Codec(limit='64MiB'))"
            )
        return data

    def _load(self, data: Data) -> Any:
        if type(data) is msgspec.Raw and b'"$"' not in (raw := bytes(data)):  # nearly always
            return _parse(raw)
        value, tagged = self._read(data)
        return self._tagger.untag(value) if tagged else value

    def _read(self, data: Data) -> tuple[Any, bool]:
        """The JSON in `data`, out of its envelope, and whether there may be tags in it."""
        kind = type(data)
        if kind is not msgspec.Raw and kind is not bytes and not isinstance(data, bytes | bytearray | memoryview):
            raise Misfit(f"isn't what encode() gave, but {show(data)}")
        raw: bytes = data if kind is bytes else bytes(data)  # type: ignore[assignment]
        value = _parse(raw)
        if b'"$"' not in raw:
            return value, False
        if type(value) is dict and value.get("$") == "blob":
            return self._read(self._fetch(value))
        if type(value) is dict and value.get("$") == "x":
            return self._read(self._chain.open(value))
        return value, True

    def _fetch(self, reference: dict[str, Any]) -> bytes:
        if self._apart is None:
            raise Misfit("is kept among blobs; give them to Codec(blobs=...)")
        return self._apart.fetch(reference)

    def _write_other(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return {"$": "exc", "v": ErrorWriter(self._tagger).write(value)}
        if self._pickle is None:
            raise refusal(value, self.types)
        return self._pickle.dump(value)

    def _read_pickle(self, tagged: dict[str, Any]) -> Any:
        if self._pickle is None:
            raise Misfit("was pickled, and pickles aren't loaded without Codec(pickle_key=...)")
        return self._pickle.load(tagged)


def _error_record(exc: BaseException, message: str) -> bytes:
    return _dumps(mend_text({"type": type_name(exc), "message": message, "args": [message]}))


def _argument(step: str, signature: CallHints | None) -> str:
    """A call's outermost step as the argument's name: `[0]` is positional, `.name` by keyword."""
    if not step[1:-1].isdigit():
        return step.removeprefix(".")
    return f"args{step}" if signature is None else signature.position(int(step[1:-1]))


def _parse(data: Any) -> Any:
    try:
        return _loads(data)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise Misfit(f"isn't JSON: {exc}") from exc
