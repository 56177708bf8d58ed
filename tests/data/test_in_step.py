"""Equally many steps on all ranks, in which each record weighs the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from elasticrun.core.data.batches import Part  # noqa: E402
from elasticrun.data import Plan, Shard, ShardedDataset  # noqa: E402
from elasticrun.data import in_step as in_step  # noqa: E402
from elasticrun.data.sharded import MAX_PADDING  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402

pytestmark = pytest.mark.torch


def steps(*ranks: list[list[int]]) -> list[tuple[Any, Part]]:
    """What this rank gets, if ranks have these batches."""
    sized = iter([(each, len(each)) for each in ranks[dist.get_rank()]])
    return list(in_step.in_step(sized, lambda: "padding", in_step.Agreement()))


@pytest.mark.distributed(nproc=3)
def test_ranks_have_equally_many_steps_and_each_record_weighs_the_same() -> None:
    found = steps([[1, 2], [3], [4]], [[5]], [])
    batches, parts = [
        ([[1, 2], [3], [4]], [(2, 2.0), (1, 3.0), (1, 3.0)]),
        ([[5], [5], [5]], [(1, 1.0), (1, 0.0), (1, 0.0)]),  # what it had last is its padding
        (["padding"] * 3, [(1, 0.0)] * 3),
    ][dist.get_rank()]
    assert [batch for batch, _ in found] == batches
    assert [part for _, part in found] == [Part(size, scale, is_last=True) for size, scale in parts]


@pytest.mark.distributed(nproc=2)
def test_an_epoch_of_nothing() -> None:
    assert steps([], []) == []


class World:
    """A process group of one, which takes itself for one of ``size``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda: size)


@pytest.mark.parametrize(
    ("wanted", "readers", "goes"), [(None, 2, True), (None, 1, False), (True, 2, True), (False, 2, False)]
)
def test_when_ranks_go_in_step(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, readers: int, goes: bool
) -> None:
    World(monkeypatch, 2)
    assert in_step.goes_in_step(wanted, readers) is goes


def test_ranks_that_cannot_agree_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"call torch.distributed.init_process_group before, .*\(readers=2\)"):
        in_step.goes_in_step(True, 2)
    assert in_step.goes_in_step(True, 1) is False
    World(monkeypatch, 3)
    with pytest.raises(DataError, match=r"have all ranks read the data \(readers=2\)"):
        in_step.goes_in_step(True, 2)


def lone(monkeypatch: pytest.MonkeyPatch, read: Any, plan: Plan | None = None) -> Iterator[Any]:
    """A rank that has nothing, in a world where another one has two steps."""
    World(monkeypatch, 1)
    data = ShardedDataset(read, plan or Plan.of_samples(4, 4), 2, collate_fn=list, readers=1)
    monkeypatch.setattr(data, "_hand_out", lambda iteration: iter(()))
    totals = iter([2, 2, 0])
    monkeypatch.setattr(data._agreement, "added_up", lambda count: next(totals))
    return data._in_steps(data._iteration)


def test_a_rank_without_records_is_padded_with_those_of_the_first_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list(lone(monkeypatch, lambda shard: range(shard.start, shard.stop)))
    assert [len(each) for each in found] == [2, 2]


def test_padding_is_of_the_first_shard_that_can_be_read_and_has_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(shard: Shard) -> range:
        if shard.name == "bad":
            raise OSError("no such sector")
        return range(shard.start, min(shard.stop, 0 if shard.name == "empty" else 3))

    plan = Plan.of_files({"bad": 8, "empty": None, "good": None}, 4, shuffle=False)
    assert list(lone(monkeypatch, read, plan)) == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("shards", "tried"), [(3, 3), (MAX_PADDING + 1, MAX_PADDING)])
def test_padding_that_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, shards: int, tried: int
) -> None:
    asked = list[Shard]()

    def read(shard: Shard) -> range:
        asked.append(shard)
        if len(asked) == tried:
            raise OSError("no such sector")
        return range(0)

    said = rf"of the {tried} shards that were tried none .* of the dataset \(no such sector\)"
    with pytest.raises(DataError, match=said):
        list(lone(monkeypatch, read, Plan.of_samples(shards * 4, 4)))
    assert len(asked) == tried
