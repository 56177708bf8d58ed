"""Samplers of others go on where they were, in a world of the same size; or are refused with the reason."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from elasticrun.data import ElasticDataLoader, ElasticDistributedSampler  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402
from tests.data.build import Numbers, flat, listed  # noqa: E402

pytestmark = pytest.mark.torch

DATA = Numbers(30)


def drawn() -> Any:
    return torch.Generator().manual_seed(5)


class Endless(Sampler[int]):
    """Has no length."""

    def __iter__(self) -> Iterator[int]:
        return (number * 7 % 30 for number in count())


class Pairs(Sampler[list[int]]):
    """A batch sampler of its own kind."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        it = iter(self.sampler)
        return ([*pair] for pair in zip(it, it, strict=True))

    def __len__(self) -> int:
        return len(self.sampler) // 2


MAKERS: dict[str, Callable[[], dict[str, Any]]] = {
    "sequential": lambda: {"sampler": SequentialSampler(DATA), "batch_size": 4},
    "list": lambda: {"sampler": [*range(3, 30)], "batch_size": 4},
    "random": lambda: {"sampler": RandomSampler(DATA, generator=drawn()), "batch_size": 4},
    "replaced": lambda: {"sampler": RandomSampler(DATA, True, 50, drawn()), "batch_size": 4},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(4, 21), drawn()), "batch_size": 4},
    "weighted": lambda: {
        "sampler": WeightedRandomSampler([1.0, 2.0, 3.0] * 10, 25, generator=drawn()),
        "batch_size": 4,
        "drop_last": True,
    },
    "torch's": lambda: {"sampler": DistributedSampler(DATA, 2, 1), "batch_size": 4},
    "endless": lambda: {"sampler": Endless(), "batch_size": 4},
    "singles": lambda: {"sampler": RandomSampler(DATA, generator=drawn()), "batch_size": None},
    "batches": lambda: {"batch_sampler": Pairs(RandomSampler(DATA, generator=drawn()))},
    "list of batches": lambda: {"batch_sampler": [[1, 2, 3], [4], [5, 6], [7, 8], [9, 10]]},
    "ours within another": lambda: {"batch_sampler": Pairs(ElasticDistributedSampler(DATA, 1, 0))},
}


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=["0", "1"])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_goes_on_where_it_was(make: Callable[[], dict[str, Any]], options: dict[str, Any]) -> None:
    calm, killed = (ElasticDataLoader(DATA, **make(), **options) for _ in range(2))
    epochs, rest = ((0, 1), None) if make is not MAKERS["endless"] else ((0,), 9)
    expected, found = list[list[int]](), list[list[int]]()
    for epoch in epochs:
        calm.set_epoch(epoch)
        expected += listed(iter(calm), rest and 3 + rest)
        for steps in (2, 1, rest):
            killed.set_epoch(epoch)
            found += listed(iter(killed), steps)
            state = pickle.dumps(killed.state_dict())
            killed = ElasticDataLoader(DATA, **make(), **options)
            killed.load_state_dict(pickle.loads(state))
    assert found == expected


class Buckets(Sampler[list[int]]):
    """Batches of like lengths: how many there are depends on the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        size = 3 if self.epoch % 2 else 6
        return iter([[*range(at, at + size)] for at in range(0, 30, size)])

    def __len__(self) -> int:
        return 10 if self.epoch % 2 else 5


class Grows(Buckets):
    """The same, of samples."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(len(self)))


@pytest.mark.parametrize("steps", range(1, 10))
def test_an_epoch_may_have_more_batches_than_the_first_one(steps: int) -> None:
    it = ElasticDataLoader(DATA, batch_sampler=Buckets())
    assert len(listed(iter(it))) == 5
    it.set_epoch(1)
    assert it.left == 10
    taken = listed(iter(it), steps)
    assert it.left == 10 - steps
    other = ElasticDataLoader(DATA, batch_sampler=Buckets())
    other.load_state_dict(pickle.loads(pickle.dumps(it.state_dict())))
    assert flat(taken + listed(iter(other))) == [*range(30)]
    other.set_epoch(2)
    assert len(listed(iter(other))) == 5


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_an_epoch_may_have_more_samples_than_the_first_one(steps: int) -> None:
    it = ElasticDataLoader(DATA, 3, sampler=Grows())
    assert len(flat(listed(iter(it)))) == 5
    assert it.left == 2
    it.set_epoch(1)
    taken = listed(iter(it), steps)
    assert it.part.size == (1 if steps == 4 else 3)
    assert it.left == 4 - steps
    other = ElasticDataLoader(DATA, 3, sampler=Grows())
    other.load_state_dict(pickle.loads(pickle.dumps(it.state_dict())))
    assert flat(taken + listed(iter(other))) == [*range(10)]


def test_a_loop_that_was_left_goes_on() -> None:
    whole, left = (ElasticDataLoader(DATA, **MAKERS["random"]()) for _ in range(2))
    assert listed(iter(left), 3) + listed(iter(left)) == listed(iter(whole))
    assert listed(iter(left)) == listed(iter(whole))


def test_the_script_may_set_the_epoch_of_its_sampler() -> None:
    """By its own name for it, of which the loader hears nothing; or by the loader's."""
    theirs: Any = DistributedSampler(DATA, 1, 0)
    it = ElasticDataLoader(DATA, 10, sampler=theirs)
    listed(iter(it), 1)
    theirs.set_epoch(1)
    first = flat(listed(iter(it)))
    assert len(first) == 30
    it.sampler.set_epoch(2)
    assert flat(listed(iter(it))) == [*theirs] != first
    assert it.left == len(it) == 3


def test_names_of_a_sampler_can_be_seen_and_it_can_be_copied() -> None:
    it = ElasticDataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 1))
    assert it.sampler.num_replicas == 2
    assert len(copy.copy(it.sampler)) == 15


class OfPython(SequentialSampler):
    """Draws in a way that nobody can restore."""

    generator = random.Random(0)


@pytest.mark.parametrize("kind", [RandomSampler, OfPython])
def test_a_sampler_whose_order_does_not_come_again_is_refused(kind: Any) -> None:
    for given in ({"sampler": kind(DATA)}, {"batch_sampler": BatchSampler(kind(DATA), 4, False)}):
        words = f"a {kind.__name__} without a generator of torch cannot give the same order again"
        with pytest.raises(DataError, match=words):
            ElasticDataLoader(DATA, **given)


def test_a_sampler_without_samples_is_refused() -> None:
    with pytest.raises(DataError, match="the sampler list has no samples"):
        ElasticDataLoader(DATA, sampler=[])


def test_another_world_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = ElasticDataLoader(DATA, **MAKERS["sequential"]()).state_dict()
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = "sampler SequentialSampler cannot go on in a world of 2, the position was saved in one of 1: use"
    with pytest.raises(DataError, match=words):
        ElasticDataLoader(DATA, **MAKERS["sequential"]()).load_state_dict(state)


def test_the_state_of_another_sampler_is_refused() -> None:
    it = ElasticDataLoader(DATA, **MAKERS["sequential"]())
    ours = ElasticDataLoader(DATA, sampler=ElasticDistributedSampler(DATA, 1, 0))
    other = ElasticDataLoader(DATA, **MAKERS["subset"]())
    for state, name in (
        (ours.state_dict(), "ElasticDistributedSampler"),
        (other.state_dict(), "SubsetRandomS"),
    ):
        with pytest.raises(
            DataError, match=f"saved with sampler {name}.*, and this loader has SequentialSampler"
        ):
            it.load_state_dict(state)
    with pytest.raises(DataError, match="saved with sampler SequentialSampler: load it with that"):
        ours.load_state_dict(it.state_dict())
    damaged: list[Any] = [None, {"sampler": "SequentialSampler"}]
    damaged += [{**it.state_dict(), "course": None}, {**it.state_dict(), "noted": 1}]
    for state in damaged:
        with pytest.raises(DataError):
            it.load_state_dict(state)


def test_another_length_is_refused_with_both() -> None:
    it = ElasticDataLoader(DATA, sampler=[*range(7)])
    with pytest.raises(DataError, match="has 8 samples, and had 7 when"):
        ElasticDataLoader(DATA, sampler=[*range(8)]).load_state_dict(it.state_dict())
