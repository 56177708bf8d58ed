"""Which node runs a rank, by the newest round.

Between two rounds the newest one still counts: its workers have ended, but their agents know what they said.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from elasticrun.core.job.round import Round
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.protocol.questions import MAX_RANGES, RankRange
from elasticrun.core.protocol.ranks import global_rank


class RankPlace(NamedTuple):
    """Where a rank runs."""

    node: str
    local_rank: int


class RankIndex:
    """Finds where ranks run. Who follows logs asks again and again, so it goes through a round once only."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._round: Round | None = None  # of which we know
        self._firsts: list[int] = []  # the first rank of each node, in order
        self._names: list[str] = []

    def find(self, rank: int) -> RankPlace | None:
        """As ``find_rank``."""
        current = self._job.current
        if current is not self._round:
            found = sorted((given.first_rank, name) for name, given in current.assignments.items())
            self._firsts, self._names = [first for first, _ in found], [name for _, name in found]
            self._round = current
        at = bisect_right(self._firsts, rank) - 1
        node = self._job.members.nodes.get(self._names[at]) if at >= 0 else None
        if node is not None and rank - self._firsts[at] < node.info.local_world_size:
            given = current.assignments[node.info.node]
            if not given.cluster:
                return RankPlace(node.info.node, rank - self._firsts[at])
        return find_rank(self._job, rank)


def find_rank(job: JobState, rank: int) -> RankPlace | None:
    """Where a rank runs; None if there is no such rank, or if its node has gone."""
    for name, size, given in _given(job):
        if given.cluster:
            for local_rank in given.local_ranks(size):
                if global_rank(given, size, local_rank) == rank:
                    return RankPlace(name, local_rank)
        elif 0 <= rank - given.first_rank < size:
            return RankPlace(name, rank - given.first_rank)
    return None


def rank_ranges(job: JobState) -> tuple[RankRange, ...]:
    """The ranks whose nodes are here, in order."""
    found: list[RankRange] = []
    for first, count in sorted(_runs(job)):
        if found and found[-1].first + found[-1].count == first:
            found[-1] = RankRange(found[-1].first, found[-1].count + count)
        else:
            found.append(RankRange(first, count))
    return tuple(found[:MAX_RANGES])


def no_rank(job: JobState, rank: int) -> str:
    """The sentence for a rank that is not found."""
    found = rank_ranges(job)
    if not found:
        return f"there is no rank {rank}: no round runs, or its nodes have gone"
    named = ", ".join(_in_words(each) for each in found[:8])
    if len(found) > 8:
        named += " and others"
    return f"there is no rank {rank} now; there are ranks {named}"


def _in_words(ranks: RankRange) -> str:
    return str(ranks.first) if ranks.count == 1 else f"{ranks.first} to {ranks.first + ranks.count - 1}"


def _given(job: JobState) -> Iterator[tuple[str, int, Assignment]]:
    """The nodes of the newest round that are here, with their size and assignment."""
    members = job.members.nodes
    for name, given in job.current.assignments.items():
        if name in members:
            yield name, members[name].info.local_world_size, given


def _runs(job: JobState) -> Iterator[tuple[int, int]]:
    """The first rank and the number of ranks of each run of them."""
    for _, size, given in _given(job):
        if given.cluster:
            yield from ((global_rank(given, size, local_rank), 1) for local_rank in given.local_ranks(size))
        else:
            yield given.first_rank, size
