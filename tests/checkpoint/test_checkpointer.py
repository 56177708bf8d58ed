"""``Checkpointer`` of one worker, against the memory of a real agent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from elasticrun.agent.memory import buffers
from elasticrun.agent.memory.gate import VARIABLE
from elasticrun.checkpoint import agent_memory, checkpointer
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.checkpoint.memory import MemoryReader
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from tests.checkpoint.nodes import Node, picture
from tests.support.memory_host import DEADLINE, MemoryHost

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


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


def test_a_box_without_threads_restores_all_the_same(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    training, worker = Training(1), node.worker()
    assert worker.save(1, training.state)
    node.restart(1)
    worker = node.worker()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fail)
        assert worker.load(training.state) == 1
    assert worker.save(2, training.state)
    worker.close()


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
    training, worker = Training(1), node.worker()
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


@pytest.mark.parametrize(
    ("saved", "here", "told"),
    [
        (
            torch.ones(4),
            torch.ones(3),
            r"\[3\] here, and was saved as float32 of shape \[4\]",
        ),
        (
            torch.ones(3),
            torch.ones(4),
            r"\[4\] here, and was saved as float32 of shape \[3\]",
        ),
        (torch.ones(4), torch.ones(2, 2), r"\[2, 2\] here, and was saved as float32 of shape \[4\]"),
        (torch.ones(1), torch.ones(1).int(), r"int32 of shape \[1\] here, and was saved as float32"),
        (torch.ones(1).long(), torch.ones(1).int(), r"int32 of shape \[1\] here, and was saved as int64"),
        (torch.ones(1).int(), torch.ones(1).bool(), r"bool of shape \[1\] here, and was saved as int32"),
        (
            torch.ones(1, dtype=torch.complex64),
            torch.ones(1),
            r"float32 of .*, and was saved as complex64",
        ),
        (1.5, torch.ones(1), r"float32 of shape \[1\] here, and was saved as a plain value"),
    ],
    ids=str,
)
def test_a_tensor_that_cannot_take_what_was_saved_is_left_as_it_is(
    node: Node, saved: object, here: torch.Tensor, told: str
) -> None:
    before = picture(here)
    assert node.worker().save(1, {"weight": saved})
    node.restart(1)
    with pytest.raises(CheckpointError, match=rf"does not fit this model: weight is a tensor of .*{told}"):
        node.worker().load({"weight": here})
    assert picture(here) == before


@pytest.mark.parametrize(
    ("saved", "here"), [("float32", "bfloat16"), ("int32", "float32"), ("uint8", "int16"), ("bool", "int8")]
)
def test_a_tensor_may_have_another_precision(node: Node, saved: str, here: str) -> None:
    assert node.worker().save(1, {"weight": torch.ones(3, dtype=getattr(torch, saved)), "gone": 5})
    node.restart(1)
    state = {"weight": torch.zeros(3, dtype=getattr(torch, here))}
    assert node.worker().load(state) == 1, "what is not asked for is left out"
    assert state["weight"].tolist() == [1, 1, 1]


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


def test_a_load_after_a_save_of_the_same_round_is_told(node: Node) -> None:
    """It would restore an older step than the one that was saved, or nothing."""
    training, worker = Training(1), node.worker()
    assert worker.load(training.state) == 0
    assert worker.load(training.state) == 0
    assert worker.save(1, training.state)
    with pytest.raises(CheckpointError, match="`load` comes before the first `save` of a round"):
        worker.load(training.state)
    node.restart(1)
    worker = node.worker()
    assert [worker.load(training.state) for _ in range(2)] == [1, 1]


def test_a_reader_tells_what_there_is_to_read(node: Node) -> None:
    memory = node.host.connect()
    reader = MemoryReader(memory)
    assert (reader.is_empty, reader.step) == (True, None)
    memory.close()
    node.host.begin(2, restore=CommitId(1, 5))
    memory = node.host.connect()
    reader = MemoryReader(memory)
    assert (reader.is_empty, reader.step) == (False, 5)
    memory.close()


def test_a_state_that_other_nodes_have_is_told(node: Node) -> None:
    node.host.begin(2, restore=CommitId(1, 5))
    with pytest.raises(CheckpointError, match="no state is in memory on this node"):
        node.worker().load(Training(1).state)


def test_a_save_without_room_is_told_once_and_harms_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    training, worker = Training(1), node.worker()
    with monkeypatch.context() as full:
        full.setattr(buffers, "free_bytes", lambda: 1000)
        assert [worker.save(step, training.state) for step in (1, 2, 3)] == [False] * 3
    (told,) = caplog.messages
    assert told.startswith("step 1 is not saved: ")
    assert "1000 bytes of memory can be taken" in told
    assert worker.save(4, training.state)
    node.restart(4)


def test_a_step_is_saved_once_only_and_each_refusal_after_a_save_is_told(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    training, worker = Training(1), node.worker()
    for step in (5, 7):
        assert worker.save(step, training.state)
        worker.wait()
        node.host.holdings()
        node.host.judge(kept=CommitId(1, step))
        assert not worker.save(step, training.state)
        assert not worker.save(step - 1, training.state)
    assert caplog.messages == [
        f"step {step} is not saved: step {step} must come after step {step}, which was saved last"
        for step in (5, 7)
    ]


def test_a_save_whose_buffer_comes_too_late_is_left_out(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer that comes late must not be taken for that of the next save."""
    training, worker, may_go_on = Training(1), node.worker(), threading.Event()

    def slow(size: int, is_wanted: Callable[[], bool]) -> int:
        assert may_go_on.wait(DEADLINE)
        return make_buffer(size)

    make_buffer = buffers.make_buffer
    monkeypatch.setattr(buffers, "make_buffer", slow)
    with monkeypatch.context() as impatient:
        impatient.setattr(agent_memory, "TIMEOUT", 0.05)
        assert not worker.save(1, training.state)
    assert caplog.messages == ["step 1 is not saved: the agent has not answered for 0.05 s"]
    may_go_on.set()
    training.train(1)
    assert worker.save(2, training.state)
    node.restart(2)
    other = Training(2)
    assert node.worker().load(other.state) == 2
    assert other.everything == training.everything


def test_a_node_whose_agent_has_no_socket_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1:none")
    with pytest.raises(CheckpointError, match=r"could not open its socket .* would start from step 0"):
        Checkpointer()


@pytest.mark.parametrize("place", ["elasticrun.checkpoint.memory.write", "threading.Thread.start"])
def test_a_save_that_fails_leaves_no_thread_and_can_be_made_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("there is no more")

    training, worker, before = Training(1), node.worker(), set(threading.enumerate())
    with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="there is no more"):
        broken.setattr(place, fail)
        worker.save(1, training.state)
    for thread in set(threading.enumerate()) - before:
        if thread.name == "elasticrun-seal":
            thread.join(DEADLINE)
            assert not thread.is_alive()
    assert worker.save(1, training.state)
    node.restart(1)


def test_a_handler_can_wait_and_close_at_any_moment_of_a_save(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A signal comes just before the copy is complete."""

    def interrupted(*given: Any) -> Any:
        assert worker._sealing is None, "what only we can begin"
        (worker.close if saved else worker.wait)()
        return partial(given[0], *given[1:])

    training, worker, saved = Training(1), node.worker(), list[bool]()
    monkeypatch.setattr(checkpointer, "partial", interrupted)
    saved.append(worker.save(1, training.state))
    worker.wait()
    node.host.holdings()
    node.host.judge(kept=CommitId(1, 1))
    saved.append(worker.save(2, training.state))
    worker.wait()
    assert caplog.messages == ["step 2 is not saved: all is closed, by a signal's handler or a thread"]


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
