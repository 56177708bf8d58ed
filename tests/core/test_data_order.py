"""The order of an epoch: a permutation of the samples that no release and no world changes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations

import pytest

from elasticrun.core.data.order import Order, Source, mix


def order(length: int, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> list[int]:
    return list(Order(Source(length, seed, shuffle), epoch).indices(range(length)))


@pytest.mark.parametrize("length", [*range(1, 120), 1797, (1 << 16) - 1, 1 << 16, (1 << 16) + 1])
def test_each_sample_has_one_place(length: int) -> None:
    assert sorted(order(length)) == list(range(length))


def test_the_order_is_pinned() -> None:
    """Who changes it loses the place of every training that is under way."""
    assert order(10) == [8, 9, 2, 7, 0, 5, 1, 3, 6, 4]
    assert order(10, seed=1) == [4, 5, 8, 0, 1, 3, 2, 7, 6, 9]
    assert order(10, epoch=1) == [3, 4, 6, 0, 7, 8, 1, 2, 9, 5]
    assert [Order(Source(10**9, 7, True), 3).index(place) for place in (0, 1, 10**9 - 1)] == [
        664708009,
        446999886,
        438312356,
    ]


def test_seeds_and_epochs_do_not_share_orders() -> None:
    found = {tuple(order(50, seed, epoch)) for seed in range(-10, 10) for epoch in range(20)}
    assert len(found) == 400


def test_without_shuffling_the_order_is_that_of_the_dataset() -> None:
    assert order(77, seed=5, epoch=3, shuffle=False) == list(range(77))


def test_places_beyond_the_length_are_the_first_samples_again() -> None:
    found = Order(Source(5, 0, True), 0)
    first = list(found.indices(range(5)))
    assert list(found.indices(range(5, 17))) == (first * 4)[5:17]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_all_orders_of_a_few_samples_are_about_as_likely(length: int) -> None:
    """Chi-square over seeds, below twice its degrees of freedom here. As the seeds are given, so is it."""
    seeds = 4800
    counts = Counter(tuple(order(length, seed)) for seed in range(seeds))
    every = list(permutations(range(length)))
    expected = seeds / len(every)
    chi = sum((counts[each] - expected) ** 2 / expected for each in every)
    assert chi < 2 * (len(every) - 1) + 4


def test_neighbours_in_the_dataset_are_no_neighbours_in_a_large_order() -> None:
    """Of n samples in a random order, two neighbours follow one another once on average."""
    length = 100_000
    found = order(length)
    assert sum(after - before == 1 for before, after in pairwise(found)) < 8
    halves = Counter(index * 10 // length for index in found[: length // 2])
    assert all(abs(halves[tenth] - length / 20) < 300 for tenth in range(10))


def test_words_are_mixed_in_their_order() -> None:
    assert len({mix(), mix(0), mix(1), mix(0, 1), mix(1, 0), mix(1 << 63), mix(-1)}) == 7
    assert all(0 <= mix(seed) < 1 << 64 for seed in range(-5, 5))
