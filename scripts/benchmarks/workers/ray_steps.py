"""A rank that makes steps with its peers, and writes each into a FIFO: see ``scripts/benchmarks/ray.py``."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

PAUSE = 0.02  # seconds of a step


def steps(path: str) -> None:
    """Make steps for ever, in the default group."""
    fifo = os.open(path, os.O_WRONLY)
    known = {
        "pid": os.getpid(),
        "rank": dist.get_rank(),
        "world": dist.get_world_size(),
        "raylet": os.environ["RAY_RAYLET_PID"],
    }
    weight, step = torch.ones(1000), 0
    while True:
        dist.all_reduce(weight)
        weight /= dist.get_world_size()
        step += 1
        os.write(fifo, json.dumps({**known, "at": time.monotonic(), "step": step}).encode() + b"\n")
        threading.Event().wait(PAUSE)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    steps(sys.argv[1])
