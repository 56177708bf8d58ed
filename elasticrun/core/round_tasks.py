"""The tasks of a TensorFlow job in one round, as the master wants them and as it hears of them.

Invariant: a task keeps its index, its address and its local rank for the whole round, and its wanted life
only grows. So what an agent reports can be judged without knowing what it has been told: a life that ended
is a loss only if it is the one that is wanted, and each loss is judged once, because the wanted life is
raised with it.

The count of a role may change while the round runs. What is added is started at once, beside the others;
what is taken away is *retiring* until the chief's next life runs, which knows of it no more: the chief
before may still need it to save its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from elasticrun.config import Endpoint, TaskRole
from elasticrun.core.protocol import NodeInfo
from elasticrun.core.role_recovery import SERVERS, Loss, is_alone, is_loss, is_served, takes_chief
from elasticrun.core.tasks import MAX_TASKS, Cluster, Task, TaskReport
from elasticrun.core.tf_cluster import count_roles, impossible, leader, number_tasks, ports_needed

Key = tuple[str, int]  # a node and a local rank of it


def misfit(members: Sequence[NodeInfo], ports: Mapping[str, Sequence[int]]) -> str:
    """Why these nodes cannot make one cluster, with the ports that each offers; "" if they can."""
    if not any(member.roles for member in members):
        return ""
    for member in members:
        if not member.roles:
            return f"{member.node} gives its workers no role; give --tf-role there, or on no node"
        if len(ports[member.node]) < ports_needed(member.roles):
            return f"{member.node} has no ports left for its tasks"
    fault = impossible(count_roles(role for member in members for role in member.roles))
    return f"the nodes' roles make no TensorFlow cluster: {fault}" if fault else ""


@dataclass(frozen=True, slots=True)
class Order:
    """How many tasks an operator wanted of a role, in place of those that the nodes bring by themselves."""

    brought: int
    count: int


class RoundTasks:
    """All tasks of one round; none if it is not TensorFlow's."""

    def __init__(
        self, members: Sequence[NodeInfo] = (), ports: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """``members`` are in the order of their ranks, and no misfits."""
        self.wanted: dict[str, dict[int, Task]] = {}  # by node and local rank
        self.cluster: Cluster = ()
        self.lost: dict[Key, Loss] = {}  # ended in the life that is wanted, and not judged yet
        self.is_over = False  # the task that leads has ended with 0
        self.unfinished: set[Key] = set()  # tasks that end by themselves and have not
        self._addresses = {member.node: member.address for member in members}
        self._retiring: set[Key] = set()
        self.brought: dict[TaskRole, int] = {}  # how many of each role the nodes came with
        self._used: dict[str, int] = {}  # how many local ranks of a node were ever seated
        self._leader: Key = ("", 0)
        if members and members[0].roles:
            self._seat(members, ports or {})

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def _seat(self, members: Sequence[NodeInfo], ports: Mapping[str, Sequence[int]]) -> None:
        numbered, self.cluster = number_tasks([(m.address, m.roles, ports[m.node]) for m in members])
        for member, tasks in zip(members, numbered, strict=True):
            self.wanted[member.node] = {task.local_rank: task for task in tasks}
            self._used[member.node] = len(tasks)
        self.brought = count_roles(role for member in members for role in member.roles)
        leads = leader(role for role, _ in self.cluster)
        for key, task in self._all():
            if task.role is leads and task.index == 0:
                self._leader = key
            if not (is_served(self.cluster) and task.role in SERVERS):
                self.unfinished.add(key)

    def of(self, node: str) -> tuple[Task, ...]:
        """What a node is told of its own tasks."""
        return tuple(self.wanted.get(node, {}).values())

    def count(self, role: TaskRole) -> int:
        """How many tasks have a role, those that are taken away not included."""
        return len(self._listed(role))

    def room(self, role: TaskRole, ports: Mapping[str, Sequence[int]]) -> int:
        """How many more tasks could have a role. ``ports`` are those that each node holds free."""
        nodes = {node for (node, _), _task in self._listed(role)}
        return sum(len(self._free_ports(node, ports.get(node, ()))) for node in nodes)

    # -- what is heard

    def absorb(self, node: str, reports: Iterable[TaskReport]) -> bool:
        """Take in what a node says of its tasks. Returns whether tasks can be taken away from now on."""
        released = False
        for report in reports:
            key = (node, report.local_rank)
            task = self.wanted.get(node, {}).get(report.local_rank)
            if task is None:
                continue
            if report.ended:
                self.unfinished.discard(key)
                self.is_over = self.is_over or (key == self._leader and report.failure is None)
            elif key == self._leader and report.life >= task.life:
                released = bool(self._retiring)
            self._judge(key, task, report)
        return released

    def _judge(self, key: Key, task: Task, report: TaskReport) -> None:
        self.lost.pop(key, None)
        if not report.ended or report.life < task.life or key in self._retiring:
            return
        failure = report.failure
        if is_alone(self.cluster, task.role) and is_loss(self.cluster, task.role, failure):
            self.lost[key] = Loss(*key, task.role, task.index, failure)

    # -- what is wanted

    def restart(self, losses: Sequence[Loss]) -> list[str]:
        """Want a further life of these, and of the chief if it needs them. Returns the nodes."""
        keys = {(loss.node, loss.local_rank) for loss in losses}
        if takes_chief(losses):
            keys.add(self._leader)
        for key in keys:
            self._raise_life(key, saves=False)
        return sorted({node for node, _ in keys})

    def resize(self, role: TaskRole, count: int, ports: Mapping[str, Sequence[int]]) -> str:
        """Want another number of a server's role, and a chief that knows. Returns why not, else "".

        ``ports`` are those that each node holds free.
        """
        refusal = self._recount(role, count, ports)
        if not refusal:
            self._raise_life(self._leader, saves=True)
        return refusal

    def repeat(self, role: TaskRole, order: Order, ports: Mapping[str, Sequence[int]]) -> str:
        """Before the start of a round, do as in the one before it; but not if the nodes bring others now."""
        if self.brought.get(role) != order.brought:
            return ""
        refusal = self._recount(role, order.count, ports)
        self.retire()
        return refusal

    def _recount(self, role: TaskRole, count: int, ports: Mapping[str, Sequence[int]]) -> str:
        listed = self._listed(role)
        added = self._place(listed, count, ports)
        if isinstance(added, str):
            return added
        for node, task in added:
            self.wanted[node][task.local_rank] = task
            self._used[node] += 1
        self._retiring |= {key for key, _ in listed[count:]}
        self.cluster = tuple((r, self._served(r)) for r, _ in self.cluster)
        return ""

    def retire(self) -> list[str]:
        """Want those no more that are retiring. Returns their nodes."""
        nodes = sorted({node for node, _ in self._retiring})
        for node, local_rank in self._retiring:
            del self.wanted[node][local_rank]
        self._retiring = set()
        return nodes

    def _place(
        self, listed: Sequence[tuple[Key, Task]], count: int, ports: Mapping[str, Sequence[int]]
    ) -> list[tuple[str, Task]] | str:
        """Seats for as many more tasks as are wanted, on the nodes that have the fewest of this role."""
        loads: dict[str, int] = {}
        for (node, _), _task in listed:
            loads[node] = loads.get(node, 0) + 1
        free = {node: self._free_ports(node, ports.get(node, ())) for node in loads}
        ranks = {node: self._used[node] for node in loads}
        added: list[tuple[str, Task]] = []
        for index in range(len(listed), count):
            open_nodes = [node for node in loads if free[node]]
            if not open_nodes:
                return f"no port is left for {count - index} of them"
            node = min(open_nodes, key=loads.__getitem__)
            task = Task(ranks[node], listed[0][1].role, index, port=free[node].pop(0))
            loads[node], ranks[node] = loads[node] + 1, ranks[node] + 1
            added.append((node, task))
        return added

    def _free_ports(self, node: str, offered: Sequence[int]) -> list[int]:
        taken = {task.port for task in self.wanted[node].values()}
        return [port for port in offered if port not in taken][: MAX_TASKS - len(self.wanted[node])]

    def _raise_life(self, key: Key, saves: bool) -> None:
        node, local_rank = key
        task = self.wanted[node][local_rank]
        self.wanted[node][local_rank] = replace(task, life=task.life + 1, saves=saves)
        self.lost.pop(key, None)

    def _listed(self, role: TaskRole) -> list[tuple[Key, Task]]:
        """Those of a role by index, without those that are taken away."""
        found = [pair for pair in self._all() if pair[1].role is role and pair[0] not in self._retiring]
        return sorted(found, key=lambda pair: pair[1].index)

    def _served(self, role: TaskRole) -> tuple[str, ...]:
        return tuple(str(Endpoint(self._addresses[n], task.port)) for (n, _), task in self._listed(role))

    def _all(self) -> list[tuple[Key, Task]]:
        return [((node, rank), task) for node, tasks in self.wanted.items() for rank, task in tasks.items()]
