"""What a rank records of its positions in the data, and what becomes of it when it cannot."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.checkpoint import from_storage
from elasticrun.checkpoint.agent_memory import AgentMemory, SaveRefused
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.checkpoint.overlap import Changed, Later
from elasticrun.checkpoint.records import DataRecord
from elasticrun.core.data.history import Start, read_saved, read_start
from elasticrun.core.data.order import Source
from elasticrun.core.data.position import Position
from elasticrun.core.data.record import from_state, to_state
from elasticrun.core.protocol.commits import CommitId
from elasticrun.data import ElasticDataLoader, Plan, ShardedDataset
from elasticrun.errors import CheckpointError
from elasticrun.storage.records import CommitName
from tests.checkpoint.nodes import Node
from tests.data.build import Numbers, listed

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

STATES = {"loader": to_state(Position(Source(9, 0, True)).advance(4, 1)), "seen": 3}


def lines(run: Path, round_: int, rank: int = 0) -> list[Any]:
    path = run / "data" / f"round_{round_}_rank_{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_saved_positions_are_recorded_and_what_a_rank_went_on_from(node: Node, tmp_path: Path) -> None:
    def state() -> dict[str, Any]:
        loader = ElasticDataLoader(Numbers(10), batch_size=2, shuffle=True)
        return {"weights": torch.zeros(2), "loader": loader, "seen": 0}

    first, keeper = state(), node.worker(records=tmp_path)
    assert keeper.load(first) == 0
    batches = iter(first["loader"])
    for step in (1, 2):
        listed(batches, 1)
        assert keeper.save(step, first)
        keeper.wait()
        node.host.judge(kept=CommitId(1, step))  # else the next save waits for it
    listed(batches, 1)  # of no saved step
    node.restart(2)
    start, *saved = lines(tmp_path, 1)
    assert read_start(start) == Start(1, 0, 1)
    found = [read_saved(line) for line in saved]
    assert [each.step for each in found] == [1, 2]
    assert [each.positions["loader"].at for each in found] == [2, 4]
    assert list(found[0].positions) == ["loader"]
    second, keeper = state(), node.worker(records=tmp_path)
    assert keeper.load(second) == 2
    assert read_start(lines(tmp_path, 2)[0]) == Start(2, 0, 1, CommitId(1, 2))
    assert keeper.save(3, second)
    keeper.wait()
    assert read_saved(lines(tmp_path, 2)[1]).positions["loader"] == from_state(second["loader"].state_dict())


def test_what_was_trained_on_is_recorded_also_with_a_step_that_is_not_saved(
    node: Node, tmp_path: Path
) -> None:
    plan = Plan.of_samples(8, 4, shuffle=False)
    data = ShardedDataset(lambda shard: range(shard.start, shard.stop), plan, 2)
    state = {"weights": torch.zeros(2), "data": data, "copy": {"leases": {}}}
    keeper, batches = node.worker(records=tmp_path), iter(data)
    for step in (1, 2, 3):
        next(batches)
        with pytest.MonkeyPatch.context() as patched:
            if step == 2:
                patched.setattr(AgentMemory, "begin", _refuse)
            assert keeper.save(step, state) == (step != 2)
        keeper.wait()
        node.host.judge(kept=CommitId(1, 1))
    saved = [read_saved(line) for line in lines(tmp_path, 1)[1:]]
    assert [(each.step, each.was_kept) for each in saved] == [(1, True), (2, False), (3, True)]
    assert [each.shards["data"].trained for each in saved] == [
        ((0, "", 0, 2),),
        ((0, "", 2, 4),),
        ((0, "", 4, 6),),
    ]
    assert ["plan" in each.shards["data"].left for each in saved] == [True, False, False]
    assert [[*each.shards] for each in saved] == [["data"]] * 3, "a copy of a state tells nothing"


def test_what_was_trained_on_is_recorded_also_if_a_copy_is_given_up(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan.of_samples(8, 4, shuffle=False)
    data = ShardedDataset(lambda shard: range(shard.start, shard.stop), plan, 2)
    keeper = node.worker(records=tmp_path, overlap=True)
    next(iter(data))

    def change(*_: Any) -> None:
        raise Changed("w was changed while it was copied")

    monkeypatch.setattr(Later, "copy", change)
    assert keeper.save(1, {"weights": torch.zeros(2), "data": data})
    keeper.wait()
    [saved] = [read_saved(line) for line in lines(tmp_path, 1)[1:]]
    assert (saved.was_kept, saved.shards["data"].trained) == (False, ((0, "", 0, 2),))


def _refuse(*_: Any, **__: Any) -> Any:
    raise SaveRefused("there is no room")


def test_what_is_restored_from_the_storage_is_recorded_with_its_run(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = node.worker(records=tmp_path)
    assert keeper._memory is not None
    keeper._memory.storage = "a storage"
    name = CommitName(CommitId(5, 8), "run7")
    monkeypatch.setattr(from_storage, "load_stored", lambda *_: name)
    assert keeper.load({}) == 8
    assert read_start(lines(tmp_path, 1)[0]) == Start(1, 0, 1, name.commit, "run7")


def test_who_loads_nothing_goes_on_from_nothing(tmp_path: Path) -> None:
    record = DataRecord(tmp_path, 3, 1, 2)
    record.save(1, STATES)
    record.begin(CommitId(2, 2))
    record.close()
    record.close()
    start, saved = lines(tmp_path, 3, 1)
    assert read_start(start) == Start(3, 1, 2)
    assert saved == {"step": 1, "data": {"loader": STATES["loader"]}}


def test_the_directory_of_another_job_is_refused(node: Node, tmp_path: Path) -> None:
    node.worker(records=tmp_path)
    with pytest.raises(CheckpointError, match=r"round_1_rank_0\.jsonl is there already: give each job"):
        node.worker(records=tmp_path)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"Not a directory\): give a directory that all workers may"):
        DataRecord(tmp_path / "file", 0, 0, 1)


@pytest.mark.parametrize("fault", ["error", "short"])
def test_a_full_disk_ends_the_record_and_not_the_training(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = DataRecord(tmp_path, 0, 0, 1)
    record.begin(None)
    write = os.write

    def full(file: int, data: bytes) -> int:
        if fault == "short":
            return write(file, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with caplog.at_level(logging.WARNING):
        record.save(1, STATES)
        record.save(2, STATES)
    (message,) = caplog.messages
    assert "round_0_rank_0.jsonl ends here: " in message
    (path,) = (tmp_path / "data").iterdir()
    assert path.read_text().count("\n") == 1, "a line that was cut off has no end"


def test_outside_of_elastic_run_nothing_is_recorded(tmp_path: Path) -> None:
    keeper = Checkpointer(records=tmp_path)
    assert keeper.load({}) == 0
    assert not keeper.save(1, {})
    keeper.close()
    assert not list(tmp_path.iterdir())
