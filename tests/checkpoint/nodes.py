"""Nodes with the memory of a real agent, whose workers run in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
import torch

from elasticrun.checkpoint.checkpointer import Checkpointer
from elasticrun.core.protocol.commits import CommitId
from tests.support.memory_host import DEADLINE, MemoryHost

T = TypeVar("T")


class Node:
    """A node and its workers, all of them in this process."""

    def __init__(self, host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = host
        self._monkeypatch = monkeypatch
        self._started: list[Checkpointer] = []

    def worker(
        self,
        local_rank: int = 0,
        every: int | Literal["auto"] = 1,
        records: Path | None = None,
        overlap: bool = False,
    ) -> Checkpointer:
        """Start a worker; what it reads from its environment is there until another one starts."""
        for name, value in self.host.environment(local_rank).items():
            self._monkeypatch.setenv(name, value)
        self._started.append(made := Checkpointer(every, records, overlap))
        return made

    def restart(self, step: int) -> None:
        """All workers end once this step is saved, and the next round restores it."""
        self.stop()
        saved = CommitId(self.host.round, step)
        while saved not in [holding.commit for holding in self.host.holdings()]:
            pass  # that was told before
        self.host.begin(saved.round + 1, restore=saved)

    def stop(self) -> None:
        for worker in self._started:
            worker.close()
        self._started.clear()


def at_once(*functions: Callable[[], T]) -> list[T]:
    """What these return that run at the same time."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(DEADLINE) for each in [pool.submit(function) for function in functions]]


def picture(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), bytes(value.reshape(-1).view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {key: picture(each) for key, each in value.items()}
    return [picture(each) for each in value] if isinstance(value, list | tuple) else value
