"""Transforms wrap what the codec writes; pickle is off, and signed when it is on."""

from __future__ import annotations

import json
import pickle
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from codec_models import Handle, Line, Order

from holdfast import App, RunStuckError
from holdfast.codec import Codec, Transform
from holdfast.errors import DecodeError, EncodeError, PayloadTooLargeError, RetryableError, TransformError

KEY = b"0123456789abcdef"


class Zlib:
    name = "zlib"

    def encode(self, data: bytes) -> bytes:
        return zlib.compress(data)

    def decode(self, data: bytes) -> bytes:
        return zlib.decompress(data)


class Xor:
    """Stands for encryption."""

    name = "xor"

    def __init__(self, key: int) -> None:
        self.key = key

    def encode(self, data: bytes) -> bytes:
        return bytes(byte ^ self.key for byte in data)

    decode = encode


def test_transforms_are_applied_in_order_and_undone() -> None:
    chain: list[Transform] = [Zlib(), Xor(7)]
    codec = Codec(transforms=chain)
    data = codec.encode({"secret": (1, 2)})
    envelope = json.loads(data)
    assert (envelope["$"], envelope["t"]) == ("x", ["zlib", "xor"])
    assert b"secret" not in data
    assert codec.decode(data) == {"secret": (1, 2)}
    assert codec.decode_call(codec.encode_call((1,), {"a": b"x"})) == ((1,), {"a": b"x"})
    error = codec.decode_error(codec.encode_error(KeyError("k")))
    assert type(error) is KeyError


def test_an_envelope_can_stand_inside_other_json() -> None:
    codec = Codec(transforms=[Zlib()])
    event = msgspec.json.encode({"result": msgspec.Raw(codec.encode([1, 2]))})

    class Event(msgspec.Struct):
        result: msgspec.Raw

    assert codec.decode(msgspec.json.decode(event, type=Event).result) == [1, 2]


def test_what_was_written_before_the_transforms_is_still_read() -> None:
    assert Codec(transforms=[Zlib()]).decode(Codec().encode((1, 2))) == (1, 2)
    assert Codec(transforms=[Xor(3), Zlib()]).decode(Codec(transforms=[Zlib()]).encode("a")) == "a"


def test_a_missing_or_failing_transform_is_named() -> None:
    data = Codec(transforms=[Zlib(), Xor(7)]).encode("a")
    with pytest.raises(DecodeError, match=r"was written through 'xor'; give that to Codec\(transforms="):
        Codec(transforms=[Zlib()]).decode(data)
    with pytest.raises(DecodeError, match="can't be read back through 'zlib'"):
        Codec(transforms=[Zlib(), Xor(8)]).decode(data)
    for damaged in (
        b'{"$":"x"}',
        b'{"$":"x","t":5,"v":""}',
        b'{"$":"x","t":[[]],"v":""}',
        b'{"$":"x","v":"?"}',
    ):
        with pytest.raises(DecodeError):
            Codec(transforms=[Zlib()]).decode(damaged)


def test_the_limit_counts_what_is_stored() -> None:
    codec = Codec(transforms=[Zlib()], limit=1000)
    codec.encode("x" * 10_000)
    with pytest.raises(PayloadTooLargeError):
        Codec(transforms=[Xor(1)], limit=1000).encode("x" * 999)


def test_pickle_is_refused_unless_asked_for() -> None:
    with pytest.raises(EncodeError):
        Codec().encode(Handle(1))
    data = Codec(pickle_key=KEY).encode(Handle(1))
    with pytest.raises(DecodeError, match=r"pickles aren't loaded without Codec\(pickle_key="):
        Codec().decode(data)


def test_pickle_takes_only_what_nothing_else_can() -> None:
    codec = Codec(pickle_key=KEY)
    codec.types.register(Order)
    value: Any = {"handle": Handle(3), "order": Order(1, []), "n": (1, 2)}
    data = codec.encode(value)
    assert data.count(b'"pickle"') == 1
    assert codec.decode(data) == value
    assert codec.decode(codec.encode(Line("x", 1))) == Line("x", 1)  # type: ignore[arg-type]


class Bomb:
    went_off = False

    def __reduce__(self) -> Any:
        return setattr, (Bomb, "went_off", True)


def test_a_pickle_that_was_not_signed_with_the_key_is_never_loaded() -> None:
    codec = Codec(pickle_key=KEY)
    good = json.loads(codec.encode(Handle(1)))
    bomb = b64encode(pickle.dumps(Bomb())).decode()
    for forged in (
        {**good, "v": bomb},
        {"$": "pickle", "v": bomb},
        {"$": "pickle", "v": bomb, "hmac": ""},
        {"$": "pickle", "v": bomb, "hmac": None},
        json.loads(Codec(pickle_key=b"another key, 16b").encode(Bomb())),
    ):
        with pytest.raises(DecodeError):
            codec.decode(json.dumps(forged).encode())
    assert not Bomb.went_off
    codec.decode(codec.encode(Bomb()))
    assert Bomb.went_off


def test_what_pickle_cannot_take_is_refused_with_its_path() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise TypeError("never")

    with pytest.raises(EncodeError, match=r"^value: \$\[0\]: .* can't be pickled: TypeError\('never'\)"):
        Codec(pickle_key=KEY).encode([Stubborn()])


def test_a_short_key_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Codec(pickle_key=b"short")


class Flaky:
    """A transform that works now and then, as one does whose key is kept elsewhere."""

    name = "flaky"
    failures = 0

    def encode(self, data: bytes) -> bytes:
        return self._through(data)

    def decode(self, data: bytes) -> bytes:
        return self._through(data)

    def _through(self, data: bytes) -> bytes:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the key service is away")
        return bytes(byte ^ 7 for byte in data)


def test_a_transform_that_fails_for_a_while_is_an_error_that_may_pass() -> None:
    flaky = Flaky()
    codec = Codec(transforms=[flaky])
    written = codec.encode("secret")
    flaky.failures = 2
    with pytest.raises(
        TransformError, match=r"can't be written through 'flaky': ConnectionError\('the key service"
    ) as caught:
        codec.encode("secret")
    assert isinstance(caught.value, EncodeError)
    assert isinstance(caught.value, RetryableError)
    with pytest.raises(TransformError, match=r"can't be read back through 'flaky'") as caught:
        codec.decode(written)
    assert isinstance(caught.value, DecodeError)


def test_an_error_is_recorded_without_its_text_while_it_can_not_be_sealed() -> None:
    flaky = Flaky()
    codec = Codec(transforms=[flaky])
    flaky.failures = 100
    record = codec.encode_error(ValueError("secret"))
    assert b"secret" not in record
    flaky.failures = 0
    assert "could not be recorded: a transform of the codec raised" in str(codec.decode_error(record))


def test_a_run_lives_through_the_outage_of_a_transform(tmp_path: Path) -> None:
    flaky = Flaky()
    app = App("outage", str(tmp_path / "outage.db"), codec=Codec(transforms=[flaky]))
    attempts: list[str] = []

    @app.step(max_retries=3, retry_delay=0)
    def work(text: str) -> str:
        attempts.append(text)
        if len(attempts) == 1:
            flaky.failures = 3  # for the result, for the error that this is, and for the least that can be said of it
        return text

    @app.workflow
    async def flow() -> str:
        first = work("a")
        if len(attempts) == 2:
            attempts.append("an outage")
            flaky.failures = 1_000
        return first + work("b")

    with app.worker() as engine:
        run = flow.start()
        with pytest.raises(RunStuckError, match="can't be written through 'flaky'"):
            run.result(timeout=20)
        assert engine.failure is None
        flaky.failures = 0
        run.resume()
        assert run.result(timeout=20) == "ab"
        assert attempts == ["a", "a", "an outage", "b"]
    app.close()
