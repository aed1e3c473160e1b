"""Damaged or hostile data gives a DecodeError; it never runs, imports or crashes anything."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import json
import sys
import uuid
from collections import deque
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import codec_models as m
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.codec import Codec
from holdfast.codec.values import READERS
from holdfast.errors import DecodeError

CODEC = Codec(pickle_key=b"0123456789abcdef")
for cls in m.CLASSES:
    CODEC.types.register(cls)

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TAGS = [*READERS, "exc", "pickle", "x", "nope", *(cls.__name__ for cls in m.CLASSES)]
keys = st.sampled_from(["v", "zone", "name", "fold", "max", "t", "hmac", "*"])
tagged = st.builds(lambda tag, rest: {**rest, "$": tag}, st.sampled_from(TAGS), st.dictionaries(keys, junk))


def read(decode: Any, data: bytes, *rest: Any) -> None:
    """Junk may happen to be sound. Then it gives values of the types that are known, and nothing else."""
    with contextlib.suppress(DecodeError):
        check_known(decode(data, *rest))


KNOWN = (
    type(None), bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset, complex, range, Decimal, Fraction,
    uuid.UUID, dt.date, dt.time, dt.timedelta, dt.tzinfo, PurePath, BaseException, deque, enum.Enum, msgspec.UnsetType,
    *m.CLASSES,
)  # fmt: skip


def check_known(value: Any) -> None:
    assert isinstance(value, KNOWN), f"{type(value)} came out of junk"
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        check_known(inner)


@given(st.sampled_from(["x", "nope", "", "eval", "Order2"]), st.dictionaries(keys, junk))
def test_a_tag_that_nobody_knows_is_always_refused(tag: str, rest: dict[str, Any]) -> None:
    data = json.dumps({**rest, "$": tag}).encode()
    with pytest.raises(DecodeError):
        CODEC.decode(data)


@settings(max_examples=200, deadline=None)
@given(st.recursive(tagged | junk, lambda inner: st.lists(inner, max_size=3) | st.builds(lambda v: {"a": v}, inner)))
def test_a_damaged_tag_is_a_decode_error_and_nothing_else(data: Any) -> None:
    text = json.dumps(data, allow_nan=False, default=str) if _finite(data) else "{}"
    for decode in (CODEC.decode, CODEC.decode_call, CODEC.decode_error, CODEC.from_plain):
        read(decode, text.encode())
    read(CODEC.decode, text.encode(), m.Order)
    read(CODEC.from_plain, text.encode(), dict[str, m.Order | m.Point | list[m.Tree]])


def _finite(data: Any) -> bool:
    try:
        json.dumps(data, allow_nan=False)
    except ValueError:
        return False
    return True


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_bytes_that_are_not_json_are_a_decode_error(data: bytes) -> None:
    for decode in (CODEC.decode, CODEC.decode_call, CODEC.decode_error, CODEC.from_plain):
        read(decode, data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"$":"tuple","v":['])
@pytest.mark.parametrize("depth", [300, 3000, 100_000])
def test_deeply_nested_data_is_a_decode_error(opening: bytes, depth: int) -> None:
    closing = opening.replace(b'"a":', b"").translate(bytes.maketrans(b"[{", b"]}"), b'"$:,tuplev')[::-1]
    data = opening * depth + b"1" + closing * depth
    for decode in (CODEC.decode, CODEC.from_plain, CODEC.decode_error, CODEC.decode_call):
        read(decode, data)
    read(CODEC.from_plain, data, list[Any])


@dataclass
class Bystander:
    """Of a module that is loaded, and of no annotation."""

    n: int = 0


@pytest.mark.parametrize(
    "name", ["wave", "wave.Error", "wave:Error", "os.system", "builtins.eval", "__main__.x", f"{__name__}.Bystander"]
)
def test_no_tag_reaches_code_by_name(name: str) -> None:
    sys.modules.pop("wave", None)
    with pytest.raises(DecodeError, match="no class is known as"):
        CODEC.decode(json.dumps({"$": name, "v": {}}).encode())
    assert "wave" not in sys.modules


@pytest.mark.parametrize("zone", ["../../etc/passwd", "/etc/passwd", "No/Such", 5, "", "a\0b"])
def test_a_zone_name_cannot_reach_other_files(zone: Any) -> None:
    data = json.dumps({"$": "datetime", "v": "2020-01-01T00:00:00", "zone": zone}).encode()
    with pytest.raises(DecodeError):
        CODEC.decode(data)


def test_a_huge_decimal_integer_is_refused_rather_than_parsed_for_minutes() -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(json.dumps({"$": "int", "v": "9" * 1_000_000}).encode())
