"""The grammar of filters."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from holdfast.errors import ArgumentError
from holdfast.ports import RunQuery
from holdfast.views.filters import parse_filter

NOW = round(dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC).timestamp() * 1_000_000)
HOUR = 3_600_000_000


def parsed(text: str) -> RunQuery:
    return parse_filter(text, NOW, msgspec.json.encode)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("", RunQuery()),
        ("status:failed", RunQuery(statuses=["FAILURE"])),
        ("status:RUNNING,waiting", RunQuery(statuses=["RUNNING", "WAITING"])),
        ("status:retry status:stuck", RunQuery(statuses=["RETRY", "STUCK"])),
        ("workflow:order*", RunQuery(workflow="order*")),
        ("data.customer=42", RunQuery(data={"customer": "42"})),
        ("data.name=ann", RunQuery(data={"name": '"ann"'})),
        ('data.no="42"', RunQuery(data={"no": '"42"'})),
        ('data.who="ann lee" data.ok=true', RunQuery(data={"who": '"ann lee"', "ok": "true"})),
        ("data.url=a=b:c", RunQuery(data={"url": '"a=b:c"'})),
        ("started:<1h", RunQuery(since=NOW - HOUR)),
        ("started:1h", RunQuery(since=NOW - HOUR)),
        ("started:>1h", RunQuery(until=NOW - HOUR)),
        ("started:>2026-06-01T11:00+00:00", RunQuery(since=NOW - HOUR)),
        ("started:<2026-06-01T11:00+00:00", RunQuery(until=NOW - HOUR)),
        ("order-17", RunQuery(prefix="order-17")),
        ("id:a:b", RunQuery(prefix="a:b")),
        ('"status:x"', RunQuery(prefix="status:x")),
        ("parent:p worker:w schedule:s", RunQuery(parent="p", owner="w", schedule="s")),
    ],
)
def test_a_filter_is_a_query(text: str, query: RunQuery) -> None:
    assert parsed(text) == query


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("status:broken", "no such status; known: pending, running"),
        ("status:", "nothing comes after status:"),
        ("colour:red", "there is no colour:; known: status:"),
        ("started:soon", "give how long ago"),
        ("started:>", "give how long ago"),
        ("workflow:*order", "a . stands at the end"),
        ('data.x="a', "is open; close it"),
        ("data.x=" + "[" * 3_000, "is nested too deeply to be read"),
        ("started:>0001-01-01T00:00+14:00", "give how long ago"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        parsed(text)
