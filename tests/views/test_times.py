"""Moments in sentences: in words, or as marks for whoever shows them elsewhere."""

from __future__ import annotations

import time

import pytest

from holdfast.views.times import _LAST, SECOND, ago, lasting, left, marking, unmarked, until

NOW = 1_800_000_000 * SECOND


def said(now: int) -> str:
    then = NOW + 90 * SECOND
    return f"until {until(then, now)}, {ago(NOW - SECOND, now)}, for {lasting(NOW - 5 * SECOND, now)}, in {left(then, now)}"


def test_marks_are_put_into_words_later_as_they_would_have_been_then() -> None:
    with marking():
        marked = said(NOW)
    assert marked.count("⟦") == 4
    for later in (NOW, NOW + 30 * SECOND, NOW + 89 * SECOND):
        assert unmarked(marked, later) == said(later)


def test_a_text_without_marks_stays_as_it_is() -> None:
    for text in ("", "waiting for hook 'until 5'", "⟦until x⟧", "⟦until 99999999999999999999⟧"):
        assert unmarked(text, NOW) == text


def test_moments_in_centuries_to_come_are_put_into_words() -> None:
    with marking():
        marked = until(19_075_001_127_110_750, NOW)
        last = until(10**19, NOW)
    assert unmarked(marked, NOW).startswith("2574-06-1")
    assert unmarked(last, NOW) == unmarked(f"⟦until {_LAST}⟧", NOW)


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
@pytest.mark.parametrize("kind", ["until", "ago", "for", "in"])
def test_what_looks_like_a_mark_is_never_an_error(monkeypatch: pytest.MonkeyPatch, zone: str, kind: str) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for digits in ("0", "9" * 17, str(_LAST), "9" * 18, "٣"):
            assert "⟦" not in unmarked(f"⟦{kind} {digits}⟧", NOW)
    finally:
        monkeypatch.undo()
        time.tzset()
