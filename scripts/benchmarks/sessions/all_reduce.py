"""An all-reduce of some ranks as a test, two ways; ``case.py`` has a third. RANKS and TESTS: how many."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

RANKS, TESTS = int(os.environ["RANKS"]), int(os.environ["TESTS"])


@pytest.mark.distributed(nproc=RANKS)
@pytest.mark.parametrize("number", range(TESTS))
def test_ours(number: int) -> None:
    """By the plugin."""
    reduce()


@pytest.mark.parametrize("number", range(TESTS))
def test_spawn(number: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """By processes that the test starts."""
    spawn(in_group, (str(tmp_path_factory.mktemp("store") / "file"),), nprocs=RANKS)  # type: ignore[no-untyped-call]


def in_group(rank: int, file: str) -> None:
    """The same in a process group of one's own."""
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=RANKS)
    reduce()
    dist.destroy_process_group()


def reduce() -> None:
    """What the test is about."""
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == RANKS


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
