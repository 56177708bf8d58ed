"""A few steps with Accelerate; rank 1 is killed in the first round. A script, and a module with ``train``."""

from __future__ import annotations

import os
import signal

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def train(add: float = 0.0) -> float:
    """Returns the last loss, of this rank's samples."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(TensorDataset(torch.ones(16, 2), torch.ones(16, 1)), batch_size=2),
    )
    loss = torch.zeros(1)
    for step, (inputs, wanted) in enumerate(loader):
        if step == 2 and os.environ["RANK"] == "1" and os.environ["ELASTICRUN_ROUND"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        loss = (model(inputs) - wanted).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    place = f"{accelerator.process_index} of {accelerator.num_processes}"
    print(f"rank {place} has ended in round {os.environ['ELASTICRUN_ROUND']}\n", end="")
    return loss.item() + add


if __name__ == "__main__":
    train()
