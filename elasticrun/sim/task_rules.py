"""The rules of single tasks: a TensorFlow job restarts a lost task and what depends on it, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.config import TaskRole
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import MENDING
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import Cluster
from elasticrun.core.tensorflow.cluster import SERVERS, is_served
from elasticrun.core.tensorflow.round_tasks import Key, RoundTasks
from elasticrun.sim.kernel import require

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent
    from elasticrun.sim.simulator import Simulator


class TaskRules:
    """Watches the tasks of one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.forget()

    def forget(self) -> None:
        """Start over: the master has lost its journal."""
        self._round = -1
        self._cluster: Cluster = ()
        self._attempts: dict[Key, int] = {}  # wanted
        self._retiring: dict[Key, int] = {}  # and the attempt of the chief that no longer knows them

    # -- the master

    def after_master(self, machine: JobMachine) -> None:
        """Check every rule about the wanted tasks."""
        tasks = machine.state.current.tasks
        if not tasks:
            return
        attempts = {
            (name, rank): task.attempt for name, of in tasks.wanted.items() for rank, task in of.items()
        }
        if machine.state.round == self._round and (attempts, tasks.cluster) != (
            self._attempts,
            self._cluster,
        ):
            self.only_the_lost_are_restarted(tasks, attempts)
            self.nobody_is_taken_from_a_chief(tasks, attempts)
        if machine.state.round != self._round:
            self._retiring = {}
        leader = tasks.leader
        if tasks.cluster != self._cluster:
            self.addresses_are_exact(tasks)
            self._retiring = dict.fromkeys(tasks._retiring, attempts[leader])
        self._round, self._attempts, self._cluster = machine.state.round, attempts, tasks.cluster

    def only_the_lost_are_restarted(self, tasks: RoundTasks, attempts: dict[Key, int]) -> None:
        raised = {
            key for key in attempts.keys() & self._attempts.keys() if attempts[key] != self._attempts[key]
        }
        is_resized = tasks.cluster != self._cluster
        has_ps = any(tasks.wanted[name][rank].role is TaskRole.PS for name, rank in raised)
        for name, rank in raised:
            key = (name, rank)
            require("attempts only grow", attempts[key] == self._attempts[key] + 1, f"{key}: {attempts[key]}")
            excused = key == tasks.leader and (has_ps or is_resized)
            lost = self.sim.tf.ended.get((self._round, *key), -1) >= self._attempts[key]
            require("only the lost are restarted", lost or excused, f"{key} in round {self._round}")
        needs_chief = has_ps or is_resized
        require("the chief is restarted with its servers", not needs_chief or tasks.leader in raised, "")

    def nobody_is_taken_from_a_chief(self, tasks: RoundTasks, attempts: dict[Key, int]) -> None:
        for key in self._attempts.keys() - attempts.keys():
            known = self.sim.tf.born.get((self._round, *tasks.leader), -1)
            late = known >= self._retiring.get(key, 0)
            require("no server is taken from a chief that knows it", late, f"{key} in round {self._round}")

    def addresses_are_exact(self, tasks: RoundTasks) -> None:
        places = [place for _, of in tasks.cluster for place in of]
        require("each address is one task's", len(set(places)) == len(places), str(tasks.cluster))
        kept = [
            task
            for name, of in tasks.wanted.items()
            for rank, task in of.items()
            if (name, rank) not in tasks._retiring
        ]
        for role, of_role in tasks.cluster:
            indexes = sorted(task.index for task in kept if task.role is role)
            require("indexes are 0..n-1", indexes == list(range(len(of_role))), f"{role}: {indexes}")

    # -- the agents

    def before_start(self, agent: SimAgent, assignment: Assignment, local_rank: int) -> None:
        """Check every rule about a start of one task."""
        group, who = agent.workers.group, f"{agent.incarnation}, local rank {local_rank}"
        require("a task starts within its round", group is not None and group.round == assignment.round, who)
        assert group is not None
        require("the attempt before is dead", local_rank not in group.alive, who)
        attempt = next(task.attempt for task in assignment.tasks if task.local_rank == local_rank)
        require("an attempt is newer than the one before", attempt > group.attempts.get(local_rank, -1), who)
        self.sim.tf.note_start(agent, group, local_rank, attempt)

    def before_signal(self, agent: SimAgent, local_rank: int) -> None:
        """No task is signalled while its attempt is wanted."""
        group, who = agent.workers.group, f"{agent.incarnation}, local rank {local_rank}"
        assert group is not None
        require("a task that is signalled is alive", local_rank in group.alive, who)
        wanted = self.sim.tf.told(agent).get(local_rank)
        is_over = wanted is None or wanted > group.attempts[local_rank]
        require("who is wanted is left alone", is_over, f"{who}: {wanted}")

    def before_stop(self, agent: SimAgent, spared: frozenset[int]) -> None:
        """Servers outlast the chief: they hold the state that it saves when it is told to stop."""
        group = agent.workers.group
        assert group is not None
        roles = {rank: group.tasks[rank].role for rank in group.alive if rank in group.tasks}
        servers = {rank for rank, role in roles.items() if role in SERVERS}
        if TaskRole.CHIEF in roles.values() and is_served(group.assignment.cluster):
            require("servers outlast the chief", servers <= spared, f"{agent.incarnation}: {spared}")

    # -- progress

    def all_that_is_wanted_runs(self, machine: JobMachine) -> None:
        """Call it after a while without faults, and before the work is done."""
        tasks = machine.state.current.tasks
        if machine.state.phase is not JobPhase.RUNNING or tasks is None or tasks.is_over:
            return
        require("nobody waits to be restarted", (MENDING, "") not in machine.state.timers, str(tasks.lost))
        require("nobody waits to be taken away", not tasks._retiring, str(tasks._retiring))
        for name, of in tasks.wanted.items():
            agent = self.sim.newest(name)
            group = agent.workers.group if agent is not None else None
            running = {r: group.attempts[r] for r in group.alive} if group is not None else {}
            wanted = {rank: task.attempt for rank, task in of.items()}
            require("every wanted task runs, and no other", running == wanted, f"{name}: {running}, {wanted}")

    def the_leader_has_ended_the_job(self, machine: JobMachine, round_: int) -> None:
        """Call it some time after the leader of a round has ended with 0."""
        if machine.state.round == round_:
            require(
                "the job ends with its leader",
                machine.state.ended,
                f"{machine.state.phase} in round {round_}",
            )
