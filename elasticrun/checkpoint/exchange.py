"""Gives each rank the parts of a commit that its node does not have: other ranks send them.

After a change of the world a rank may need what only another node holds: a node that has just joined has
nothing at all, and shards belong to other ranks now. The workers of the new round are connected already,
so they send each other what is missing, through the script's own process group.

All ranks go through the same steps in the same order. Each transfer has a sender and a receiver, and all
ranks agree on the order of all transfers; so the first one that is not done has both its sides waiting
for it, and nothing can block for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from elasticrun.checkpoint.parts import Item, Part, items_of

T = TypeVar("T")


class Remote(NamedTuple):
    """A part that a rank of this world can send."""

    rank: int  # of the part, in the round that saved it
    sender: int
    facts: dict[str, Any]
    items: list[Item]


class Wanted(NamedTuple):
    """An item that a rank asks another one for."""

    sender: int
    part: int  # rank of the part
    number: int  # of the item in its part


def is_possible() -> bool:
    """Whether the ranks of this world are connected, and there are several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def tell(value: Any) -> list[Any]:
    """What each rank tells, by rank. Every rank has to call it."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    return told


def largest(numbers: Sequence[float]) -> list[float]:
    """The largest that any rank tells of each number, the same on all ranks. Every rank has to call it."""
    told = torch.tensor(numbers, dtype=torch.float64, device=_device())
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return [float(each) for each in told.tolist()]


def is_astray(own: Sequence[Part]) -> bool:
    """Whether any rank's own part is on another node than the rank. Every rank has to call it."""
    told = tell([part.rank for part in own])
    present = {rank for here in told for rank in here}
    return any(rank in present and rank not in here for rank, here in enumerate(told))


def others(own: Sequence[Part], node: str) -> list[Remote]:
    """The parts that other nodes can send, each as often as nodes have it. Every rank has to call it.

    Those among ``own`` as well: some of them may turn out to be damaged here. ``node``: a name that all ranks
    of this node tell, which have the same memory.

    Of a node one rank is asked; different ranks ask different ones, and different nodes first. Each part's
    facts that some rank lacks are told by one of its holders, and these take turns: what one rank tells takes
    as much room at all ranks as the longest that any rank tells.
    """
    here, me = {part.rank: part for part in own}, dist.get_rank()
    holders: dict[int, dict[str, list[int]]] = {}  # of each part, the ranks of each node that has it
    for sender, (its_node, ranks) in enumerate(tell((node, list(here)))):
        for rank in ranks:
            holders.setdefault(rank, {}).setdefault(its_node, []).append(sender)
    everybody = {rank: [each for them in nodes.values() for each in them] for rank, nodes in holders.items()}
    scarce = {rank: them for rank, them in everybody.items() if len(them) < dist.get_world_size()}
    facts = {rank: part.facts for rank, part in here.items()}
    if scarce:  # all ranks know that, or none
        turns = {rank: here[rank].facts for rank, them in scarce.items() if _turn(rank, them) == me}
        for told in tell(turns):
            facts = told | facts
    found = []
    for rank, nodes in sorted(holders.items()):
        elsewhere = [ranks for its_node, ranks in nodes.items() if its_node != node]
        items = items_of(facts[rank])
        for number in range(len(elsewhere)):
            found.append(Remote(rank, _turn(me, _turn(me + number, elsewhere)), facts[rank], items))
    return found


def _turn(number: int, among: Sequence[T]) -> T:
    return among[number % len(among)]


def transfer(own: Sequence[Part], wanted: Mapping[Wanted, int]) -> Iterator[tuple[Wanted, torch.Tensor]]:
    """Send what others want, and yield the bytes of what this rank wants, one item after the other.

    ``wanted``: the length of each item in bytes. Every rank has to call it, and has to take all items.
    """
    parts, me, device = {part.rank: part for part in own}, dist.get_rank(), _device()
    transfers = sorted(
        (wish.sender, receiver, wish.part, wish.number)
        for receiver, wishes in enumerate(tell(list(wanted)))
        for wish in wishes
    )
    for sender, receiver, rank, number in transfers:
        if sender == me:
            data = parts[rank].data(parts[rank].items[number])
            dist.send(data.to(device) if device is not None else data.clone(), receiver)
        elif receiver == me:
            wish = Wanted(sender, rank, number)
            data = torch.empty(wanted[wish], dtype=torch.uint8, device=device)
            dist.recv(data, sender)
            yield wish, data.cpu()


def _device() -> torch.device | None:
    """Where tensors have to be that this process group sends; None: in the host's memory."""
    backend = dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else None
