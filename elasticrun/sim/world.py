"""One round of a simulated job as it was formed, and the rules that hold for its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.core.job.round import Round
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.recovery.budget import StopCause
from elasticrun.sim.kernel import require
from elasticrun.sim.scenario import NodeSpec

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent


def place(assignment: Assignment) -> Assignment:
    """The part of an assignment that no restart, addition or removal of a task changes."""
    return replace(assignment, tasks=(), cluster=(), restart_count=0)


class World:
    """One round as it was formed, and what came of it."""

    def __init__(self, number: int, generation: int, current: Round) -> None:
        self.number = number
        self.generation = generation
        self.current = current
        self.assignments: dict[str, Assignment] = dict(current.assignments)
        self.claimed: set[str] = set()  # nodes that obeyed the order to start
        self.started: dict[str, SimAgent] = {}  # nodes whose workers are up
        self.complete_at: float | None = None  # when the workers of all nodes were up
        self.done: dict[str, int] = {}  # name -> workers that ended with 0
        self.genuine = False  # a worker failed by itself
        self.clash = False  # the store's port was taken
        self.errors: set[tuple[str, int]] = set()  # exceptions that its workers raised, with the step
        self.waits: dict[str, list[tuple[float, float]]] = {}  # spans in which a node made no steps
        self.durable: tuple[CommitId, str] | None = (
            None  # what its master knew to be in the storage, and of which run
        )
        self.led = False  # the task that leads a TensorFlow job has ended with 0

    def waited(self, name: str, now: float) -> float:
        """For how many seconds a node has made no steps."""
        return sum(min(now, until) - since for since, until in self.waits.get(name, ()))

    @property
    def failed_by_itself(self) -> bool:
        """Whether the master stopped it for a hang or a failure, and knows of failed workers."""
        stop = self.current.stop
        causes = (StopCause.WORKER_FAILED, StopCause.HANG)
        return stop is not None and stop[0] in causes and bool(self.current.failures)


def ranks_are_exact(specs: Mapping[str, NodeSpec], world: World) -> None:
    """Ranks are 0..n-1, and sizes are the sums."""
    given = list(world.assignments.items())
    first, roles = 0, dict[str, int]()
    for index, (name, assignment) in enumerate(given):
        spec = specs[name]
        require("group ranks are 0..n-1", assignment.group_rank == index, name)
        require("global ranks are 0..n-1", assignment.first_rank == first, name)
        require("role ranks are 0..n-1", assignment.role_first_rank == roles.get(spec.role, 0), name)
        first += spec.local_world_size
        roles[spec.role] = roles.get(spec.role, 0) + spec.local_world_size
    for name, assignment in given:
        sizes = (assignment.group_world_size, assignment.world_size, assignment.role_world_size)
        expected = (len(given), first, roles[specs[name].role])
        require("sizes are sums", sizes == expected, f"{name}: {sizes}, not {expected}")
        require("the round is its own", assignment.round == world.number, name)


def size_is_within_limits(limits: WorldLimits, world: World) -> None:
    """The number of nodes is within the ordered limits."""
    size = len(world.assignments)
    require("min <= nodes <= max", limits.min_nodes <= size <= limits.max_nodes, f"{size} nodes")
    require("nodes are divisible by the unit", size % limits.node_unit == 0, f"{size} nodes")


def store_belongs_to_rank_0(owners: Mapping[int, str], world: World) -> None:
    """The store is on the first node, and on a port that this node offered."""
    first = next(iter(world.assignments))
    stores = {(assignment.store_address, assignment.store_port) for assignment in world.assignments.values()}
    require("one store", len(stores) == 1, str(stores))
    address, port = stores.pop()
    require("the store is rank 0's", address == f"address-{first}", address)
    require("the port is rank 0's", owners.get(port) == first, str(port))


def order_is_stable(ranks: Mapping[str, int | None], before: World | None, after: World) -> None:
    """Nodes that stay keep their order, unless they have given ranks. Given ranks are obeyed."""
    if before is None:
        return
    old, new = list(before.assignments), list(after.assignments)
    given = {name: ranks[name] for name in new}
    free = [name for name in new if given[name] is None]
    survivors = [name for name in free if name in before.assignments]
    expected = [name for name in old if name in survivors]
    require("survivors keep their order", survivors == expected, f"{old} -> {new}")
    if expected and free == new:
        require("rank 0 is a survivor's", new[0] in before.assignments, f"{old} -> {new}")
    obeyed = [rank for rank in given.values() if rank is not None]
    require("given ranks are obeyed", obeyed == sorted(obeyed), f"{new}: {given}")
