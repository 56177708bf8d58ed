"""The master's loop: the only interpreter of the job machine's effects.

Each happening (a stream's message, a deadline) becomes an event, is written to the journal, handed to
the machine, and the effects are carried out, all in one go on one thread. So the journal's order is the
order in which things were decided.

The master outlives the agent that started it as long as another agent is attached: a crash of that
agent must not take the control plane from nodes that train. It ends when the job has ended and the last
agent has gone, or when its host's agent is gone and nobody is attached.
"""

from __future__ import annotations

import asyncio
import logging

from elasticrun.clock import Clock
from elasticrun.core.describe import describe
from elasticrun.core.job import JobMachine
from elasticrun.core.job_events import (
    Attached,
    Beat,
    Decided,
    Detached,
    DrainOrdered,
    Drop,
    Ended,
    Expired,
    JobEffect,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
    ScaleOrdered,
    Send,
    StepDown,
)
from elasticrun.core.orders import (
    ControlReply,
    ControlRequest,
    DrainNode,
    SaveAllStacks,
    ScaleJob,
    ShowStatus,
)
from elasticrun.core.protocol import (
    Heartbeat,
    Hello,
    Leave,
    RejectCode,
    Rejected,
    Report,
    SaveStacks,
)
from elasticrun.master.copies import Copies
from elasticrun.master.journal import Entry, Journal
from elasticrun.rpc.server import Session

logger = logging.getLogger(__name__)

#: Seconds that agents have, once the job has ended, to fetch the news and go.
FAREWELL_TIMEOUT = 30.0


class MasterLoop:
    """Feeds the machine and carries out its effects; a ``SessionHandler`` for the server."""

    def __init__(self, machine: JobMachine, journal: Journal, clock: Clock) -> None:
        self.done: asyncio.Event = asyncio.Event()  # nothing is left to do
        self._machine = machine
        self._journal = journal
        self._clock = clock
        self.stepped_down = ""  # why this master ends although there is a job
        self._copies = Copies(journal, lambda: machine.epoch)
        self._sessions: dict[int, Session] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._host_gone = False
        self._last_words = ""

    def start(self, epoch: int) -> None:
        """Take up the job as the master of ``epoch``."""
        self._handle(MasterStarted(epoch))

    def host_gone(self) -> None:
        """The agent that started this master is gone: stay only for agents that are attached."""
        self._host_gone = True
        self._finish_if_idle()

    @property
    def is_orphan(self) -> bool:
        """The agent that started this master is gone."""
        return self._host_gone

    # -- SessionHandler

    def attached(self, session: Session, hello: Hello) -> None:
        """A stream was admitted."""
        self._sessions[session.id] = session
        self._handle(Attached(session.id, hello))
        own = self._machine.quorum.position
        if hello.info.position not in (-1, own) and self._machine.members.node_of(session.id) is not None:
            self._copies.begin(session)

    def received(self, session: Session, message: Report | Heartbeat | Leave) -> None:
        """An attached agent said something."""
        match message:
            case Report(_, status):
                self._handle(Reported(session.id, status))
            case Heartbeat():
                self._handle(Beat(session.id))
            case Leave(_, reason):
                self._handle(Left(session.id, reason))

    def detached(self, session: Session, why: str) -> None:
        """A stream is over."""
        self._sessions.pop(session.id, None)
        self._copies.end(session.id)
        self._handle(Detached(session.id, why))
        self._finish_if_idle()

    # -- ControlHandler

    def order(self, request: ControlRequest) -> ControlReply:
        """Obey an operator who has proven to know the job's token."""
        machine = self._machine
        match request:
            case ShowStatus():
                return ControlReply(True, describe(machine))
            case _ if machine.ended:
                return ControlReply(False, f"the job has ended: {machine.end_reason}")
            case DrainNode(node, reason):
                if node not in machine.members.nodes:
                    known = ", ".join(list(machine.members.nodes)[:8]) or "none"
                    return ControlReply(False, f"there is no node {node!r}; the nodes are: {known}")
                self._handle(DrainOrdered(node, reason))
                return ControlReply(True, f"{node} is asked to leave")
            case ScaleJob(low, high):
                if high // machine.limits.node_unit * machine.limits.node_unit < low:
                    unit = machine.limits.node_unit
                    return ControlReply(False, f"no multiple of {unit} (--node-unit) lies in {low}:{high}")
                self._handle(ScaleOrdered(low, high))
                return ControlReply(True, f"the job now wants {low} to {high} nodes")
            case SaveAllStacks():
                for session in self._sessions.values():
                    session.send(SaveStacks(machine.epoch))
                count = len(self._sessions)
                return ControlReply(True, f"{count} nodes save the stacks of their workers beside their logs")

    # -- the loop

    def _handle(self, event: JobEvent) -> None:
        now = self._clock.now()
        if not isinstance(event, Beat):
            self._write(Entry(now, event))
        for effect in self._machine.handle(event, now):
            self._carry_out(effect)
        self._arm(now)

    def _write(self, entry: Entry) -> None:
        try:
            self._journal.append(entry)
            self._copies.spread()
        except OSError as error:
            logger.error(
                "cannot write the journal %s (%s): the job goes on, but a master that restarts will not"
                " remember it; free some space before the next job",
                self._journal.path,
                error.strerror,
            )

    def _carry_out(self, effect: JobEffect) -> None:
        match effect:
            case Send(session, message):
                if session in self._sessions:
                    self._sessions[session].send(message)
            case Drop(number, farewell):
                session_ = self._sessions.get(number)
                if session_ is not None:
                    if farewell is not None:
                        session_.send(farewell)
                    session_.close()
            case Decided(text, phase, round_):
                self._log_decision(text, phase.value, round_)
            case StepDown(reason):
                logger.warning("this host's master steps down: %s", reason)
                self.stepped_down = reason
                self.done.set()
            case Ended():
                asyncio.get_running_loop().call_later(FAREWELL_TIMEOUT, self.done.set)

    def _log_decision(self, text: str, phase: str, round_: int) -> None:
        if text != self._last_words:
            logger.info("round %d, %s: %s", round_, phase, text)
        self._last_words = text

    def _arm(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._machine.next_deadline()
        delay = None if deadline is None else max(0.0, deadline - now)
        loop = asyncio.get_running_loop()
        self._timer = None if delay is None else loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        expired: list[Expired] = self._machine.due(self._clock.now())
        for event in expired:
            self._handle(event)
        if not expired:
            self._arm(self._clock.now())

    def _finish_if_idle(self) -> None:
        if not self._sessions and (self._host_gone or self._machine.ended):
            self.done.set()


def admit(hello: Hello, job_id: str) -> Rejected | None:
    """Whether an agent of this version, who has proven the token, belongs to this job; None admits it."""
    if hello.job_id != job_id:
        return Rejected(
            RejectCode.WRONG_JOB,
            f"the master serves the job {job_id!r}, not {hello.job_id!r};"
            " give every node the same --rdzv-id, or this job an endpoint of its own",
        )
    return None
