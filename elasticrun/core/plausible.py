"""What a master does not believe of an agent, whatever its fields allow.

Numbers that only grow must not jump (``core/bounds.py``), and an agent speaks for its own node only: a
failure names the node that it is held against, which may be excluded for it.
"""

from __future__ import annotations

from elasticrun.core.bounds import Horizon
from elasticrun.core.protocol import AgentStatus, NodeInfo, RejectCode, Rejected


def disbelief(
    horizon: Horizon, known: tuple[int, int, int], info: NodeInfo, status: AgentStatus, epoch: int = -1
) -> Rejected | None:
    """What an agent is told that says absurd things; None if it does not.

    ``known`` are the epoch, the round and the check that the master itself has come to: never absurd.
    """
    is_plain = not (status.failures or status.tasks or status.seats or status.probe)  # nearly always
    if is_plain and epoch <= horizon.epoch and status.round <= horizon.round:
        return None
    return _doubt(horizon.beyond(*known), info, status, epoch)


def _doubt(horizon: Horizon, info: NodeInfo, status: AgentStatus, epoch: int) -> Rejected | None:
    epochs = [epoch, *(seat.world.epoch for seat in status.seats)]
    check = -1 if status.probe is None else status.probe.check
    why = horizon.refuses(epoch=max(epochs), round=status.round, check=check)
    failures = [*status.failures, *(task.failure for task in status.tasks)]
    if any(failure is not None and failure.node != info.node for failure in failures):
        why = f"{info.node} tells of failures on other nodes"
    return Rejected(RejectCode.IMPLAUSIBLE, f"{why}; restart this agent") if why else None
