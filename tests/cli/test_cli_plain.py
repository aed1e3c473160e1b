"""Recorded values as plain JSON, without the classes they were made of."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from rich.cells import cell_len

from holdfast.cli.output import cut, padded
from holdfast.codec import Codec
from holdfast.views.values import PlainReader, call_text


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    tags: tuple[Colour, ...]


ID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ([1, "a", None, True, 1.5], [1, "a", None, True, 1.5]),
        ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
        (Point(1, (Colour.RED,)), {"x": 1, "tags": ["RED"]}),
        (Decimal("9.90"), "9.90"),
        (ID, str(ID)),
        (dt.date(2026, 1, 31), "2026-01-31"),
        (dt.timedelta(days=1, seconds=2), "1 day, 0:00:02"),
        ((1, (2,)), [1, [2]]),
        ({3, 1}, [1, 3]),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
        ({(1, 2): "a"}, [[[1, 2], "a"]]),
        ({"$": "x"}, {"$": "x"}),
        (OrderedDict(a=1), {"a": 1}),
        (float("nan"), "nan"),
        (2**70, 2**70),
        (Fraction(1, 3), "1/3"),
        (b"ab", "YWI="),
        (Path("a/b"), "a/b"),
        ("\ud800", "?"),
        (ValueError("no"), {"type": "ValueError", "message": "no", "traceback": "ValueError: no\n"}),
    ],
)
def test_tags_are_dropped_and_what_they_hold_is_kept(value: object, plain: object) -> None:
    codec = Codec()
    codec.types.register(Point)
    read = PlainReader(Codec()).value(codec.encode(value))
    assert read == plain
    json.loads(json.dumps(read, allow_nan=False))


def test_what_a_newer_version_wrote_is_shown_as_it_is() -> None:
    reader = PlainReader(Codec())
    assert reader.value(b'{"$": "hologram", "v": [1]}') == [1]
    assert reader.value(b'{"$": "timedelta", "v": "?"}') == {"$": "timedelta", "v": "?"}


class Zlib:
    name = "zlib"
    encode = staticmethod(zlib.compress)
    decode = staticmethod(zlib.decompress)


def test_what_is_sealed_needs_the_apps_codec() -> None:
    codec = Codec(transforms=[Zlib()])
    sealed = codec.encode({"a": Decimal("1.5")})
    assert PlainReader(codec).value(sealed) == {"a": "1.5"}
    assert PlainReader(Codec()).value(sealed) == "<sealed by zlib>"


def test_an_error_is_its_type_its_message_and_its_traceback() -> None:
    codec = Codec()
    try:
        raise KeyError("gone")
    except KeyError as error:
        facts = PlainReader(codec).error(codec.encode_error(error))
    assert facts is not None
    assert (facts["type"], facts["message"]) == ("KeyError", "'gone'")
    assert "test_cli_plain.py" in facts["traceback"]


def test_a_call_reads_as_it_was_written() -> None:
    assert call_text({"args": [1, "a"], "kwargs": {"k": None}}) == '(1, "a", k=null)'
    assert call_text({}) == "()"
    assert call_text({"other": 1}) == '({"other": 1})'


@pytest.mark.parametrize("text", ["日本語-1", "abc", "e\u0301te\u0301", "日" * 50, "e\u0301" * 50, "a b" * 50, ""])
@pytest.mark.parametrize("width", [10, 11])
def test_what_is_cut_and_padded_takes_as_many_columns_as_it_is_given(text: str, width: int) -> None:
    assert cell_len(padded(cut(text, width), width)) == width
    assert cut(text, 10_000) == text
