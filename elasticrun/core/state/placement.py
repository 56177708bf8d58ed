"""Which node sends which part of a commit to which other node, so that all of it is where it has to be.

What a restore needs goes to the host behind its own in the ring of hosts, to the node at the same place
there. So in a job whose hosts have as many nodes each, every node sends as much as it takes in. What is on
enough hosts already is not sent. What is sent comes from its own node if that is here, else from the first
node that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import NamedTuple


class Transfer(NamedTuple):
    """One part that goes from one node to another."""

    group_rank: int  # of the part
    sender: str
    receiver: str


def plan(holders: Collection[Mapping[str, int]], hosts: Mapping[str, str], copies: int) -> list[Transfer]:
    """The transfers after which everything is on ``copies`` hosts, or on as many as there are.

    ``holders``: for each thing, the nodes that have it, and in which part; its own node comes first.
    ``hosts``: the host of each node that is here, in the order of the ring; only these send and take in.
    """
    ring: dict[str, list[str]] = {}
    for node, host in hosts.items():
        ring.setdefault(host, []).append(node)
    order, places = list(ring), {host: place for place, host in enumerate(ring)}
    found: dict[Transfer, None] = {}
    for nodes in holders:
        here = [node for node in nodes if node in hosts]
        there = {hosts[node] for node in here}
        for step in range(1, len(order)) if here else ():
            if len(there) >= copies:
                break
            sender = here[0]
            host = order[(places[hosts[sender]] + step) % len(order)]
            if host not in there:
                there.add(host)
                seat = ring[hosts[sender]].index(sender)
                found[Transfer(nodes[sender], sender, ring[host][seat % len(ring[host])])] = None
    return list(found)


def plan_gathering(
    holders: Collection[Mapping[str, int]],
    members: Sequence[str],
    exchanging: Set[str],
    tried: Mapping[Transfer, int],
    tries: int,
) -> list[Transfer]:
    """The transfers after which ``members`` have everything; each gets as much as any other.

    Nothing if some of it cannot come: the rest alone is of no use. ``holders``: as for ``plan``.
    ``exchanging``: the nodes that can send and take in. ``tried``: how often a transfer was tried; what was
    tried less often comes first, and what was tried ``tries`` times has failed.
    """
    takers = [member for member in members if member in exchanging]
    found: dict[int, Transfer] = {}
    for nodes in holders:
        if not nodes.keys().isdisjoint(members) or not found.keys().isdisjoint(nodes.values()):
            continue
        turn = len(found) % max(1, len(takers))
        ways = list(_ways(nodes, (*takers[turn:], *takers[:turn]), exchanging)) if tried else ()
        first = next(_ways(nodes, takers[turn:], exchanging), None)
        best = min(ways, key=lambda way: tried.get(way, 0), default=first)
        if best is None or tried.get(best, 0) >= tries:
            return []
        found[best.group_rank] = best
    return list(found.values())


def _ways(nodes: Mapping[str, int], takers: Sequence[str], exchanging: Set[str]) -> Iterator[Transfer]:
    """The transfers by which one of ``takers`` would get what ``nodes`` have."""
    for sender, rank in nodes.items():
        if sender in exchanging:
            yield from (Transfer(rank, sender, taker) for taker in takers)


def is_spread(holders: Collection[Mapping[str, int]], hosts: Mapping[str, str], copies: int) -> bool:
    """Whether everything is on ``copies`` hosts, or on all hosts that there are."""
    wanted = min(copies, len(set(hosts.values())))
    return all(len({hosts[node] for node in nodes if node in hosts}) >= wanted for nodes in holders)
