"""Dies at each stage of a save, one after the other: rank 1 kills itself at call N of a save in round N.

    staged_keeper.py FIRST COUNT

Calls are those that ``elasticrun.checkpoint`` makes, to Python or C, while it saves a step: from ``save``
until the part is complete. A round saves a step, so that buffers are there, and then the one in which rank 1
dies. Its number is FIRST + ROUND; if FIRST is a name, it is the first call of that function. Both ranks say
what each round restores, and the job ends after COUNT rounds, or once a save is over before call N. What is
restored must be a step as it was saved.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from elasticrun import Checkpointer

HERE = "elasticrun/checkpoint/"
PRIMES = torch.tensor([2.0, 3.0, 5.0])


class Countdown:
    """Kills this process at a call; counts those of all threads."""

    def __init__(self, left: int, name: str) -> None:
        self.left = left
        self._name = name  # of a function whose call is the last one

    def watch(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and HERE in frame.f_code.co_filename:
            self.left -= 1
            if self.left < 0 or (event == "call" and frame.f_code.co_name == self._name):
                os.kill(os.getpid(), signal.SIGKILL)

    def start(self) -> None:
        threading.setprofile(self.watch)
        sys.setprofile(self.watch)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def content(step: int) -> torch.Tensor:
    """What a state has after a step."""
    return PRIMES * step


def save(keeper: Checkpointer, state: dict[str, Any], rank: int, step: int) -> None:
    state["weight"], state["own"] = content(step), (rank, step)
    while not keeper.save(step, state):  # the one before is not confirmed yet
        pass
    keeper.wait()


def main() -> None:
    dist.init_process_group("gloo")
    first, count = sys.argv[1], int(sys.argv[2])
    rank, round_ = int(os.environ["RANK"]), int(os.environ["ELASTICRUN_ROUND"])
    keeper = Checkpointer()
    state: dict[str, Any] = {"weight": torch.zeros(3), "own": (rank, 0)}
    step = keeper.load(state)
    is_right = torch.equal(state["weight"], content(step)) and state["own"] == (rank, step)
    os.write(1, f"round {round_} rank {rank}: step {step}, {'right' if is_right else 'WRONG'}\n".encode())
    if round_ == count:
        return
    save(keeper, state, rank, step + 1)
    dist.barrier()  # this node has all of it, and its agent tells so before it tells of a death
    counts = Countdown(int(first) + round_ if first.isdigit() else sys.maxsize, first)
    if rank == 0:  # all that is missing then is the part of the other one
        save(keeper, state, rank, step + 2)
        dist.barrier()
    else:
        dist.barrier()
        counts.start()
        save(keeper, state, rank, step + 2)
        counts.stop()
        os.write(1, f"round {round_}: the save was over, with {counts.left} calls to go\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()  # until the other rank is dead


main()
