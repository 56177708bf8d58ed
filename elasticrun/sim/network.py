"""Streams as gRPC gives them, and the hostility that the protocol claims to survive.

A stream is first in, first out while it is up. When it breaks, what is under way is lost and each side
learns of it in its own time. On top of that, as the scenario asks: duplicates, messages that
overtake others, and messages that arrive although their stream broke long ago; but not Hello, Welcome and
Rejected, which are about the stream itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.core.protocol.messages import AgentMessage, Hello, MasterMessage, Rejected, Welcome
from elasticrun.sim.kernel import Kernel
from elasticrun.sim.scenario import Network

if TYPE_CHECKING:
    from elasticrun.sim.link import SimLink
    from elasticrun.sim.master import SimMaster

LONGEST_LATENESS = 20.0  # seconds


class Stream:
    """One attempt of one agent to talk to one life of the master."""

    def __init__(self, kernel: Kernel, network: Network, link: SimLink, master: SimMaster) -> None:
        self.master = master
        self.life = master.life
        self.generation = master.sim.rules.generation
        self.key = ""  # of the master that answers
        self.session = 0  # given by the master when Hello arrives
        self.cut_up = False  # messages to the master are lost from now on
        self.cut_down = False
        self._kernel = kernel
        self._network = network
        self._link = link
        self._last_up = self._first_up = 0.0  # when the newest message arrives, and when the first one does
        self._last_down = self._first_down = 0.0

    @property
    def tickets(self) -> set[str]:
        """The keys of the masters that have welcomed the agent."""
        return self._link.tickets

    def send_up(self, message: AgentMessage) -> None:
        """Send a message to the master."""
        instant, again = self._instants(self._last_up, self._first_up)
        self._last_up = max(instant, self._last_up)
        self._first_up = self._first_up or instant
        self._kernel.at(instant, self._arrive_up, message)
        if again:
            self._kernel.at(again, self._arrive_up, message)

    def send_down(self, message: MasterMessage) -> None:
        """Send a message to the agent."""
        instant, again = self._instants(self._last_down, self._first_down)
        self._last_down = max(instant, self._last_down)
        self._first_down = self._first_down or instant
        self._kernel.at(instant, self._arrive_down, message)
        if again:
            self._kernel.at(again, self._arrive_down, message)

    def _instants(self, last: float, first: float) -> tuple[float, float]:
        """When a message arrives, and when its duplicate does, or 0.0. Nothing overtakes the first one."""
        network, random = self._network, self._kernel.random
        instant = self._kernel.now + network.delay * random()
        if not first:
            return instant, 0.0
        again = max(instant, first) + 10 * network.delay * random() if random() < network.duplicate else 0.0
        if instant < last and not random() < network.reorder:
            instant = last
        instant = max(instant, first)
        return instant, again

    def _arrive_up(self, message: AgentMessage) -> None:
        if not self.cut_up:
            self.master.receive(self, message)
        elif self._kernel.random() < self._network.late and not isinstance(message, Hello):
            self._kernel.after(LONGEST_LATENESS * self._kernel.random(), self.master.receive, self, message)

    def _arrive_down(self, message: MasterMessage) -> None:
        if not self.cut_down:
            self._link.receive(self, message)
        elif self._kernel.random() < self._network.late and not isinstance(message, Welcome | Rejected):
            self._kernel.after(LONGEST_LATENESS * self._kernel.random(), self._link.receive, self, message)

    def break_off(self, reason: str, agent_learns: float, master_learns: float) -> None:
        """Lose what is under way; each side learns of it after so many seconds."""
        self.cut_up = self.cut_down = True
        self._kernel.after(agent_learns, self._link.stream_ended, self, reason)
        self._kernel.after(master_learns, self.master.stream_ended, self, reason)

    def hang_up(self) -> None:
        """The agent closes in good order: the master reads what was sent first."""
        self._kernel.at(max(self._kernel.now, self._last_up), self.master.stream_ended, self, "hung up")
        self.cut_down = True

    def close(self) -> None:
        """The master closes in good order: the agent reads what was sent first."""
        last = max(self._kernel.now, self._last_down)
        self._kernel.at(last, self._link.stream_ended, self, "closed by the master")
        self._kernel.at(last, self.master.stream_ended, self, "closed")
