"""A few steps with Lightning's Fabric; rank 1 is killed in the first round. A script, or ``train``."""

from __future__ import annotations

import os
import signal

import torch
from lightning.fabric import Fabric


def train(strategy: str = "ddp") -> float:
    """Returns the last loss."""
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=2)
    if strategy == "ddp":
        fabric.launch()
        return steps(fabric)
    return float(fabric.launch(steps))


def steps(fabric: Fabric) -> float:
    """What each rank does."""
    model = torch.nn.Linear(2, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = torch.zeros(1)
    for step in range(4):
        if step == 2 and os.environ["RANK"] == "1" and os.environ["ELASTICRUN_ROUND"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (model(torch.ones(1, 2)) - 1).pow(2).mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    place = f"{fabric.global_rank} of {fabric.world_size}"
    print(f"rank {place} has ended in round {os.environ['ELASTICRUN_ROUND']}\n", end="")
    return loss.item()


if __name__ == "__main__":
    train()
