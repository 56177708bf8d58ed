"""A worker that trains as little as possible: gloo's all-reduce, again and again, until told to end.

It says hello to the test's director before it imports torch, and after its first all-reduce ``{"reduced":
N}`` with the size of the world. Told anything, it votes for the end; all end with 0 once all have.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

from tests.support.worker import Remote

STEP = 0.02  # seconds between steps: the machine has other things to do


def main() -> None:
    remote = Remote()
    cwd = str(Path.cwd())
    remote.say({"pid": os.getpid(), "argv": sys.argv, "cwd": cwd, "env": dict(os.environ)})

    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    world = distributed.get_world_size()
    vote = 0.0
    steps = 0
    while True:
        votes = torch.tensor([vote])
        distributed.all_reduce(votes)
        if steps == 0:
            remote.say({"reduced": world})
        steps += 1
        if votes.item() == world:
            break
        if select.select([remote.link], [], [], 0.0 if vote else STEP)[0] and not vote:
            vote = 1.0
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
