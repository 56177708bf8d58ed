"""The link of one agent to the master, as agent/link.py keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.core.agent.events import Directed, HelloSent, LinkDown, LinkUp
from elasticrun.core.protocol.messages import (
    AgentMessage,
    Heartbeat,
    JobEnded,
    Leave,
    MasterMessage,
    RejectCode,
    Rejected,
    StartProbe,
    StartRound,
    StopRound,
    Welcome,
)
from elasticrun.sim.network import Stream

if TYPE_CHECKING:
    from elasticrun.sim.master import SimMaster
    from elasticrun.sim.node import SimAgent

ATTEMPT_TIMEOUT = 3.0
MASTER_TIMEOUT = 60.0  # seconds that an agent waits for a master


class SimLink:
    """Attaches again after each loss, and passes messages on."""

    position = -1  # of the agent's host in the list of endpoints

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.kernel = agent.kernel
        self.stream: Stream | None = None
        self.linked = False  # Welcome was read on ``stream``
        self.tickets: set[str] = set()  # the keys of the masters that have welcomed it
        self.cuts = 0  # network cuts in force
        # Whether the newest stream has brought a directive. From then on the agent itself knows that earlier
        # streams are stale, so late messages are delivered. Before that, and for a master that has lost its
        # journal (epochs may repeat), only agent/link.py keeps them away: it never reads a closed stream.
        self._fenced = False
        self._leaving = False  # no other stream follows
        self._down_since: float | None = None
        self._longest_absence = 0.0

    def connect(self) -> None:
        """Try once to attach, as agent/link.py does."""
        if self.agent.over or self._leaving or self.stream is not None or self.agent.park(self.connect):
            return
        if self.cuts or not self.agent.sim.master.up:
            self.kernel.after(0.05 + self.kernel.random(), self.connect)
            return
        self._open(self.agent.sim.master)

    def _open(self, master: SimMaster) -> None:
        stream = self.stream = Stream(self.kernel, self.agent.sim.scenario.network, self, master)
        hello = self.agent.machine.hello()
        self.agent.handle(HelloSent(hello.status))
        stream.send_up(hello)
        self.kernel.after(ATTEMPT_TIMEOUT, self._give_up_attempt, stream)

    def _give_up_attempt(self, stream: Stream) -> None:
        if stream is self.stream and not self.linked:
            stream.break_off("no answer", 0.0, self.kernel.random())

    def stream_ended(self, stream: Stream, reason: str) -> None:
        """Handle the end of a stream, as the agent sees it."""
        if self.agent.over or stream is not self.stream or self.agent.park(self.stream_ended, stream, reason):
            return
        self.stream, self._fenced = None, False
        if self.linked:
            self.linked = False
            self._down_since = self.kernel.now
            self.agent.handle(LinkDown(reason))
        self.kernel.after(0.05 + 0.5 * self.kernel.random(), self.connect)

    def longest_absence(self) -> float:
        """The longest time without a master, in seconds."""
        if self._down_since is None:
            return self._longest_absence
        return max(self._longest_absence, self.kernel.now - self._down_since)

    def waited_for_a_master(self) -> bool:
        """Whether there was no master for MASTER_TIMEOUT, up to rounding."""
        return self.longest_absence() > MASTER_TIMEOUT - 0.001

    def receive(self, stream: Stream, message: MasterMessage) -> None:
        """Handle a message, which may come long after its stream broke."""
        if self.agent.over or self.agent.park(self.receive, stream, message):
            return
        if isinstance(message, Welcome):
            if stream is self.stream:
                self.linked, self._fenced = True, False
                self.tickets.add(stream.key)
                self._longest_absence, self._down_since = self.longest_absence(), None
                self.agent.handle(LinkUp(message.epoch))
                self.kernel.after(message.heartbeat_interval, self._beat, stream, message.heartbeat_interval)
        elif isinstance(message, Rejected) and message.code is RejectCode.NAME_IN_USE:
            return  # the link tries again
        elif stream is self.stream:
            self._fenced = self._fenced or isinstance(message, StartRound | StopRound | StartProbe | JobEnded)
            self._leaving = self._leaving or isinstance(message, Rejected)
            self.agent.handle(Directed(message))
        elif self._fenced and self._may_be_late(stream):
            self.agent.handle(Directed(message))

    def _may_be_late(self, stream: Stream) -> bool:
        return stream.generation == self.agent.sim.rules.generation

    def _beat(self, stream: Stream, interval: float) -> None:
        if self.agent.over or stream is not self.stream or self.agent.park(self._beat, stream, interval):
            return
        stream.send_up(Heartbeat(self.agent.incarnation))
        self.kernel.after(interval, self._beat, stream, interval)

    def send(self, message: AgentMessage) -> None:
        """Send a message; drop it if there is no link."""
        if self.stream is not None and self.linked:
            self._leaving = self._leaving or isinstance(message, Leave)
            self.stream.send_up(message)

    # -- the end

    def hang_up(self) -> None:
        """Close the stream in good order."""
        if self.stream is not None:
            self.stream.hang_up()
        self.stream = None

    def die(self) -> None:
        """Break the stream: the agent was killed."""
        if self.stream is not None:
            self.stream.break_off("reset", 0.0, self.kernel.rng.choice((0.01, 5.0)) * self.kernel.random())
        self.stream = None
