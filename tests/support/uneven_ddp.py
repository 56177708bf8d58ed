"""A worker that trains a tiny model with DDP on gloo, whose forward pass takes longer on one rank.

uneven_ddp.py RANK STEPS STOP

It waits for half a second in the forward pass of rank RANK, and for a tenth elsewhere. It ends after so many
steps, or once there is a file STOP.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

SLOW, USUAL = 0.5, 0.1  # seconds, far more than all the rest of a step


class Model(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self._seconds = seconds

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        threading.Event().wait(self._seconds)
        return self.layer(batch)  # type: ignore[no-any-return]


def main() -> None:
    slow, steps, stop = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(Model(SLOW if distributed.get_rank() == slow else USUAL))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print("it trains", flush=True)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        is_over = torch.tensor(float(stop.exists()))
        distributed.all_reduce(is_over)
        optimizer.step()
        if is_over:
            break
    os._exit(0)  # to clear up, torch may need long on a busy machine


if __name__ == "__main__":
    main()
