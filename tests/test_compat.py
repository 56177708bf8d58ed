"""Calls in the shape of torch's."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.compat import elastic_launch, in_place_of_torch, spawn
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


def test_options_go_before_what_a_configuration_says() -> None:
    def rounds() -> str:
        if os.environ["ELASTICRUN_ROUND"] == "0":
            raise LookupError
        return os.environ["ADDED"]

    found = elastic_launch(config(nproc_per_node=1), rounds, max_restarts=1, env={"ADDED": "yes"})()
    assert found == {0: "yes"}


@pytest.mark.parametrize("name", ["nproc", "nodes"])
def test_how_many_processes_there_are_is_no_option(name: str) -> None:
    options: dict[str, Any] = {name: 2}
    with pytest.raises(UsageError, match=f"{name} was given: the call itself says"):
        spawn(print, **options)
    with pytest.raises(UsageError, match=f"{name} was given"):
        elastic_launch(config(), print, **options)
    with pytest.raises(UsageError, match=f"{name} was given"), in_place_of_torch(**options):
        pass


# -- in place of torch


def round_of(rank: int, found: Any) -> None:
    """Tell the round that this rank is in: torch's own processes are in none."""
    found.put((rank, os.environ["ELASTICRUN_ROUND"]))


@pytest.mark.torch
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_calls_of_torchs_functions_come_here(method: str) -> None:
    multiprocessing = import_module("torch.multiprocessing")
    own = multiprocessing.start_processes
    found = multiprocessing.get_context(method).SimpleQueue()
    with in_place_of_torch():
        multiprocessing.start_processes(round_of, (found,), 2, start_method=method)
        assert {found.get(), found.get()} == {(0, "0"), (1, "0")}
        context = multiprocessing.spawn(round_of, (found,), 2, join=False)
        assert {found.get(), found.get()} == {(0, "0"), (1, "0")}
        while not context.join():
            pass
        assert context.processes == []
    assert multiprocessing.start_processes is own


@pytest.mark.torch
def test_torchs_elastic_launch_comes_here_whoever_has_imported_it() -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    def fail_once() -> str:
        if os.environ["ELASTICRUN_ROUND"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    with in_place_of_torch(max_restarts=1):
        assert elastic_launch(LaunchConfig(1, 1, 2, rdzv_backend="c10d"), fail_once)() == {0: "1", 1: "1"}


@pytest.mark.torch
def test_other_threads_and_the_time_after_have_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    multiprocessing = import_module("torch.multiprocessing")
    monkeypatch.setattr(multiprocessing, "start_processes", lambda *_, **__: "torch's")
    monkeypatch.setattr(elastic_launch, "__call__", lambda *_: "torch's")

    def start() -> tuple[object, object]:
        launch = elastic_launch(LaunchConfig(1, 1, 1, rdzv_backend="c10d"), lambda: 3)
        return multiprocessing.start_processes(print, ()), launch()

    ours, torchs = (None, {0: 3}), ("torch's", "torch's")
    with in_place_of_torch(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(start).result() == torchs
        with in_place_of_torch():
            assert start() == ours
        assert start() == ours
    assert start() == torchs
