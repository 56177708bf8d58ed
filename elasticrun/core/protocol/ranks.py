"""The global rank of a worker, from its node's assignment."""

from __future__ import annotations

from elasticrun.core.protocol.messages import Assignment


def global_rank(assignment: Assignment, local_world_size: int, local_rank: int) -> int:
    """The RANK of a worker: in the world, or beyond it for a task that was added."""
    if local_rank < local_world_size:
        return assignment.first_rank + local_rank
    return assignment.world_size + nth_added(assignment, local_rank - local_world_size)


def nth_added(assignment: Assignment, nth: int) -> int:
    """A number from 0 that no other node gives to an added task."""
    return nth * assignment.group_world_size + assignment.group_rank
