"""Calls in the shape of torch's."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticrun.compat import elastic_launch, spawn
from elasticrun.errors import UsageError, WorkerFailed


def config(**fields: object) -> SimpleNamespace:
    """A configuration with torch's names."""
    return SimpleNamespace(
        **{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 2, "max_restarts": 0, **fields}
    )


def test_elastic_launch_returns_by_rank() -> None:
    found = elastic_launch(config(role="trainer"), lambda x: (x, os.environ["ROLE_NAME"]))(5)
    assert found == {0: (5, "trainer"), 1: (5, "trainer")}


def test_elastic_launch_runs_programs(tmp_path: Path) -> None:
    elastic_launch(config(nproc_per_node=1), "touch")(tmp_path / "file")
    assert (tmp_path / "file").exists()


@pytest.mark.torch
def test_torchs_own_configuration_fits() -> None:
    from torch.distributed.launcher.api import LaunchConfig

    assert elastic_launch(LaunchConfig(1, 1, 1, rdzv_backend="c10d"), lambda: 3)() == {0: 3}


def test_several_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match="for 2 nodes was given"):
        elastic_launch(config(max_nodes=2), print)


def test_spawn_gives_the_rank_first(tmp_path: Path) -> None:
    assert spawn(lambda rank, name: (tmp_path / f"{name}{rank}").touch(), ("a",), nprocs=2) is None
    assert {path.name for path in tmp_path.iterdir()} == {"a0", "a1"}


def test_spawn_may_be_joined_later() -> None:
    context = spawn(print, nprocs=1, join=False)
    assert context is not None
    assert context.join()


def test_spawn_raises_what_failed() -> None:
    def fail(rank: int) -> None:
        raise LookupError(f"rank {rank}")

    with pytest.raises(WorkerFailed, match="LookupError: rank 0"):
        spawn(fail, nprocs=1)
