"""The rules of joining: when a running world may be stopped for new nodes, and how soon a node is taken in.

Whether a node imports is read from the simulated agents, never from the machine that is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.core.job.growth import SETTLE, WARMING_LIMIT
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import BACKOFF
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause
from elasticrun.sim.kernel import Violation, require

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator

#: Seconds that times may differ by rounding, or because a master was away for a moment.
SLACK = 0.001


class JoinRules:
    """Watches the nodes that join one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.forget()

    def forget(self) -> None:
        """Start over: the master has lost its journal."""
        self._stopped = -1  # the newest round that was stopped for a joining node
        self._known: dict[str, float] = {}  # when a node was first known to import, by incarnation
        self._could_grow: float | None = None  # since when a larger world could start
        self._formed = -1  # the newest round
        self._was_few = True  # before it, too few nodes could start at once; so it is before the first one

    def after_master(self, machine: JobMachine) -> None:
        """Check every rule."""
        self._note_imports(machine)
        ready = self._could_start(machine)
        self.nobody_stops_for_an_import(machine, ready)
        self.who_could_join_does(machine, ready)
        self.nobody_waits_for_an_import(machine, ready)
        self.nobody_is_held_back_for_ever(machine)

    def _note_imports(self, machine: JobMachine) -> None:
        for node in machine.state.members.nodes.values():
            if node.ready and node.status.warming:
                self._known.setdefault(node.info.incarnation, self.sim.kernel.now)
            elif node.ready:
                self._known.pop(node.info.incarnation, None)

    def imports(self, machine: JobMachine, name: str) -> bool:
        """Whether a node still imports, and has done so for less than WARMING_LIMIT.

        A node that imports anew counts only once the master has heard of it.
        """
        node = machine.state.members.nodes[name]
        agent = next(agent for agent in self.sim.agents if agent.incarnation == node.info.incarnation)
        since = self._known.get(agent.incarnation, self.sim.kernel.now)
        if agent.has_imported and not node.status.warming:
            return False
        return agent.machine.state.is_warming and self.sim.kernel.now < since + WARMING_LIMIT - SLACK

    def _could_start(self, machine: JobMachine) -> set[str]:
        """Ready nodes outside a round that are not doubtful and do not import."""
        nodes = machine.state.members.nodes.items()
        idle = {name for name, node in nodes if node.ready and name not in machine.state.current.pending}
        return {
            name
            for name in idle - machine.state.health.doubtful.keys() - machine.state.cordoned.keys()
            if not self.imports(machine, name)
        }

    def _are_known_to_be_done(self, machine: JobMachine, names: set[str]) -> set[str]:
        """Those that have not told the master of an import, or have told it that theirs is done."""
        return {name for name in names if not machine.state.members.nodes[name].status.warming}

    # -- the rules

    def nobody_is_held_back_for_ever(self, machine: JobMachine) -> None:
        for name, since in machine.state.held.since.items():
            require("nobody is held back for ever", machine.state.now <= since + WARMING_LIMIT + SLACK, name)

    def nobody_stops_for_an_import(self, machine: JobMachine, ready: set[str]) -> None:
        current = machine.state.current
        if (
            machine.state.round == self._stopped
            or current.stop is None
            or current.stop[0] is not StopCause.NODE_JOINED
        ):
            return
        self._stopped = machine.state.round
        size = len(current.assignments)
        larger = machine.state.limits.usable(size + len(ready - current.assignments.keys()))
        require("no world is stopped for an import", larger > size, f"{size} nodes, and {sorted(ready)}")

    def who_could_join_does(self, machine: JobMachine, ready: set[str]) -> None:
        """A running round makes way for a larger world within SETTLE."""
        current, now = machine.state.current, self.sim.kernel.now
        size = len(current.assignments)
        known = self._are_known_to_be_done(machine, ready)
        could = machine.state.limits.usable(size + len(known)) > size and not current.finished
        if machine.state.phase is not JobPhase.RUNNING or not could or machine.state.members.detached:
            self._could_grow = None
            return
        since = self._could_grow = now if self._could_grow is None else self._could_grow
        if now > since + SETTLE + SLACK:
            raise Violation("who could join does", f"{sorted(known)} since {since:g}")

    def nobody_waits_for_an_import(self, machine: JobMachine, ready: set[str]) -> None:
        """A later world is formed without importing nodes, if the master knew of enough others."""
        quiet = not machine.state.members.detached and (BACKOFF, "") not in machine.state.timers
        if machine.state.phase in (JobPhase.GATHERING, JobPhase.CHECKING):
            known = self._are_known_to_be_done(machine, ready)
            self._was_few = self._was_few or (quiet and not machine.state.limits.usable(len(known)))
        elif machine.state.phase is JobPhase.RUNNING and machine.state.round != self._formed:
            members = machine.state.current.assignments.keys() & machine.state.members.nodes.keys()
            late = {name for name in members if self.imports(machine, name)}
            known = self._are_known_to_be_done(machine, ready | members - late)
            few = self._was_few or not machine.state.limits.usable(len(known))
            require("nobody waits for an import", few or not late, f"round {machine.state.round}: {late}")
            self._formed, self._was_few = machine.state.round, False
