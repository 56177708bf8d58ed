"""A rank of DistributedDataParallel that raises, and destroys the process group in ``finally``."""

from __future__ import annotations

import os

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    try:
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        for step in range(1000):
            model(torch.randn(2, 4)).sum().backward()
            if os.environ["RANK"] == "1" and step == 5:
                raise ValueError("the data are bad")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
