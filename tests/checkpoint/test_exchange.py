"""What ranks tell each other of the parts that they have; the ranks are threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch.distributed as dist

from elasticrun.checkpoint import exchange
from elasticrun.checkpoint.exchange import Remote, is_astray, others
from tests.checkpoint.nodes import at_once
from tests.support.memory_host import DEADLINE

pytestmark = pytest.mark.torch


class Told:
    """A part, as far as others hear of it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.facts = {"of": rank, "items": [["weight", 0, 4, "float32", [1], [0], [1], False, ""]]}


class World:
    """Ranks that talk to each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: list[int]) -> None:
        """``held``: the ranks of the parts that each rank holds."""
        self._held: Any = [[Told(rank) for rank in ranks] for ranks in held]
        self._mine = threading.local()
        self._barrier = threading.Barrier(len(held))
        self._now: list[Any] = [None] * len(held)
        self.told: list[list[Any]] = []  # what all ranks told, in order
        monkeypatch.setattr(exchange, "tell", self._tell)
        monkeypatch.setattr(dist, "get_rank", lambda: self._mine.rank)
        monkeypatch.setattr(dist, "get_world_size", lambda: len(held))

    def _tell(self, value: Any) -> list[Any]:
        self._now[self._mine.rank] = value
        if self._barrier.wait(DEADLINE) == 0:
            self.told.append(list(self._now))
        self._barrier.wait(DEADLINE)
        found = list(self._now)
        self._barrier.wait(DEADLINE)
        return found

    def run(self, function: Any) -> list[Any]:
        def of(rank: int) -> Any:
            self._mine.rank = rank
            return function(self._held[rank])

        return at_once(*(lambda rank=rank: of(rank) for rank in range(len(self._held))))


def on_nodes(names: str) -> Callable[[Any], list[Remote]]:
    """``others`` of ranks on these nodes."""
    return lambda own: others(own, names[dist.get_rank()])


def test_each_part_is_described_once_and_different_ranks_ask_different_holders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch, [0, 1], [0, 1], [2, 3], [2, 3])
    found: list[list[Remote]] = world.run(on_nodes("aabb"))
    assert [[remote.rank for remote in each] for each in found] == [[2, 3], [2, 3], [0, 1], [0, 1]]
    assert [[remote.sender for remote in each] for each in found] == [[2, 2], [3, 3], [0, 0], [1, 1]]
    assert all(remote.facts["of"] == remote.rank and remote.items for each in found for remote in each)
    parts, facts = world.told
    assert parts == [("a", [0, 1]), ("a", [0, 1]), ("b", [2, 3]), ("b", [2, 3])]
    assert [list(each) for each in facts] == [[0], [1], [2], [3]]


def test_nothing_is_described_that_all_ranks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, [0, 1, 2], [0, 1, 2], [0, 1, 2, 3])
    assert [[remote.rank for remote in each] for each in world.run(on_nodes("aaa"))] == [[], [], []]
    assert [list(each) for each in world.told[1]] == [[], [], [3]]
    alike = World(monkeypatch, [0, 1], [0, 1])
    assert alike.run(on_nodes("aa")) == [[], []]
    assert len(alike.told) == 1


def test_each_other_node_that_has_a_part_can_send_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this node has as well may be damaged here. Its own ranks have the same memory."""
    world = World(monkeypatch, [0], [0], [0], [0])
    found = world.run(on_nodes("aabc"))
    assert [[remote.sender for remote in each] for each in found] == [[2, 3], [3, 2], [0, 3], [2, 1]]
    assert all(remote.rank == 0 for each in found for remote in each)


@pytest.mark.parametrize(
    ("held", "astray"),
    [
        (([0, 1], [0, 1]), False),
        (([0], [0]), False),  # the part of rank 1 is nowhere
        (([0], [1]), False),
        (([1], [0]), True),
        (([0, 1], []), True),
    ],
    ids=str,
)
def test_a_rank_is_astray_if_its_part_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch, held: tuple[list[int], ...], astray: bool
) -> None:
    world = World(monkeypatch, *held)
    assert world.run(is_astray) == [astray] * len(held)
