"""Steps of a constant size: each sample once, each of the same weight, equally many micro-batches."""

from __future__ import annotations

import pytest

from elasticrun.core.data.batches import Part, micro_steps, parts, parts_in_epoch, places_of_parts

SIZES = [(64, 1, 64), (64, 4, 8), (512, 3, 32), (512, 3, 1), (7, 3, 2), (2, 5, 4), (1, 4, 1), (10, 4, 3)]


@pytest.mark.parametrize(("samples", "world", "micro"), SIZES)
def test_a_step_has_each_sample_once_and_each_weighs_the_same(samples: int, world: int, micro: int) -> None:
    weights = dict.fromkeys(range(100, 100 + samples), 0.0)
    for rank in range(world):
        found = parts(samples, world, rank, micro)
        assert len(found) == micro_steps(samples, world, micro)
        assert [part.is_last for part in found] == [False] * (len(found) - 1) + [True]
        for part, places in zip(found, places_of_parts(100, samples, world, rank, found), strict=True):
            assert len(places) == part.size <= micro
            for place in places:  # a mean over the micro-batch, then one over the ranks
                weights[place] += part.scale / part.size / world
    assert weights == pytest.approx(dict.fromkeys(weights, 1 / samples))


def test_micro_batches_of_a_rank_are_about_equally_large() -> None:
    assert [part.size for part in parts(512, 3, 0, 32)] == [29, 29, 29, 28, 28, 28]
    assert [part.size for part in parts(512, 3, 2, 32)] == [29, 29, 28, 28, 28, 28]


def test_where_all_is_divisible_the_scale_is_one_part_of_the_step() -> None:
    assert parts(64, 4, 3, 8) == (Part(8, 0.5, False), Part(8, 0.5, True))


def test_a_rank_without_a_sample_computes_one_of_the_step_that_weighs_nothing() -> None:
    found = parts(2, 5, 3, 4)
    assert found == (Part(1, 0.0, True),)
    assert places_of_parts(100, 2, 5, 3, found) == [range(101, 102)]


@pytest.mark.parametrize(
    ("at", "drop_last", "count"), [(0, False, 7), (0, True, 6), (8, False, 5), (16, True, 2), (26, False, 0)]
)
def test_what_is_left_of_twenty_five_samples(at: int, drop_last: bool, count: int) -> None:
    """Steps of 8 for 2 ranks, in micro-batches of at most 3: two for each, one for the last sample."""
    assert parts_in_epoch(25, at, 8, 2, 3, drop_last) == count
