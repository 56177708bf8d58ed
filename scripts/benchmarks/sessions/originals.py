"""Tests of collectives that come with torch, two ways; BACKEND and WORLD_SIZE: what they run on.

Both call torch's own methods, so both do the same work. They need ``pip install expecttest numpy``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase, set_rng_seed
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

from scripts.benchmarks.pairs import PAIRS

BASE: Any = DistributedTest._DistTestBase


class TestOriginals(TestDistBackend, BASE):  # type: ignore[misc]
    """As torch runs them: processes of its own for each test."""

    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        self._spawn_processes()


class OnRank(BASE, TestCase):  # type: ignore[misc]
    """Their methods, for a rank that is in a process group already."""

    __test__ = False  # pytest takes any TestCase for tests

    def _barrier(self, *_: object, **__: object) -> None:
        dist.barrier()


@pytest.mark.distributed(nproc=2)
@pytest.mark.parametrize("name", PAIRS)
def test_original(name: str) -> None:
    """By the plugin."""
    set_rng_seed()  # type: ignore[no-untyped-call]
    case = OnRank(name)  # type: ignore[no-untyped-call]
    case.rank = dist.get_rank()
    getattr(case, name)()
