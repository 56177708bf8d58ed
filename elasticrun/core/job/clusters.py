"""TensorFlow's demand on a world beyond its size: the roles of its nodes make one cluster.

Used only where nodes bring roles; a world of torch is formed without it (``core/job/formation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticrun.config import TaskRole
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import JobState
from elasticrun.core.job.world import Choice
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.protocol.messages import Assignment, NodeInfo
from elasticrun.core.tensorflow.cluster import is_served
from elasticrun.core.tensorflow.round_tasks import RoundTasks, clash, compatible, misfit


class Clusters:
    """Forms the cluster of a world."""

    def __init__(self, state: JobState, outbox: Outbox) -> None:
        self._state = state
        self._outbox = outbox

    def choose(self, first: Choice) -> Choice:
        """The first choice if it makes a cluster; else the nodes that fit those before them.

        So a node that brings a second chief is a spare. If no choice fits, the choice names the obstacle.
        """
        obstacle = self._misfit(first.members)
        if not obstacle or self._state.quorum.is_needed:  # with a quorum each of them may be needed to vote
            return replace(first, obstacle=obstacle)
        state = self._state
        everybody, _ = state.candidates.choose(state.previous, WorldLimits(1, len(state.ready)))
        others = compatible(*self._offers(everybody))
        others = others[: state.limits.usable(len(others))]
        if not others or self._misfit(others):
            return replace(first, obstacle=obstacle)
        return Choice(tuple(others), f"{len(others)} nodes fit together; {obstacle}")

    def _misfit(self, names: Sequence[str]) -> str:
        """Why these nodes cannot make the next cluster; "" if they can.

        A program for parameter servers does not run without them, although its chief and workers would make a
        cluster of the other shape.
        """
        infos, ports = self._offers(names)
        before = self._state.current.tasks
        is_bare = not any(TaskRole.PS in info.roles for info in infos)
        if is_bare and before is not None and is_served(before.cluster):
            return "no node brings a parameter server any more; start one that does (--tf-role ps)"
        return misfit(infos, ports)

    def could_join(self) -> bool:
        """Whether the ready nodes would make one cluster with the members of the round."""
        state, here = self._state, self._state.members.nodes
        infos = [here[name].info for name in (*state.current.assignments, *state.ready) if name in here]
        return not clash(infos)

    def make_tasks(self, names: Sequence[str]) -> RoundTasks:
        """Make the tasks of the next round; orders to scale a role still hold."""
        infos, ports = self._offers(names)
        tasks = RoundTasks(infos, ports)
        for role, wanted in self._state.role_orders.items():
            if lacking := tasks.repeat(role, wanted, ports):
                text = f"{role.value}={wanted.count - lacking} instead of {role.value}={wanted.count}"
                text += ", as the nodes hold too few free ports; order it again when the round runs"
                self._outbox.decide(text)
                self._outbox.tell_all([text])
        return tasks

    def assign(self, assignments: Mapping[str, Assignment], tasks: RoundTasks) -> dict[str, Assignment]:
        """The assignments, with the tasks of each node and the whole cluster."""
        tag = self._state.config.tag
        return {
            name: replace(given, tasks=tasks.of(name), cluster=tasks.cluster, tag=tag)
            for name, given in assignments.items()
        }

    def _offers(self, names: Sequence[str]) -> tuple[list[NodeInfo], Mapping[str, Sequence[int]]]:
        """These nodes, and the ports that they hold free for tasks."""
        nodes = [self._state.members.nodes[name] for name in names]
        return [node.info for node in nodes], {node.info.node: node.status.ports for node in nodes}
