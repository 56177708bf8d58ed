"""Which node gets which rank.

Two rules hold for any sequence of worlds. *Stability*: of two nodes that are in both the old and the
new world, the one that was in front stays in front; and as long as seats only change hands, no node
moves at all, because a newcomer takes the seat of a node that left. *Seniority*: rank 0, which scripts
use for what must survive (checkpoints, the first broadcast), goes to a newcomer only if no node of the
old world is left. A rank given by the user (``--node-rank``) overrides both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticrun.core.protocol.messages import Assignment, CommitId, NodeInfo
from elasticrun.dataclass import dataclass


def order_by_seat(selected: Sequence[str], previous: Sequence[str]) -> list[str]:
    """Order ``selected`` so that members of ``previous`` keep their order and, where they can, their seat.

    ``selected`` is in order of arrival; newcomers take vacated seats from the front, but never in
    front of the first survivor, then the end.
    """
    chosen = set(selected)
    known = set(previous)
    seats: list[str | None] = [name if name in chosen else None for name in previous]
    while seats and seats[0] is None:
        seats.pop(0)
    newcomers = [name for name in selected if name not in known]
    newcomers.reverse()
    ordered: list[str] = []
    for seat in seats:
        if seat is not None:
            ordered.append(seat)
        elif newcomers:
            ordered.append(newcomers.pop())
    return ordered + newcomers[::-1]


def order_members(
    selected: Sequence[str], previous: Sequence[str], node_ranks: Mapping[str, int | None]
) -> list[str]:
    """Names by group rank: ranks given by users first, in their order; then by seat."""
    ordered = order_by_seat(selected, previous)
    given = sorted((n for n in ordered if node_ranks[n] is not None), key=lambda n: node_ranks[n] or 0)
    return given + [n for n in ordered if node_ranks[n] is None]


@dataclass(frozen=True, slots=True)
class RoundTerms:
    """The facts that every member of a round is told."""

    round: int
    store_address: str
    store_port: int
    restart_count: int
    max_restarts: int
    store_hosted: bool = False
    restore: CommitId | None = None


def assign_ranks(members: Sequence[NodeInfo], terms: RoundTerms) -> dict[str, Assignment]:
    """The assignment of each member, given in order of group rank. Linear in their number."""
    world_size = sum(member.local_world_size for member in members)
    role_sizes: dict[str, int] = {}
    for member in members:
        role_sizes[member.role] = role_sizes.get(member.role, 0) + member.local_world_size
    assignments: dict[str, Assignment] = {}
    first_rank = 0
    role_first: dict[str, int] = dict.fromkeys(role_sizes, 0)
    for group_rank, member in enumerate(members):
        assignments[member.node] = Assignment(
            round=terms.round,
            group_rank=group_rank,
            group_world_size=len(members),
            first_rank=first_rank,
            world_size=world_size,
            role_first_rank=role_first[member.role],
            role_world_size=role_sizes[member.role],
            store_address=terms.store_address,
            store_port=terms.store_port,
            restart_count=terms.restart_count,
            max_restarts=terms.max_restarts,
            store_hosted=terms.store_hosted,
            restore=terms.restore,
        )
        first_rank += member.local_world_size
        role_first[member.role] += member.local_world_size
    return assignments
