"""Parameter servers under any memory: the count stays in bounds, changes seldom and does not swing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from hypothesis import assume, given
from hypothesis import strategies as st

from elasticrun.core.tensorflow.ps_sizing import (
    COOL_DOWN,
    HIGH,
    MAX_PS,
    MIN_PS,
    STALE,
    Sample,
    Sizing,
    decide,
)

counts = st.integers(MIN_PS, MAX_PS)
shares = st.one_of(st.none(), st.floats(0.0, 1.5))
#: Seconds from vote to vote, and how old the samples are.
waits = st.floats(1.0, 2 * COOL_DOWN)
ages = st.floats(0.0, 2 * STALE)


@given(counts, st.lists(st.tuples(waits, ages, st.lists(shares, min_size=1, max_size=8)), max_size=30))
def test_within_the_bounds_and_never_twice_within_the_cool_down(
    count: int, votes: list[tuple[float, float, list[float | None]]]
) -> None:
    state, now, changes = Sizing(), 0.0, []
    for wait, age, pattern in votes:
        now += wait
        given_ = itertools.islice(itertools.cycle(pattern), count)
        samples = [None if share is None else Sample(share, now - age) for share in given_]
        state, decision = decide(state, samples, now)
        assert MIN_PS <= decision.count <= MAX_PS
        assert decision.reason
        if decision.count != count:
            changes.append(now)
            count = decision.count
    assert all(later - earlier >= COOL_DOWN for earlier, later in itertools.pairwise(changes))


def course(count: int, used: Callable[[int], list[float]]) -> Iterator[int]:
    """The counts, each carried out at once, of many votes; ``used``: the shares of so many ps."""
    state, now = Sizing(), 0.0
    for _ in range(80):
        now += COOL_DOWN
        state, decision = decide(state, [Sample(share, now) for share in used(count)], now)
        count = decision.count
        yield count


@given(counts, st.floats(0.0, 120.0))
def test_the_same_memory_evenly_dealt_is_answered_in_one_direction_only(count: int, total: float) -> None:
    assume(all(abs(total / n - HIGH) > 1e-6 for n in range(1, MAX_PS + 1)))
    path = [count, *course(count, lambda n: [total / n] * n)]
    assert path in (sorted(path), sorted(path, reverse=True))


@given(counts, st.floats(0.0, 120.0), st.lists(st.floats(0.0, 1.2), max_size=3))
def test_growth_never_follows_a_halving_if_some_variables_cannot_be_split(
    count: int, rest: float, whole: list[float]
) -> None:
    """Whole variables go around the ps in turn; all the rest is dealt evenly."""

    def used(count: int) -> list[float]:
        return [rest / count + sum(whole[index::count]) for index in range(count)]

    steps = [later - earlier for earlier, later in itertools.pairwise([count, *course(count, used)])]
    first = next((index for index, step in enumerate(steps) if step < 0), len(steps))
    assume(all(abs(share - HIGH) > 1e-6 for n in range(1, MAX_PS + 1) for share in set(used(n))))
    assert max(steps[first:], default=0) <= 0
