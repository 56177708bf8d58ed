"""One health check while it runs, and what the job remembers of the checks before it.

A check is a sequence of at most two probes, numbered over the whole job so that a late report of an earlier
probe is not taken for one of this. A node has answered a probe once it is READY again and its status carries
that probe's report; a node that does not answer in time has answered nothing, which counts against it.

A node that leaves, or is lost, has answered nothing either, so it is no witness. But it is not judged: it is
not there. A node that comes back under its name, perhaps at once, has only lost its stream, or is another
incarnation. It has to be checked anew. So has one that hears of a probe so late, because its master was away
or out of reach, that the others may have given it up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from elasticrun.config import HealthConfig
from elasticrun.core.health.plan import Evidence, first_step, second_step
from elasticrun.core.health.table import check_table
from elasticrun.core.health.verdicts import NodeFinding, Verdict, judge
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.messages import AgentPhase, NodeCheck, ProbeGroup, ProbeReport
from elasticrun.dataclass import dataclass

#: The meeting place of a group whose first member is gone: nothing answers there.
GONE = ("127.0.0.1", 0)

#: The most hosts of suspects that are remembered: a stranger may name any.
MAX_HOSTS = 10_000

#: How late a node may begin a probe, as a share of the time of one slot: the others wait for it as long.
LATENESS = 0.5

#: Phases of a node that could take part.
IDLE = frozenset({AgentPhase.PREPARING, AgentPhase.READY, AgentPhase.CHECKING})


class Checkup:
    """A check in progress."""

    def __init__(self, number: int, suspects: Sequence[str], trusted: Sequence[str]) -> None:
        self.number = number  # of the probe that runs
        self.step = first_step(suspects, trusted)
        self.pending = set(self.step.nodes)
        self._places: dict[str, tuple[str, int]] = {}  # address and port of each node that others meet
        self._reports: dict[str, ProbeReport | None] = {}
        self.gone: set[str] = set()  # nodes that left, were lost, or came too late, since it began
        self._latest = math.inf  # until when a node may hear of this probe, in seconds of the master's clock
        self._evidence = Evidence()

    def meet(self, nodes: Mapping[str, Node], now: float, timeout: float) -> None:
        """Set where the groups of this probe meet: only READY nodes offer ports. It begins now.

        ``timeout`` is how many seconds it may take.
        Called once per probe, so that a member that hears of it late goes to the same place.
        """
        hosts = {group[0] for slot in self.step.slots for group in slot}
        self._places = {
            name: (nodes[name].info.address, nodes[name].status.store_port) for name in hosts if name in nodes
        }
        slots = len(self.step.slots)
        self._latest = now + timeout / (slots + 1) * LATENESS if slots else math.inf

    def hear(self, node: Node) -> None:
        """Take in a node's new status."""
        name, probe = node.info.node, node.status.probe
        if name in self.pending and node.status.phase not in IDLE:
            self.lose(name)  # it followed another master meanwhile, to a round that has to stop first
        elif name in self.pending and self._has_answered(node) and node.status.phase is AgentPhase.READY:
            self._answer(name, probe)

    def interrupt(self) -> None:
        """Note that the master was away, nobody knows for how long: it is too late to begin this probe."""
        self._latest = -math.inf

    def hear_again(self, node: Node, now: float) -> None:
        """Take in that a node has come back: it is lost to this probe if it would begin it too late."""
        begins = node.status.phase in IDLE - {AgentPhase.CHECKING} and not self._has_answered(node)
        if node.info.node in self.pending and begins and now > self._latest:
            self.lose(node.info.node)

    def _has_answered(self, node: Node) -> bool:
        return node.status.probe is not None and node.status.probe.check == self.number

    def lose(self, name: str) -> None:
        """Note that a node is gone."""
        self.gone.add(name)
        if name in self.pending:
            self._answer(name, None)

    def involves(self, name: str) -> bool:
        """Whether a node has answered this probe, or has to; not if it was lost and is back."""
        return name in self.pending or (name in self._reports and name not in self.gone)

    def give_up(self) -> None:
        """End this probe: a node that has not answered has no report."""
        for name in sorted(self.pending):
            self._answer(name, None)

    def _answer(self, name: str, report: ProbeReport | None) -> None:
        self.pending.discard(name)
        self._reports[name] = report

    def go_on(self, number: int, ratio: float, trusted: Sequence[str]) -> bool:
        """Begin the next probe after all have answered. Returns whether there is one.

        ``ratio`` is how many times slower than the median a straggler is; ``trusted`` nodes may help.
        """
        self._evidence = self._evidence.after(self.step, self._reports)
        step = second_step(self._evidence, ratio, trusted, self.gone)
        if step is None:
            return False
        self.step = step
        self.number = number
        self.pending = set(step.nodes)
        self._reports = {}
        return True

    def judge(self, ratio: float) -> tuple[Verdict, tuple[NodeCheck, ...]]:
        """The verdict of the whole check, and its table."""
        verdict = judge(self._evidence, ratio, self.gone)
        return verdict, check_table(self._evidence, verdict)

    def groups_of(self, name: str) -> tuple[ProbeGroup, ...]:
        """The groups of one node in this probe; each group meets at its first member."""
        return tuple(
            ProbeGroup(slot, group.index(name), group, *self._places.get(group[0], GONE))
            for slot, group in zip(self.step.slots_of(name), self.step.groups_of(name), strict=True)
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows from a check."""

    summary: str
    passed: bool  # every node was judged, and nothing found counts as a fault
    excluded: tuple[NodeFinding, ...]
    open_question: str  # what the check could not tell, in a sentence; "" if a node was faulty or gone
    lines: tuple[str, ...]  # for all users
    table: tuple[NodeCheck, ...]


@dataclass(slots=True)
class HealthBook:
    """What is known of the nodes' health. Names leave it when their node does.

    What made a node suspect may be a fault of its host, which outlasts the agent. So the hosts of suspects
    that are gone are remembered, and a node that comes from one is suspect, until a node there has passed a
    check.
    """

    trusted: set[str] = field(default_factory=set)  # passed their last check
    suspects: set[str] = field(default_factory=set)  # have to be checked before they work again
    doubtful: dict[str, str] = field(default_factory=dict)  # the check could not tell, and why
    hosts: set[str] = field(default_factory=set)  # of suspects that are gone

    def suspect(self, name: str) -> None:
        """Note that an event speaks against a node."""
        self.trusted.discard(name)
        self.suspects.add(name)

    def arrive(self, name: str, host: str) -> None:
        """Suspect a node that became ready if its host is suspect, or if a check left a question open."""
        is_wanted = self.doubtful or host in self.hosts
        if is_wanted and name not in self.trusted and name not in self.doubtful:
            self.suspects.add(name)

    def forget(self, name: str, host: str) -> None:
        """Forget a node, but not the host of one that was suspect or doubtful."""
        if (name in self.suspects or name in self.doubtful) and len(self.hosts) < MAX_HOSTS:
            self.hosts.add(host)
        self.trusted.discard(name)
        self.suspects.discard(name)
        self.doubtful.pop(name, None)

    def conclude(self, check: Checkup, config: HealthConfig, present: Mapping[str, Node]) -> Judgement:
        """Take over what a check found, and say what follows; ``present`` are the nodes there now."""
        verdict, table = check.judge(config.straggler_ratio)
        for name in verdict.good:
            self.doubtful.pop(name, None)
        self.doubtful |= {found.node: found.reason for found in verdict.undecided}
        self.trusted.update(verdict.good)
        self.hosts.difference_update(present[name].info.host for name in verdict.good)
        self.trusted.difference_update(self.doubtful)  # a helper may have failed as well
        self.suspects.difference_update(verdict.good, self.doubtful)
        for name in verdict.gone:
            if name in present:
                self.suspect(name)
        stragglers = verdict.stragglers if config.exclude_stragglers else ()
        doubt = "; ".join(f"{found.node}: {found.reason}" for found in verdict.undecided[:1])
        faults = (verdict.faulty, verdict.undecided, verdict.gone, verdict.bad_links, stragglers)
        return Judgement(
            summary=verdict.summary,
            passed=not any(faults),
            excluded=(*verdict.faulty, *stragglers),
            open_question="" if verdict.faulty or verdict.gone else doubt,
            lines=tuple(_lines(verdict)),
            table=table,
        )


def _lines(verdict: Verdict) -> Iterable[str]:
    """All findings of a check except the faulty nodes: each exclusion is told by itself."""
    for found in verdict.stragglers:
        yield f"{found.node} is slow: {found.reason}"
    for found in verdict.undecided:
        yield f"{found.node} does not take part: {found.reason}"
    for link in (*verdict.bad_links, *verdict.slow_links):
        yield link.reason
    if verdict.engines:
        yield verdict.engines
