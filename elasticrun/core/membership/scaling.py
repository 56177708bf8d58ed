"""Scale operations as values, and the rule that chooses which nodes leave.

An operation changes the number of nodes by K. *In*: K members leave, and the most that the job takes falls
by K, so that nothing replaces them. *Out*: once K more nodes could be members, the most grows by K and they
join; until then nothing changes, so an operation whose time is up leaves the job as it was.

The rule knows only what the journal holds, so that a replay chooses the same nodes. How fast nodes train is
not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.membership.roster import name_some
from elasticrun.dataclass import dataclass


class Direction(Enum):
    """Whether nodes leave or come."""

    IN = "scale in"
    OUT = "scale out"


@dataclass(frozen=True, slots=True)
class Operation:
    """A scale operation that is not over."""

    number: int  # in the life of the job, from 1
    direction: Direction
    count: int
    round: int  # the one that ran then
    goal: int  # nodes of the world that it is to lead to
    before: WorldLimits
    wanted: WorldLimits
    leavers: tuple[str, ...] = ()  # incarnations of the nodes that leave
    timeout: float = 0.0  # seconds for those that come


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """How a scale operation ended."""

    operation: Operation
    reached: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Member:
    """What is known of a member that may have to leave."""

    node: str
    arrival: int  # grows with each node that joins
    doubt: bool = False  # a health check could not judge it, or an event speaks against it
    cordoned: bool = False
    is_anchor: bool = False  # it runs the master, or may have to


def choose_leavers(members: Sequence[Member], count: int) -> tuple[tuple[str, ...], str]:
    """The members that leave, in this order, and why in words; there must be as many.

    Those in doubt first, then those that are cordoned, then those that came last. A node that runs the
    master, or is listed as one that may, leaves only when no other is left.
    """
    ranked = sorted(members, key=_preference)[:count]
    words = [f"{it.node} ({_why(it)})" for it in ranked]
    return tuple(it.node for it in ranked), name_some(words)


def _preference(member: Member) -> tuple[bool, bool, bool, int]:
    return (member.is_anchor, not member.doubt, not member.cordoned, -member.arrival)


def _why(member: Member) -> str:
    if member.is_anchor:
        return "no other is left"
    if member.doubt:
        return "its health is in doubt"
    return "it is cordoned" if member.cordoned else "it came last"


def pending(operation: Operation, left: float) -> str:
    """What is not over, and until when: for ``left`` seconds more, if it waits for nodes."""
    what = f"{operation.direction.value} by {operation.count} (operation {operation.number})"
    if operation.direction is Direction.IN:
        return f"{what} goes on until the nodes have left and their round has stopped"
    return f"{what} waits for a world of {operation.goal} nodes for at most {max(0.0, left):.0f} s more"
