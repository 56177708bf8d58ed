"""What a master does not believe of an agent, whatever its fields allow, and what it need not know.

Numbers that only grow must not jump (``core/protocol/bounds.py``), and an agent speaks for its own node only:
a failure names the node that it is held against, which may be excluded for it, and a vote that names the
members of its world names this node among them.

Of a node that has no place in the round, failures, tasks and stalls change nothing, so they are forgotten
before anything is kept of them. Without a token such a node may be anybody, and there may be many; what one
of them can make the master keep is a few kilobytes, and some more where nodes vote.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.protocol.bounds import Horizon
from elasticrun.core.protocol.messages import AgentStatus, NodeInfo, RejectCode, Rejected, Vote

#: Characters of names in the votes of a node outside of the round: several worlds of the largest size that is
#: named. Without the names, those that voted are counted as the members, which is as safe.
NAMES_ROOM = 8192


def heeded(status: AgentStatus, in_round: bool, is_probed: bool, needs_votes: bool) -> AgentStatus:
    """What matters of a status. ``needs_votes``: several hosts may become the master's."""
    is_plain = not (status.failures or status.tasks or status.votes or status.stall or status.probe)
    if in_round or is_plain:
        return status
    probe = status.probe
    if probe is not None and not is_probed:  # its number has to be known, lest it be given again
        probe = replace(probe, error="", groups=(), engine="")
    votes = _with_few_names(status.votes) if needs_votes else ()
    return replace(status, failures=(), tasks=(), stall=None, probe=probe, votes=votes)


def _with_few_names(votes: tuple[Vote, ...]) -> tuple[Vote, ...]:
    """The same votes; of the older ones without the names that do not fit into the room."""
    room, kept = NAMES_ROOM, list[Vote]()
    for vote in reversed(votes):
        room -= sum(map(len, vote.members))
        kept.append(vote if room >= 0 else replace(vote, members=()))
    return tuple(reversed(kept))


def disbelief(
    horizon: Horizon, known: tuple[int, int, int], info: NodeInfo, status: AgentStatus, epoch: int = -1
) -> Rejected | None:
    """What an agent is told that says absurd things; None if it does not.

    ``known`` are the epoch, the round and the check that the master itself has come to: never absurd.
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
