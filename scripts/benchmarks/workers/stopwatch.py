"""A worker that holds a stopwatch: it writes the host's clock to a file after each step.

    stopwatch.py STEPS SECONDS EVERY FOLDER

A step takes that many seconds, and ranks meet in it. Each ``EVERY`` steps it is saved with ``Checkpointer``.
Lines of the file, one for each step: the number of steps done, and the wall clock at the step's begin and end.
Nothing here tells elasticrun anything.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from elasticrun import Checkpointer


def main() -> None:
    steps, seconds, every, folder = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dist.init_process_group("gloo")
    keeper = Checkpointer(every=every)
    state = {"model": model, "optimizer": optimizer}
    done = keeper.load(state)
    path = folder / f"{dist.get_rank()}-{os.getpid()}.steps"
    with path.open("w", buffering=1) as log:
        began = time.time()
        while done < steps:
            until = time.monotonic() + seconds
            model(torch.ones(4, 16)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            time.sleep(max(0.0, until - time.monotonic()))
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            ended = time.time()
            log.write(f"{done} {began} {ended}\n")
            keeper.save(done, state)
            began = time.time()
    dist.destroy_process_group()


main()
