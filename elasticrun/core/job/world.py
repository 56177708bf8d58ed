"""Whether a world can be formed now, and with whom: one pure function to a decision with its reason.

``decide_world`` takes the steps in order; the first that holds the job up is the decision. Nothing here
changes the facts: ``Formation`` carries the decision out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from elasticrun.config import HealthConfig
from elasticrun.core.health.candidates import Candidates
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.dataclass import dataclass


class Step(Enum):
    """What a job that has no world does next, and why."""

    ADMIT_HELD = "nobody waits for imports: without these nodes there is no world"
    NO_QUORUM = "this master may not lead these nodes"
    TOO_FEW = "too few nodes are ready"
    LAST_CALL = "more nodes may come"
    CHECK = "nodes have to be checked first"
    TOO_FEW_HEALTHY = "too few of the nodes that are ready are healthy"
    MISFIT = "the nodes do not fit together"
    FORM = "a world is formed"


@dataclass(frozen=True, slots=True)
class Choice:
    """The nodes that would be the next world, in order of preference."""

    members: tuple[str, ...]
    reason: str
    obstacle: str = ""  # why these cannot make a world after all


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do next, with the reason in words; ``nodes`` are the members, or those to be checked."""

    step: Step
    reason: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def obstacle(self) -> str:
        """Why no world is formed although enough nodes are there; "" if that is not so."""
        return self.reason if self.step in (Step.NO_QUORUM, Step.MISFIT) else ""


class Terms(NamedTuple):
    """The facts that do not change while nodes gather. A tuple, as it is made for each event."""

    limits: WorldLimits
    health: HealthConfig
    previous: tuple[str, ...]  # the newest world's members by group rank
    is_first: bool  # this master knows of no world yet
    is_known: bool  # some node has heard of one


ADMIT_HELD, TOO_FEW, LAST_CALL, TOO_FEW_HEALTHY = map(
    Decision, (Step.ADMIT_HELD, Step.TOO_FEW, Step.LAST_CALL, Step.TOO_FEW_HEALTHY)
)


def decide_world(
    candidates: Candidates, terms: Terms, held: int, calls: bool, choose: Callable[[], Choice]
) -> Decision:
    """Whether and with whom a world forms; ``choose`` is asked only if nothing else is in the way.

    ``held`` nodes are held back. ``calls``: the last call for the first world goes on, or would.
    """
    limits = terms.limits
    obstacle = candidates.obstacle(terms.previous, limits, terms.is_known, calls)
    if held and (obstacle or not is_enough(candidates, limits)):
        return ADMIT_HELD
    if obstacle:
        return Decision(Step.NO_QUORUM, obstacle)
    if not limits.usable(len(candidates.ready)):
        return TOO_FEW
    if calls:
        return LAST_CALL
    if wanted := unchecked(candidates, terms):
        return Decision(Step.CHECK, nodes=tuple(wanted))
    if not is_enough(candidates, limits):
        return TOO_FEW_HEALTHY
    choice = choose()
    if choice.obstacle:
        return Decision(Step.MISFIT, choice.obstacle)
    return Decision(Step.FORM, choice.reason, choice.members)


def is_enough(candidates: Candidates, limits: WorldLimits) -> bool:
    """Whether enough nodes are available for a world."""
    return limits.usable(candidates.available) > 0


def unchecked(candidates: Candidates, terms: Terms) -> list[str]:
    """The nodes that have to be checked before a world is formed; none if no check has to be made now."""
    return candidates.unchecked(terms.health, terms.is_first, terms.limits.max_nodes == 1)
