"""What the master decides about single tasks of a TensorFlow job while its round runs.

A loss that leaves the others alone (``core/role_recovery.py``) costs what a failed round costs and is judged
by the same rules (``core/recovery.py``); only what follows differs: the wanted lives of some tasks are
raised, and the round goes on. What these rules end, or a node that has to leave, takes the usual way of a
whole round.

One event may take several tasks, and is seldom heard of all at once. So losses that come moments after others
are judged again together with these, from what the job remembered before them: however the news is spread,
one event costs one restart. The invariant behind that: what starts again because of a loss is not counted as
a part of it if it is lost once more.

The leader's end with 0 ends the job. Tasks that end by themselves as well, mirrored workers that still write
a checkpoint for instance, have a short time to do so; servers never end, and are stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticrun.config import TaskRole
from elasticrun.core.health import NodeFinding
from elasticrun.core.job_events import JobPhase
from elasticrun.core.job_facts import NOTICE, JobFacts
from elasticrun.core.protocol import NodeInfo
from elasticrun.core.ranks import order_members
from elasticrun.core.recovery import restarts_left, settle
from elasticrun.core.rendezvous import WorldLimits
from elasticrun.core.restart import StopCause
from elasticrun.core.role_recovery import Loss, cause_of
from elasticrun.core.round import Mended
from elasticrun.core.round_tasks import (
    Order,
    RoundTasks,
    clash,
    compatible,
    is_stillborn,
    misfit,
    name_tasks,
    started_again,
)
from elasticrun.core.tf_cluster import is_served
from elasticrun.core.tf_scale import offered_ports, scale_refusal

MENDING, LINGER, SERVING = "mending", "linger", "serving"
#: Seconds that servers wait for word of a chief whose node leaves, to be there while it saves its state.
SERVING_TIME = 10.0
#: Seconds within which tasks that are lost are taken to be lost for one reason.
TOGETHER = 5.0
#: Why a round stops although everybody is there: the chief can save what the others hold.
ORDERLY = frozenset({StopCause.MEMBER_LEFT, StopCause.NODE_JOINED, StopCause.RESIZED})


class JobTasks(JobFacts):
    """The part of the job's machine that is about single tasks."""

    def _choose(self) -> tuple[list[str], str]:
        """The members of the next world in order of preference, with the reason in words.

        If those who come first make no TensorFlow cluster, who fits nobody before him is passed over: a node
        that brings a second chief is a spare. What is the matter if that does not help is an obstacle.
        """
        chosen, reason = self.electorate.choose(self.previous, self.limits)
        self.obstacle = self._misfit(chosen)
        if not self.obstacle or self.quorum.is_needed:  # with a quorum each of them may be needed to vote
            return chosen, reason
        everybody = WorldLimits(1, len(self.ready))
        others = compatible(*self._offers(self.electorate.choose(self.previous, everybody)[0]))
        others = others[: self.limits.usable(len(others))]
        if not others or self._misfit(others):
            return chosen, reason
        reason, self.obstacle = f"{len(others)} nodes fit together; {self.obstacle}", ""
        return others, reason

    def _order(self, chosen: Sequence[str]) -> list[str]:
        """The members of the next world by group rank."""
        nodes, quorum = self.members.nodes, self.quorum
        order = order_members(chosen, self.previous, {name: nodes[name].info.node_rank for name in chosen})
        if not self.config.cautious:
            return order
        here = {name: node.info.incarnation for name, node in nodes.items()}
        voters = [here[n] for n, node in nodes.items() if quorum.is_voter(here[n], node.status.seats)]
        return self.seniority.form(order, self.newest + 1, here, voters)

    def _misfit(self, names: Sequence[str]) -> str:
        """Why these nodes cannot make the next cluster; "" if they can.

        A program for parameter servers does not run without any, although its chief and workers would make a
        cluster of the other shape.
        """
        infos, ports = self._offers(names)
        is_bare = not any(TaskRole.PS in info.roles for info in infos)
        if is_bare and is_served(self.current.tasks.cluster):
            return "no node brings a parameter server any more; start one that does (--tf-role ps)"
        return misfit(infos, ports)

    def _could_join(self) -> bool:
        """Whether those who are ready would make one cluster with those who train."""
        here = self.members.nodes
        infos = [here[name].info for name in (*self.current.seats, *self.ready) if name in here]
        return not clash(infos)

    def _seat_tasks(self, names: Sequence[str]) -> RoundTasks:
        """The tasks of the next round; their numbers are still those that were ordered."""
        infos, ports = self._offers(names)
        tasks = RoundTasks(infos, ports)
        for role, wanted in self.role_orders.items():
            if lacking := tasks.repeat(role, wanted, ports):
                text = f"{role.value}={wanted.count - lacking} instead of {role.value}={wanted.count}"
                text += ", as the nodes hold too few free ports; order it again when the round runs"
                self._decide(text)
                self._tell_all([text])
        return tasks

    def _offers(self, names: Sequence[str]) -> tuple[list[NodeInfo], Mapping[str, Sequence[int]]]:
        """These nodes, and the ports that they hold free for tasks."""
        nodes = [self.members.nodes[name] for name in names]
        return [node.info for node in nodes], {node.info.node: node.status.ports for node in nodes}

    def _has_led_to_end(self) -> bool:
        """Whether the job is over because its leader is, and nobody is to be waited for."""
        tasks = self.current.tasks
        if not tasks.is_over:
            return False
        if tasks.unfinished and self.phase is JobPhase.RUNNING:
            self._timers.set_default((LINGER, ""), self._now + self.config.finish_timeout)
            self._timers.set_default((NOTICE, ""), self._now + self.config.waiting_notice_interval)
            return False
        return True

    def _stop_lingering(self) -> None:
        """Whoever has not ended by now is stopped; what it was about to write is lost, so say whose it is."""
        tasks = self.current.tasks
        late, bound = name_tasks(tasks, tasks.unfinished), f"{self.config.finish_timeout:g} s"
        text = f"{late} did not end within {bound} after the leading task; --tf-finish-timeout gives longer"
        tasks.unfinished.clear()
        self._decide(text)
        self._tell_all([text])

    def _watch_silence(self) -> None:
        """Nobody makes steps: act on it, or say why not; see ``core/hangs.py``."""
        current = self.current
        lagging = current.silences.lagging()
        left = restarts_left(self.recovery, self.config.policy, self._now - current.started_at)
        why = current.silences.doubt if lagging is None else current.silences.objection(left)
        if lagging is not None and not why:
            current.blame_hang(self.members.nodes[lagging].info)
        elif why and why != current.silence:
            current.silence = why
            self._decide(f"no node makes a step in round {self.round}; {why}")

    def _watch_tasks(self) -> None:
        """Take away what was kept for the chief alone, and restart what was lost.

        After a master's restart the losses on all nodes are judged together, so once all of them are back.
        """
        tasks = self.current.tasks
        if self.current.releases:
            self._retire()
        is_waiting = self.members.detached or (MENDING, "") in self._timers
        if tasks.lost and not tasks.is_over and not is_waiting:
            self._withdraw_orders()
        if tasks.lost and not tasks.is_over and not is_waiting:
            self._mend(list(tasks.lost.values()))

    def _withdraw_orders(self) -> None:
        """Where a task that was ordered cannot even be started, the job goes on with as many as can."""
        tasks = self.current.tasks
        stillborn = [loss for loss in tasks.lost.values() if is_stillborn(tasks, loss)]
        for role in dict.fromkeys(loss.role for loss in stillborn):
            first = min((loss for loss in stillborn if loss.role is role), key=lambda loss: loss.index)
            self._tell_all([f"{role.value}={first.index} again, as {first}"])
            self._scale_role(role, first.index)

    def _mend(self, losses: list[Loss]) -> None:
        current, mended = self.current, self._with_earlier(losses)
        cause = cause_of(mended.losses)
        what = "; ".join(str(loss) for loss in mended.losses)
        failures = [loss.failure for loss in mended.losses if loss.failure is not None]
        settled = settle(mended.before, self.config.policy, cause, failures, mended.lasted)
        if settled.end is not None:
            current.failures = failures
            current.must_stop(cause, what)  # where the same rules come to the same end
            return
        verdict = f"{_names(mended.losses)} ended; {settled.reason}"
        self.recovery, current.mended = settled.recovery, replace(mended, verdict=verdict)
        current.started_at = self._now
        check = ", before the next round" if settled.suspect else ""  # none is made while others train
        self._decide(f"round {self.round} goes on without {what}; {settled.reason}{check}")
        for name in current.seats if settled.suspects_all else filter(None, [settled.suspect]):
            self.electorate.suspect(name)
        if settled.excluded in self.members.nodes:
            self._exclude(NodeFinding(settled.excluded, settled.reason))
        elif settled.delay:
            self._timers.set((MENDING, ""), self._now + settled.delay)
            self._tell_all([verdict])
        else:
            self._restart(losses, verdict)

    def _with_earlier(self, losses: list[Loss]) -> Mended:
        """These losses, judged anew together with those moments before them if they are one event.

        What kills several tasks is seldom heard of all at once. But what was started again because of the
        earlier ones, and is lost again, is lost for another reason.
        """
        last, leader = self.current.mended, self.current.tasks.leader
        if last is not None and self._now < last.at + TOGETHER:
            keys = {(loss.node, loss.local_rank) for loss in losses}
            if not keys & started_again(last.losses, leader):
                return replace(last, losses=(*last.losses, *losses))
        return Mended(tuple(losses), self.recovery, self._now, self._now - self.current.started_at)

    def _restart_lost(self) -> None:
        """The wait after fast failures is over; what was lost during it comes at no further cost."""
        tasks, mended = self.current.tasks, self.current.mended
        if tasks.lost and not tasks.is_over and mended is not None:
            self._restart(list(tasks.lost.values()), mended.verdict)

    def _restart(self, losses: list[Loss], verdict: str) -> None:
        self._retell(self.current.tasks.restart(losses), verdict)

    def _scale_role(self, role: TaskRole, count: int) -> None:
        """Run with another number of parameter servers, or of the workers that they serve."""
        tasks = self.current.tasks
        if refusal := scale_refusal(self, role, count):
            self._decide(f"not scaled to {role.value}={count}: {refusal}")
            return
        text = f"scaled {role.value}: {tasks.count(role)} -> {count}"
        tasks.resize(role, count, offered_ports(self))
        self.role_orders[role] = Order(tasks.brought[role], count)
        self._decide(f"{text}; the chief saves its state and starts again, the others go on")
        self._retell(list(self.current.seats), text)

    def _retire(self) -> None:
        """The chief that knew of them is gone."""
        self.current.releases = False
        nodes = self.current.tasks.retire()
        self._retell(nodes, "the chief does without what was taken away")

    def _retell(self, names: list[str], reason: str) -> None:
        current = self.current
        for name in names:
            tasks = current.tasks.of(name)
            seat = replace(current.seats[name], tasks=tasks, cluster=current.tasks.cluster)
            current.seats[name] = replace(seat, restart_count=self.budget.used)
        current.start_reason = reason
        self._direct_all(names)

    def _keep_serving(self) -> None:
        """A round stops: where the chief can save its state, the others are told once it has."""
        current = self.current
        cause = current.stop[0] if current.stop is not None else None
        if cause not in ORDERLY or not is_served(current.tasks.cluster):
            return
        node, _ = current.tasks.leader
        current.serving = current.pending - {node}
        if node not in current.pending:  # it is the one that leaves, and will not say when it has gone
            self._timers.set((SERVING, ""), self._now + SERVING_TIME)

    def _stop_serving(self) -> None:
        current = self.current
        chief_stops = current.tasks.leader[0] in current.pending or (SERVING, "") in self._timers
        if current.serving and not chief_stops:
            current.serving.clear()
            self._direct_all(sorted(current.pending))


def _names(losses: Sequence[Loss]) -> str:
    return ", ".join(f"{loss.role.value} {loss.index}" for loss in losses)
