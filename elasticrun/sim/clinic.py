"""Ill nodes, and the probes that look for illness.

An all-gather works if the probes of all its members have been there at one time, and neither a member nor a
link between two of them is broken. Members that wait in vain give up at the end of the probe's time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from elasticrun.core.agent.events import ProbeEnded
from elasticrun.core.protocol.messages import GroupReport, ProbeGroup, ProbeReport, StartProbe
from elasticrun.sim.ills import FallsIll, Illness, LinkBreaks

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent
    from elasticrun.sim.simulator import Simulator

FLOPS = 1e12
FINE = GroupReport("", 1e9, 1e-4)
FAILED = GroupReport("no answer")
SHARE = 0.9  # of a probe's time, after which it gives up


@dataclass(eq=False)
class Meeting:
    """One all-gather."""

    nodes: tuple[str, ...]
    here: dict[str, Visit] = field(default_factory=dict)
    report: GroupReport | None = None  # once it has ended


@dataclass(eq=False)
class Visit:
    """The probe of one node while it runs."""

    agent: SimAgent
    start: StartProbe
    meetings: list[Meeting] = field(default_factory=list)
    self_test: str = ""

    @property
    def is_alive(self) -> bool:
        """Whether the probe still runs."""
        return self.agent.probe is self and not self.agent.over


class Clinic:
    """Knows which nodes are ill, and runs all probes of one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.kernel = sim.kernel
        self.ill: dict[str, tuple[Illness, float]] = {}  # and since when
        self.broken: dict[frozenset[str], float] = {}  # links, and since when
        self._meetings: dict[tuple[int, tuple[str, ...], int], Meeting] = {}

    def inflict(self, ill: FallsIll | LinkBreaks) -> None:
        """Make a node ill, or break a link, from now on."""
        if isinstance(ill, FallsIll):
            self.ill.setdefault(ill.node, (ill.illness, self.kernel.now))
        else:
            self.broken.setdefault(frozenset(ill.nodes), self.kernel.now)

    def suffers(self, name: str, *illnesses: Illness) -> bool:
        """Whether the node has one of these illnesses."""
        return name in self.ill and self.ill[name][0] in illnesses

    def run(self, agent: SimAgent, start: StartProbe) -> Visit:
        """Begin a probe."""
        visit = Visit(agent, start)
        agent.probe = visit
        visit.meetings = [self._meeting(start.check, group) for group in start.groups]
        self.kernel.after(0.05 + self.kernel.random(), self._test, visit)
        self.kernel.after(SHARE * start.timeout, self._end, visit)
        return visit

    def _meeting(self, check: int, group: ProbeGroup) -> Meeting:
        key = (check, group.nodes, group.port)
        return self._meetings.setdefault(key, Meeting(group.nodes))

    def _test(self, visit: Visit) -> None:
        """End the self test and go on to the all-gathers; after a failed test half of the probes end here."""
        if not visit.is_alive or self.suffers(visit.agent.name, Illness.STUCK):
            return
        if self.suffers(visit.agent.name, Illness.COMPUTE):
            visit.self_test = "matmul gave a wrong result"
            if self.kernel.random() < 0.5:
                self._end(visit)
                return
        for meeting in visit.meetings:
            meeting.here[visit.agent.name] = visit
            if len(meeting.here) == len(meeting.nodes):
                self.kernel.after(3 * self.kernel.random(), self._gather, meeting)
        self._end_if_done(visit)

    def _gather(self, meeting: Meeting) -> None:
        alive = all(visit.is_alive for visit in meeting.here.values())
        meeting.report = FINE if alive and self.is_sound(meeting.nodes) else FAILED
        if meeting.report is FINE or self.kernel.random() < 0.5:  # else the members wait in vain
            for visit in meeting.here.values():
                self._end_if_done(visit)

    def is_sound(self, nodes: tuple[str, ...]) -> bool:
        """Whether an all-gather of these nodes works."""
        if any(self.suffers(name, Illness.NETWORK) for name in nodes):
            return False
        return not any(frozenset(pair) in self.broken for pair in combinations(nodes, 2))

    def _end_if_done(self, visit: Visit) -> None:
        if all(meeting.report is not None for meeting in visit.meetings):
            self.kernel.after(0.5 * self.kernel.random(), self._end, visit)

    def _end(self, visit: Visit) -> None:
        if not visit.is_alive or self.suffers(visit.agent.name, Illness.STUCK):
            return
        groups = tuple(meeting.report or FAILED for meeting in visit.meetings)
        flops = FLOPS / (4 if self.suffers(visit.agent.name, Illness.SLOW) else 1)
        visit.agent.handle(ProbeEnded(ProbeReport(visit.start.check, visit.self_test, flops, groups)))
