"""An agent's decisions: one node's state machine.

Like the master's it is level-triggered: events update what is *wanted* (the newest directive, whether
to leave) and what *is* (which workers live), and ``_reconcile`` takes the next step towards the wish.
A directive counts only if its (epoch, sequence) is newer than the last one.

Two invariants. Workers of a round start only from READY, which is entered only when everything the
round before left behind is gone. And a worker's end counts as a failure only while the phase is
RUNNING: once the launcher has begun to stop a group, no exit of it is held against anybody.

A node whose worker fails stops its own group at once; it does not wait for the master to tell it. The
master's absence changes nothing for workers that run: only an idle agent gives up on it.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.agent_events import (
    AGENT_TRANSITIONS,
    ENDING,
    IDLE,
    STOPPABLE,
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTrigger,
    Broken,
    Directed,
    DumpStacks,
    GroupGone,
    ImportsSeen,
    Level,
    LinkDown,
    LinkUp,
    Preempted,
    Prepared,
    ProbeEnded,
    RunProbe,
    Say,
    StallSeen,
    StartWorkers,
    StopSignal,
    Transmit,
    WorkerFailed,
    WorkerFinished,
    describe_assignment,
)
from elasticrun.core.agent_group import GRACE, KILL, Group
from elasticrun.core.agent_leave import SIGTERM, Departure
from elasticrun.core.agent_probe import Probing
from elasticrun.core.agent_wishes import Directive, Wishes
from elasticrun.core.protocol import (
    MAX_FAILURES,
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    Hello,
    JobEnded,
    Leave,
    MasterMessage,
    NodeInfo,
    ProbeReport,
    RejectCode,
    Rejected,
    Report,
    SaveStacks,
    Seat,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    Waiting,
)
from elasticrun.core.quorum import accepts, with_seat
from elasticrun.core.timers import Deadlines

MASTER = "master"
PROBE = "probe"


class AgentMachine:
    """Turns events into effects. ``now`` is the agent's monotonic clock in seconds."""

    def __init__(self, job_id: str, version: str, info: NodeInfo, terms: AgentTerms) -> None:
        self.info = info
        self.phase = AgentPhase.PREPARING
        self.round = -1
        self.assignment: Assignment | None = None  # of the round that runs, or ran last
        self.failures: tuple[Failure, ...] = ()
        self.departure: Departure | None = None
        self._job = (job_id, version)
        self._terms = terms
        self._wishes = Wishes()
        self._probing = Probing()
        self._seats: tuple[Seat, ...] = ()
        self._sequence = 0
        self._greeted: AgentStatus | None = None  # what the newest Hello told
        self._store_port = 0
        self._done = False
        self._timers: Deadlines[str] = Deadlines()
        self.group = Group(terms, self._timers)
        self._now = 0.0
        self._effects: list[AgentEffect] = []

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

    @property
    def epoch(self) -> int:
        """The newest epoch of a master that this agent has seen, or -1."""
        return self._wishes.epoch

    def hello(self) -> Hello:
        """The first message of a new stream: everything the master needs to resume from."""
        self._greeted = self._status()
        return Hello(*self._job, self.info, self._greeted, self.epoch)

    # -- facts

    def _take(self, event: AgentEvent) -> None:
        match event:
            case Prepared(store_port):
                self._store_port = store_port
                self._move(AgentTrigger.PREPARED)
            case ImportsSeen(under_way):
                self._imports_seen(under_way)
            case LinkUp(epoch):
                self._link_up(epoch)
            case LinkDown(reason):
                self._link_down(reason)
            case Directed(message):
                self._direct(message)
            case WorkerFailed(round_, failure):
                self._worker_failed(round_, failure)
            case WorkerFinished(round_, local_rank):
                self._worker_ended(round_, local_rank)
            case GroupGone(round_, store_port):
                self._group_gone(round_, store_port)
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

    def _imports_seen(self, under_way: bool) -> None:
        before = self.group.is_warming
        self.group.imports = under_way
        if self.group.is_warming is not before and self.phase is AgentPhase.READY:
            self._report()

    def _link_up(self, epoch: int) -> None:
        if self.epoch >= 0:
            self._say(Level.WARNING, f"the master is back (epoch {epoch})")
        self._wishes = replace(self._wishes, epoch=max(self.epoch, epoch))
        self._timers.cancel(MASTER)
        self._say_farewell()
        if self._status() != self._greeted:
            self._report()  # what changed between Hello and Welcome was not sent

    def _link_down(self, reason: str) -> None:
        if self.departure is None:
            goes_on = "; the workers go on" if self.phase is AgentPhase.RUNNING else ""
            self._say(Level.WARNING, f"lost the master ({reason}){goes_on}")
        self._timers.set_default(MASTER, self._now + self._terms.master_timeout)

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
            self._depart(Departure.job_over(message))
        elif isinstance(message, StopRound) and self.round <= message.round and self.phase in STOPPABLE:
            self._say(Level.WARNING, f"round {message.round} stops: {message.reason}")

    def _vote(self, given: Assignment) -> None:
        """Refuse a seat offered in ignorance of our newest; what we learn of that one is news in a Hello."""
        if not accepts(self._seats, given.charter):
            self._wishes = replace(self._wishes, round=None)
            self._report()  # what the master did not know
        elif given.round == self.round and self._seats:
            self._seats, self._sequence = with_seat(self._seats, given.charter), self._sequence + 1

    def _worker_failed(self, round_: int, failure: Failure) -> None:
        if round_ != self.round:
            return
        if self.phase is AgentPhase.RUNNING:
            self.failures = (*self.failures, failure)[:MAX_FAILURES]
            self._move(AgentTrigger.WORKER_FAILED)
            self._say(Level.WARNING, failure.summary)
            self.group.alive.discard(failure.local_rank)
            self._stop_group(SIGTERM)
        else:
            self._worker_ended(round_, failure.local_rank)

    def _worker_ended(self, round_: int, local_rank: int) -> None:
        if round_ != self.round:
            return
        self.group.alive.discard(local_rank)
        if self.group.alive:
            return
        if self.phase is AgentPhase.RUNNING:
            self._move(AgentTrigger.ALL_FINISHED)
        elif self.phase in ENDING and not self.group.is_swept:
            self._sweep()

    def _group_gone(self, round_: int, store_port: int) -> None:
        if round_ != self.round or not (self.phase in ENDING or self.group.is_swept):
            return
        self.group.end()
        self._store_port = store_port
        self._move(AgentTrigger.GROUP_GONE)

    def _probe_ended(self, report: ProbeReport) -> None:
        probing = self._probing.end(report)
        if probing is not None:
            self._end_probe(probing)

    def _end_probe(self, probing: Probing) -> None:
        self._probing = probing
        self._timers.cancel(PROBE)  # sweeping what is left of it may last beyond that
        self._sweep()

    def _stall_seen(self, round_: int, stall: Stall | None) -> None:
        if round_ == self.round and self.phase is AgentPhase.RUNNING:
            self.group.stall = stall
            self._report()

    def _stop_signalled(self, signum: int) -> None:
        if self.departure is None:
            self._depart(Departure.stopped(signum))
        elif self.phase in ENDING and not self.group.is_swept:
            self._say(Level.WARNING, "asked to stop again: killing the workers now")
            self._sweep()

    def _depart(self, departure: Departure) -> None:
        """Leave once the workers are gone; what was decided first stands."""
        if self.departure is None:
            self.departure = departure
            self._say_farewell()

    def _say_farewell(self) -> None:
        """Tell the master now, and again on each new stream until the workers are gone."""
        if self.departure is not None and self.departure.is_farewell:
            self._effects.append(Transmit(Leave(self.info.incarnation, self.departure.finish.reason)))

    def _expire(self, timer: str) -> None:
        if timer == GRACE:
            grace = f"{self.group.grace:g} s after the stop signal"
            self._say(Level.WARNING, f"{len(self.group.alive)} workers are still alive {grace}: killing them")
            self._sweep()
        elif timer == KILL:
            self.departure = Departure.stuck(self._terms.kill_timeout)
            self._say_farewell()
            self._conclude(self.departure)
        elif timer == PROBE:
            self._end_probe(self._probing.run_out())
        elif self.phase is AgentPhase.RUNNING and self.group.stall is None:
            self._say(Level.WARNING, f"no master for {self._terms.master_timeout:g} s; the workers go on")
            self._timers.set(MASTER, self._now + self._terms.master_timeout)
        else:
            self._depart(Departure.deserted(self._terms.master_timeout, hangs=self.group.stall is not None))

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
        self.group.begin(self.info.local_world_size)
        text = describe_assignment(assignment, self.info, wanted.reason)
        self._say(Level.INFO if self.round == 0 else Level.WARNING, text)
        self._effects.append(StartWorkers(assignment))
        self._move(AgentTrigger.ASSIGNED)

    def _stop_round(self) -> None:
        self._move(AgentTrigger.TOLD_TO_STOP)
        if self.departure is not None:
            self._stop_group(self.departure.signum, self.departure.drains)
        elif self._wishes.drains:
            self._stop_group(self._terms.drain_signal, drains=True)
        else:
            self._stop_group(SIGTERM)

    def _stop_group(self, signum: int, drains: bool = False) -> None:
        self._effects.append(self.group.stop(self.round, signum, drains, self._now))

    def _sweep(self) -> None:
        self._effects.append(self.group.sweep(self.round, self._now))

    def _move(self, trigger: AgentTrigger) -> None:
        self.phase = AGENT_TRANSITIONS[self.phase, trigger]
        self._report()

    def _report(self) -> None:
        """Tell the master how things are; a farewell is the last that it hears."""
        self._sequence += 1
        if self.departure is None or not self.departure.is_farewell:
            self._effects.append(Transmit(Report(self.info.incarnation, self._status())))

    def _status(self) -> AgentStatus:
        is_ready = self.phase is AgentPhase.READY
        port = self._store_port if is_ready else 0
        stall = self.group.stall if self.phase is AgentPhase.RUNNING else None
        probe, warming = self._probing.report, is_ready and self.group.is_warming
        return AgentStatus(
            self._sequence, self.phase, self.round, self.failures, port, probe, stall, self._seats, warming
        )

    def _conclude(self, departure: Departure) -> None:
        self._done = True
        self._effects.append(departure.finish)

    def _say(self, level: Level, text: str) -> None:
        self._effects.append(Say(level, text))
