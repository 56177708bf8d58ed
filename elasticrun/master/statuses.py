"""What the master keeps of what agents say of themselves.

Invariant: what is left out here changes no decision, so neither memory nor the journal needs it.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.job.state import JobState
from elasticrun.core.membership.plausible import heeded
from elasticrun.core.protocol.messages import AgentStatus


def heed(state: JobState, name: str, status: AgentStatus) -> AgentStatus:
    """What is kept of a node's status, in memory and in the journal."""
    is_probed = state.checkup is not None and state.checkup.involves(name)
    return heeded(status, name in state.current.assignments, is_probed, state.quorum.is_needed)


def repeats(state: JobState, session: int, status: AgentStatus) -> bool:
    """Whether an agent only repeats itself, which the journal does not need.

    The machine keeps the older sequence then. Any status between the two says the same as well.
    """
    node = state.members.node_of(session)
    if node is None or status.phase is not node.status.phase or status.round != node.status.round:
        return False
    if status.stall is not None:  # one that lasts is told again, and counts again
        return False
    return replace(status, sequence=node.status.sequence) == node.status
