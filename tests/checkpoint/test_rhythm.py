"""Which steps ``Checkpointer`` saves, and whether ranks save the same ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch
import torch.distributed as dist

from elasticrun.checkpoint import checkpointer
from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.checkpoint.parts import Part
from elasticrun.checkpoint.rhythm import Auto
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.interval import History
from elasticrun.errors import CheckpointError
from tests.checkpoint.nodes import Node
from tests.checkpoint.ranks import Nodes, Ranks

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]

STEP = 0.1  # seconds


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """An entry of a state that takes long to save."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def state_dict(self) -> dict[str, int]:
        self._clock.now += 0.1
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing is restored."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(checkpointer, "time", SimpleNamespace(monotonic=made))
    return made


def train(node: Node, worker: Checkpointer, clock: Clock, steps: range) -> list[int]:
    """Which of these steps are saved."""
    state: dict[str, Any] = {"weight": torch.zeros(3), "slow": Slow(clock)}
    saved = []
    for step in steps:
        clock.now += STEP
        state["weight"] += 1
        if worker.save(step, state):
            worker.wait()
            node.host.holdings()
            node.host.judge(kept=CommitId(node.host.round, step))
            saved.append(step)
    return saved


def test_a_fixed_number_of_steps_lies_between_two_saves(node: Node, clock: Clock) -> None:
    assert train(node, node.worker(every=4), clock, range(1, 14)) == [4, 8, 12]
    node.stop()
    node.host.begin(2)
    assert train(node, node.worker(), clock, range(1, 4)) == [1, 2, 3]


def test_the_interval_follows_from_what_was_measured(node: Node, clock: Clock) -> None:
    """A stall of 0.1 s and a failure each 30 s (the prior's, halved as round 1 is the second one): 2.4 s."""
    saved = train(node, node.worker(every="auto"), clock, range(1, 240))
    assert saved[:4] == [1, 3, 7, 15]
    assert all(20 <= after - before <= 34 for before, after in itertools.pairwise(saved[6:]))


def test_after_a_restart_the_interval_is_what_it_was(node: Node, clock: Clock) -> None:
    """The first save comes after half of it; then it may double."""
    saved = train(node, node.worker(every="auto"), clock, range(1, 140))
    last, steps = saved[-1], saved[-1] - saved[-2]
    node.stop()
    node.host.begin(2, restore=CommitId(1, last))
    worker = node.worker(every="auto")
    assert worker.load({"weight": torch.zeros(3), "slow": Slow(clock)}) == last
    again = train(node, worker, clock, range(last + 1, last + 100))
    assert again[0] == last + steps // 2
    assert again[1] - again[0] >= 0.7 * steps


def test_a_step_that_is_not_due_can_be_saved(node: Node, clock: Clock) -> None:
    worker, state = node.worker(every=10), {"weight": torch.ones(3)}
    assert not worker.save(7, state)
    assert [worker.is_due(7), worker.is_due(10)] == [False, True]
    assert worker.save(7, state, always=True)


def test_a_commit_tells_how_often_the_job_has_failed(node: Node, clock: Clock) -> None:
    for round_, failures in ((1, 1), (2, 2), (3, 3)):
        assert node.host.round == round_
        worker, state = node.worker(), {"weight": torch.ones(3)}
        assert worker.load(state) == (5 if round_ > 1 else 0)
        clock.now += 50.0
        assert worker.save(5, state)
        node.restart(5)
        memory = node.host.connect()
        (stored,) = memory.stored()
        facts = Part(0, memoryview(stored.memory), stored.digest).facts
        assert (facts["age"], facts["failures"]) == (50.0 * round_, failures)
        memory.close()


def test_outside_of_elastic_run_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    worker = Checkpointer(every="auto")
    assert not worker.is_due(1)
    assert not worker.save(1, {}, always=True)


def test_ranks_that_are_not_connected_cannot_agree(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    worker = node.worker(every="auto")
    assert worker.is_due(1)
    with pytest.raises(CheckpointError, match=r"has the 2 ranks agree .* call torch\.distributed\.init"):
        worker.is_due(2)


@pytest.mark.parametrize("every", [0, -1, 1.5, "often", True, None])
def test_every_is_a_number_of_steps(every: Any) -> None:
    with pytest.raises(CheckpointError, match='every must be "auto" or a number of steps of 1 or more, got'):
        Checkpointer(every=every)


# Several ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    made = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()


def due_steps() -> list[int]:
    """The steps that are due on a rank whose steps and saves take another time than the other's."""
    rank, clock, found = int(os.environ["RANK"]), Clock(), []
    auto = Auto(lambda: History(1000.0 * rank, rank), dist.get_world_size(), clock)
    for step in range(1, 400):
        clock.now += STEP * (1 + (step * (rank + 1)) % 7)
        if auto.is_due(step):
            clock.now += 0.1 * (rank + 1)
            auto.stalled(0.1 * (rank + 1))
            found.append(step)
    return found


def test_ranks_that_measure_different_times_save_the_same_steps(ranks: Ranks) -> None:
    with Nodes(ranks) as nodes:
        first, second = nodes.run(due_steps)
    assert first == second
    assert 8 <= len(first) <= 60
