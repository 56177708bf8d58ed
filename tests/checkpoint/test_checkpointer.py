"""``Checkpointer`` against the memory of a real agent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from elasticrun.agent.memory import server
from elasticrun.agent.memory.gate import VARIABLE
from elasticrun.checkpoint.agent_memory import SaveRefused, StoredPart
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.checkpoint.memory import MemoryReader, MemoryWriter
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from tests.support.memory_host import DEADLINE, MemoryHost

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

T = TypeVar("T")

#: Enough for every test, and so little that a bug cannot take the memory of the box.
ROOM = 256 << 20


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "free_bytes", lambda: ROOM)


class Node:
    """A node and its workers, all of them in this process."""

    def __init__(self, host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self._monkeypatch = monkeypatch
        self._started: list[Checkpointer] = []

    def worker(self, local_rank: int = 0) -> Checkpointer:
        """Start a worker; what it reads from its environment is there until another one starts."""
        for name, value in self.host.environment(local_rank).items():
            self._monkeypatch.setenv(name, value)
        self._started.append(made := Checkpointer())
        return made

    def restart(self, step: int) -> None:
        """All workers end once this step is saved, and the next round restores it."""
        self.stop()
        saved = CommitId(self.host.round, step)
        while saved not in [holding.commit for holding in self.host.holdings()]:
            pass  # that was told before
        self.host.begin(saved.round + 1, restore=saved)

    def stop(self) -> None:
        for worker in self._started:
            worker.close()
        self._started.clear()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with MemoryHost() as host:
        yield (node := Node(host, monkeypatch))
        node.stop()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node of two workers."""
    with MemoryHost(2) as host:
        yield (node := Node(host, monkeypatch))
        node.stop()


def at_once(*functions: Callable[[], T]) -> list[T]:
    """What these return that run at the same time."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(DEADLINE) for each in [pool.submit(function) for function in functions]]


class Training:
    """All that a training consists of."""

    def __init__(self, seed: int, width: int = 4) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
        self.half = torch.randn(5).to(torch.bfloat16)
        self.optimizer: Optimizer = AdamW(self.model.parameters(), lr=0.1)
        self.plan = CosineAnnealingLR(self.optimizer, 20)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "plan": self.plan,
            "half": self.half,
            "epoch": 0,
            "seen": {"files": [], "rate": 0.0},
            "random": torch.get_rng_state(),
        }

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 3)).square().sum().backward()
            self.optimizer.step()
            self.plan.step()
            self.half.mul_(1.5)
            self.state["epoch"] += 1
            self.state["seen"]["files"].append(f"file {self.state['epoch']}")
            self.state["seen"]["rate"] = 0.1 * self.state["epoch"]

    @property
    def everything(self) -> dict[str, Any]:
        """All of it, copied so that it can be compared bit by bit."""
        return {
            name: picture(each.state_dict() if hasattr(each, "state_dict") else each)
            for name, each in self.state.items()
        }


def picture(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), bytes(value.reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {key: picture(each) for key, each in value.items()}
    return [picture(each) for each in value] if isinstance(value, list | tuple) else value


def test_all_of_a_training_comes_back_bit_by_bit(node: Node) -> None:
    training, worker = Training(1), node.worker()
    assert worker.load(training.state) == 0
    training.train(3)
    expected = training.everything
    assert worker.save(3, training.state)
    node.restart(3)
    other = Training(2)
    assert other.everything != expected
    assert node.worker().load(other.state) == 3
    assert other.everything == expected


def test_what_the_loop_changes_after_a_save_does_not_reach_it(node: Node) -> None:
    training, worker = Training(1), node.worker()
    training.train(1)
    expected = training.everything
    assert worker.save(1, training.state)
    training.train(2)
    assert training.everything != expected
    node.restart(1)
    other = Training(2)
    assert node.worker().load(other.state) == 1
    assert other.everything == expected


def test_a_restored_training_goes_on_as_if_nothing_had_happened(node: Node) -> None:
    calm, training = Training(1), Training(1)
    worker = node.worker()
    training.train(2)
    training.state["random"] = torch.get_rng_state()
    assert worker.save(2, training.state)
    node.restart(2)
    other = Training(7)
    node.worker().load(other.state)
    torch.set_rng_state(other.state["random"])
    other.train(3)
    torch.manual_seed(1)
    calm = Training(1)
    calm.train(5)
    left, right = calm.everything, other.everything
    assert left.pop("random") != right.pop("random")
    assert left == right


def test_the_newest_of_several_saves_is_restored(node: Node) -> None:
    training, worker = Training(1), node.worker()
    for step in (1, 2, 3):
        training.train(1)
        assert worker.save(step, training.state)
        worker.wait()
        node.host.holdings()
        node.host.judge(kept=CommitId(1, step))
    node.stop()
    node.host.begin(2, restore=CommitId(1, 3))
    other = Training(2)
    assert node.worker().load(other.state) == 3
    assert other.everything == training.everything


def test_a_restored_training_can_be_saved_and_restored_again(node: Node) -> None:
    training = Training(1)
    for step in (2, 4, 6):
        training.train(2)
        assert node.worker().save(step, training.state)
        node.restart(step)
        expected = training.everything
        training = Training(step)
        assert node.worker().load(training.state) == step
        assert training.everything == expected


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (lambda: {"model": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))}, "model.1.weight"),
        (lambda: {"model": nn.Sequential(nn.Linear(3, 5))}, "model.0.weight"),
        (lambda: {"model": nn.Linear(3, 4)}, "model.weight"),
        (lambda: {"net": nn.Sequential(nn.Linear(3, 4))}, "net.0.weight"),
        (lambda: {"epoch": 0, "note": ""}, "note"),
    ],
    ids=["one layer more", "wider", "no sequence", "another name", "one value more"],
)
def test_a_state_of_another_model_is_told_with_its_key(
    node: Node, other: Callable[[], dict[str, Any]], key: str
) -> None:
    assert node.worker().save(1, {"model": nn.Sequential(nn.Linear(3, 4)), "epoch": 1})
    node.restart(1)
    with pytest.raises(CheckpointError, match=rf"does not fit this model.*\b{key}\b"):
        node.worker().load(other())


def test_a_state_of_many_long_names_comes_back(node: Node) -> None:
    names = [f"transformer.layers.{number}.self_attention.query.weight" for number in range(500)]
    assert node.worker().save(1, {"weights": {name: torch.ones(1) for name in names}})
    node.restart(1)
    state = {"weights": {name: torch.zeros(1) for name in names}}
    assert node.worker().load(state) == 1
    assert all(weight.item() == 1 for weight in state["weights"].values())


def test_outside_of_a_job_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    training, worker = Training(1), Checkpointer()
    before = training.everything
    assert worker.load(training.state) == 0
    assert not worker.save(1, training.state)
    assert training.everything == before
    worker.wait()
    worker.close()
    with pytest.raises(CheckpointError, match=r"no worker of elastic-run"):
        MemoryReader()


def test_a_job_that_restores_nothing_starts_anew(node: Node) -> None:
    training = Training(1)
    before = training.everything
    assert node.worker().load(training.state) == 0
    assert training.everything == before


def test_a_state_that_other_nodes_have_is_told(node: Node) -> None:
    node.host.begin(2, restore=CommitId(1, 5))
    with pytest.raises(CheckpointError, match="no state is in memory on this node"):
        node.worker().load(Training(1).state)


def test_a_save_without_room_is_told_once_and_harms_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training, worker = Training(1), node.worker()
    monkeypatch.setattr(server, "free_bytes", lambda: 1000)
    with caplog.at_level(logging.WARNING, "elasticrun"):
        assert [worker.save(step, training.state) for step in (1, 2, 3)] == [False] * 3
    (told,) = caplog.messages
    assert told.startswith("step 1 is not saved: ")
    assert "1000 bytes of memory can be taken" in told
    monkeypatch.setattr(server, "free_bytes", lambda: ROOM)
    assert worker.save(4, training.state)
    node.restart(4)


def test_a_step_is_saved_once_only(node: Node) -> None:
    training, worker = Training(1), node.worker()
    assert worker.save(5, training.state)
    assert not worker.save(5, training.state)
    assert not worker.save(4, training.state)


def test_a_save_whose_copy_fails_can_be_made_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    training, worker = Training(1), node.worker()
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="out of memory"):
        broken.setattr("elasticrun.checkpoint.memory.write", fail)
        worker.save(1, training.state)
    assert worker.save(1, training.state)
    node.restart(1)


def test_an_agent_that_has_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryHost() as host:
        node = Node(host, monkeypatch)
        worker = node.worker()
    with pytest.raises(CheckpointError, match=r"the agent has (gone|hung up)"):
        worker.save(1, Training(1).state)
    node.stop()


def test_who_has_closed_saves_nothing_more(node: Node) -> None:
    training, worker = Training(1), node.worker()
    worker.close()
    worker.close()
    assert not worker.save(1, training.state)
    assert worker.load(training.state) == 0


def test_damage_is_told_with_the_key(node: Node) -> None:
    assert node.worker().save(1, {"first": torch.ones(100), "second": torch.ones(100)})
    node.restart(1)
    memory = node.host.connect()
    (part,) = memory.stored()
    damaged = bytearray(part.memory)
    damaged[450] ^= 1  # the first one has 400 bytes
    granted = memory.begin(2, len(damaged), len(damaged), "")
    granted.memory[: len(damaged)] = bytes(damaged)
    memory.end(2, len(damaged), part.digest, own=False)
    memory.close()
    node.host.begin(3, restore=CommitId(2, 2))
    state = {"first": torch.zeros(100), "second": torch.zeros(100)}
    with pytest.raises(CheckpointError, match=r"^second is damaged in the part of rank 0"):
        node.worker().load(state)


# Two workers of a node


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


# torch's own way to save


def test_torch_saves_and_loads_through_the_agents_memory(node: Node) -> None:
    memory = node.host.connect()
    saved = {"weight": torch.arange(6.0).reshape(2, 3), "nested": {"note": "text"}}
    state_dict_saver.save(saved, storage_writer=MemoryWriter(4, memory), no_dist=True)
    memory.close()
    node.restart(4)
    memory, state = node.host.connect(), {"weight": torch.zeros(2, 3), "nested": {"note": ""}}
    state_dict_loader.load(state, storage_reader=MemoryReader(memory), no_dist=True)
    assert picture(state) == picture(saved)
    memory.close()


def test_torch_hears_that_there_is_no_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "free_bytes", lambda: 1000)
    memory = node.host.connect()
    with pytest.raises((SaveRefused, CheckpointException)):
        state_dict_saver.save({"weight": torch.ones(3)}, storage_writer=MemoryWriter(1, memory), no_dist=True)
    memory.close()
