"""Rounds of a TensorFlow job: single tasks are lost, start again and are scaled while the round runs.

A loss that leaves the others alone (``core/tensorflow/role_recovery.py``) costs what a failed round costs and
is judged by the same rules (``core/job/settling.py``); only what follows differs: the wanted attempts of some
tasks are raised, and the round goes on. If the rules end the job, or a node has to leave, the whole round
stops as usual. So it does when a chief or worker is lost in a cluster without parameter servers, whose world
is fixed in each process.

One event may take several tasks, whose losses are seldom heard all at once. So losses that come moments after
others are merged with them, and judged from what the job remembered before the first: one event costs one
restart. Invariant: a task that was started again because of a loss, and is lost once more, is a new event.

The job ends when its leader ends with 0. Other tasks that end by themselves, mirrored workers that still
write a checkpoint for instance, have a short time to do so; servers never end, and are stopped.
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
from elasticrun.core.recovery.budget import GRACEFUL, StopCause
from elasticrun.core.tensorflow.cluster import is_served
from elasticrun.core.tensorflow.role_recovery import Loss, cause_of
from elasticrun.core.tensorflow.round_tasks import Order, RoundTasks, is_stillborn, name_tasks, started_again
from elasticrun.core.tensorflow.scale import scale_refusal

#: Seconds that servers go on after the chief's node leaves, so that the chief can save its state.
SERVING_TIME = 10.0
#: Seconds within which losses are taken for one event.
TOGETHER = 5.0
#: Causes of an orderly stop: the chief can save what the others hold.
ORDERLY = frozenset({*GRACEFUL, StopCause.NODE_JOINED, StopCause.RESIZED, StopCause.ORDERED})


class SingleTasks:
    """The restart scope of a round that has tasks; not for other rounds."""

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
        """Why the job is over: its leader has ended, and no task is waited for; "" if it is not."""
        state, tasks = self._state, self._tasks
        if not tasks.is_over:
            return ""
        if tasks.unfinished and state.phase is JobPhase.RUNNING:
            state.timers.set_default((LINGER, ""), state.now + state.config.finish_timeout)
            state.timers.set_default((NOTICE, ""), state.now + state.config.waiting_notice_interval)
            return ""
        return f"the leading task of round {state.round} ended with 0"

    def expire_linger(self, _: str) -> None:
        """Stop waiting for unfinished tasks, and name them, as what they were about to write is lost."""
        tasks, bound = self._tasks, f"{self._state.config.finish_timeout:g} s"
        late = name_tasks(tasks, tasks.unfinished)
        text = f"{late} did not end within {bound} after the leading task; --tf-finish-timeout gives longer"
        tasks.unfinished.clear()
        self._outbox.decide(text)
        self._outbox.tell_all([text])

    # -- losses

    def watch(self) -> None:
        """Drop tasks that were kept only for the chief, and restart lost tasks.

        After a master's restart the losses on all nodes are judged together, once all nodes are back.
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
        """Scale a role down to the tasks that can start, if an ordered one cannot."""
        tasks = self._tasks
        stillborn = [loss for loss in tasks.lost.values() if is_stillborn(tasks, loss)]
        for role in dict.fromkeys(loss.role for loss in stillborn):
            first = min((loss for loss in stillborn if loss.role is role), key=lambda loss: loss.index)
            self._outbox.tell_all([f"{role.value}={first.index} again, as {first}"])
            self.scale(role, first.index)

    def _repair(self, losses: list[Loss]) -> None:
        """Judge these losses, and restart the tasks that they affect."""
        state, repair = self._state, self._with_earlier(losses)
        current, cause = state.current, cause_of(repair.losses)
        what = "; ".join(str(loss) for loss in repair.losses)
        failures = [loss.failure for loss in repair.losses if loss.failure is not None]
        settled = self._settling.judge(repair.before, cause, failures, repair.lasted)
        if settled.end is not None:
            current.failures = failures
            current.must_stop(cause, what)  # its settlement, by the same rules, ends the job
            return
        verdict = f"{_names(repair.losses)} ended; {settled.reason}"
        current.repair = replace(repair, verdict=verdict)
        current.started_at = state.now
        check = ", before the next round" if settled.suspect else ""  # no check runs while others train
        text = f"round {state.round} goes on without {what}; {settled.reason}{check}"
        if self._settling.apply(settled, MENDING, text):
            self._restart(losses, verdict)
        elif settled.delay:
            self._outbox.tell_all([verdict])

    def _with_earlier(self, losses: list[Loss]) -> Repair:
        """Merge with recent losses: one event costs one restart.

        But a loss of a task that was started again because of them is a new event.
        """
        state, last = self._state, self._state.current.repair
        if last is not None and state.now < last.at + TOGETHER:
            keys = {(loss.node, loss.local_rank) for loss in losses}
            if not keys & started_again(last.losses, self._tasks.leader):
                return replace(last, losses=(*last.losses, *losses))
        return Repair(tuple(losses), state.recovery, state.now, state.now - state.current.started_at)

    def expire_wait(self, _: str) -> None:
        """Restart lost tasks after the wait for fast failures; losses during it cost nothing more."""
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
        self._retell(self._tasks.retire(), "the new chief no longer uses the removed tasks")

    def _retell(self, names: list[str], reason: str) -> None:
        state, current, tasks = self._state, self._state.current, self._tasks
        for name in names:
            given = replace(current.assignments[name], tasks=tasks.of(name), cluster=tasks.cluster)
            current.assignments[name] = replace(given, restart_count=state.budget.used)
        current.start_reason = reason
        self._outbox.direct_all(names)

    # -- stopping

    def stop(self) -> None:
        """Where the chief can save its state, let the others stop only after it."""
        state, current, tasks = self._state, self._state.current, self._tasks
        cause = current.stop[0] if current.stop is not None else None
        if cause not in ORDERLY or not is_served(tasks.cluster):
            return
        node, _ = tasks.leader
        current.serving = current.pending - {node}
        if node not in current.pending:  # its node leaves, and will not say when it is gone
            state.timers.set((SERVING, ""), state.now + SERVING_TIME)

    def go_on_stopping(self) -> None:
        """Tell the others to stop, once the chief has."""
        state, current = self._state, self._state.current
        chief_stops = self._tasks.leader[0] in current.pending or (SERVING, "") in state.timers
        if current.serving and not chief_stops:
            current.serving.clear()
            self._outbox.direct_all(sorted(current.pending))

    # -- judging

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state, current = self._state, self._state.current
        if current.tasks is None:
            return ["servers go on only for a chief"] * bool(current.serving)
        tasks, repair = current.tasks, current.repair
        told = {name: tasks.of(name) for name in current.assignments}
        rules = {
            "a wait for lost tasks has a loss that was judged": (MENDING, "") not in state.timers
            or repair is not None,
            "a lost task is wanted": all(rank in tasks.wanted[name] for name, rank in tasks.lost),
            "an assignment has the tasks that are wanted": state.phase is not JobPhase.RUNNING
            or all(current.assignments[name].tasks == wanted for name, wanted in told.items()),
            "servers outlast a round only if it was stopped": not current.serving or current.stop is not None,
        }
        return [rule for rule, holds in rules.items() if not holds]


def idle(state: JobState) -> str:
    """What the job is doing in place of running a round; "" if one runs."""
    return "" if state.phase is JobPhase.RUNNING else state.phase.value


def offered_ports(state: JobState) -> Mapping[str, Sequence[int]]:
    """The ports that each node of the round holds free."""
    nodes = state.members.nodes
    return {name: nodes[name].status.ports for name in state.current.assignments if name in nodes}


def _names(losses: Sequence[Loss]) -> str:
    return ", ".join(f"{loss.role.value} {loss.index}" for loss in losses)
