"""An agent's decisions: one node's state machine.

Like the master's it is level-triggered: events update what is *wanted* (the newest directive, whether
to leave) and what *is* (which workers live), and ``_reconcile`` takes the next step towards the wish.
A directive counts only if its (epoch, sequence) is newer than the last one.

Two invariants. Workers of a round start only from READY, which is entered only when everything the
round before left behind is gone. And a worker's end counts as a failure only while the phase is
RUNNING: once the launcher has begun to stop a group, an end in it changes nothing any more, and is
told to the master only if that worker had failed of its own (``core/own_failures.py``).

A node whose worker fails stops its own group at once; it does not wait for the master to tell it. The
master's absence changes nothing for workers that run: only an idle agent gives up on it.
"""

from __future__ import annotations

from elasticrun.core.agent_events import (
    AGENT_TRANSITIONS,
    ENDING,
    IDLE,
    STOPPABLE,
    AgentEffect,
    AgentEvent,
    AgentTrigger,
    Broken,
    Directed,
    DumpStacks,
    GroupGone,
    ImportsSeen,
    Level,
    LinkDown,
    LinkUp,
    PortsOffered,
    Preempted,
    Prepared,
    ProbeEnded,
    RunProbe,
    StallSeen,
    StartTask,
    StartWorkers,
    StopSignal,
    StoreLost,
    WorkerFailed,
    WorkerFinished,
    describe_assignment,
    describe_starts,
)
from elasticrun.core.agent_facts import MASTER, AgentFacts
from elasticrun.core.agent_group import GRACE, KILL
from elasticrun.core.agent_leave import SIGTERM, Departure
from elasticrun.core.agent_probe import Probing
from elasticrun.core.agent_tasks import TASK
from elasticrun.core.agent_wishes import Directive
from elasticrun.core.own_failures import Stopping, is_own, kept
from elasticrun.core.protocol import (
    AgentPhase,
    Failure,
    JobEnded,
    MasterMessage,
    ProbeReport,
    RejectCode,
    Rejected,
    SaveStacks,
    StartProbe,
    StartRound,
    StopRound,
    Waiting,
)
from elasticrun.core.quorum import with_seat

PROBE = "probe"


class AgentMachine(AgentFacts):
    """Turns events into effects. ``now`` is the agent's monotonic clock in seconds."""

    # -- interface

    def handle(self, event: AgentEvent, now: float) -> list[AgentEffect]:
        """Take in one event and return what to do, in order. After Finish nothing more happens."""
        if self._done:
            return []
        self._now = now
        self._effects = []
        self._take(event)
        self._reconcile()
        return self._effects

    def next_deadline(self) -> float | None:
        """When to send a tick, or None."""
        return None if self._done else self._timers.next()

    # -- facts

    def _take(self, event: AgentEvent) -> None:
        match event:
            case Prepared():
                self._offer(event)
                self._move(AgentTrigger.PREPARED)
            case PortsOffered(ports):
                self._ports = ports
                self._report()
            case ImportsSeen(under_way):
                self._imports_seen(under_way)
            case LinkUp(epoch):
                self._link_up(epoch)
            case LinkDown(reason):
                self._link_down(reason)
            case Directed(message):
                self._direct(message)
            case WorkerFailed(round_, failure, stopping):
                self._worker_failed(round_, failure, stopping)
            case WorkerFinished(round_, local_rank):
                self._worker_finished(round_, local_rank)
            case GroupGone():
                self._group_gone(event)
            case StoreLost(round_, failure):
                self._store_lost(round_, failure)
            case ProbeEnded(report):
                self._probe_ended(report)
            case StallSeen(round_, stall):
                self._stall_seen(round_, stall)
            case StopSignal(signum):
                self._stop_signalled(signum)
            case Preempted(reason):
                self._say(Level.WARNING, f"this node leaves: {reason}")
                self._depart(Departure.preempted(reason))
            case Broken(exit_status, reason):
                self._depart(Departure.broken(exit_status, reason))
            case _:  # a tick
                # Only here: an agent that was frozen hears what happened before it judges what did not.
                for timer in self._timers.pop_due(self._now):
                    self._expire(timer)

    def _direct(self, message: MasterMessage) -> None:
        match message:
            case StartRound() | StopRound() | StartProbe() | JobEnded():
                self._follow_directive(message)
            case Rejected():
                if message.code is RejectCode.DRAINED:
                    self._say(Level.WARNING, f"this node leaves: {message.message}")
                self._depart(Departure.refused(message))
            case Waiting() if message.epoch >= self.epoch:
                self._say(Level.WARNING, message.text)
            case SaveStacks() if message.epoch >= self.epoch and self.phase is AgentPhase.RUNNING:
                self._effects.append(DumpStacks())

    def _follow_directive(self, message: Directive) -> None:
        wishes = self._wishes.hear(message)
        if wishes is None:
            return
        self._wishes = wishes
        if isinstance(message, StartRound):
            self._vote(message.assignment)
        if isinstance(message, JobEnded):
            program = self.info.program or "its program"
            self._depart(Departure.job_over(message, program, self.assignment is not None))
        elif isinstance(message, StopRound) and self.round <= message.round and self.phase in STOPPABLE:
            self._say(Level.WARNING, f"round {message.round} stops: {message.reason}")

    def _worker_failed(self, round_: int, failure: Failure, stopping: Stopping) -> None:
        if round_ != self.round:
            return
        if self.phase is AgentPhase.RUNNING and self.tasks.is_alone(failure.local_rank):
            self._task_ended(failure.local_rank, failure)
        elif self.phase is AgentPhase.RUNNING:
            self.failures = kept(self.failures, failure)
            self.tasks.ended(failure.local_rank, failure)
            self._move(AgentTrigger.WORKER_FAILED)
            self._say(Level.WARNING, failure.summary)
            self.group.alive.discard(failure.local_rank)
            self._stop_group(SIGTERM)
        else:
            if self.phase in ENDING and is_own(failure, stopping):
                self._failed_too(failure)
            self._worker_ended(failure.local_rank)

    def _failed_too(self, failure: Failure) -> None:
        """The master judges once all have stopped; what is not kept would only be said for nothing."""
        before, self.failures = self.failures, kept(self.failures, failure)
        self._say(Level.WARNING, failure.summary)
        if self.failures != before:
            self._report()

    def _worker_finished(self, round_: int, local_rank: int) -> None:
        if round_ != self.round:
            return
        if self.phase is not AgentPhase.RUNNING or local_rank not in self.tasks:
            self._worker_ended(local_rank)
        elif self.tasks.is_alone(local_rank):
            self._task_ended(local_rank, None)
        else:
            self.tasks.ended(local_rank, None)
            self._worker_ended(local_rank)
            self._report()  # a job ends with its chief

    def _worker_ended(self, local_rank: int) -> None:
        self.group.alive.discard(local_rank)
        if self.phase in ENDING and not self.group.is_swept:
            step = self.group.go_on(self.round, self._now)
            self._effects += [step] if step is not None else []
        elif self.phase is AgentPhase.RUNNING and not self.group.alive:
            self._move(AgentTrigger.ALL_FINISHED)

    def _task_ended(self, local_rank: int, failure: Failure | None) -> None:
        """A task that is restarted alone, if at all, has ended while the round goes on."""
        self.group.alive.discard(local_rank)
        if self.tasks.ended(local_rank, failure):
            if failure is not None:
                self._say(Level.WARNING, failure.summary)
            self._report()

    def _store_lost(self, round_: int, failure: Failure) -> None:
        if round_ == self.round and self.phase in (AgentPhase.RUNNING, AgentPhase.FINISHED):
            self.failures = kept(self.failures, failure)
            self._move(AgentTrigger.STORE_LOST)
            self._say(Level.WARNING, failure.summary)
            self._stop_group(SIGTERM)

    def _group_gone(self, event: GroupGone) -> None:
        if event.round != self.round or not (self.phase in ENDING or self.group.is_swept):
            return
        self.group.end()
        self._offer(event)
        self._move(AgentTrigger.GROUP_GONE)

    def _offer(self, event: Prepared | GroupGone) -> None:
        self._store_port, self._ports, self._hosts_store = event.store_port, event.ports, event.hosts_store

    def _probe_ended(self, report: ProbeReport) -> None:
        probing = self._probing.end(report)
        if probing is not None:
            self._end_probe(probing)

    def _end_probe(self, probing: Probing) -> None:
        self._probing = probing
        self._timers.cancel(PROBE)  # sweeping what is left of it may last beyond that
        self._sweep()

    def _stop_signalled(self, signum: int) -> None:
        if self.departure is None:
            self._depart(Departure.stopped(signum))
        elif self.phase in ENDING and not self.group.is_swept:
            self._say(Level.WARNING, "asked to stop again: killing the workers now")
            self._sweep()

    def _expire(self, timer: str) -> None:
        if timer == GRACE:
            if self.group.awaited:
                grace = f"{self.group.grace:g} s after the stop signal"
                text = f"{len(self.group.alive)} workers are still alive {grace}: killing them"
                self._say(Level.WARNING, text)
            self._sweep()
        elif timer == KILL:
            self._give_up_node()
        elif timer.startswith(TASK):
            kill = self.tasks.expire(timer, self._now)
            if kill is None:
                self._depart(Departure.stuck(self._terms.kill_timeout))
            else:
                self._effects.append(kill)
        elif timer == PROBE:
            self._end_probe(self._probing.run_out())
        elif self.phase is AgentPhase.RUNNING and not self.group.hangs:
            self._say(Level.WARNING, f"no master for {self._terms.master_timeout:g} s; the workers go on")
            self._timers.set(MASTER, self._now + self._terms.master_timeout)
        else:
            self._depart(Departure.deserted(self._terms.master_timeout, hangs=self.group.hangs))

    def _give_up_node(self) -> None:
        self.departure = Departure.stuck(self._terms.kill_timeout)
        self._say_farewell()
        self._conclude(self.departure)

    # -- decisions

    def _reconcile(self) -> None:
        """Take the next step from what is to what is wanted."""
        if self._done or self.phase in ENDING:
            return
        if self.phase is AgentPhase.CHECKING:
            self._watch_probe()
            return
        if self.departure is not None:
            if self.phase in IDLE:
                self._conclude(self.departure)
            else:
                self._stop_round()
        elif self.phase in STOPPABLE and self._wishes.outdates(self.round):
            self._stop_round()
        elif self.phase is AgentPhase.READY:
            self._follow()
        elif self.tasks and self.phase is AgentPhase.RUNNING:
            self._follow_tasks()

    def _watch_probe(self) -> None:
        """A probe runs until its end, unless the node has to leave or the master wants something else."""
        wanted = self._wishes.probe if self.departure is None else None
        if self._probing.is_obsolete(wanted):
            self._end_probe(self._probing.stop())

    def _follow(self) -> None:
        """Nothing runs: start what is wanted, or acknowledge a stop."""
        wishes = self._wishes
        wanted = wishes.next_round(self.round)
        if wanted is not None:
            self._start_round(wanted)
        elif wishes.probe is not None and self._probing.is_due(wishes.probe):
            self._start_probe(wishes.probe)
        elif wishes.stop_through > self.round:
            self.round = wishes.stop_through
            self.failures = ()
            self.tasks.forget()
            self._report()

    def _follow_tasks(self) -> None:
        """Tasks run: start, end or restart single ones."""
        wanted, before = self._wishes.round, self.tasks.reports
        if wanted is not None and wanted.assignment.round == self.round:
            self.assignment = wanted.assignment
            self.tasks.want(wanted)
        effects = self.tasks.follow(self._now)
        starts = [effect for effect in effects if isinstance(effect, StartTask)]
        for start in starts:
            self.group.add(start.local_rank, start.local_rank in self.tasks.servers)
        if starts:
            self._say(Level.WARNING, describe_starts(starts, self.tasks.reason))
        self._effects += effects
        if self.tasks.reports != before:
            self._report()

    def _start_probe(self, start: StartProbe) -> None:
        self._probing = self._probing.begin(start)
        self._timers.set(PROBE, self._now + start.timeout)
        self._say(Level.INFO, f"checking this node, probe {start.check}")
        self._effects.append(RunProbe(start))
        self._move(AgentTrigger.PROBE_WANTED)

    def _start_round(self, wanted: StartRound) -> None:
        assignment = wanted.assignment
        self.round = assignment.round
        self.assignment = assignment
        self.failures = ()
        self._seats = with_seat(self._seats, assignment.charter)
        self.tasks.begin(wanted)
        self._stall = None
        self.group.begin(assignment.local_ranks(self.info.local_world_size), self.tasks.servers)
        text = describe_assignment(assignment, self.info, wanted.reason)
        self._say(Level.INFO if self.round == 0 else Level.WARNING, text)
        self._effects.append(StartWorkers(assignment))
        self._move(AgentTrigger.ASSIGNED)

    def _stop_round(self) -> None:
        self._move(AgentTrigger.TOLD_TO_STOP)
        if self.departure is not None:
            self.group.ends_well = self.departure.is_good
            self._stop_group(self.departure.signum, self.departure.drains)
        elif self._wishes.drains:
            self._stop_group(self._terms.drain_signal, drains=True)
        else:
            self._stop_group(SIGTERM)

    def _stop_group(self, signum: int, drains: bool = False) -> None:
        self.tasks.end()
        self._effects.append(self.group.stop(self.round, signum, drains, self._now))

    def _sweep(self) -> None:
        self._effects.append(self.group.sweep(self.round, self._now))

    def _move(self, trigger: AgentTrigger) -> None:
        self.phase = AGENT_TRANSITIONS[self.phase, trigger]
        if self.phase is AgentPhase.READY:
            self._search = self._search.begin(self._now)
        self._report()
