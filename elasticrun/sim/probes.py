"""Rule 5: a message of an earlier session, sequence, epoch or incarnation changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.core.agent.events import AgentEvent, Directed
from elasticrun.core.job.events import Attached, Beat, Detached, JobEvent, Left, Reported
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    JobEnded,
    Outcome,
    StartRound,
    StopRound,
    Waiting,
)
from elasticrun.sim.fingerprint import difference, fingerprint
from elasticrun.sim.kernel import Violation
from elasticrun.sim.master import SimMaster
from elasticrun.sim.node import SimAgent

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator

HUGE = 10**9


class Probes:
    """Injects stale messages and compares the state before and after."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim

    def probe(self) -> None:
        """Hand every stale message to the master, and to one agent."""
        if self.sim.master.up:
            self._probe_master(self.sim.master)
        agents = [agent for agent in self.sim.agents if not agent.over and not agent.frozen]
        if agents:
            self._probe_agent(self.sim.kernel.rng.choice(agents))

    def _probe_master(self, master: SimMaster) -> None:
        machine = master.machine
        now = self.sim.kernel.now + master.offset
        before = fingerprint(machine.state)
        for event in self._stale_for_master(master):
            machine.handle(event, now)
            found = difference(before, fingerprint(machine.state))
            if found:
                raise Violation("a stale message changes nothing for the master", f"{event}: {found}")

    def _stale_for_master(self, master: SimMaster) -> list[JobEvent]:
        members = master.machine.state.members
        live = {node.session for node in members.nodes.values()}
        stale = next(number for number in range(10**6) if number not in live)
        status = AgentStatus(HUGE, AgentPhase.READY, master.machine.state.round, (), 1)
        events: list[JobEvent] = [
            Reported(stale, status),
            Beat(stale),
            Left(stale, "late"),
            Detached(stale, "late"),
        ]
        for node in members.nodes.values():
            if node.session is not None:
                events.append(Reported(node.session, replace(status, sequence=node.status.sequence)))
        for agent in self.sim.agents:
            node_ = members.nodes.get(agent.name)
            if node_ is None or node_.session is None or node_.info.incarnation == agent.incarnation:
                continue
            if agent.incarnation in members._retired:
                events.append(Attached(HUGE, agent.machine.hello()))
        return events

    def _probe_agent(self, agent: SimAgent) -> None:
        machine = agent.machine
        now = self.sim.kernel.now + agent._offset
        deadline = machine.next_deadline()
        if deadline is not None and deadline <= now:
            return
        before = fingerprint(machine)
        desired = machine.state.desired
        stale: list[AgentEvent] = [Directed(Waiting(desired.epoch - 1, "late"))]
        for stamp in ((desired.epoch - 1, HUGE), desired.stamp):
            if stamp[0] < 0:
                continue
            stale += [
                Directed(StartRound(*stamp, Assignment(HUGE, 0, 1, 0, 1, 0, 1, "", 1, 0, 0), "late")),
                Directed(StopRound(*stamp, HUGE, "late")),
                Directed(JobEnded(*stamp, Outcome.FAILED, "late")),
            ]
        for event in stale:
            machine.handle(event, now)
            found = difference(before, fingerprint(machine))
            if found:
                text = f"{agent.incarnation}, {event}: {found}"
                raise Violation("a stale message changes nothing for an agent", text)
