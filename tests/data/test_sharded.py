"""``ShardedDataset``: each record once, by what the loop has got, and faults that are named."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from elasticrun.core.data import leases  # noqa: E402
from elasticrun.core.protocol.data import MAX_FAILED  # noqa: E402
from elasticrun.data import Plan, Shard, ShardedDataset  # noqa: E402
from elasticrun.data.lease_source import LocalLeases  # noqa: E402
from elasticrun.errors import DataError  # noqa: E402

pytestmark = pytest.mark.torch

FILES: dict[str, int | None] = {"0": 7, "1": 5, "2": None, "3": 1}
LENGTHS = [7, 5, 6, 1]
ALL = Counter(100 * file + record for file, length in enumerate(LENGTHS) for record in range(length))


def read(shard: Shard) -> Iterator[int]:
    file = int(shard.name)
    return iter([100 * file + record for record in range(LENGTHS[file])][shard.start : shard.stop])


class Broken:
    """Reads all but one record of a file."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __call__(self, shard: Shard) -> Iterator[int]:
        for record in read(shard):
            if record == self.bad:
                raise OSError("no such sector")
            yield record


def dataset(**options: Any) -> ShardedDataset:
    read_by = options.pop("read", read)
    return ShardedDataset(read_by, Plan.of_files(FILES, 4, seed=1), batch_size=2, **options)


def numbers(batches: Iterator[Any], count: int | None = None) -> list[int]:
    return [n for batch in islice(batches, count) for n in batch.tolist()]


workers = pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "prefetch_factor": 3}], ids=["alone", "two workers"]
)


@workers
def test_each_record_of_each_epoch_once(options: dict[str, Any]) -> None:
    data = dataset(**options)
    epochs = [numbers(iter(data)) for _ in range(2)]
    assert data.epoch == 2
    assert [Counter(each) for each in epochs] == [ALL, ALL]
    assert epochs[0] != epochs[1]


@workers
@pytest.mark.parametrize("stop", [0, 1, 3, 7])
def test_a_state_is_what_the_loop_has_got(stop: int, options: dict[str, Any]) -> None:
    data = dataset(**options)
    taken = numbers(iter(data), stop)
    state = json.loads(json.dumps(data.state_dict()))
    other = dataset()
    other.load_state_dict(state)
    assert Counter(taken + numbers(iter(other))) == ALL
    assert other.epoch == 1


def test_a_state_of_every_step_is_exact_and_so_is_one_of_the_last_batch() -> None:
    data, states, taken = dataset(), list[Any](), list[int]()
    for batch in data:
        taken += batch.tolist()
        states.append((list(taken), json.loads(json.dumps(data.state_dict()))))
    for before, state in states:
        other = dataset()
        other.load_state_dict(state)
        assert Counter(before + numbers(iter(other))) == ALL
    assert Counter(numbers(iter(other))) == ALL
    assert other.epoch == 2


@workers
def test_a_loop_that_is_left_early_goes_on(options: dict[str, Any]) -> None:
    data = dataset(**options)
    taken = numbers(iter(data), 2)
    data.state_dict()
    taken += numbers(iter(data), 1)
    assert Counter(taken + numbers(iter(data))) == ALL


@workers
def test_what_cannot_be_read_is_tried_again_then_reported(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    data = dataset(read=Broken(103), **options)
    with caplog.at_level(logging.WARNING):
        found = Counter(numbers(iter(data)))
    assert found == ALL - Counter([103])
    (failed,) = data.failed
    assert (failed.shard, failed.reason) == (Shard("1", 3, 4), "no such sector")
    assert caplog.messages == ["records 3 to 4 of 1 are left out: no such sector"]
    other = dataset(read=Broken(103))
    other.load_state_dict(data.state_dict())
    assert other.failed == data.failed


def odd_only(shard: Shard) -> Iterator[int]:
    if shard.start % 2 == 0:
        raise OSError("no such sector")
    return iter(range(shard.start, shard.stop))


def test_a_state_has_the_newest_of_what_was_left_out_and_the_trail_all_of_it() -> None:
    plan = Plan.of_samples(100, 1, shuffle=False)
    data, left_out = ShardedDataset(odd_only, plan, readers=1), list[Any]()
    for epoch in range(8):
        assert len(numbers(iter(data))) == 50
        state = data.state_dict()
        assert len(state["leases"]["failed"]) == min(50 * (epoch + 1), MAX_FAILED)
        left_out += data.audit_trail().get("left_out", [])
    assert left_out == [
        [epoch, "", n, n + 1, "no such sector"] for epoch in range(8) for n in range(0, 100, 2)
    ]
    assert len(data.state_dict()["leases"]["failed"]) == len(data.failed) == MAX_FAILED
    assert data.failed[-1].piece == (7, 98, 98, 99)
    other = ShardedDataset(odd_only, plan, readers=1)
    other.load_state_dict(state)
    assert "left_out" not in other.audit_trail(), "that was written down before"


def test_what_files_lack_is_told_once_however_much_it_is() -> None:
    plan, told = Plan.of_samples(200, 2), list[int]()
    data = ShardedDataset(lambda shard: [shard.start] if shard.start % 2 == 0 else [], plan, readers=1)
    for _ in range(4):
        list(data)
        data.state_dict()
        told.append(len(data.audit_trail()["left_out"]))
    assert told == [100] * 4


def test_a_fault_comes_after_what_was_saved() -> None:
    data, taken = dataset(read=Broken(102)), list[int]()
    for batch in data:
        taken += batch.tolist()
        data.state_dict()
    assert Counter(taken) == ALL - Counter([102, 103]), "a batch was saved, then nothing more could be read"
    assert [each.shard for each in data.failed] == [Shard("1", 2, 4)]


def test_a_fault_that_passes_leaves_nothing_out() -> None:
    broken = Broken(103)
    data, taken = dataset(read=broken), list[int]()
    for batch in data:
        taken += batch.tolist()
        broken.bad = -1 if 102 in taken else broken.bad
    assert Counter(taken) == ALL
    assert data.failed == ()


def test_torchs_loader_around_it_is_for_the_loop_alone() -> None:
    data = dataset()
    assert Counter(numbers(iter(DataLoader(data, batch_size=None)))) == ALL
    with pytest.raises(DataError, match="has workers of its own: give num_workers to it"):
        list(DataLoader(data, batch_size=None, num_workers=1))


def test_a_position_follows_one_loop() -> None:
    data = dataset()
    first = iter(data)
    next(first)
    second = iter(data)
    next(second)
    with pytest.raises(DataError, match="this iteration is over"):
        next(first)
    data.load_state_dict(data.state_dict())
    with pytest.raises(DataError, match="this iteration is over"):
        next(second)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (3, "no format"),
        ({"format": 2, "leases": {}}, "no format"),
        ({"format": 1, "leases": {}}, "its epoch is None"),
        ({"format": 1, "leases": {}, "epoch": 0}, "the saved leases are none"),
    ],
)
def test_a_state_that_is_none_is_refused(state: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        dataset().load_state_dict(state)


def test_many_small_shards_can_be_read_without_a_save() -> None:
    data = ShardedDataset(lambda shard: range(shard.start, shard.stop), Plan.of_samples(500, 1), 1)
    assert sorted(numbers(iter(data))) == list(range(500))


def test_what_is_in_no_state_may_be_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MAX_OPEN", 5)
    data = dataset(saved=False, read=Broken(103))
    for _ in range(4):
        assert Counter(numbers(iter(data))) == ALL - Counter([103])
    assert data.audit_trail() == {"trained": [], "lost": False}
    for call in (data.state_dict, lambda: data.load_state_dict({})):
        with pytest.raises(DataError, match="these shards have saved=False"):
            call()
    with pytest.raises(DataError, match=r"needs saved=False\. If it is saved: save more often"):
        list(dataset())


def test_other_files_are_refused() -> None:
    other = ShardedDataset(read, Plan.of_files({**FILES, "3": 2}, 4, seed=1))
    with pytest.raises(DataError, match="of other files, lengths"):
        other.load_state_dict(dataset().state_dict())


def test_bad_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan.of_samples(4, 2)
    with pytest.raises(DataError, match="batch_size is a number of records from 1 on, got 0"):
        ShardedDataset(read, plan, batch_size=0)
    with pytest.raises(DataError, match="with in_order=False nobody knows"):
        ShardedDataset(read, plan, in_order=False)
    for wrong in ({"readers": 0}, {"name": ""}, {"patience": 0.0}):
        with pytest.raises(DataError, match="readers and patience are numbers above 0"):
            ShardedDataset(read, plan, **wrong)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("ELASTICRUN_MEMORY", raising=False)
    with pytest.raises(DataError, match="start the script with elastic-run"):
        list(ShardedDataset(read, plan))
    with pytest.raises(DataError, match="in_step=True has the ranks agree on each step"):
        iter(ShardedDataset(read, plan, in_step=True))
    ShardedDataset(read, plan, source=LocalLeases(plan))
    mine = ShardedDataset(lambda shard: range(shard.start, shard.stop), plan, readers=1)
    assert sorted(numbers(iter(mine))) == [0, 1, 2, 3], "it has the data to itself"
