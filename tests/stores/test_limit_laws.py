"""Laws of limits, over generated times and lines: no window of time has too many, and parts of a line take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.limits import KEY_LIMIT, BoundLimit, Limit, Rate, _as_key
from holdfast.ports import LimitRow
from holdfast.stores.limits import Pace, Waiting, turns


@given(
    rate=st.integers(1, 7),
    period=st.integers(1_000, 5_000),
    burst=st.integers(1, 5),
    steps=st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 6)), max_size=60),
)
def test_no_window_has_more_than_the_rate_and_what_may_come_together(
    rate: int, period: int, burst: int, steps: list[tuple[int, int]]
) -> None:
    limit = LimitRow(name="x", rate=rate, period=period, burst=burst)
    now, next, begun = 0, None, list[int]()
    for passed, wanted in steps:
        now += passed
        pace = Pace(limit, next, now)
        allowed = pace.allows()
        count = min(wanted, allowed)
        pace.begin(count)
        next = pace.next
        begun += [now] * count
        if wanted > allowed:
            assert pace.due > now, "somebody waits, and has a time to wait for"
            assert Pace(limit, next, pace.due).allows() >= 1, "and when it comes, one may begin"
            assert pace.due - now <= -(-period // rate)
    for i, start in enumerate(begun):
        within = [time for time in begun[i:] if time < start + period]
        assert len(within) <= rate + burst - 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_in_a_line_nobody_waits_for_more_than_one_of_each_other_before_its_own_turn(
    moves: list[tuple[str, bool]],
) -> None:
    line: list[tuple[int, int, str]] = []
    served: list[str] = []
    arrived: dict[int, int] = {}
    for no, (part, leaves) in enumerate(moves):
        head = min(line)[0] if line else None
        last = {p: max(turn for turn, _, q in line if q == p) for p in {q for _, _, q in line}}
        newcomer = Waiting(no, "", part, 0, "", "", "", "[]", b"", None, None, 0, 0, None)
        ((_, turn),) = turns([newcomer], head, last)
        is_only = all(p != part for _, _, p in line)
        line.append((turn, no, part))
        if is_only:
            arrived[no] = len(served)
        if leaves:
            first = min(line)
            line.remove(first)
            served.append(first[2])
            if first[1] in arrived:
                since = served[arrived[first[1]] : -1]
                for other in "abc".replace(first[2], ""):
                    assert since.count(other) <= 2, "the one that was first, and one in turn"


@given(st.text(), st.text())
def test_different_keys_stay_different_and_fit_an_index(one: str, two: str) -> None:
    for text in (one, one * 100, f"{one}\0{two}", f"{one}\ud800"):
        key = _as_key(text)
        assert len(key) <= KEY_LIMIT
        assert "\0" not in key
        key.encode()
    assert (_as_key(one * 100) == _as_key(two * 100)) == (one * 100 == two * 100)


@given(st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.uuids(), st.decimals(), st.dates(), st.none()))
def test_plain_values_are_keys(value: object) -> None:
    limit = BoundLimit("x", Limit(concurrency=1, key="customer"), ("customer",))
    assert isinstance(limit.key_of({"customer": value}), str)


@given(
    st.integers(1, 1_000_000), st.sampled_from([("s", 10**6), ("m", 60 * 10**6), ("h", 3_600 * 10**6), ("10s", 10**7)])
)
def test_rates_are_read_as_they_are_written(count: int, unit: tuple[str, int]) -> None:
    assert Rate.read(f"{count}/{unit[0]}") == Rate(count, unit[1])
    assert Rate.read(f" {count} / {unit[0]} ") == Rate(count, unit[1])
