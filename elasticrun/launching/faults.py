"""Faults that a launch brings about by itself, to see that a job outlives them.

A fault is placed by the step that a rank reports, not by time, so each run meets it at the same place. Steps
are those of torch's optimizers, counted from 0, or the numbers that ``elasticrun.report_step`` is given. A
fault comes once, in one round: the job that goes on after it meets it no more.

A node is named by its group rank (``GROUP_RANK``) in that round. What befalls a node comes with the step of
its first rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.rpc.records import to_json

#: Of one job: each fault that befalls a node needs a pipe.
MOST = 100


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL for ``rank``, right after it has reported step ``at_step`` in round ``round``."""

    rank: int
    at_step: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """SIGSTOP for ``rank``, or all processes of ``node``, right after step ``at_step`` of round ``round``.

    Give ``rank`` or ``node``. After ``seconds`` comes SIGCONT; None: it hangs until somebody notices. Node 0
    has the master.
    """

    rank: int | None = None
    at_step: int = 0
    round: int = 0
    node: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Slow:
    """From step ``at_step`` of round ``round`` on, ``rank`` takes ``factor`` times as long for each step."""

    rank: int
    factor: float
    at_step: int = 0
    round: int = 0


@dataclass(frozen=True, slots=True)
class LoseNode:
    """SIGKILL for the launcher of ``node``, and its ranks, right after step ``at_step`` of round ``round``.

    The job goes on if ``min_nodes`` allows it. Node 0 has the master: with it the job is lost.
    """

    node: int
    at_step: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class Join:
    """One more node joins. Ranks wait at step ``after_step`` of round ``round`` for the larger world."""

    after_step: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class Partition:
    """``node`` is cut off from the master, right after step ``at_step`` of round ``round``.

    Nothing passes, and no connection breaks, as where a cable is out. What was in flight then may
    still arrive.

    After ``seconds`` all passes again, also what was held back; None: it never does. Ranks still reach one
    another. Node 0 has the master, so it cannot be cut off.
    """

    node: int
    at_step: int
    seconds: float | None = None
    round: int = 0


Fault = Kill | Freeze | Slow | LoseNode | Join | Partition


def checked(faults: object, nproc: int, nodes: int, min_nodes: int) -> Sequence[Fault]:
    """The faults. Raises UsageError if one is none, befalls nothing in this job, or ends it for sure."""
    if not isinstance(faults, list | tuple) or not all(isinstance(it, Fault) for it in faults):
        names = "Kill, Freeze, Slow, LoseNode, Join and Partition"
        raise UsageError(f"faults={faults!r} was given: give a list of {names}")
    if len(faults) > MOST:
        raise UsageError(f"{len(faults)} faults were given: give at most {MOST}")
    most = nodes + count_joins(faults)
    for fault in faults:
        for wrong in _wrongs(fault, nproc, most):
            raise UsageError(f"{fault} {wrong}")
        there = nodes + sum(it.round < fault.round for it in faults if isinstance(it, Join))
        if is_for_good(fault) and min_nodes == there:
            raise UsageError(
                f"{fault} leaves fewer nodes than the {nodes} that the job needs: give min_nodes={nodes - 1}"
                if nodes > 1
                else f"{fault} leaves no node: give nodes=2 and min_nodes=1"
            )
    joins = [it.round for it in faults if isinstance(it, Join)]
    for number in joins:
        if joins.count(number) > 1:
            raise UsageError(
                f"{joins.count(number)} nodes join in round {number}, but ranks wait there for the first, so "
                f"that no other would: give the second round={number + 1}"
            )
    return faults


def count_joins(faults: Sequence[Fault]) -> int:
    """How many nodes join."""
    return sum(isinstance(it, Join) for it in faults)


def described(fault: Fault) -> dict[str, Any]:
    """A fault as workers are told of it."""
    words = {"kind": type(fault).__name__, **to_json(fault)}
    if isinstance(fault, Join):
        words["at_step"] = words.pop("after_step")
    return words


def is_brought_by_caller(fault: Fault) -> bool:
    """Whether a rank cannot bring it about by itself."""
    match fault:
        case Kill() | Slow():
            return False
        case Freeze():
            return fault.node is not None or fault.seconds is not None
    return True


def is_for_good(fault: Fault) -> bool:
    """Whether a node never comes back."""
    match fault:
        case LoseNode():
            return True
        case Freeze() | Partition():
            return fault.seconds is None and fault.node is not None
    return False


def _wrongs(fault: Fault, nproc: int, nodes: int) -> Iterator[str]:
    """What is wrong with a fault, each as the end of a sentence; ``nodes``: the most that there may be."""
    step = fault.after_step if isinstance(fault, Join) else fault.at_step
    rank, node = getattr(fault, "rank", None), getattr(fault, "node", None)
    named = [getattr(fault, name) for name in ("rank", "node") if hasattr(fault, name)]
    if isinstance(fault, Freeze):  # it has both
        named = [it for it in named if it is not None]
    if not all(_is_whole(it) for it in (step, fault.round, *named)):
        yield "was given: give numbers from 0 on, and whole ones for rank, node, step and round"
        return
    if isinstance(fault, Slow) and not _is_number(fault.factor):
        yield "was given: give a number as its factor"
    if isinstance(fault, Freeze) and (rank is None) == (node is None):
        yield "was given: give a rank or a node"
    seconds = getattr(fault, "seconds", None)
    if seconds is not None and not (_is_number(seconds) and seconds > 0):
        yield "was given: give seconds as a number above 0, or None"
    if rank is not None and rank >= nproc * nodes:
        yield f"names no rank of this job: give one from 0 to {nproc * nodes - 1}"
    if node is not None and node >= nodes:
        yield f"names no node of this job: give one from 0 to {nodes - 1}"
    if isinstance(fault, Partition) and node == 0:
        yield "cuts off the node that has the master: give another one"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
