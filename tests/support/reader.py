"""Trains on numbered samples, and writes down which ones: one file for each rank of each round.

    reader.py FOLDER [kill=ROUND:RANK:STEP ...] [wait=ROUND:STEP ...]

``kill``: in that round that rank kills itself when it has trained on the batches of that step, but not saved
it. ``wait``: in that round all ranks wait for ever after that step. Each line of a file is a step, as JSON:
its number, the epoch, the samples that weighed something, the mean loss of all ranks, the position after it.
Another line follows when that step was copied. FOLDER-run is the directory for ``elastic-ctl audit``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import elasticrun

SAMPLES = 37
EPOCHS = 3
SIZE = 8  # of a step, for all ranks together


class Numbered(Dataset[Any]):
    """Samples with their numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, torch.randn(4, generator=torch.Generator().manual_seed(index), dtype=torch.float64)


def main() -> None:
    dist.init_process_group("gloo")
    rank, round_ = dist.get_rank(), os.environ["ELASTICRUN_ROUND"]
    torch.manual_seed(0)
    model: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = elasticrun.data.GlobalBatch(SIZE, micro=3)
    loader: Any = elasticrun.data.ElasticDataLoader(Numbered(), batch, shuffle=True, num_workers=1)
    keeper = elasticrun.Checkpointer(records=f"{sys.argv[1]}-run")
    step = keeper.load(state := {"model": model, "loader": loader})
    diary = Path(sys.argv[1], f"{round_}-{rank}").open("x")  # noqa: SIM115 a killed worker closes nothing
    print(json.dumps({"round": int(round_), "step": step}), file=diary, flush=True)
    taken, total = list[int](), torch.zeros((), dtype=torch.float64)
    while loader.epoch < EPOCHS:
        for indices, inputs in loader:
            part = loader.part
            with contextlib.nullcontext() if part.is_last else model.no_sync():
                loss = part.scale * (model(inputs) - inputs.flip(1)).pow(2).mean()
                loss.backward()
            taken += indices.tolist() if part.scale else []
            total += loss.detach()
            if not part.is_last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(total)
            step += 1
            told = {
                "step": step,
                "epoch": loader.epoch,
                "taken": taken,
                "loss": total.item() / dist.get_world_size(),
            }
            print(json.dumps({**told, "position": loader.state_dict()}), file=diary, flush=True)
            taken, total = [], torch.zeros((), dtype=torch.float64)
            if f"kill={round_}:{rank}:{step}" in sys.argv:
                os.kill(os.getpid(), signal.SIGKILL)
            if keeper.save(step, state):
                print(json.dumps({"saved": step}), file=diary, flush=True)
            if f"wait={round_}:{step}" in sys.argv:
                keeper.wait()
                dist.barrier()
                os.write(1, f"round {round_} rank {rank} waits after step {step}\n".encode())
                while True:  # a process of the loader that ends interrupts a pause
                    signal.pause()
    keeper.close()
    dist.destroy_process_group()


main()
