"""The rules of health checks: which nodes may be excluded, which may work, and when a probe may run.

The simulated clinic says which nodes are ill. The machine says only when a check began, and what it excluded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elasticrun.config import HealthCheckMode
from elasticrun.core.agent.departure import SIGTERM
from elasticrun.core.job.events import TRANSITIONS, Decided, JobEffect, Send
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.messages import RejectCode, StartProbe
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.ills import GRAVE, Illness
from elasticrun.sim.kernel import Violation, require
from elasticrun.sim.order_rules import leavers

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent
    from elasticrun.sim.simulator import Simulator

#: The most transitions between two decisions of one event.
STRIDE = 2


def _reachable() -> dict[JobPhase, set[JobPhase]]:
    found = {phase: {phase} for phase in JobPhase}
    for _ in range(STRIDE):
        for phases in found.values():
            phases |= {end for (begin, _), end in TRANSITIONS.items() if begin in phases}
    return found


REACHABLE = _reachable()


def _called_faulty(text: str) -> list[str]:
    """The nodes that a check's summary calls faulty; here they are too few for it to shorten the list.

    A refused order may quote the summary with which the job ended; that is no new verdict.
    """
    if text.startswith("an order is refused"):
        return []
    found = re.search(r"checked nodes? (?:is|are) good;.*?\bfaulty: ([^;]*)", text)
    return found[1].split(", ") if found else []


class HealthRules:
    """Watches the checks of one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.excluded: set[str] = set()  # incarnations, ever
        self.drained: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Start over: the master has lost its journal."""
        self._phase = JobPhase.GATHERING
        self._here: set[str] = set()  # incarnations that the master knows
        self._gone: dict[str, None] = {}  # incarnations that this master must not take again
        self._began = 0.0  # when the newest check began
        self._probe, self._probed = 0, 0.0  # the number of its newest probe, and when that began
        # By incarnation: when its last check began, and whether that had all-gathers.
        self._checked: dict[str, tuple[float, bool]] = {}
        self._doubted: dict[str, str] = {}  # suspect or doubtful nodes, and their hosts
        self._tainted: set[str] = set()  # hosts of suspects that are gone

    # -- after each event

    def after_master(self, machine: JobMachine, effects: list[JobEffect]) -> None:
        """Check every rule about checks."""
        before = self._phase
        for effect in effects:
            match effect:
                case Decided(text, phase, _):
                    self.phases_follow_the_table(phase)
                    self.accusations_are_of_those_present(text, machine)
                case Send(session, StartProbe(check=check, groups=groups)):
                    node = machine.state.members.node_of(session)
                    assert node is not None
                    if check != self._probe:
                        self._probe, self._probed = check, self.sim.kernel.now
                    self._checked[node.info.incarnation] = self._began, bool(groups)
        self.phases_follow_the_table(machine.state.phase)
        for who in list(machine.state.members._retired)[len(self._gone) :]:
            self._note_farewell(machine, before, who)
        if effects:
            here = {node.info.incarnation for node in machine.state.members.nodes.values()}
            for incarnation in self._here - here:
                self._checked.pop(incarnation, None)
            self._here = here
        self._note_suspects(machine)
        if before is JobPhase.CHECKING and machine.state.phase is not JobPhase.CHECKING:
            self.only_the_sound_are_trusted(machine)

    def _note_farewell(self, machine: JobMachine, before: JobPhase, who: str) -> None:
        """Check that a retired incarnation was drained by an order, or excluded with good reason."""
        self._gone[who] = None
        agent, farewell = self.agent(who), machine.state.members._retired[who]
        code = farewell.code if farewell is not None else None
        if code is RejectCode.DRAINED:
            self.drained.add(who)
            leaves = self.sim.storage.is_there and (agent.preempted or SIGTERM in agent.signalled)
            is_asked = agent.name in self.sim.mishaps.drained or who in leavers(machine)
            if not is_asked and not leaves:
                raise Violation("only who is to be drained is drained", who)
        elif code is RejectCode.EXCLUDED:
            self.excluded.add(who)
            if before is JobPhase.CHECKING:
                self.exclusion_is_just(machine, agent)

    def _note_suspects(self, machine: JobMachine) -> None:
        """Remember the hosts of suspects that are gone."""
        nodes, book = machine.state.members.nodes, machine.state.health
        self._tainted.update(host for name, host in self._doubted.items() if name not in nodes)
        self._tainted.difference_update(nodes[name].info.host for name in book.trusted)
        self._doubted = {
            name: nodes[name].info.host for name in (*book.suspects, *book.doubtful) if name in nodes
        }

    def agent(self, incarnation: str) -> SimAgent:
        """The agent of an incarnation."""
        return next(agent for agent in self.sim.agents if agent.incarnation == incarnation)

    def phases_follow_the_table(self, phase: JobPhase) -> None:
        require("phases follow the table", phase in REACHABLE[self._phase], f"{self._phase} -> {phase}")
        if phase is JobPhase.CHECKING and self._phase is not phase:
            self._began = self.sim.kernel.now
        self._phase = phase

    def accusations_are_of_those_present(self, text: str, machine: JobMachine) -> None:
        """A node called faulty is excluded in the same event; if the job only checks, it is present."""
        for name in _called_faulty(text):
            node = machine.state.members.nodes.get(name)
            is_there = node is not None and node.info.incarnation in self._here
            has_just_gone = any(self.agent(who).name == name for who in self._excluded_now(machine))
            if not (is_there if machine.state.config.health.only else has_just_gone):
                raise Violation("only who is there is called faulty", f"{name}: {text}")

    def _excluded_now(self, machine: JobMachine) -> list[str]:
        retired = list(machine.state.members._retired.items())[len(self._gone) :]
        return [who for who, told in retired if told is not None and told.code is RejectCode.EXCLUDED]

    def exclusion_is_just(self, machine: JobMachine, agent: SimAgent) -> None:
        """An excluded node is ill, has broken links, or was away and could not answer.

        Two all-gathers speak against it, each with a node that had proved good: that one may have been frozen
        only since the newest probe began.
        """
        clinic, name = self.sim.clinic, agent.name
        ill = clinic.suffers(name, *GRAVE)
        slow = machine.state.config.health.exclude_stragglers and clinic.suffers(name, Illness.SLOW)
        # A node that proved good, and whose network then fell ill during the check, makes others look faulty.
        network = (since for illness, since in clinic.ill.values() if illness is Illness.NETWORK)
        cut = sum(name in link for link in clinic.broken) + sum(it >= self._began for it in network)
        cut += sum(other is not agent and self._was_late(other) for other in self.sim.agents)
        away = agent.over or agent.frozen > 0 or agent.disturbed >= self._began
        if not (ill or slow or cut > 1 or away):
            raise Violation("no good node is excluded", f"{agent.incarnation} in {machine.state.phase}")

    def _was_late(self, agent: SimAgent) -> bool:
        """Whether a node that was checked may have missed an all-gather of the newest probe."""
        began, _ = self._checked.get(agent.incarnation, (-1.0, False))
        return began == self._began and (agent.frozen > 0 or agent.disturbed >= self._probed)

    def only_the_sound_are_trusted(self, machine: JobMachine) -> None:
        for name in machine.state.health.trusted:
            node = machine.state.members.nodes.get(name)
            if node is None:
                raise Violation("only who is there is trusted", name)
            if self._was_ill(node.info.incarnation, name):
                raise Violation("only the sound are trusted", name)
        for name in machine.state.health.doubtful:
            if name not in machine.state.members.nodes:
                raise Violation("only who is there is doubtful", name)

    def _was_ill(self, incarnation: str, name: str) -> bool:
        """Whether a node was already ill when its last check began, in a way that the check shows."""
        illness, since = self.sim.clinic.ill.get(name, (None, 0.0))
        began, met = self._checked.get(incarnation, (0.0, False))
        shows = illness in (Illness.COMPUTE, Illness.STUCK) or (met and illness is Illness.NETWORK)
        return shows and since < began

    # -- worlds

    def world_formed(self, machine: JobMachine) -> None:
        """Check every rule about the members of a new world."""
        for name in machine.state.current.assignments:
            node = machine.state.members.nodes.get(name)
            if node is None:
                continue
            who = node.info.incarnation
            if who in self._gone:
                raise Violation("who had to go is never a member again", who)
            if name in machine.state.health.doubtful or self._was_ill(who, name):
                raise Violation("no world has a node that a check found faulty", who)
            is_checked = (
                machine.state.config.health.mode is HealthCheckMode.AUTO
                and machine.state.limits.max_nodes > 1
            )
            if is_checked and node.info.host in self._tainted and name not in machine.state.health.trusted:
                raise Violation("who comes from the host of a suspect is checked before it works", who)
            agent = self.agent(who)
            if agent.probe is not None and not agent.over:
                raise Violation("no round starts while a probe runs on a member", who)

    def unhealthy_is_just(self, machine: JobMachine) -> None:
        """A job that ended as unhealthy has doubtful nodes, and too few others."""
        if machine.state.config.health.only:
            return
        doubtful = set(machine.state.health.doubtful) & set(machine.state.ready)
        usable = machine.state.limits.usable(len(machine.state.ready) - len(doubtful))
        if usable or not doubtful:
            raise Violation("unhealthy means too few undoubted nodes", f"{usable}, {doubtful}")
