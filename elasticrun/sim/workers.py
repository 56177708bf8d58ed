"""The workers of one node: they start, live, hang and die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticrun.core.agent.events import GroupGone, StallSeen, WorkerFailed, WorkerFinished
from elasticrun.core.protocol.messages import Assignment, Evidence, Failure, FailureKind, Stall
from elasticrun.core.recovery.own_failures import Stopping

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent

SIGKILL = 9


class Group:
    """The workers of one round on one node."""

    def __init__(self, assignment: Assignment, size: int) -> None:
        self.assignment = assignment
        self.round = assignment.round
        self.attempts = {
            task.local_rank: task.attempt for task in assignment.tasks
        }  # the newest of each task
        self.tasks = {task.local_rank: task for task in assignment.tasks}
        self.known = dict.fromkeys(self.tasks, assignment.cluster)  # the cluster that each was started with
        self.alive = dict.fromkeys(self.tasks if assignment.cluster else range(size))
        self.finished = 0
        self.told = Stopping()
        self.echoed = False
        self.waits = False  # it makes no steps
        self.waits_since = 0.0
        self.hangs = False  # it is the cause of the hang


class SimWorkers:
    """The spawner of one agent, and its workers."""

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.sim = agent.sim
        self.kernel = agent.kernel
        self.idle_since = self.kernel.now  # no workers since then
        self.group: Group | None = None
        self.stubborn = False
        self.unkillable = False

    def start(self, assignment: Assignment) -> None:
        """Start the workers of a round."""
        self.sim.rules.before_start(self.agent, assignment)
        self.group = Group(assignment, self.agent.spec.local_world_size)
        self.kernel.after(0.02 + 0.3 * self.kernel.random(), self._started, self.group)

    def _started(self, group: Group) -> None:
        is_whole = bool(self.agent.spec.roles) or len(group.alive) == self.agent.spec.local_world_size
        if group is self.group and is_whole:
            self.sim.group_started(self.agent, group)

    def start_task(self, assignment: Assignment, local_rank: int) -> None:
        """Start another attempt of one task."""
        group = self.group
        self.sim.rules.tasks.before_start(self.agent, assignment, local_rank)
        assert group is not None
        (task,) = [task for task in assignment.tasks if task.local_rank == local_rank]
        group.alive[local_rank] = None
        group.tasks[local_rank], group.attempts[local_rank] = task, task.attempt
        group.known[local_rank] = assignment.cluster
        after = 0.02 + 0.3 * self.kernel.random()
        self.kernel.after(after, self.sim.tf.task_started, self.agent, group, local_rank, task.attempt)

    def signal_task(self, local_rank: int, signum: int) -> None:
        """Signal one task to end."""
        group = self.group
        assert group is not None
        self.sim.rules.tasks.before_signal(self.agent, local_rank)
        if self.unkillable or (self.stubborn and signum != SIGKILL):
            return
        code = -9 if signum == SIGKILL else self.kernel.rng.choice((-15, 42, 1, 0))
        attempt = group.attempts[local_rank]
        self.kernel.after(
            self.kernel.random(), self.end, group, local_rank, code, FailureKind.SIGNAL, None, attempt
        )

    def end(
        self,
        group: Group,
        local_rank: int,
        code: int,
        kind: FailureKind,
        told: dict[str, Any] | None = None,
        attempt: int | None = None,
    ) -> None:
        """End a worker, by itself or by a signal; ``told`` holds further fields of its Failure.

        With ``attempt``, do so only if the task still runs that attempt.
        """
        if group is not self.group or local_rank not in group.alive:
            return
        if attempt is not None and group.attempts[local_rank] != attempt:
            return
        del group.alive[local_rank]
        attempt = group.attempts.get(local_rank, 0)
        if group.assignment.cluster:
            self.sim.tf.task_ended(self.agent, group, local_rank, code)
        if code == 0:
            group.finished += 1
            self.agent.handle(WorkerFinished(group.round, local_rank, attempt))
            return
        if self.sim.tf.is_heard(group, local_rank):
            self.sim.echo(self.agent.name, group)
        rank = group.assignment.first_rank + local_rank
        name, role = self.agent.name, self.agent.spec.role
        failure = Failure(name, name, rank, local_rank, role, 1, kind, code, **told or {})
        self.agent.handle(WorkerFailed(group.round, failure, group.told, attempt))

    def signal(self, spared: frozenset[int]) -> None:
        """Signal all workers but the spared ones to end."""
        group = self.group
        assert group is not None
        group.told = Stopping(frozenset({15}), 1.0)
        if self.stubborn:
            return
        if self.sim.tf.is_heard(group):
            self.sim.echo(self.agent.name, group)
        for local_rank in group.alive.keys() - spared if spared else group.alive:
            code = self.kernel.rng.choice((-15, -15, 1, 143))
            delay = self.kernel.random()
            attempt = group.attempts.get(local_rank)
            self.kernel.after(delay, self.end, group, local_rank, code, FailureKind.SIGNAL, None, attempt)

    def sweep(self, round_: int) -> None:
        """Kill what is left of a round."""
        assert self.group is not None and self.group.round == round_
        if not self.unkillable:
            self.kernel.after(0.01 + 0.5 * self.kernel.random(), self._swept, self.group)

    def die(self) -> None:
        """Kill the workers a moment after their agent."""
        if self.group is not None:
            self.kernel.after(0.1, self._swept, self.group)

    def _swept(self, group: Group) -> None:
        if group is not self.group:
            return
        if group.alive and self.sim.tf.is_heard(group):
            self.sim.echo(self.agent.name, group)
        self.group, self.idle_since = None, self.kernel.now
        self.agent.handle(GroupGone(group.round, self.agent.free_port(), self.agent.task_ports()))

    def stalls(self, group: Group, silence: float) -> None:
        """Report ``silence`` seconds without a step; 0: there are steps again."""
        first = group.assignment.first_rank
        rank = next(iter(group.alive), 0)
        lasting = self.kernel.now - group.waits_since
        never = self.sim.scenario.max_restarts == 0  # then only the user's timeout ends it
        evidence = Evidence.TIMEOUT if never else Evidence.STILL
        stall = Stall(
            first + rank, rank, 7, silence, 2.0, not group.hangs, evidence=evidence, lasting=lasting
        )
        self.agent.handle(StallSeen(group.round, stall if silence else None))
