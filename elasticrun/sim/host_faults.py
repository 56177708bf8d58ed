"""Networks that fall apart, and hosts that lose power, where the master may move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticrun.sim.faults import Faults
from elasticrun.sim.hosts import HostMaster
from elasticrun.sim.node import SimAgent
from elasticrun.sim.scenario import Fault, HostCrash, MasterCrash, Split

if TYPE_CHECKING:
    from elasticrun.sim.failover import Failover


class HostNetwork:
    """Which of the listed hosts a node can reach."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts = hosts
        self.splits: list[Split] = []

    def position_of(self, name: str) -> int:
        """The position of a node's host in the list of endpoints, or -1."""
        return self.hosts.index(name) if name in self.hosts else -1

    def look_around(self, position: int) -> list[int]:
        """The positions that the agent of a listed host first asks for a master."""
        return [] if position < 0 else [index for index in range(len(self.hosts)) if index]

    def reaches(self, name: str, position: int) -> bool:
        """Whether a node's agent can talk to the master on a listed host."""
        host = self.hosts[position]
        return all(_side(split, name) == _side(split, host) for split in self.splits)


class HostFaults(Faults):
    """Inflicts faults on a job of several listed hosts."""

    def __init__(self, sim: Failover) -> None:
        super().__init__(sim)
        self.failover = sim

    def inflict(self, fault: Fault) -> None:
        """Inflict a fault now."""
        if isinstance(fault, Split):
            self.sim.kernel.say("FAULT", str(fault))
            self.failover.network.splits.append(fault)
            self.sim.kernel.at(fault.until, self.failover.network.splits.remove, fault)
            for agent in self.sim.agents:
                self._cut_off(agent)
        elif isinstance(fault, HostCrash):
            self.sim.kernel.say("FAULT", str(fault))
            self._lose_power(fault)
        elif isinstance(fault, MasterCrash):
            self.sim.kernel.say("FAULT", str(fault))
            up = [master for master in self.failover.masters if master.up]
            for master in sorted(up, key=lambda master: master.machine.state.epoch)[-1:]:
                master.crash(fault.down_for, fault.memory)
        else:
            super().inflict(fault)

    def _cut_off(self, agent: SimAgent) -> None:
        stream = agent.link.stream
        if stream is None or agent.over:
            return
        master = stream.master
        assert isinstance(master, HostMaster)
        if not self.failover.network.reaches(agent.name, master.position):
            stream.cut_up = stream.cut_down = True
            self.sim.kernel.after(6 * self.sim.kernel.random(), agent.link.stream_ended, stream, "silent")
            self.sim.kernel.after(6 * self.sim.kernel.random(), master.stream_ended, stream, "silent")

    def _lose_power(self, fault: HostCrash) -> None:
        position = self.failover.network.position_of(fault.node)
        agent = self.sim.newest(fault.node)
        if position >= 0:
            self.failover.masters[position].lose_power(fault.keeps_disk)
        if agent is not None:
            agent.crash()
        if fault.back is not None:
            spec = self.sim.specs[fault.node]
            self.sim.kernel.at(fault.back, self.sim.spawn, spec)


def _side(split: Split, name: str) -> int:
    """The group of a node; nodes in no group are together, as -1."""
    return next((number for number, group in enumerate(split.groups) if name in group), -1)
