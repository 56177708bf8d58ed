"""Rounds of a TensorFlow job: single tasks are lost, start again and are scaled while the round runs.

A loss that leaves the others alone (``core/tensorflow/role_recovery.py``) costs what a failed round costs and
is judged by the same rules (``core/job/settling.py``); only what follows differs: the wanted attempts of some
tasks are raised, and the round goes on. What these rules end, or a node that has to leave, takes the usual
way of a whole round. So does each loss in a cluster without parameter servers, whose world is fixed in each
process.

One event may take several tasks, and is seldom heard of all at once. So losses that come moments after others
are merged with these, and judged from what the job remembered before them: however the news is spread, one
event costs one restart. The invariant behind that: what starts again because of a loss is not counted as a
part of it if it is lost once more.

The leader's end with 0 ends the job. Tasks that end by themselves as well, mirrored workers that still write
a checkpoint for instance, have a short time to do so; servers never end, and are stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticrun.config import TaskRole
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.round import Repair
from elasticrun.core.job.settling import Settling
from elasticrun.core.job.state import LINGER, MENDING, NOTICE, SERVING, JobState
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.tensorflow.cluster import is_served
from elasticrun.core.tensorflow.role_recovery import Loss, cause_of
from elasticrun.core.tensorflow.round_tasks import Order, RoundTasks, is_stillborn, name_tasks, started_again
from elasticrun.core.tensorflow.scale import scale_refusal

#: Seconds that servers wait for word of a chief whose node leaves, to be there while it saves its state.
SERVING_TIME = 10.0
#: Seconds within which tasks that are lost are taken to be lost for one reason.
TOGETHER = 5.0
#: Why a round stops although everybody is there: the chief can save what the others hold.
ORDERLY = frozenset({StopCause.MEMBER_LEFT, StopCause.NODE_JOINED, StopCause.RESIZED})


class SingleTasks:
    """The restart scope of a round that has tasks; to be asked of no other."""

    def __init__(self, state: JobState, outbox: Outbox, settling: Settling) -> None:
        self._state = state
        self._outbox = outbox
        self._settling = settling

    @property
    def _tasks(self) -> RoundTasks:
        tasks = self._state.current.tasks
        assert tasks is not None
        return tasks

    # -- the end

    def ended(self) -> str:
        """Whether the job is over because its leader is, and nobody is to be waited for."""
        state, tasks = self._state, self._tasks
        if not tasks.is_over:
            return ""
        if tasks.unfinished and state.phase is JobPhase.RUNNING:
            state.timers.set_default((LINGER, ""), state.now + state.config.finish_timeout)
            state.timers.set_default((NOTICE, ""), state.now + state.config.waiting_notice_interval)
            return ""
        return f"the leading task of round {state.round} ended with 0"

    def expire_linger(self, _: str) -> None:
        """Stop whoever has not ended by now; what it was about to write is lost, so say whose it is."""
        tasks, bound = self._tasks, f"{self._state.config.finish_timeout:g} s"
        late = name_tasks(tasks, tasks.unfinished)
        text = f"{late} did not end within {bound} after the leading task; --tf-finish-timeout gives longer"
        tasks.unfinished.clear()
        self._outbox.decide(text)
        self._outbox.tell_all([text])

    # -- losses

    def watch(self) -> None:
        """Take away what was kept for the chief alone, and restart what was lost.

        After a master's restart the losses on all nodes are judged together, so once all of them are back.
        """
        state, tasks = self._state, self._tasks
        if state.current.releases:
            self._retire()
        is_waiting = state.members.detached or (MENDING, "") in state.timers
        if tasks.lost and not tasks.is_over and not is_waiting:
            self._withdraw_orders()
        if tasks.lost and not tasks.is_over and not is_waiting:
            self._repair(list(tasks.lost.values()))

    def _withdraw_orders(self) -> None:
        """Where a task that was ordered cannot even be started, the job goes on with as many as can."""
        tasks = self._tasks
        stillborn = [loss for loss in tasks.lost.values() if is_stillborn(tasks, loss)]
        for role in dict.fromkeys(loss.role for loss in stillborn):
            first = min((loss for loss in stillborn if loss.role is role), key=lambda loss: loss.index)
            self._outbox.tell_all([f"{role.value}={first.index} again, as {first}"])
            self.scale(role, first.index)

    def _repair(self, losses: list[Loss]) -> None:
        """Judge these losses, and start again what they take along."""
        state, repair = self._state, self._with_earlier(losses)
        current, cause = state.current, cause_of(repair.losses)
        what = "; ".join(str(loss) for loss in repair.losses)
        failures = [loss.failure for loss in repair.losses if loss.failure is not None]
        settled = self._settling.judge(repair.before, cause, failures, repair.lasted)
        if settled.end is not None:
            current.failures = failures
            current.must_stop(cause, what)  # where the same rules come to the same end
            return
        verdict = f"{_names(repair.losses)} ended; {settled.reason}"
        current.repair = replace(repair, verdict=verdict)
        current.started_at = state.now
        check = ", before the next round" if settled.suspect else ""  # none is made while others train
        text = f"round {state.round} goes on without {what}; {settled.reason}{check}"
        if self._settling.apply(settled, MENDING, text):
            self._restart(losses, verdict)
        elif settled.delay:
            self._outbox.tell_all([verdict])

    def _with_earlier(self, losses: list[Loss]) -> Repair:
        """Merge with recent losses: one event costs one restart.

        But what was started again because of the earlier ones, and is lost again, is lost for another reason.
        """
        state, last = self._state, self._state.current.repair
        if last is not None and state.now < last.at + TOGETHER:
            keys = {(loss.node, loss.local_rank) for loss in losses}
            if not keys & started_again(last.losses, self._tasks.leader):
                return replace(last, losses=(*last.losses, *losses))
        return Repair(tuple(losses), state.recovery, state.now, state.now - state.current.started_at)

    def expire_wait(self, _: str) -> None:
        """The wait after fast failures is over; what was lost during it comes at no further cost."""
        tasks, repair = self._tasks, self._state.current.repair
        if tasks.lost and not tasks.is_over and repair is not None:
            self._restart(list(tasks.lost.values()), repair.verdict)

    def _restart(self, losses: list[Loss], verdict: str) -> None:
        self._retell(self._tasks.restart(losses), verdict)

    # -- another number of tasks

    def scale(self, role: TaskRole, count: int) -> str:
        """Run with another number of parameter servers, or of the workers that they serve.

        Returns why not, in one sentence; "" if it is done.
        """
        state, tasks = self._state, self._tasks
        ports = offered_ports(state)
        if refusal := scale_refusal(tasks, ports, role, count, idle(state)):
            self._outbox.decide(f"not scaled to {role.value}={count}: {refusal}")
            return refusal
        text = f"scaled {role.value}: {tasks.count(role)} -> {count}"
        tasks.resize(role, count, ports)
        state.role_orders[role] = Order(tasks.brought[role], count)
        self._outbox.decide(f"{text}; the chief saves its state and starts again, the others go on")
        self._retell(list(state.current.assignments), text)
        return ""

    def _retire(self) -> None:
        """Drop retiring tasks: the chief that knew of them is gone."""
        self._state.current.releases = False
        self._retell(self._tasks.retire(), "the chief does without what was taken away")

    def _retell(self, names: list[str], reason: str) -> None:
        state, current, tasks = self._state, self._state.current, self._tasks
        for name in names:
            given = replace(current.assignments[name], tasks=tasks.of(name), cluster=tasks.cluster)
            current.assignments[name] = replace(given, restart_count=state.budget.used)
        current.start_reason = reason
        self._outbox.direct_all(names)

    # -- stopping

    def stop(self) -> None:
        """Where the chief can save its state, the others are told to stop once it has."""
        state, current, tasks = self._state, self._state.current, self._tasks
        cause = current.stop[0] if current.stop is not None else None
        if cause not in ORDERLY or not is_served(tasks.cluster):
            return
        node, _ = tasks.leader
        current.serving = current.pending - {node}
        if node not in current.pending:  # it is the one that leaves, and will not say when it has gone
            state.timers.set((SERVING, ""), state.now + SERVING_TIME)

    def go_on_stopping(self) -> None:
        """Tell the servers that they stop, once the chief has."""
        state, current = self._state, self._state.current
        chief_stops = self._tasks.leader[0] in current.pending or (SERVING, "") in state.timers
        if current.serving and not chief_stops:
            current.serving.clear()
            self._outbox.direct_all(sorted(current.pending))


def idle(state: JobState) -> str:
    """What the job is doing in place of running a round; "" if one runs."""
    return "" if state.phase is JobPhase.RUNNING else state.phase.value


def offered_ports(state: JobState) -> Mapping[str, Sequence[int]]:
    """The ports that each node of the round holds free."""
    nodes = state.members.nodes
    return {name: nodes[name].status.ports for name in state.current.assignments if name in nodes}


def _names(losses: Sequence[Loss]) -> str:
    return ", ".join(f"{loss.role.value} {loss.index}" for loss in losses)
