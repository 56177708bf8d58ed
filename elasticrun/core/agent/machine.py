"""An agent's decisions: one node's state machine.

Like the master's it is level-triggered: events change what is *desired* (the newest directive, whether to
leave) and what *is* (which workers live), and the rules of the phase take the next step towards what is
desired. The master's absence changes nothing for workers that run.

This module has the machine's tables; its parts are modules of their own. The part that takes an event in
knows what it means. The rules of the phase know what follows: the first rule with something to do takes the
step. To change the phase, a part gives a trigger to ``Phases``.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticrun.core.agent.contact import MASTER, Contact
from elasticrun.core.agent.echoes import ECHO
from elasticrun.core.agent.events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTrigger,
    Broken,
    Directed,
    GroupGone,
    HelloSent,
    HoldingsChanged,
    ImportsSeen,
    LinkDown,
    LinkUp,
    PortsOffered,
    Preempted,
    Prepared,
    ProbeEnded,
    StallSeen,
    StopSignal,
    StoreLost,
    WorkerFailed,
    WorkerFinished,
    WorkersStarted,
)
from elasticrun.core.agent.group import GRACE, KILL, Group
from elasticrun.core.agent.intake import Intake
from elasticrun.core.agent.leave import LINGER, Leaving
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.phases import Phases
from elasticrun.core.agent.probe import PROBE, Probes
from elasticrun.core.agent.readiness import Readiness
from elasticrun.core.agent.recovery import Recovery
from elasticrun.core.agent.rounds import Rounds
from elasticrun.core.agent.search import Search
from elasticrun.core.agent.state import AgentState
from elasticrun.core.agent.workers import Workers
from elasticrun.core.protocol.messages import AgentPhase, Hello, NodeInfo
from elasticrun.core.timers import Deadlines

#: The whole state machine. A pair that is not here cannot happen, and raises KeyError if it does.
TRANSITIONS: dict[tuple[AgentPhase, AgentTrigger], AgentPhase] = {
    (AgentPhase.PREPARING, AgentTrigger.PREPARED): AgentPhase.READY,
    (AgentPhase.READY, AgentTrigger.PROBE_WANTED): AgentPhase.CHECKING,
    (AgentPhase.CHECKING, AgentTrigger.GROUP_GONE): AgentPhase.READY,
    (AgentPhase.READY, AgentTrigger.ASSIGNED): AgentPhase.RUNNING,
    (AgentPhase.RUNNING, AgentTrigger.WORKER_FAILED): AgentPhase.FAILED,
    (AgentPhase.RUNNING, AgentTrigger.STORE_LOST): AgentPhase.FAILED,
    (AgentPhase.RUNNING, AgentTrigger.ALL_FINISHED): AgentPhase.FINISHED,
    (AgentPhase.RUNNING, AgentTrigger.TOLD_TO_STOP): AgentPhase.STOPPING,
    (AgentPhase.FINISHED, AgentTrigger.TOLD_TO_STOP): AgentPhase.STOPPING,
    (AgentPhase.FINISHED, AgentTrigger.STORE_LOST): AgentPhase.FAILED,  # others may still need it
    (AgentPhase.FAILED, AgentTrigger.GROUP_GONE): AgentPhase.READY,
    (AgentPhase.STOPPING, AgentTrigger.GROUP_GONE): AgentPhase.READY,
}


class AgentMachine:
    """Turns events into effects. ``now`` is the agent's monotonic clock in seconds."""

    def __init__(self, job_id: str, version: str, info: NodeInfo, terms: AgentTerms) -> None:
        self.state = state = AgentState(info, Search(terms.join_timeout, terms.endpoints))
        self._timers = timers = Deadlines[str]()
        self._outbox = outbox = Outbox(state, job_id, version)
        phases = Phases(state, outbox, TRANSITIONS)
        self.group = group = Group(state, outbox, terms, timers)
        self._leaving = leaving = Leaving(state, group, outbox, terms, timers)
        self._intake = Intake(state, outbox, leaving)
        self._contact = contact = Contact(state, outbox, leaving, terms, timers)
        self._readiness = Readiness(state, group, outbox, phases)
        self._probes = probes = Probes(state, group, outbox, phases, timers)
        self._recovery = recovery = Recovery(state, outbox)
        self._rounds = rounds = Rounds(state, group, outbox, phases, terms, timers, recovery)
        self._workers = workers = Workers(state, group, outbox, phases, leaving, timers, recovery)
        #: What may be done in each phase, in this order; one step at a time.
        self._rules: dict[AgentPhase, tuple[Callable[[], bool], ...]] = {
            AgentPhase.PREPARING: (leaving.conclude,),
            AgentPhase.READY: (leaving.conclude, rounds.start, probes.start, rounds.acknowledge_stop),
            AgentPhase.CHECKING: (probes.watch,),
            AgentPhase.RUNNING: (rounds.make_way, rounds.adjust),
            AgentPhase.FINISHED: (rounds.make_way,),
            AgentPhase.FAILED: (group.dismiss_servers,),  # the group is on its way out
            AgentPhase.STOPPING: (group.dismiss_servers,),
        }
        #: What each timer does when its time is over; any other timer belongs to a single task.
        self._alarms: dict[str, Callable[[], None]] = {
            GRACE: group.run_out_of_grace,
            KILL: leaving.give_up,
            ECHO: workers.take_echoes,
            PROBE: probes.run_out,
            MASTER: contact.miss,
            LINGER: leaving.release,
        }

    def handle(self, event: AgentEvent, now: float) -> list[AgentEffect]:
        """Take in one event and return what to do, in order. After Finish nothing more happens."""
        if self.state.is_done:
            return []
        self.state.now = now
        self._take(event)
        if not self.state.is_done:
            self._step()
            self._workers.settle_echoes()
        return self._outbox.drain()

    def next_deadline(self) -> float | None:
        """When to send a tick, or None."""
        return None if self.state.is_done else self._timers.next()

    @property
    def works(self) -> bool:
        """Whether workers run here, and nothing shows that they cannot go on."""
        return self.state.works

    def hello(self) -> Hello:
        """The first message of a new stream. Once it is on its way, tell so by ``HelloSent``."""
        return self._outbox.hello()

    def check(self) -> None:
        """Raise AssertionError unless each part's invariant holds; for tests, between two events."""
        if self.state.is_done:
            return
        facts = (self._outbox, self._intake, self._contact, self._readiness, self._recovery)
        for part in (*facts, self._workers, self.group, self._probes, self._rounds, self._leaving):
            part.check()

    def _take(self, event: AgentEvent) -> None:
        match event:
            case Prepared():
                self._readiness.prepared(event)
            case PortsOffered():
                self._readiness.ports_offered(event)
            case ImportsSeen():
                self._readiness.imports_seen(event)
            case HoldingsChanged():
                self._readiness.holdings_changed(event)
            case GroupGone():
                self._readiness.group_gone(event)
            case HelloSent(status):
                self._contact.greet(status)
            case LinkUp():
                self._contact.up(event)
            case LinkDown():
                self._contact.down(event)
            case Directed(message):
                self._intake.hear(message)
            case WorkersStarted():
                self._recovery.started(event)
            case WorkerFailed():
                self._workers.failed(event)
            case WorkerFinished():
                self._workers.finished(event)
            case StoreLost():
                self._workers.store_lost(event)
            case StallSeen():
                self._workers.stall_seen(event)
            case ProbeEnded():
                self._probes.ended(event)
            case StopSignal():
                self._leaving.stop_signalled(event)
            case Preempted():
                self._leaving.preempted(event)
            case Broken():
                self._leaving.broken(event)
            case _:  # a tick; timers only ring here: after a freeze, the agent first hears what happened
                for timer in self._timers.pop_due(self.state.now):
                    self._ring(timer)

    def _step(self) -> None:
        """Apply the first rule that has something to do."""
        for rule in self._rules[self.state.phase]:
            if rule():
                return

    def _ring(self, timer: str) -> None:
        alarm = self._alarms.get(timer)
        if alarm is not None:
            alarm()
        else:
            self._workers.overdue(timer)
