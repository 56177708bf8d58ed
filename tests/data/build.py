"""Datasets and rounds of training for the tests of elastic data."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Dataset


class Numbers(Dataset[int]):
    """The numbers below a length, each its own index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Draws(Numbers):
    """A number drawn in the process that loads it."""

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(1 << 60, ()))


def listed(batches: Iterator[Any], count: int | None = None) -> list[list[int]]:
    """The next batches as lists."""
    return [torch.as_tensor(batch).reshape(-1).tolist() for batch in islice(batches, count)]


def train(make: Callable[[int, int], Any], rounds: list[tuple[int, int]]) -> list[list[list[int]]]:
    """What the ranks got: for each step the batches by rank. ``rounds``: ranks, and steps until all die.

    Each round starts from the state of rank 0 as it was pickled after the last step.
    """
    state, steps = b"", []
    for world, count in rounds:
        loaders = [make(world, rank) for rank in range(world)]
        for loader in loaders:
            if state:
                loader.load_state_dict(pickle.loads(state))
        iterations = [iter(loader) for loader in loaders]
        for _ in range(count):
            steps.append([listed(each, 1)[0] for each in iterations])
            state = pickle.dumps(loaders[0].state_dict())
            assert all(pickle.dumps(loader.state_dict()) == state for loader in loaders)
    return steps


def flat(nested: Any) -> list[int]:
    """All numbers in lists of lists, in their order."""
    return [nested] if isinstance(nested, int) else [n for each in nested for n in flat(each)]
