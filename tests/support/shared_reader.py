"""Trains on records of shards that all ranks share, and writes down which: each rank of a round in a file.

    shared_reader.py FOLDER [kill=ROUND:RANK:STEP ...] [wait=ROUND:STEP ...] [pause=STEP] [bad=RECORD]

``kill``: in that round that rank kills itself when it has trained on the batch of that step, but not saved
it. ``wait``: in that round all ranks wait for ever after that step. ``pause``: after that step all ranks wait
until somebody writes to the FIFO FOLDER-go. ``bad``: that record cannot be read. Each
line of a file is a step: its number, the epoch, the records that weighed something, the mean loss of all.
FOLDER-run is the directory for ``elastic-ctl audit``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import elasticrun
from elasticrun.data import Plan, Shard, ShardedDataset

FILES = {"a": 23, "b": 1, "c": 17, "d": 12}
EPOCHS = 3
BAD = [int(each.partition("=")[2]) for each in sys.argv if each.startswith("bad=")]


def read(shard: Shard) -> Iterator[tuple[int, Any]]:
    for number in range(shard.start, shard.stop):
        record = 100 * list(FILES).index(shard.name) + number
        if record in BAD:
            raise OSError("no such sector")
        yield record, torch.randn(4, generator=torch.Generator().manual_seed(record), dtype=torch.float64)


def main() -> None:
    dist.init_process_group("gloo")
    rank, round_ = dist.get_rank(), os.environ["ELASTICRUN_ROUND"]
    torch.manual_seed(0)
    model: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = ShardedDataset(read, Plan.of_files(FILES, 4, seed=3), batch_size=2, num_workers=rank % 2)
    keeper = elasticrun.Checkpointer(records=f"{sys.argv[1]}-run")
    step = keeper.load(state := {"model": model, "data": data})
    diary = Path(sys.argv[1], f"{round_}-{rank}").open("x")  # noqa: SIM115 a killed worker closes nothing
    print(json.dumps({"round": int(round_), "step": step}), file=diary, flush=True)
    while data.epoch < EPOCHS:
        for records, inputs in data:
            loss = data.part.scale * (model(inputs) - inputs.flip(1)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            taken = records.tolist() if data.part.scale else []
            told = {"step": step, "epoch": data.epoch, "taken": taken, "loss": float(loss.detach())}
            print(json.dumps(told), file=diary, flush=True)
            if f"kill={round_}:{rank}:{step}" in sys.argv:
                os.kill(os.getpid(), signal.SIGKILL)
            if keeper.save(step, state):
                print(json.dumps({"saved": step}), file=diary, flush=True)
            if f"pause={step}" in sys.argv:
                os.write(1, f"rank {rank} pauses after step {step}\n".encode())
                Path(f"{sys.argv[1]}-go").open().close()
            if f"wait={round_}:{step}" in sys.argv:
                keeper.wait()
                dist.barrier()
                os.write(1, f"round {round_} rank {rank} waits after step {step}\n".encode())
                while True:  # a process of the loader that ends interrupts a pause
                    signal.pause()
    if BAD:  # what was left out at the very end is in no state of a step
        keeper.save(step + 1, state)
    keeper.close()
    dist.destroy_process_group()


main()
