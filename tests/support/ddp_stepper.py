"""A worker that trains a tiny model with DDP on gloo; in round 0 one rank stops at a step.

ddp_stepper.py STEPS RANK:STEP
"""

from __future__ import annotations

import os
import sys
import threading

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def stick() -> None:
    lock = threading.Lock()
    lock.acquire()
    print("stuck", flush=True)
    lock.acquire()


def main() -> None:
    rank, at = sys.argv[2].split(":")
    is_odd = os.environ["RANK"] == rank and os.environ["ELASTICRUN_ROUND"] == "0"
    distributed.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(int(sys.argv[1])):
        if is_odd and step == int(at):
            stick()
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    os._exit(0)  # to clear up, torch may need as long on a busy machine as a hang


if __name__ == "__main__":
    main()
