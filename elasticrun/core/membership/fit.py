"""Whether a node was started for this job: what its own command line says, against the job's.

All nodes of a job are started with one line, so a node whose line differs is a mistake more often than not.
And a spare whose script never runs must not look like a success of that script. Two kinds of difference:

- Other node bounds or another framework mean another job: such a node could not work with the others, or
  would change what the users of the others asked for. It is *refused*.
- Programs and numbers of workers may differ for good reasons (a node with fewer GPUs, a copy of the script on
  a local disk). Both sides are *warned*, and told both values.

The job's bounds are those its master was started with, or those that an operator ordered since. Its program
is that of rank 0 in the newest world; before the first one, that of the node that has been here for longest.
Two programs are the same if their names are equal; on one host, if their whole paths are. (Paths differ from
host to host.) A node that tells nothing of itself fits.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core.protocol.messages import NodeInfo

#: The most sentences about differences that are sent to others: a stranger may come again and again.
MAX_TOLD = 16
_SHOWN = 120  # characters of a program


class Fit:
    """Compares nodes that join with the job; changes by journaled events only."""

    def __init__(self, low: int, high: int) -> None:
        self._launched = (low, high)
        self.lead: NodeInfo | None = None  # rank 0 of the newest world
        self._told = 0

    def reference(self, nodes: Iterable[NodeInfo]) -> NodeInfo | None:
        """The node that stands for the job; ``nodes`` are those that are here, in order of arrival."""
        return self.lead or next(iter(nodes), None)

    def refusal(self, info: NodeInfo, bounds: tuple[int, int], other: NodeInfo | None) -> str:
        """Why a node cannot be in this job; "" if it can."""
        own = (info.min_nodes, info.max_nodes)
        if info.max_nodes and own not in (self._launched, bounds):
            job = _nnodes(bounds)
            return (
                f"{info.node} was started with --nnodes {_nnodes(own)}, but the job has --nnodes {job}: give"
                " every node of one job the same, and another job an endpoint of its own"
            )
        if other is not None and bool(info.roles) is not bool(other.roles):
            return (
                f"{info.node} was started {_framework(info)}, but {other.node} {_framework(other)}: give"
                " every node of one job the same --framework, and another job an endpoint of its own"
            )
        return ""

    def differences(self, info: NodeInfo, other: NodeInfo | None) -> list[str]:
        """What differs although the node can be in the job, in sentences for both sides."""
        if other is None or other.incarnation == info.incarnation:
            return []
        found = []
        if not same_program(info, other):
            values = f"{_shown(info.program)}, but {other.node} runs {_shown(other.program)}"
            found.append(f"{info.node} was started with another program, {values}")
        if info.local_world_size != other.local_world_size and not info.roles:
            values = f"{info.local_world_size}, but {other.node} runs {other.local_world_size}"
            found.append(f"{info.node} was started with another --nproc-per-node, {values}")
        return found

    def may_tell(self) -> bool:
        """Whether the others may hear of one more difference; the log has them all."""
        self._told += 1
        return self._told <= MAX_TOLD

    def other_program(self, info: NodeInfo) -> str:
        """The program that the job has run, if it is not this node's; "" if it is, or nothing ran."""
        return "" if self.lead is None or same_program(info, self.lead) else _shown(self.lead.program)


def same_program(one: NodeInfo, other: NodeInfo) -> bool:
    """Whether two nodes run the same program, as far as they say."""
    if not one.program or not other.program or one.program == other.program:
        return True
    return one.host != other.host and _name(one.program) == _name(other.program)


def _name(program: str) -> str:
    return program.rpartition("/")[2]


def _shown(program: str) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in program)
    return repr(text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}")


def _nnodes(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return f"{low}" if low == high else f"{low}:{high}"


def _framework(info: NodeInfo) -> str:
    return "for TensorFlow" if info.roles else "for torch"
