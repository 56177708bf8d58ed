"""The tasks of a TensorFlow job in one round, as the master wants them and as it hears of them.

Invariant: a task keeps its index, its address and its local rank for the whole round, and its wanted attempt
only grows. So what an agent reports can be judged without knowing what it has been told: an attempt that
ended is a loss only if it is the one that is wanted, and each loss brings one further attempt, because the
wanted attempt is raised with it.

The count of a role may change while the round runs. An added task is started at once, beside the others. A
removed task is *retiring* until the chief's next attempt runs, which does not know it any more: the attempt
before may still need it to save its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from elasticrun.config import Endpoint, TaskRole
from elasticrun.core.protocol.messages import Failure, FailureKind, NodeInfo
from elasticrun.core.protocol.tasks import MAX_CLUSTER, MAX_TASKS, Cluster, Task, TaskReport
from elasticrun.core.tensorflow.cluster import (
    SERVERS,
    SINGLE,
    count_roles,
    impossible,
    is_served,
    leader,
    number_tasks,
    ports_needed,
)
from elasticrun.core.tensorflow.role_recovery import Loss, is_alone, is_loss, makes_steps, takes_chief
from elasticrun.dataclass import dataclass

Key = tuple[str, int]  # a node and a local rank of it


def misfit(members: Sequence[NodeInfo], ports: Mapping[str, Sequence[int]]) -> str:
    """Why these nodes cannot make one cluster, with the ports that each offers; "" if they can."""
    for member in members:
        if _lacks_ports(member, ports):
            return f"{member.node} has no ports left for its tasks"
    return clash(members)


def clash(members: Sequence[NodeInfo]) -> str:
    """Why the roles of these nodes make no cluster; "" if they make one, or have none."""
    bare = [member.node for member in members if not member.roles]
    if len(bare) == len(members):
        return ""
    if bare:
        return f"{bare[0]} gives its workers no role; give --tf-role there, or on no node"
    fault = impossible(count_roles(role for member in members for role in member.roles))
    return f"the nodes' roles make no TensorFlow cluster: {fault}" if fault else ""


def compatible(members: Sequence[NodeInfo], ports: Mapping[str, Sequence[int]]) -> list[str]:
    """The nodes that fit into one cluster with the fitting ones before them, whoever else joins. Linear."""
    found: list[str] = []
    counts = Counter[TaskRole]()
    for member in members:
        is_alike = bool(member.roles) is bool(members[0].roles)
        more = counts + Counter(member.roles)
        is_over = any(more[role] > 1 for role in SINGLE) or more.total() > MAX_CLUSTER
        if is_alike and not is_over and not _lacks_ports(member, ports):
            found.append(member.node)
            counts = more
    return found


def _lacks_ports(member: NodeInfo, ports: Mapping[str, Sequence[int]]) -> bool:
    return len(ports[member.node]) < ports_needed(member.roles)


@dataclass(frozen=True, slots=True)
class Order:
    """An operator's count of tasks for a role, in place of the count that the nodes bring by themselves."""

    brought: int
    count: int


def started_again(losses: Sequence[Loss], leader: Key) -> set[Key]:
    """The tasks that start again after these losses."""
    keys = {(loss.node, loss.local_rank) for loss in losses}
    return keys | {leader} if takes_chief(losses) else keys


class RoundTasks:
    """All tasks of one round; none in a job without TensorFlow."""

    def __init__(
        self, members: Sequence[NodeInfo] = (), ports: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """``members`` are in the order of their ranks, and fit together."""
        self.wanted: dict[str, dict[int, Task]] = {}  # by node and local rank
        self.cluster: Cluster = ()
        self.lost: dict[Key, Loss] = {}  # ended in the attempt that is wanted, and not judged yet
        self.is_over = False  # the leading task has ended with 0
        self.unfinished: set[Key] = set()  # tasks that end by themselves and have not
        self._addresses = {member.node: member.address for member in members}
        self._retiring: set[Key] = set()
        self.brought: dict[TaskRole, int] = {}  # how many of each role the nodes came with
        self._homes: dict[TaskRole, tuple[str, ...]] = {}  # nodes that gave workers this role
        self._used: dict[str, int] = {}  # how many local ranks of a node were ever used
        self.leader: Key = ("", 0)  # the leading task
        self.trainers: set[str] = set()  # nodes with a task whose steps are the training's
        if members and members[0].roles:
            self._fill(members, ports or {})

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def _fill(self, members: Sequence[NodeInfo], ports: Mapping[str, Sequence[int]]) -> None:
        numbered, self.cluster = number_tasks([(m.address, m.roles, ports[m.node]) for m in members])
        for member, tasks in zip(members, numbered, strict=True):
            self.wanted[member.node] = {task.local_rank: task for task in tasks}
            self._used[member.node] = len(tasks)
        self.brought = count_roles(role for member in members for role in member.roles)
        self._homes = {role: tuple(m.node for m in members if role in m.roles) for role in TaskRole}
        leads = leader(role for role, _ in self.cluster)
        for key, task in self._all():
            if task.role is leads and task.index == 0:
                self.leader = key
            if makes_steps(self.cluster, task.role):
                self.trainers.add(key[0])
            self._expect_end(key, task.role)

    def of(self, node: str) -> tuple[Task, ...]:
        """What a node is told of its own tasks."""
        return tuple(self.wanted.get(node, {}).values())

    def count(self, role: TaskRole) -> int:
        """How many tasks have a role, without retiring ones."""
        return len(self._listed(role))

    def room(self, role: TaskRole, ports: Mapping[str, Sequence[int]]) -> int:
        """How many tasks could be added to a role. ``ports`` are those that each node holds free."""
        return sum(len(self._free_ports(node, ports.get(node, ()))) for node in self._homes[role])

    # -- what is heard

    def absorb(self, node: str, reports: Iterable[TaskReport]) -> bool:
        """Take in what a node says of its tasks. Returns whether retiring tasks can be dropped now."""
        released = False
        for report in reports:
            key = (node, report.local_rank)
            task = self.wanted.get(node, {}).get(report.local_rank)
            if task is None:
                continue
            self.lost.pop(key, None)
            if key == self.leader and report.ended and report.failure is None:
                self.is_over = True  # in whichever attempt
                self.unfinished.discard(key)
            elif report.attempt < task.attempt:
                continue  # it makes way
            elif report.ended:
                self._judge(key, task, report.failure)
            elif key == self.leader:
                released = bool(self._retiring)
        return released

    def _judge(self, key: Key, task: Task, failure: Failure | None) -> None:
        """The attempt that is wanted has ended."""
        self.unfinished.discard(key)
        if key in self._retiring or not is_alone(self.cluster, task.role):
            return
        if is_loss(self.cluster, task.role, failure):
            self.lost[key] = Loss(*key, task.role, task.index, failure)

    def _expect_end(self, key: Key, role: TaskRole) -> None:
        if not (is_served(self.cluster) and role in SERVERS):
            self.unfinished.add(key)

    # -- what is wanted

    def restart(self, losses: Sequence[Loss]) -> list[str]:
        """Want another attempt of these tasks, and of the chief if one is a ps. Returns the nodes."""
        keys = started_again(losses, self.leader)
        for key in keys:
            self._raise_attempt(key, saves=False)
        return sorted({node for node, _ in keys})

    def resize(self, role: TaskRole, count: int, ports: Mapping[str, Sequence[int]]) -> None:
        """Change the count of a server role, and want a chief that knows it.

        ``ports`` are those that each node holds free; there must be ``room`` for what is added.
        """
        self._recount(role, count, ports)
        self._raise_attempt(self.leader, saves=True)

    def repeat(self, role: TaskRole, order: Order, ports: Mapping[str, Sequence[int]]) -> int:
        """Repeat an order before a round starts, unless the nodes now bring another count.

        Returns how many of the ordered tasks are missing, because the nodes hold no free ports for them.
        """
        if self.brought.get(role) != order.brought:
            return 0
        count = min(order.count, order.brought + self.room(role, ports))
        self._recount(role, count, ports)
        self.retire()
        return order.count - count

    def _recount(self, role: TaskRole, count: int, ports: Mapping[str, Sequence[int]]) -> None:
        listed = self._listed(role)
        for node, task in self._place(listed, role, count, ports):
            self.wanted[node][task.local_rank] = task
            self._used[node] += 1
        for key, _ in listed[count:]:
            self._retiring.add(key)
            self.lost.pop(key, None)
        self.cluster = tuple((r, self._served(r)) for r, _ in self.cluster)

    def retire(self) -> list[str]:
        """Drop retiring tasks. Returns their nodes."""
        nodes = sorted({node for node, _ in self._retiring})
        for node, local_rank in self._retiring:
            del self.wanted[node][local_rank]
        self._retiring = set()
        return nodes

    def _place(
        self,
        listed: Sequence[tuple[Key, Task]],
        role: TaskRole,
        count: int,
        ports: Mapping[str, Sequence[int]],
    ) -> list[tuple[str, Task]]:
        """Place the missing tasks on the nodes of this role that have the fewest."""
        loads = dict.fromkeys(self._homes[role], 0)
        for (node, _), _task in listed:
            loads[node] += 1
        free = {node: self._free_ports(node, ports.get(node, ())) for node in loads}
        ranks = {node: self._used[node] for node in loads}
        added: list[tuple[str, Task]] = []
        for index in range(len(listed), count):
            node = min((node for node in loads if free[node]), key=loads.__getitem__)
            added.append((node, Task(ranks[node], role, index, port=free[node].pop(0))))
            loads[node], ranks[node] = loads[node] + 1, ranks[node] + 1
        return added

    def _free_ports(self, node: str, offered: Sequence[int]) -> list[int]:
        taken = {task.port for task in self.wanted[node].values()}
        return [port for port in offered if port not in taken][: MAX_TASKS - len(self.wanted[node])]

    def _raise_attempt(self, key: Key, saves: bool) -> None:
        node, local_rank = key
        task = self.wanted[node][local_rank]
        self.wanted[node][local_rank] = replace(task, attempt=task.attempt + 1, saves=saves)
        self.lost.pop(key, None)
        self._expect_end(key, task.role)

    def _listed(self, role: TaskRole) -> list[tuple[Key, Task]]:
        """The tasks of a role by index, without retiring ones."""
        found = [pair for pair in self._all() if pair[1].role is role and pair[0] not in self._retiring]
        return sorted(found, key=lambda pair: pair[1].index)

    def _served(self, role: TaskRole) -> tuple[str, ...]:
        return tuple(str(Endpoint(self._addresses[n], task.port)) for (n, _), task in self._listed(role))

    def _all(self) -> list[tuple[Key, Task]]:
        return [((node, rank), task) for node, tasks in self.wanted.items() for rank, task in tasks.items()]


def name_tasks(tasks: RoundTasks, keys: Iterable[Key]) -> str:
    """These tasks in words."""
    named = sorted(
        (task.role.value, task.index)
        for node, rank in keys
        if (task := tasks.wanted[node].get(rank)) is not None
    )
    return ", ".join(f"{role} {index}" for role, index in named)


def is_stillborn(tasks: RoundTasks, loss: Loss) -> bool:
    """Whether an added task, which the nodes did not bring, could not be started at its first attempt."""
    is_first = tasks.wanted[loss.node][loss.local_rank].attempt == 0
    is_added = loss.index >= tasks.brought[loss.role]
    return is_first and is_added and loss.failure is not None and loss.failure.kind is FailureKind.SPAWN
