"""Which nodes form the next world, and whether it can be formed yet.

A world has between ``min_nodes`` and ``max_nodes`` members, a multiple of ``node_unit`` of them, all
able to start at once. Nodes of the previous world come first, so that a spare never displaces a node
that trains; then ranks given by users; then the order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """How many nodes a world may have."""

    min_nodes: int
    max_nodes: int
    node_unit: int = 1

    def usable(self, ready: int) -> int:
        """The size of the largest world that ``ready`` nodes can form; 0 if they are too few."""
        size = min(ready, self.max_nodes) // self.node_unit * self.node_unit
        return size if size >= self.min_nodes else 0

    @property
    def smallest(self) -> int:
        """The fewest nodes that form a world: ``min_nodes`` rounded up to the unit."""
        return -(-self.min_nodes // self.node_unit) * self.node_unit

    @property
    def largest(self) -> int:
        """The most nodes that a world has: ``max_nodes`` rounded down to the unit."""
        return self.max_nodes // self.node_unit * self.node_unit


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that could start at once."""

    node: str
    arrival: int  # grows with each node that joins
    node_rank: int | None = None  # given by the user


def choose_world(
    candidates: Sequence[Candidate], previous: Sequence[str], limits: WorldLimits
) -> tuple[list[str], str]:
    """The members of the next world in order of preference, with the reason in words.

    Empty if the candidates are too few.
    """
    size = limits.usable(len(candidates))
    if size == 0:
        return [], f"{_nodes(len(candidates))} ready, at least {limits.smallest} needed"
    seat = {name: index for index, name in enumerate(previous)}
    ranked = sorted(candidates, key=lambda c: _preference(c, seat))
    chosen = [candidate.node for candidate in ranked[:size]]
    left = len(candidates) - size
    spare = f", {left} to spare" if left else ""
    return chosen, f"{_nodes(size)} of {limits.min_nodes}:{limits.max_nodes} ready{spare}"


def _preference(candidate: Candidate, seat: dict[str, int]) -> tuple[int, int, int, int]:
    if candidate.node in seat:
        return (0, 0, seat[candidate.node], candidate.arrival)
    if candidate.node_rank is not None:
        return (1, 0, candidate.node_rank, candidate.arrival)
    return (1, 1, 0, candidate.arrival)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
