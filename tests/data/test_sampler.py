"""``ElasticDistributedSampler``: like torch's, but with a position, and for worlds that change."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import HashStore  # noqa: E402
from torch.distributed.checkpoint.stateful import Stateful  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset  # noqa: E402

from elasticrun.data.sampler import ElasticDistributedSampler  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402
from tests.data.build import Numbers, flat, listed, train  # noqa: E402

pytestmark = pytest.mark.torch


def sampler(length: int, world: int = 1, rank: int = 0, **options: Any) -> ElasticDistributedSampler:
    return ElasticDistributedSampler(Numbers(length), world, rank, **options)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 12, 13, 100])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_without_shuffling_ranks_get_what_torch_gives_them(length: int, world: int, drop_last: bool) -> None:
    if drop_last and length < world:
        return
    for rank in range(world):
        ours = sampler(length, world, rank, shuffle=False, drop_last=drop_last)
        theirs: DistributedSampler[int] = DistributedSampler(
            Numbers(length), world, rank, shuffle=False, drop_last=drop_last
        )
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)
        assert (ours.num_samples, ours.total_size) == (theirs.num_samples, theirs.total_size)


def test_it_is_what_others_take_for_a_distributed_sampler() -> None:
    assert isinstance(sampler(3), DistributedSampler)
    assert isinstance(sampler(3), Stateful)


def test_the_global_order_is_the_same_for_any_world() -> None:
    alone = list(sampler(24))
    for world in (2, 3, 4, 6):
        ranks = [list(sampler(24, world, rank)) for rank in range(world)]
        assert [each for turn in zip(*ranks, strict=True) for each in turn] == alone


def test_a_changing_world_gets_each_sample_once() -> None:
    steps = train(lambda world, rank: _Singles(sampler(41, world, rank)), [(3, 4), (2, 5), (1, 3), (3, 6)])
    order = list(sampler(41))
    assert flat(steps) == order + order[:2]  # of the last 16, 18 are dealt to 3 ranks: padding


class _Singles:
    """A sampler that gives tensors, as a loader does."""

    def __init__(self, sampler: ElasticDistributedSampler) -> None:
        self.sampler = sampler
        self.state_dict = sampler.state_dict
        self.load_state_dict = sampler.load_state_dict

    def __iter__(self) -> Any:
        return map(torch.tensor, self.sampler)


def test_each_epoch_has_an_order_of_its_own_without_set_epoch() -> None:
    it = sampler(30)
    first, second = list(it), list(it)
    assert first != second
    assert sorted(second) == list(range(30))
    again = sampler(30)
    again.set_epoch(1)
    assert again.epoch == 1
    assert list(again) == second
    assert again.epoch == 2
    again.epoch = 0
    assert list(again) == first


def test_set_epoch_does_not_disturb_the_epoch_that_was_restored() -> None:
    before = sampler(30)
    before.set_epoch(4)
    head = list(islice(before, 11))
    after = sampler(30)
    after.load_state_dict(before.state_dict())
    after.set_epoch(4)
    assert after.left == 19
    whole = sampler(30)
    whole.set_epoch(4)
    assert head + list(after) == list(whole)
    assert len(after) == 30
    assert after.left == 30


def test_a_state_is_not_changed_by_what_comes_after_it() -> None:
    it = sampler(10)
    iteration = iter(it)
    next(iteration)
    state = it.state_dict()
    saved = pickle.dumps(state)
    next(iteration)
    assert pickle.dumps(state) == saved
    assert it.state_dict() != state


def test_plain_loaders_of_torch_take_it() -> None:
    it = sampler(10, 2, 1)
    loader = DataLoader(Numbers(10), batch_size=2, sampler=it)
    first = flat(listed(iter(loader)))
    assert first == list(sampler(10, 2, 1))
    assert flat(listed(iter(loader))) != first
    assert it.epoch == 2


def test_of_two_iterations_the_older_ends_with_an_error() -> None:
    it = sampler(10)
    older = iter(it)
    next(older)
    assert next(iter(it)) == list(sampler(10))[1]
    with pytest.raises(DataError, match="this iteration is over: another one has begun since"):
        next(older)


def test_another_length_is_refused_with_both() -> None:
    with pytest.raises(DataError, match="the dataset has 11 samples, and had 10 when"):
        sampler(11).load_state_dict(sampler(10).state_dict())


# The world


def test_the_world_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = ElasticDistributedSampler(Numbers(4))
    assert (alone.num_replicas, alone.rank) == (1, 0)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    launched = ElasticDistributedSampler(Numbers(4))
    assert (launched.num_replicas, launched.rank) == (3, 2)
    given = ElasticDistributedSampler(Numbers(4), rank=1)
    assert (given.num_replicas, given.rank) == (3, 1)


def test_the_world_is_that_of_torch_if_it_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        connected = ElasticDistributedSampler(Numbers(4))
    finally:
        dist.destroy_process_group()
    assert (connected.num_replicas, connected.rank) == (1, 0)


def test_a_variable_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(DataError, match="the launcher sets WORLD_SIZE to a number, got 'many'"):
        ElasticDistributedSampler(Numbers(4), rank=0)


@pytest.mark.parametrize(("world", "rank"), [(2, 2), (2, -1), (0, 0)])
def test_a_rank_outside_of_the_world_is_refused(world: int, rank: int) -> None:
    with pytest.raises(DataError, match=f"in a world of {world}, got {rank}"):
        sampler(4, world, rank)


# Bad input


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Numbers(0), {}, "the dataset has no samples"),
        (Stream(), {}, "a Stream has no length, so it cannot be dealt"),
        (
            Numbers(3),
            {"num_replicas": 4, "drop_last": True},
            "3 samples: with drop_last that is none for each of 4",
        ),
        (Numbers(3), {"seed": "a"}, "a seed is a whole number, got 'a'"),
    ],
)
def test_what_cannot_be_dealt_is_refused(dataset: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        ElasticDistributedSampler(dataset, **{"num_replicas": 1, "rank": 0, **options})


def test_a_dataset_smaller_than_the_world_is_repeated_as_torch_does() -> None:
    ranks = [list(sampler(2, 5, rank)) for rank in range(5)]
    first = list(sampler(2))
    assert flat(ranks) == (first * 3)[:5]
