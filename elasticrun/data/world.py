"""How many ranks share the data, and which of them this is. Asked when a sampler is made, never later."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch.distributed as dist

from elasticrun.errors import DataError


class World(NamedTuple):
    """The ranks that share the data."""

    size: int
    rank: int  # this process


def find_world(size: int | None, rank: int | None) -> World:
    """What is given; else what torch.distributed says, else the launcher, else a world of one.

    Raises:
        DataError: these are no numbers, or the rank is not in the world.
    """
    connected = dist.is_available() and dist.is_initialized()
    if size is None:
        size = dist.get_world_size() if connected else _number("WORLD_SIZE", "1")
    if rank is None:
        rank = dist.get_rank() if connected else _number("RANK", "0")
    if not 0 <= rank < size:
        raise DataError(f"rank must be from 0 to {size - 1} in a world of {size}, got {rank}")
    return World(size, rank)


def _number(name: str, default: str) -> int:
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise DataError(f"the launcher sets {name} to a number, got {text!r}")
    return int(text)
