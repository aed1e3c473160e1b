"""Moments in sentences: in words, or as marks for whoever shows them elsewhere."""

from __future__ import annotations

from holdfast.views.times import SECOND, ago, lasting, left, marking, unmarked, until

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
