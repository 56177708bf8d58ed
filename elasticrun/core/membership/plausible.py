"""Reports of agents that a master refuses though each field is in range, and those that it ignores.

Numbers that only grow must not jump (``core/protocol/bounds.py``), and an agent speaks for its own node only:
a failure must name that node, as the named node may be excluded for it, and a vote that names the members of
its world must name that node among them.

Failures, tasks and stalls of a node outside the round change nothing, so they are dropped at once. Without a
token such a node may be a stranger, and there may be many; each can make the master keep a few kilobytes, and
some more where nodes vote.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.protocol.bounds import Horizon
from elasticrun.core.protocol.messages import AgentStatus, NodeInfo, RejectCode, Rejected, Vote

#: Characters of names in the votes of a node outside the round: several worlds of the largest size that is
#: named. Without the names, those that voted are counted as the members, which is as safe.
NAMES_ROOM = 8192


def heeded(status: AgentStatus, in_round: bool, is_probed: bool, needs_votes: bool) -> AgentStatus:
    """The parts of a status that matter. ``needs_votes``: several hosts may become the master's."""
    is_plain = not (status.failures or status.tasks or status.votes or status.stall or status.probe)
    if in_round or is_plain:
        return status
    probe = status.probe
    if probe is not None and not is_probed:  # keep its number, so that it is not given again
        probe = replace(probe, error="", groups=(), engine="")
    votes = _with_few_names(status.votes) if needs_votes else ()
    return replace(status, failures=(), tasks=(), stall=None, probe=probe, votes=votes)


def _with_few_names(votes: tuple[Vote, ...]) -> tuple[Vote, ...]:
    """The same votes; older ones lose their names if these do not fit into NAMES_ROOM."""
    room, kept = NAMES_ROOM, list[Vote]()
    for vote in reversed(votes):
        room -= sum(map(len, vote.members))
        kept.append(vote if room >= 0 else replace(vote, members=()))
    return tuple(reversed(kept))


def disbelief(
    horizon: Horizon, known: tuple[int, int, int], info: NodeInfo, status: AgentStatus, epoch: int = -1
) -> Rejected | None:
    """The rejection of an agent whose numbers or claims are absurd; None if they are not.

    ``known`` are the epoch, the round and the check that the master itself has reached: never absurd.
    """
    is_plain = not (status.failures or status.tasks or status.votes or status.probe)  # nearly always
    if is_plain and epoch <= horizon.epoch and status.round <= horizon.round:
        return None
    return _doubt(horizon.beyond(*known), info, status, epoch)


def _doubt(horizon: Horizon, info: NodeInfo, status: AgentStatus, epoch: int) -> Rejected | None:
    epochs = [epoch, *(vote.world.epoch for vote in status.votes)]
    check = -1 if status.probe is None else status.probe.check
    why = horizon.refuses(epoch=max(epochs), round=status.round, check=check)
    failures = [*status.failures, *(task.failure for task in status.tasks)]
    if any(failure is not None and failure.node != info.node for failure in failures):
        why = f"{info.node} tells of failures on other nodes"
    if not all(_is_member(info.incarnation, vote) for vote in status.votes):
        why = f"{info.node} tells of a vote in a world that it was no member of"
    return Rejected(RejectCode.IMPLAUSIBLE, f"{why}; restart this agent") if why else None


def _is_member(incarnation: str, vote: Vote) -> bool:
    """Whether a vote may be this incarnation's, as far as it names the world's members."""
    return not vote.members or (incarnation in vote.members and len(set(vote.members)) == vote.world.size)
