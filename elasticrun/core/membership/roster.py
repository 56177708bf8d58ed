"""Sentences about the nodes that are here and those that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.core.membership.nodes import Admission
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.protocol.messages import NodeInfo, RejectCode, Rejected

SHOWN = 8  # names in one sentence, lines of one kind


def name_some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - SHOWN
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def some_lines(lines: Sequence[str]) -> list[str]:
    """The first lines, and one that says how many more there are."""
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"and {more} more; the master's log has them all"] if more > 0 else list(lines)


def superseded(node: str) -> Rejected:
    """The rejection of an incarnation that another one has replaced."""
    return Rejected(
        RejectCode.SUPERSEDED,
        f"another agent joined as {node}; give each agent of one host its own --node-rank",
    )


def name_in_use(node: str) -> Rejected:
    """The rejection of an agent whose name another one has, or that cannot prove that it is that one."""
    return Rejected(
        RejectCode.NAME_IN_USE,
        f"another agent has the name {node}; give each agent of one host its own --node-rank, or wait until"
        " that one is gone",
    )


def too_many(nodes: int) -> Rejected:
    """The rejection of an agent without a token if very many nodes are in the job already."""
    return Rejected(
        RejectCode.TOO_MANY, f"{nodes} nodes are in the job, which is the most that it takes without a token"
    )


def answer(admission: Admission, node: str, retired: Rejected | None, nodes: int) -> Rejected | None:
    """The rejection of an agent, if it is told any. ``retired``: what its incarnation was told before."""
    if admission is Admission.REFUSED:
        return retired or superseded(node)
    if admission is Admission.CROWDED:
        return too_many(nodes)
    return name_in_use(node) if admission is Admission.IN_USE else None


def describe_waiting(present: Sequence[NodeInfo], limits: WorldLimits) -> str:
    """Why no world can be formed: the nodes here, and the missing ones as far as they are known."""
    needed = limits.smallest
    here = f"{len(present)} of at least {needed} nodes {'is' if len(present) == 1 else 'are'} here"
    names = f" ({name_some([info.node for info in present])})" if present else ""
    if len(present) >= needed:
        return f"{here}{names}, but some of them cannot start yet"
    return f"{here}{names}, {needed - len(present)} missing{_missing_ranks(present, needed)}"


def describe_spares(size: int, spares: int, held: int, limits: WorldLimits) -> str:
    """Why ready nodes, and nodes that are held back, do not start."""
    joins = "node joins once its" if held == 1 else "nodes join once their"
    late = f"{held} {joins} workers' imports are done"
    if not spares:
        return late
    full = f"the world is full with {size} of at most {limits.max_nodes} nodes"
    if size < limits.largest:
        full = f"the world of {size} nodes cannot grow now"
    text = f"{full}; {spares} spare {'node waits' if spares == 1 else 'nodes wait'} for a place"
    return f"{text}; {late}" if held else text


def _missing_ranks(present: Sequence[NodeInfo], needed: int) -> str:
    """The missing node ranks; "" unless every node that is here was given a rank."""
    given = {info.node_rank for info in present}
    if not given or None in given:
        return ""
    missing = [str(rank) for rank in range(needed) if rank not in given]
    return f": node rank {name_some(missing)}" if missing else ""
