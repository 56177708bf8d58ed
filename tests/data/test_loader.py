"""``ElasticDataLoader``: its state is what the loop has got, however far its workers are ahead."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.stateful import Stateful  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler  # noqa: E402

from elasticrun.data import ElasticDataLoader, ElasticDistributedSampler, GlobalBatch  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402
from tests.data.build import Draws, Numbers, flat, listed, train  # noqa: E402

pytestmark = pytest.mark.torch

WORKERS: list[dict[str, Any]] = [
    {},
    {"num_workers": 1, "prefetch_factor": 4},
    {"num_workers": 2},
    {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
]
NAMES = ["0", "1 prefetches 4", "2", "2 persistent"]
workers = pytest.mark.parametrize("options", WORKERS, ids=NAMES)


def loader(
    length: int = 40,
    world: int = 1,
    rank: int = 0,
    batch_size: Any = 4,
    drop_last: bool = False,
    **options: Any,
) -> ElasticDataLoader[int]:
    dealt = ElasticDistributedSampler(Numbers(length), world, rank, drop_last=drop_last)
    return ElasticDataLoader(Numbers(length), batch_size, sampler=dealt, drop_last=drop_last, **options)


def order(length: int = 40, epoch: int = 0) -> list[int]:
    found = ElasticDistributedSampler(Numbers(length), 1, 0)
    found.set_epoch(epoch)
    return list(found)


def restored(state: Any, **options: Any) -> ElasticDataLoader[int]:
    found = loader(**options)
    found.load_state_dict(pickle.loads(pickle.dumps(state)))
    return found


@workers
def test_after_each_batch_the_state_is_that_of_this_batch(options: dict[str, Any]) -> None:
    it, taken = loader(**options), 0
    for batch in it:
        taken += len(batch)
        rest = flat(listed(iter(restored(it.state_dict()))))
        assert rest == order()[taken:]
    assert taken == 40


@workers
def test_an_epoch_after_another_and_states_in_between(options: dict[str, Any]) -> None:
    it = loader(**options)
    assert flat(listed(iter(it))) == order()
    head = flat(listed(iter(it), 3))
    assert head == order(epoch=1)[:12]
    state = it.state_dict()
    assert flat(listed(iter(it))) == order(epoch=1)[12:]  # a loop that was left goes on
    other = restored(state, **options)
    assert flat(listed(iter(other))) == order(epoch=1)[12:]
    assert flat(listed(iter(other))) == order(epoch=2)


@workers
def test_a_changing_world_gets_each_sample_once(options: dict[str, Any]) -> None:
    rounds = [(3, 2), (2, 1), (1, 2), (3, 1)]
    steps = train(lambda world, rank: loader(53, world, rank, 3, **options), rounds)
    taken = 9 * 2 + 6 + 3 * 2 + 9
    assert sorted(flat(steps)) == sorted(order(53)[:taken])
    at = 0
    for step in steps:
        size = len(flat(step))
        assert sorted(flat(step)) == sorted(order(53)[at : at + size])
        at += size


def test_a_state_at_the_end_tells_whether_the_loop_knew() -> None:
    """A script that is restarted sees what it would have seen: the end, or the next epoch."""
    it = loader(8)
    iteration = iter(it)
    listed(iteration, 2)
    before = it.state_dict()
    assert listed(iteration) == []
    after = it.state_dict()
    unaware, aware = restored(before, length=8), restored(after, length=8)
    assert (unaware.left, aware.left) == (0, 2)
    assert listed(iter(unaware)) == []
    assert flat(listed(iter(unaware))) == flat(listed(iter(aware))) == order(8, epoch=1)


def test_set_epoch_stays_in_the_epoch_under_way_and_jumps_to_others() -> None:
    it = loader()
    listed(iter(it), 4)
    for each in (it, it.sampler):
        each.set_epoch(0)
        assert it.left == 6
    it.sampler.set_epoch(3)
    assert (it.epoch, it.left) == (3, 10)
    assert flat(listed(iter(it))) == order(epoch=3)


def test_length_is_that_of_the_epoch_and_left_what_is_to_come() -> None:
    it = loader(42, world=2, rank=1)
    iteration = iter(it)
    lefts = []
    for _ in iteration:
        lefts.append(it.left)
        assert len(it) == 6
    assert lefts == [5, 4, 3, 2, 1, 0]
    assert it.left == 6


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 3]), (True, [4, 4])])
def test_the_last_batch_is_smaller_or_dropped(drop_last: bool, sizes: list[int]) -> None:
    it = loader(21, world=2, drop_last=drop_last)
    assert it.left == len(it) == len(sizes)
    assert [len(batch) for batch in listed(iter(it))] == sizes
    assert it.state_dict()["spans"] == [[0, sum(sizes) * 2, 2, 2]]
    assert it.part.size == sizes[-1]


def test_samples_instead_of_batches() -> None:
    it = loader(5, batch_size=None)
    head = [int(each) for each in islice(it, 2)]
    assert head == order(5)[:2]
    assert [int(each) for each in restored(it.state_dict(), length=5, batch_size=None)] == order(5)[2:]


def test_by_default_the_ranks_share_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        found.append(flat(listed(iter(ElasticDataLoader(Numbers(6), 2)))))
    assert found == [[0, 2, 4], [1, 3, 5]]


def test_shuffling_is_by_the_seed_and_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    orders = [
        flat(listed(iter(ElasticDataLoader(Numbers(40), 4, shuffle=True, seed=seed)))) for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] == order()
    assert orders[2] != orders[0]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}], ids=["0", "1"])
def test_an_iteration_draws_nothing_from_the_generator_of_torch(options: dict[str, Any]) -> None:
    """So a training that is restored with its random state draws what it would have drawn."""
    torch.manual_seed(3)
    before = torch.get_rng_state()
    listed(iter(loader(**options)), 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_draw_other_numbers_in_each_epoch_and_on_each_rank_and_the_same_again() -> None:
    def drawn(rank: int, epoch: int, seed: int = 3) -> tuple[int, ...]:
        torch.manual_seed(seed)
        dealt = ElasticDistributedSampler(Draws(4), 2, rank)
        it = ElasticDataLoader(Draws(4), 2, sampler=dealt, num_workers=1)
        it.set_epoch(epoch)
        return tuple(flat(listed(iter(it))))

    assert len({drawn(0, 0), drawn(1, 0), drawn(0, 1), drawn(0, 0, 4)}) == 4
    assert drawn(1, 1) == drawn(1, 1)


def test_a_batch_that_cannot_be_loaded_is_not_counted() -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == order()[9]:
                raise OSError("cannot be read")
            return index

    it = ElasticDataLoader(Broken(40), 4, sampler=ElasticDistributedSampler(Broken(40), 1, 0))
    iteration = iter(it)
    listed(iteration, 2)
    with pytest.raises(OSError, match="cannot be read"):
        next(iteration)
    assert flat(listed(iter(restored(it.state_dict())))) == order()[8:]


def test_of_two_loops_the_older_ends_with_an_error() -> None:
    it = loader()
    older = iter(it)
    next(older)
    next(iter(it))
    with pytest.raises(DataError, match="a position cannot follow two loops"):
        next(older)


def test_a_batch_sampler_of_torch_around_ours_is_taken_apart() -> None:
    dealt = ElasticDistributedSampler(Numbers(40), 1, 0)
    it = ElasticDataLoader(Numbers(40), batch_sampler=BatchSampler(dealt, 4, True))
    assert it.sampler is dealt
    assert flat(listed(iter(it), 2)) == order()[:8]
    assert it.state_dict()["spans"] == [[0, 8, 1, 1]]


def test_the_state_is_stateful_and_loads_with_weights_only() -> None:
    it = loader()
    listed(iter(it), 2)
    assert isinstance(it, Stateful)
    assert isinstance(it, DataLoader)
    buffer = io.BytesIO()
    torch.save(it.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == it.state_dict()


# Steps of a constant size


@workers
@pytest.mark.parametrize("rounds", [[(1, 7)], [(2, 7)], [(3, 7)], [(2, 3), (1, 2), (3, 2)]], ids=str)
def test_steps_have_the_same_samples_for_any_worlds(
    rounds: list[tuple[int, int]], options: dict[str, Any]
) -> None:
    steps = train(lambda world, rank: _Steps(world, rank, options), rounds)
    expected = [sorted(order(50)[at : at + 8]) for at in range(0, 50, 8)]
    assert [sorted(set(flat(step))) for step in steps] == expected


class _Steps:
    """A loader of global batches, that gives those samples of a whole step that weigh something."""

    def __init__(self, world: int, rank: int, options: dict[str, Any]) -> None:
        dealt = ElasticDistributedSampler(Numbers(50), world, rank)
        batch = GlobalBatch(8, 2, world, rank)
        self.loader = ElasticDataLoader(Numbers(50), batch, sampler=dealt, **options)
        self.state_dict = self.loader.state_dict
        self.load_state_dict = self.loader.load_state_dict

    def __iter__(self) -> Any:
        step: list[int] = []
        for batch in self.loader:
            assert len(batch) == self.loader.part.size
            step += batch.tolist() if self.loader.part.scale else []
            if self.loader.part.is_last:
                yield torch.tensor(step)
                step = []


def test_a_state_from_the_middle_of_a_step_belongs_to_its_beginning() -> None:
    dealt = ElasticDistributedSampler(Numbers(40), 1, 0)
    it = ElasticDataLoader(Numbers(40), GlobalBatch(8, 4, 1, 0), sampler=dealt)
    iteration = iter(it)
    ats = []
    for _ in range(4):
        next(iteration)
        ats.append(sum(stop - start for start, stop, *_ in it.state_dict()["spans"]))
    assert ats == [0, 8, 8, 16]


def test_parts_of_steps_and_how_many_are_left() -> None:
    dealt = ElasticDistributedSampler(Numbers(20), 2, 1)
    it = ElasticDataLoader(Numbers(20), GlobalBatch(8, 3, 2, 1), sampler=dealt)
    seen = [(len(batch), it.part.scale, it.part.is_last, it.left) for batch in it]
    assert seen == [
        (2, 0.5, False, 5),
        (2, 0.5, True, 3),
        (2, 0.5, False, 3),
        (2, 0.5, True, 1),
        (2, 1.0, True, 0),
    ]
    assert len(it) == 5
    assert it.sampler is dealt


def test_drop_last_drops_a_step_that_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    it = ElasticDataLoader(Numbers(20), GlobalBatch(8), drop_last=True)
    assert [len(batch) for batch in it] == [8, 8]
    assert len(it) == 2
    assert it.state_dict()["ended"]


# What is refused


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"in_order": False, "num_workers": 1}, "in_order=False nobody knows"),
        (
            {"shuffle": True, "sampler": SequentialSampler(Numbers(4))},
            "shuffle is for a loader without a sampler",
        ),
        ({"shuffle": True, "batch_sampler": [[0]]}, "shuffle is for a loader without a sampler"),
        ({"batch_size": 0}, "batch_size is a number of samples from 1 on, .* got 0"),
        ({"batch_size": "4"}, "batch_size is a number .* got '4'"),
        (
            {"batch_size": 5, "drop_last": True},
            "4 samples: with drop_last that is no batch of 5 for each of 1 rank",
        ),
        (
            {"batch_size": GlobalBatch(5, None, 1, 0), "drop_last": True},
            "4 samples: .* that is no batch of 5",
        ),
        (
            {"batch_size": GlobalBatch(4, None, 1, 0), "sampler": SequentialSampler(Numbers(4))},
            "a GlobalBatch needs an ElasticDistributedSampler",
        ),
        (
            {
                "batch_size": GlobalBatch(4, None, 2, 1),
                "sampler": ElasticDistributedSampler(Numbers(4), 1, 0),
            },
            "the GlobalBatch is for rank 1 of 2, and the sampler for rank 0 of 1",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        ElasticDataLoader(Numbers(4), **options)


def test_a_dataset_without_an_index_is_refused() -> None:
    with pytest.raises(DataError, match="an IterableDataset has no index"):
        ElasticDataLoader(Stream())


def test_a_dataset_of_another_length_is_refused_with_both() -> None:
    with pytest.raises(DataError, match="the dataset has 41 samples, and had 40 when"):
        loader(41).load_state_dict(loader(40).state_dict())
