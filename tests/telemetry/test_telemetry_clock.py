"""Logical clocks: what leads to something has the lower number."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.telemetry import MAX_CLOCK, LamportClock
from holdfast.telemetry.clock import MAX_BELIEVED

JUNK = [None, True, False, -1, -(2**70), 1.0, 3.7, float("nan"), "7", b"7", [], {}, object, MAX_CLOCK + 1, 2**200]
clock_values = st.integers(0, MAX_CLOCK)


def test_a_new_clock_shows_zero_and_gives_one_first() -> None:
    clock = LamportClock()
    assert clock.value == 0
    assert [clock.forward(), clock.forward(), clock.value] == [1, 2, 2]


@given(clock_values, st.integers(0, MAX_BELIEVED))
def test_adjusting_gives_one_more_than_the_higher_of_both(mine: int, other: int) -> None:
    assert LamportClock(mine).adjust(other) == max(mine, other) + 1


@pytest.mark.parametrize("end", [MAX_CLOCK, MAX_CLOCK - 1, MAX_BELIEVED + 1])
def test_nobody_can_bring_a_clock_to_its_end(end: int) -> None:
    """From there it could only run backwards: nobody believes what is beyond."""
    assert LamportClock(5).adjust(end) == 6
    furthest = LamportClock().adjust(MAX_BELIEVED)
    assert LamportClock(furthest).forward() == furthest + 1


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_what_no_clock_can_show_moves_a_clock_by_one(junk: Any) -> None:
    clock = LamportClock(5)
    assert clock.adjust(junk) == 6
    assert clock.value == 6


@given(st.lists(st.one_of(st.none(), clock_values, st.sampled_from(JUNK)), max_size=30))
def test_every_number_is_higher_than_those_before(others: list[Any]) -> None:
    clock = LamportClock()
    given = [clock.forward() if other is None else clock.adjust(other) for other in others]
    assert given == sorted(set(given))


def test_a_restarted_process_goes_on_from_what_it_stored() -> None:
    before = LamportClock()
    for _ in range(10):
        before.forward()
    after = LamportClock(before.value)
    assert after.forward() == 11


def test_a_clock_that_is_ahead_of_what_was_stored_does_not_run_backwards() -> None:
    clock = LamportClock(10)
    assert clock.resume(3) == 10
    assert clock.resume(20) == 20
    assert clock.resume(None) == 20
    assert clock.forward() == 21


@pytest.mark.parametrize("junk", [junk for junk in JUNK if junk is not None], ids=repr)
def test_a_stored_value_that_makes_no_sense_is_refused_rather_than_taken_for_zero(junk: Any) -> None:
    with pytest.raises(ValueError, match="can't go on from"):
        LamportClock(junk)
    clock = LamportClock(4)
    with pytest.raises(ValueError, match="can't go on from"):
        clock.resume(junk)
    assert clock.value == 4


def test_threads_never_get_the_same_number() -> None:
    clock = LamportClock()
    given: list[int] = []

    def work() -> None:
        mine = [clock.forward() if n % 2 else clock.adjust(n) for n in range(2000)]
        assert mine == sorted(set(mine))
        given.extend(mine)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(1, 8001))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_while_the_clock_was_in_use_can_use_it() -> None:
    clock = LamportClock(7)
    with clock._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if clock.forward() == 8 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_two_processes_that_exchange_messages_agree_on_what_was_first() -> None:
    one, two = LamportClock(), LamportClock(100)
    sent = one.forward()
    received = two.adjust(sent)
    answered = two.forward()
    heard = one.adjust(answered)
    assert sent < received < answered < heard
