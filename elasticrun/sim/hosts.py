"""Hosts that may run the master: each with an agent, a disk, and a master that comes, steps down and dies.

The link acts as agent/link.py does with a list of endpoints. A master starts as in
agent/master_host/hosting.py and master/service.py: only with what the disk of that host holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticrun.config import JobConfig
from elasticrun.core.agent.events import Broken, LinkDown
from elasticrun.core.job.events import JobEffect, MasterStarted, StepDown
from elasticrun.core.membership.quorum import TAKEOVER_DELAY, next_epoch
from elasticrun.core.protocol.messages import (
    AgentMessage,
    Hello,
    JournalCopy,
    MasterMessage,
    Welcome,
)
from elasticrun.errors import ExitCode
from elasticrun.sim.fingerprint import replay_gives_the_same
from elasticrun.sim.link import SimLink
from elasticrun.sim.master import Journal, SimMaster, State
from elasticrun.sim.network import Stream
from elasticrun.sim.scenario import Memory

if TYPE_CHECKING:
    from elasticrun.sim.failover import Failover
    from elasticrun.sim.node import SimAgent

CONNECT_TIMEOUT = 60.0
SALT = 50  # a master without a journal draws one of so many epochs


@dataclass
class Copy:
    """What an agent keeps of another host's journal."""

    epoch: int = -1
    entries: Journal = field(default_factory=list)


class Copies:
    """Sends one master's journal to agents of other listed hosts."""

    def __init__(self, master: HostMaster) -> None:
        self.holders: dict[int, Stream] = {}  # by session
        self._master = master

    def offer(self, stream: Stream, hello: Hello) -> None:
        """Send the journal to a newly attached agent if it is another listed host's."""
        is_own = hello.info.position in (-1, self._master.position)
        if not is_own and not self._master.machine.state.config.cautious:
            self.holders[stream.session] = stream
            self._send(stream, 0)

    def send(self, first: int) -> None:
        """Send the journal from this entry on."""
        for stream in self.holders.values():
            self._send(stream, first)

    def _send(self, stream: Stream, first: int) -> None:
        master = self._master
        numbers = [master.failover.keep(entry) for entry in master.journal[first:]]
        stream.send_down(JournalCopy(master.machine.state.epoch, first, tuple(map(str, numbers))))


class HostMaster(SimMaster):
    """All lives of the master's process on one listed host."""

    def __init__(self, sim: Failover, config: JobConfig, position: int) -> None:
        self.failover = sim
        self.position = position
        self.copy = Copy()
        self.starting = False
        self.stepped_down = False  # and its host's agent has not noticed yet
        self.let_go = False  # its host's agent does not need it any more
        super().__init__(sim, config)
        self._copies = Copies(self)
        self.written = self._copies.send

    # -- lives

    def start_process(self, resume: bool) -> None:
        """Start a master for the agent of this host."""
        if not self.up and not self.starting:
            self.starting, self.let_go = True, False
            self.kernel.after(0.1 + 0.3 * self.kernel.random(), self._serve, resume)

    def _serve(self, resume: bool) -> None:
        if not self.starting:
            return
        self.starting, self.stepped_down = False, False
        if not resume:
            self.journal = []
        elif _epoch_of(self.copy.entries) > _epoch_of(self.journal):
            self.journal, self._expected = list(self.copy.entries), None
        self.machine = self.sim.saving.replay(self.config, self.journal)
        if self._expected is not None and self.journal:
            replay_gives_the_same(self._expected, self.machine)
        self._expected = None
        self.sim.rules.resume(self.machine)
        self._copies.holders = {}
        self.sim.master = self
        endpoints = self.config.endpoints
        above = self.machine.state.epoch if self.journal else endpoints * self.kernel.rng.randrange(SALT)
        self.start(next_epoch(above, endpoints, self.position))

    def release(self) -> None:
        """End once idle: the agent of this host is gone, or follows another master."""
        self.let_go = True
        self._end_if_idle()

    def crash(self, down_for: float, memory: Memory) -> None:
        """Kill the process; its host's agent starts the next one when it needs it."""
        super().crash(0.0, memory)

    def _die(self, down_for: float, memory: Memory, expected: object) -> None:
        self.kernel.say("master", f"{self.position} dies; its journal is {memory.value}")
        self._stop_serving()
        self._expected = expected
        if memory is Memory.LOST:
            self.journal, self.copy, self._expected = [], Copy(), None

    def lose_power(self, keeps_disk: bool) -> None:
        """Stop the master as its host loses power; the disk may be lost too."""
        self.starting = False
        if self.up:
            self._die(0.0, Memory.KEPT, None)
        if not keeps_disk:
            self.journal, self.copy, self._expected = [], Copy(), None

    def _end(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams, self._copies.holders = {}, {}
        self.up = False
        self._expected = None

    def _end_if_idle(self) -> None:
        if self.up and not self._streams and (self.let_go or self.machine.state.ended):
            self.kernel.say("master", f"{self.position} ends")
            self._end()

    # -- what it says

    def _carry_out(self, effect: JobEffect) -> None:
        if isinstance(effect, StepDown):
            self.kernel.say("master", f"{self.position} steps down: {effect.reason}")
            self.stepped_down = True
            self._end()
        else:
            super()._carry_out(effect)

    def receive(self, stream: Stream, message: AgentMessage) -> None:
        """Handle a message, which may come long after its stream broke."""
        super().receive(stream, message)
        served = self.up and stream.life == self.life and self.machine.state.members.node_of(stream.session)
        if served and isinstance(message, Hello):
            self._copies.offer(stream, message)

    def stream_ended(self, stream: Stream, reason: str) -> None:
        """Handle the end of a stream, as the master sees it."""
        if stream.life == self.life:
            self._copies.holders.pop(stream.session, None)
        super().stream_ended(stream, reason)
        self._end_if_idle()


def _epoch_of(journal: Journal) -> int:
    started = [event.epoch for event, _ in journal if isinstance(event, MasterStarted | State)]
    return started[-1] if started else -1


class HostLink(SimLink):
    """The link of an agent with a list of endpoints."""

    def __init__(self, sim: Failover, agent: SimAgent) -> None:
        super().__init__(agent)
        self.failover = sim
        self.position = sim.network.position_of(agent.name)
        self.turn = 0
        self._look = sim.network.look_around(self.position)  # endpoints to ask before it begins
        self._born = self._turn_since = sim.kernel.now
        self._was_up = False

    def _own(self) -> HostMaster | None:
        return self.failover.masters[self.position] if self.position >= 0 else None

    def connect(self) -> None:
        """Try once to attach, as agent/link.py does."""
        if self.agent.over or self._leaving or self.stream is not None or self.agent.park(self.connect):
            return
        if not self._was_up and self.kernel.now - self._born > CONNECT_TIMEOUT:
            self.agent.handle(Broken(ExitCode.MASTER_UNREACHABLE, "nobody there"))
            return
        target = self._look[0] if self._look else self.turn
        master = self.failover.masters[target]
        if target == self.position and not self._look and not self._ready_to_serve(master):
            self.kernel.after(0.1, self.connect)
        elif master.up and not self.cuts and self.failover.network.reaches(self.agent.name, target):
            self._open(master)
        else:
            self._missed()

    def _ready_to_serve(self, master: HostMaster) -> bool:
        if master.stepped_down:
            master.stepped_down = False
            self._next_turn()
            return False
        master.start_process(self._was_up)
        return master.up

    def _missed(self) -> None:
        if self._look:
            self._look.pop(0)
        elif self.kernel.now - self._turn_since >= TAKEOVER_DELAY:
            self._next_turn()
        self.kernel.after(0.05 + 0.3 * self.kernel.random(), self.connect)

    def _next_turn(self) -> None:
        self.turn = (self.turn + 1) % len(self.failover.masters)
        self._turn_since = self.kernel.now

    def stream_ended(self, stream: Stream, reason: str) -> None:
        """Handle the end of a stream, as the agent sees it."""
        if self.agent.over or stream is not self.stream or self.agent.park(self.stream_ended, stream, reason):
            return
        self.stream, self._fenced = None, False
        if self.linked:
            self.linked = False
            self._turn_since = self._down_since = self.kernel.now
            self.agent.handle(LinkDown(reason))
        elif self._look:
            self._look.pop(0)
        else:
            self._next_turn()
        self.kernel.after(0.05 + 0.3 * self.kernel.random(), self.connect)

    def receive(self, stream: Stream, message: MasterMessage) -> None:
        """Handle a message, which may come long after its stream broke."""
        agent, is_newest = self.agent, stream is self.stream
        if isinstance(message, JournalCopy):
            if not agent.over and is_newest and not agent.park(self.receive, stream, message):
                self._keep_copy(message)
            return
        if isinstance(message, Welcome) and is_newest and not agent.frozen and not agent.over:
            self._settle(stream)
        super().receive(stream, message)

    def _settle(self, stream: Stream) -> None:
        assert isinstance(stream.master, HostMaster)
        self.turn, self._look, self._was_up = stream.master.position, [], True
        own = self._own()
        if own is not None and own is not stream.master:
            own.release()

    def _keep_copy(self, message: JournalCopy) -> None:
        own = self._own()
        assert own is not None
        if message.epoch < own.copy.epoch:
            return
        if message.first == 0:
            own.copy = Copy(message.epoch)
        if message.first == len(own.copy.entries):
            own.copy.epoch = message.epoch
            own.copy.entries += [self.failover.kept[int(line)] for line in message.lines]

    def _may_be_late(self, stream: Stream) -> bool:
        """Only from the same master: agent/link.py keeps others away, as it never reads a closed stream."""
        assert self.stream is not None
        return stream.master is self.stream.master and stream.life == self.stream.life

    # -- the end

    def hang_up(self) -> None:
        """Close the stream in good order."""
        super().hang_up()
        self._let_go()

    def die(self) -> None:
        """Break the stream: the agent was killed."""
        super().die()
        self._let_go()

    def _let_go(self) -> None:
        own = self._own()
        if own is not None:
            own.starting = False
            own.release()
