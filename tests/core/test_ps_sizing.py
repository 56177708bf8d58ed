"""How many parameter servers there should be: each rule, its bounds, and what keeps it from swinging."""

from __future__ import annotations

import math

import pytest

from elasticrun.core.tensorflow.ps_sizing import COOL_DOWN, STALE, Decision, Sample, Sizing, decide

NOW = 1000.0


def samples(*shares: float | None, at: float = NOW) -> list[Sample | None]:
    return [None if share is None else Sample(share, at) for share in shares]


def count_after(shares: list[float | None], state: Sizing | None = None) -> int:
    return decide(state or Sizing(), samples(*shares), NOW)[1].count


def voted_low(count: int) -> Sizing:
    """The state after a vote for fewer, a heartbeat ago."""
    return Sizing(count, low=NOW - 10.0)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([], 0),
        ([0.5], 1),
        ([0.81], 3),  # both rules hold: +2 is more than twice one
        ([0.8, 0.5], 4),  # 80 % is not above 80 %; half are above 60 %
        ([0.61], 2),
        ([0.61, 0.1], 4),
        ([0.6, 0.6], 2),
        ([0.81, 0.1, 0.1, 0.1], 6),
        ([0.7] * 3, 4),  # no further than 4 by doubling
        ([0.7] * 4, 5),  # 4.8
        ([0.7] * 5, 6),
        ([0.7] * 6, 8),  # 7.2
        ([0.7] * 10, 12),
        ([0.7] * 5 + [0.5] * 5, 12),
        ([0.7] * 4 + [0.5] * 6, 10),
        ([0.9] * 4, 6),  # +2 is more than 4.8
        ([0.9] * 20, 24),  # a fifth is more than +2
        ([0.9] + [0.5] * 98, 100),
        ([0.7] * 90, 100),
        ([0.9] * 100, 100),
        ([0.9] * 130, 130),  # somebody else's wish; not for this policy to take it back
        ([1.7, 0.1, 0.1], 5),
    ],
)
def test_too_little_room_is_answered_at_once(shares: list[float | None], expected: int) -> None:
    assert count_after(shares) == expected
    assert count_after(shares, voted_low(len(shares))) == expected


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.1], 1),
        ([0.1] * 2, 2),
        ([0.1] * 3, 2),
        ([0.3] * 4, 2),  # 60 % each is not too much
        ([0.31] * 4, 4),
        ([0.39] * 4, 4),  # the two would be at 78 %
        ([0.1] * 5, 3),
        ([0.1] * 3 + [0.4] * 2, 5),  # the two fullest could come together
        ([0.1] * 3 + [0.4], 2),
        ([0.1] * 2 + [0.41] * 2, 4),  # half is not more than half
        ([0.1] * 3 + [0.55], 4),
        ([0.1] * 100, 50),
        ([0.1] * 130, 65),
        ([0.0] * 8, 4),
    ],
)
def test_too_much_room_is_answered_by_the_second_vote(shares: list[float | None], expected: int) -> None:
    assert count_after(shares) == len(shares)
    assert count_after(shares, voted_low(len(shares))) == expected


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([None, None], 2),
        ([0.81, None, None, None], 6),  # who is about to run out of memory waits for nobody
        ([0.7, None], 4),
        ([0.7, None, None], 3),  # less than half are known to be full
        ([0.1, 0.1, 0.1, None], 4),
        ([math.nan, -0.1, 0.1, 0.1, 0.1], 5),  # no shares at all
        ([math.nan] * 4, 4),
        ([math.inf, 0.1], 4),
    ],
)
def test_who_was_not_heard_of_is_neither_full_nor_empty(shares: list[float | None], expected: int) -> None:
    assert count_after(shares, voted_low(len(shares))) == expected


def test_a_stale_sample_is_none() -> None:
    old = samples(0.9, 0.9, at=NOW - STALE)
    assert decide(Sizing(), old, NOW)[1].count == 2
    assert decide(Sizing(), old, NOW - 0.1)[1].count == 4


def test_a_low_vote_in_between_that_lacks_somebody_does_not_count() -> None:
    state, _ = decide(Sizing(), samples(*[0.1] * 4), NOW)
    state, _ = decide(state, samples(0.1, 0.1, 0.1, None), NOW)
    assert state.low is None
    state, _ = decide(state, samples(*[0.1] * 4, at=NOW + 10), NOW + 10)
    assert decide(state, samples(*[0.1] * 4, at=NOW + 20), NOW + 20)[1].count == 2


def test_a_second_vote_on_the_same_samples_is_no_second_vote() -> None:
    first, _ = decide(Sizing(), samples(*[0.1] * 4), NOW)
    second, decision = decide(first, samples(*[0.1] * 4), NOW + 5)
    assert decision.count == 4
    assert second == first
    assert decide(second, samples(*[0.1] * 4, at=NOW + 10), NOW + 10)[1].count == 2


def test_nothing_changes_in_the_cool_down_and_no_vote_of_it_counts() -> None:
    state, decision = decide(Sizing(), samples(0.9, 0.9), NOW)
    assert decision.count == 4
    end = NOW + COOL_DOWN
    early, decision = decide(state, samples(0.9, 0.9, at=end - 1), end - 1)
    assert (early, decision.count) == (state, 2)
    assert "no vote for 1 s" in decision.reason
    assert decide(early, samples(0.9, 0.9, at=end), end)[1].count == 4, "nobody has carried it out"


def test_the_cool_down_begins_when_the_change_is_seen() -> None:
    state, _ = decide(Sizing(), samples(0.9, 0.9), NOW)
    state, decision = decide(state, samples(*[0.1] * 4, at=NOW + 60), NOW + 60)
    assert state == Sizing(4, NOW + 60)
    end = NOW + 60 + COOL_DOWN
    state, decision = decide(state, samples(*[0.1] * 4, at=end - 1), end - 1)
    assert (state.low, decision.count) == (None, 4)


def test_a_change_by_others_begins_a_cool_down_as_well() -> None:
    state, _ = decide(Sizing(), samples(0.5, 0.5), NOW)
    assert state == Sizing(2)
    assert decide(state, samples(0.9, 0.9, 0.9), NOW)[1].count == 3


@pytest.mark.parametrize(
    ("shares", "state", "reason"),
    [
        ([], Sizing(), "there is no parameter server"),
        ([0.9, 0.1, 0.1], Sizing(), "1 of 3 ps use more than 80% of their memory"),
        ([0.7, 0.7, 0.1], Sizing(), "2 of 3 ps use more than 60% of their memory"),
        ([0.9] * 100, Sizing(), "100 of 100 ps use more than 60% of their memory, but there may be no more"),
        ([0.5] * 3, Sizing(), "memory is well used: 0 of 3 ps use less than 40% of it"),
        ([0.1] * 3, Sizing(), "3 of 3 ps use less than 40% of their memory; halved if the next vote finds"),
        ([0.1] * 3, Sizing(3, low=NOW), "but not every ps was heard of since the last vote"),
        ([0.1] * 3, voted_low(3), "3 of 3 ps use less than 40% of their memory, and did so at the last"),
        ([0.1] * 2, Sizing(), "there may be no fewer than 2 ps"),
        ([0.1, 0.1, None], Sizing(), "1 of 3 ps were not heard of for 30 s"),
        (
            [0.39] * 4,
            Sizing(),
            "with half as many, one could use 78% of its memory, and the count would soon",
        ),
    ],
)
def test_every_decision_says_why(shares: list[float | None], state: Sizing, reason: str) -> None:
    _, decision = decide(state, samples(*shares), NOW)
    assert reason in decision.reason


def test_the_same_memory_does_not_swing() -> None:
    """The rules as they are would go 4, 2, 4, 2 here."""
    total, state, counts, now = 1.56, Sizing(), [4], NOW
    for _ in range(10):
        now += COOL_DOWN
        state, decision = decide(state, samples(*[total / counts[-1]] * counts[-1], at=now), now)
        counts.append(decision.count)
    assert counts == [4] * 11
    assert isinstance(decision, Decision)
