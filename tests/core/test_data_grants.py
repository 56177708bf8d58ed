"""How many leases a rank has ahead, and gets at once."""

from __future__ import annotations

import pytest

from elasticrun.core.data.grants import AHEAD, granted, most_ahead, next_ahead
from elasticrun.core.protocol.data import MAX_PIECES, MAX_WANTED


@pytest.mark.parametrize("readers", [1, 8, 9, 17, 100, 1000, 2048])
def test_all_ranks_together_have_half_of_what_a_state_may_have(readers: int) -> None:
    assert readers * most_ahead(readers) <= MAX_PIECES // 2
    assert 1 <= most_ahead(readers) <= MAX_WANTED


def test_more_ranks_still_have_one_each() -> None:
    assert most_ahead(1 << 20) == next_ahead(1, True, 1 << 20) == granted(9, 1 << 20, 1 << 30) == 1


def test_who_waits_asks_for_more_and_who_does_not_for_less() -> None:
    ahead = AHEAD
    for _ in range(20):
        ahead = next_ahead(ahead, True, 20)
    assert ahead == 102
    assert next_ahead(ahead, False, 20) == 101
    for _ in range(200):
        ahead = next_ahead(ahead, False, 20)
    assert ahead == AHEAD


@pytest.mark.parametrize(
    ("wanted", "readers", "waiting", "count"),
    [(0, 2, 100, 0), (5, 2, 100, 5), (50, 2, 100, 25), (50, 2, 3, 1), (50, 2, 0, 1), (256, 17, 1 << 62, 120)],
)
def test_a_grant(wanted: int, readers: int, waiting: int, count: int) -> None:
    assert granted(wanted, readers, waiting) == count
