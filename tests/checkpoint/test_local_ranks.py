"""``Checkpointer`` of two workers of a node, which do not talk to each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.checkpoint.agent_memory import StoredPart
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from tests.checkpoint.nodes import Node, at_once, picture

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


def parts_of(node: Node) -> list[StoredPart]:
    memory = node.host.connect()
    found = sorted(memory.stored(), key=lambda part: part.rank)
    memory.close()
    return found


def large(rank: int) -> dict[str, Any]:
    """What all ranks have alike, and what is each rank's own. One part of all has 4 MiB."""
    weights = {f"layer {number}": torch.full((1 << 18,), number + 1.0) for number in range(4)}
    return {"weights": weights, "rank": rank, "note": {"of": [rank] * 3}}


def blank() -> dict[str, Any]:
    weights = {f"layer {number}": torch.zeros(1 << 18) for number in range(4)}
    return {"weights": weights, "rank": -1, "note": {"of": []}}


def save_on_both(pair: Node, step: int, *states: dict[str, Any]) -> None:
    workers = [pair.worker(rank) for rank in range(2)]
    saves = [
        lambda worker=worker, state=state: worker.save(step, state)
        for worker, state in zip(workers, states, strict=True)
    ]
    assert at_once(*saves) == [True, True]
    for worker in workers:
        worker.wait()


def test_two_ranks_divide_what_they_have_alike(pair: Node) -> None:
    save_on_both(pair, 1, large(0), large(1))
    pair.restart(1)
    parts = parts_of(pair)
    assert [part.rank for part in parts] == [0, 1]
    assert all(2 << 20 <= part.length < 3 << 20 for part in parts), "half of it each"
    for rank in (0, 1):
        state = blank()
        assert pair.worker(rank).load(state) == 1
        assert picture(state) == picture(large(rank)), "all that is shared, and its own"


def test_a_virtual_local_rank_is_not_a_share(pair: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = []
    for rank in (0, 1):
        for name, value in (pair.host.environment(rank) | {"LOCAL_RANK": "0"}).items():
            monkeypatch.setenv(name, value)
        workers.append(Checkpointer())
    assert at_once(*(partial(it.save, 1, large(rank)) for rank, it in enumerate(workers))) == [True, True]
    for worker in workers:
        worker.close()
    pair.restart(1)
    state = blank()
    assert pair.worker(1).load(state) == 1
    assert picture(state) == picture(large(1))


def test_a_rank_that_is_new_gets_anothers_values(pair: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    save_on_both(pair, 1, large(0), large(1))
    pair.restart(1)
    worker, state = pair.worker(), blank()
    monkeypatch.setenv("RANK", "5")
    assert worker.load(state) == 1
    assert picture(state) in [picture(large(0)), picture(large(1))]


def test_two_ranks_of_different_models_save_all_of_them(pair: Node) -> None:
    states = {"weight": torch.ones(3)}, {"weight": torch.ones(3), "head": torch.ones(2)}
    save_on_both(pair, 1, *states)
    pair.restart(1)
    state = {"weight": torch.zeros(3), "head": torch.zeros(2)}
    assert pair.worker(1).load(state) == 1
    assert picture(state) == picture(states[1])


def test_a_step_that_one_rank_did_not_save_is_not_restored(pair: Node) -> None:
    workers = [pair.worker(rank) for rank in range(2)]
    saves = [
        lambda worker=worker, rank=rank: worker.save(1, large(rank)) for rank, worker in enumerate(workers)
    ]
    assert at_once(*saves) == [True, True]
    for worker in workers:
        worker.wait()
    (held,) = pair.host.holdings()
    pair.host.judge(kept=held.commit)
    assert workers[0].save(2, {**large(0), "rank": 77})
    workers[0].wait()
    assert pair.host.has_told_all()
    pair.stop()
    pair.host.begin(2, restore=held.commit)
    for rank in (0, 1):
        state = blank()
        assert pair.worker(rank).load(state) == 1
        assert picture(state) == picture(large(rank))


def test_two_ranks_with_nothing_alike_need_not_save_at_once(pair: Node) -> None:
    for rank in (0, 1):
        worker = pair.worker(rank)
        assert worker.save(1, {"rank": rank})
        worker.wait()
    pair.restart(1)
    for rank in (0, 1):
        state = {"rank": -1}
        assert pair.worker(rank).load(state) == 1
        assert state == {"rank": rank}


def test_who_could_not_restore_what_is_damaged_can_save(pair: Node) -> None:
    for rank in (0, 1):
        memory = pair.host.connect(rank)
        memory.begin(1, 100, 100, "")
        memory.end(1, 50, "aa", own=False)
        memory.close()
    pair.host.begin(2, restore=CommitId(1, 1))
    worker = pair.worker()
    with pytest.raises(CheckpointError, match="is damaged: its index has changed"):
        worker.load({"rank": -1})
    assert worker.save(1, {"rank": 0})


def test_ranks_that_never_save_the_same_step_are_told_once(
    pair: Node, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [pair.worker(rank) for rank in range(2)]
    for step in range(2, 24, 2):
        for rank, worker in enumerate(workers):
            assert worker.save(step + rank, {"rank": step})
            worker.wait()
    warnings = [text for text in caplog.messages if "have to save the same steps" in text]
    assert len(warnings) == 2, "once on each rank"
    assert warnings[0].startswith("none of the last 5 steps that this node has saved can be restored")
