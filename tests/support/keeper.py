"""Trains a small model and saves its state after each step; workers kill themselves or wait as they are told.

    keeper.py [--sharded] [--overlap] [kill=ROUND:RANK:STEP ...] [wait=ROUND:STEP ...] [hang=ROUND:STEP]

``kill``: in that round that rank kills itself after that step, once all have saved it. ``wait``: in that
round all ranks wait for ever after that step, once the master has confirmed it. ``hang``: the same, for a
message that nobody sends. Each rank prints a digest of
the whole model and of the optimizer's state when it starts, waits and ends.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist

from elasticrun import Checkpointer
from elasticrun.checkpoint.agent_memory import AgentMemory, SaveRefused

STEPS = 12
WIDTH = 32


def main() -> None:
    dist.init_process_group("gloo")
    rank, round_ = dist.get_rank(), os.environ["ELASTICRUN_ROUND"]
    torch.manual_seed(0)
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    model: Any = torch.nn.Sequential(*layers)
    if "--sharded" in sys.argv:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "seen": 0}

    def say(what: str) -> None:
        has = digest(model, optimizer)
        line = f"round {round_} rank {rank} {what} step {step}, seen {state['seen']}, has {has}\n"
        os.write(1, line.encode())  # in one piece, as other ranks write to the same pipe

    keeper = Checkpointer(overlap="--overlap" in sys.argv)
    step = keeper.load(state)
    say("starts after")
    os.write(1, f"rank {rank} has pid {os.getpid()}\n".encode())
    while step < STEPS:
        torch.manual_seed(1000 * step + rank)
        inputs = torch.randn(4, WIDTH)
        optimizer.zero_grad()
        (model(inputs) - inputs).pow(2).mean().backward()
        optimizer.step()
        step, state["seen"] = step + 1, state["seen"] + 4
        keeper.save(step, state)
        if any(each.startswith(f"kill={round_}:") and each.endswith(f":{step}") for each in sys.argv):
            keeper.wait()
            dist.barrier()
        if f"kill={round_}:{rank}:{step}" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        hangs = f"hang={round_}:{step}" in sys.argv
        if hangs or f"wait={round_}:{step}" in sys.argv:
            keeper.wait()
            dist.barrier()  # else another rank could save this step after we have named other contents
            until_judged(step)
            dist.barrier()
            say("waits after")
            if hangs:
                dist.recv(torch.zeros(1), src=(rank + 1) % dist.get_world_size())
            while True:
                signal.pause()  # it returns when somebody asks for our stacks
    keeper.close()
    say("ends after")
    dist.destroy_process_group()


def until_judged(step: int) -> None:
    """Return once the master has told this node that all nodes have saved a step.

    The next save may not begin before that; this one is begun and given up.
    """
    memory = AgentMemory.connect(os.environ)
    assert memory is not None
    while True:
        try:
            memory.begin(step + 1, 1, 1, "")
        except SaveRefused:  # it has taken longer than a training would wait
            continue
        memory.give_up()
        memory.close()
        return


def digest(model: Any, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    states = [value for each in optimizer.state_dict()["state"].values() for value in each.values()]
    for value in [*model.state_dict().values(), *states]:
        tensor = value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


main()
