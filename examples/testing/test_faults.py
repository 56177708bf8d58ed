"""A training that ends with the same weights, whatever befalls it: each kind of fault is an argument.

Run it with: pytest examples/testing
"""

import pytest
import torch
import torch.distributed as dist

import elasticrun
from elasticrun.testing import Freeze, Join, Kill, LoseNode, Partition, Slow

STEPS = 8
BATCH = torch.arange(12.0).reshape(4, 3) / 12


class Training:
    """A model and its optimizer, the same on all ranks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def step(self, world: int = 1) -> None:
        """One step, with the mean of the gradients of so many ranks."""
        self.optimizer.zero_grad()
        self.model(BATCH).square().mean().backward()
        for parameter in self.model.parameters() if world > 1 else ():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        self.optimizer.step()

    def run(self) -> torch.Tensor:
        """From the last step that was saved to the end."""
        keeper = elasticrun.Checkpointer()
        for step in range(keeper.load(self.state) + 1, STEPS + 1):
            self.step(dist.get_world_size())
            keeper.save(step, self.state)
        keeper.close()
        return self.model.weight


def undisturbed() -> torch.Tensor:
    """The weights of a training of one rank that nothing befalls."""
    training = Training()
    for _ in range(STEPS):
        training.step()
    return training.model.weight


@pytest.mark.distributed(nproc=2, max_restarts=1, faults=[Kill(rank=1, at_step=3)])
def test_a_rank_is_killed() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())


@pytest.mark.distributed(nproc=2, max_restarts=1, hang_timeout=1, faults=[Freeze(rank=1, at_step=3)])
def test_a_rank_hangs() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())


@pytest.mark.distributed(nproc=1, nodes=2, faults=[Freeze(node=1, at_step=3, seconds=0.5)])
def test_a_node_stands_still_for_a_moment() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())


@pytest.mark.distributed(nproc=2, faults=[Slow(rank=0, factor=4)])
def test_a_rank_is_slow() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())


@pytest.mark.distributed(nproc=1, nodes=2, min_nodes=1, faults=[LoseNode(1, at_step=3)])
def test_a_node_is_lost() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())
    assert dist.get_world_size() == 1


@pytest.mark.distributed(nproc=1, nodes=2, faults=[Join(after_step=3)])
def test_a_node_joins() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())
    assert dist.get_world_size() == 3


@pytest.mark.distributed(nproc=1, nodes=2, min_nodes=1, faults=[Partition(1, at_step=3)])
def test_a_node_is_cut_off() -> None:
    torch.testing.assert_close(Training().run(), undisturbed())
    assert dist.get_world_size() == 1
