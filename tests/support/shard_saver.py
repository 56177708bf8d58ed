"""A rank of a small FSDP2 training, which puts what ``Checkpointer`` would save into a folder.

shard_saver.py FOLDER RANK SIZE
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from tests.support.saved_parts import keep_bytes
from tests.support.stock_reader import whole


def main(folder: Path, rank: int, size: int) -> None:
    warnings.simplefilter("ignore")
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    keep_bytes(folder, rank, {"model": model, "optimizer": optimizer, "seen": 7 + rank})
    expected = whole({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": 7})
    if rank == 0:
        torch.save(expected, folder / "expected")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # FSDP keeps the process group, whose threads now and then abort who exits with them
