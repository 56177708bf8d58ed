"""What a health check found: which nodes and links are faulty or slow, and how sure that is.

Every all-gather is an observation of all its members and the links between them (``core/health/plan.py``
says who meets whom). The rules, by what they need to be right:

- *A node that is gone*, because it left or was lost before the check was over, is neither good nor faulty:
  its probe was cut short. What it had reported before is evidence about others, its silence is not.
- *A node is faulty by itself* if its self test failed, or if it never reported. Needs nothing.
- *A node is good* if a group that it was in worked, as all members of the group say: a node that cannot
  communicate, or whose link to a member is broken, cannot have been among them. A node that was alone is good
  if its self test is.
- *A node is condemned* if every group it was in failed, and at least two of these were pairs with different
  nodes that are good, and were known to be by the end of the pair's step: its *witnesses*. A good node is
  therefore never condemned unless at least two of its own links are broken; faults elsewhere, however many,
  do not add up against it. One broken link can make one witness only, and a group of three none, because it
  may have failed for the link between the two others. Nor is a node a witness of what failed before it proved
  good: it may have come late itself, as one that was frozen for a while does. A helper that proved good and
  is frozen only then counts like a broken link.
- *A link is bad* if a group of only good nodes failed; nobody is excluded for it. Of a group of three one of
  the three links is bad, and it is named if its pair was tried as well.
- Every other node is *undecided*. If both nodes of a job of two pass their self tests but do not reach each
  other, no observation tells either node and the link apart, and the verdict names all three.

``core/health/plan.py`` proves when this names every faulty node. It assumes that a faulty node fails every
group. The rules here do not: a node that works at times is called good, and its failures bad links.

Slow nodes. Compute is compared with the median of all nodes that are neither faulty nor gone; see
``core/health/slowness.py``. As every engine has a median of its own, so has every transport: TCP says nothing
about NCCL.

The bandwidth of a group belongs to all its members, so it is read like a failure: a node is slow if none
of its groups ran at full speed, and two of its slow ones were pairs with different nodes that ran at full
speed elsewhere. Else the group is reported as a slow link, and the members that were not fast elsewhere are
named as possible reasons. The standard is the upper median of all pairs that worked; a group of three, where
the first member may send everything twice, is allowed twice the time and sets no standard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import combinations

from elasticrun.core.health.plan import WITNESSES, Evidence, Group, Meeting, short
from elasticrun.core.health.slowness import slowness_allowed, times_slower, usual
from elasticrun.core.membership.roster import name_some
from elasticrun.dataclass import dataclass

PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What is wrong with a node."""

    node: str
    reason: str  # about "it", without the node's name


@dataclass(frozen=True, slots=True)
class LinkFinding:
    """What is wrong with the link between two nodes, or with one of the links between three."""

    nodes: Group
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What a check found. Each node is in exactly one of ``good``, ``faulty``, ``undecided`` and ``gone``."""

    good: Group
    faulty: tuple[NodeFinding, ...] = ()  # to be excluded
    undecided: tuple[NodeFinding, ...] = ()
    gone: Group = ()
    stragglers: tuple[NodeFinding, ...] = ()  # slow, but not faulty
    bad_links: tuple[LinkFinding, ...] = ()
    slow_links: tuple[LinkFinding, ...] = ()
    engines: str = ""  # a sentence if not all nodes computed with the same engine

    @cached_property
    def summary(self) -> str:
        """One sentence."""
        total = len(self.good) + len(self.faulty) + len(self.undecided)
        parts = [f"{len(self.good)} of {total} checked {'node is' if total == 1 else 'nodes are'} good"]
        for what, nodes in (
            ("faulty", self.faulty),
            ("undecided", self.undecided),
            ("slow", self.stragglers),
        ):
            if nodes:
                parts.append(f"{what}: {name_some([found.node for found in nodes])}")
        if self.gone:
            parts.append(f"gone before they were judged: {name_some(self.gone)}")
        for what, links in (("bad links", self.bad_links), ("slow links", self.slow_links)):
            if links:
                parts.append(f"{what}: {name_some(['-'.join(found.nodes) for found in links])}")
        return "; ".join(parts)


def judge(evidence: Evidence, ratio: float = 2.0, gone: Collection[str] = ()) -> Verdict:
    """The verdict on every node that took part; ``gone`` are those that were not there until the end.

    ``ratio``, above 1, is how many times slower than the median a straggler is; see ``slowness_allowed``.
    """
    found = {**evidence.own_faults, **_condemned(evidence)}
    faulty = {node: reason for node, reason in found.items() if node not in gone}
    unfit = {*faulty, *gone}
    stragglers, slow_links = _slow(evidence, unfit, slowness_allowed(ratio))
    proven = {*evidence.proven, *(evidence.nodes if not evidence.meetings else ())}
    good = tuple(node for node in evidence.nodes if node in proven and node not in unfit)
    return Verdict(
        good=good,
        faulty=tuple(NodeFinding(node, faulty[node]) for node in evidence.nodes if node in faulty),
        undecided=_undecided(evidence, unfit, gone),
        gone=tuple(node for node in evidence.nodes if node in gone),
        stragglers=stragglers,
        bad_links=_bad_links(evidence),
        slow_links=slow_links,
        engines=_engines(evidence),
    )


def _testimonies(evidence: Evidence) -> dict[str, dict[str, str]]:
    """For each suspect, its witnesses and the error of its all-gather with each."""
    suspects, heard = set(evidence.suspects), 0
    found: dict[str, dict[str, str]] = {}
    for until in (*(Evidence(evidence.steps[:number]) for number in range(1, len(evidence.steps))), evidence):
        proven = {*evidence.proven} & {*until.proven}
        for meeting in until.meetings[heard:]:
            for node in meeting.nodes:
                others = meeting.others(node)
                if node in suspects and len(others) == 1 and others[0] in proven:
                    found.setdefault(node, {})[others[0]] = meeting.error
        heard = len(until.meetings)
    return found


def _condemned(evidence: Evidence) -> dict[str, str]:
    """The suspects against whom there are enough witnesses, and why."""
    return {
        node: f"no all-gather with it worked, also not with {name_some(list(told))}, "
        f"which are good: {short(next(iter(told.values())))}"
        for node, told in _testimonies(evidence).items()
        if len(told) >= WITNESSES
    }


def _undecided(evidence: Evidence, unfit: Collection[str], gone: Collection[str]) -> tuple[NodeFinding, ...]:
    """The suspects that are not ``unfit`` (condemned, or ``gone``), each with what can be said."""
    told = _testimonies(evidence)
    doubtful: dict[str, dict[str, str]] = {node: {} for node in evidence.suspects if node not in unfit}
    for meeting in evidence.meetings:
        for node in meeting.nodes:
            if node in doubtful:
                excused = any(other in unfit for other in meeting.others(node))
                for other in () if excused else meeting.others(node):
                    doubtful[node].setdefault(other, meeting.error)
    return tuple(
        NodeFinding(node, _doubt(told.get(node, {}), doubtful[node], bool(gone)))
        for node in evidence.nodes
        if node in doubtful
    )


def _doubt(witnesses: Mapping[str, str], failed_with: Mapping[str, str], some_are_gone: bool) -> str:
    """Why a node is undecided; ``failed_with`` has the errors of its groups without an unfit node."""
    if not failed_with:
        unfit = "faulty itself, or gone" if some_are_gone else "faulty itself"
        return f"its self test is fine, but every node that it was to reach is {unfit}"
    error = short(next(iter(failed_with.values())))
    if witnesses:
        witness = next(iter(witnesses))
        return (
            f"its all-gather with {witness}, which is good, failed, and no second node known to be good "
            f"tried: it is at fault, or its link to {witness} ({error})"
        )
    names = name_some(list(failed_with))
    if len(failed_with) == 1:
        return (
            f"its self test and that of {names} are fine, but no all-gather between them worked: "
            f"it is at fault, or {names}, or the link between them ({error})"
        )
    return (
        f"its self test is fine, but no all-gather with {names} worked, none of which is known to be good: "
        f"it is at fault, or they are, or the links between them ({error})"
    )


def _bad_links(evidence: Evidence) -> tuple[LinkFinding, ...]:
    """Failed groups of only good nodes; a group of three only if none of its pairs is a bad link."""
    proven = set(evidence.proven)
    failed: dict[frozenset[str], Meeting] = {}
    worked: set[frozenset[str]] = set()
    for meeting in evidence.meetings:
        if not meeting.error:
            worked.add(frozenset(meeting.nodes))
        elif proven.issuperset(meeting.nodes):
            failed.setdefault(frozenset(meeting.nodes), meeting)
    bad_pairs = {names for names in failed if len(names) == 2}
    return tuple(
        LinkFinding(meeting.nodes, _link_reason(meeting, worked))
        for names, meeting in failed.items()
        if names in bad_pairs or not _pairs(meeting.nodes) & bad_pairs
    )


def _pairs(nodes: Group) -> set[frozenset[str]]:
    """The pairs among a few nodes."""
    return {frozenset(pair) for pair in combinations(nodes, 2)}


def _link_reason(meeting: Meeting, worked: set[frozenset[str]]) -> str:
    names = _all_of(meeting.nodes)
    error = short(meeting.error)
    if _pairs(meeting.nodes) <= worked:
        return f"the all-gather between {names} failed, but worked when it was tried again ({error})"
    one_of = "the link" if len(meeting.nodes) == 2 else "one of the links"
    return f"{one_of} between {names} is bad: their all-gather failed, but each works with others ({error})"


def _engines(evidence: Evidence) -> str:
    """Which nodes computed with which engine, if that is not the same for all."""
    found: dict[str, list[str]] = {}
    for node, report in evidence.computed.items():
        found.setdefault(report.engine or "unknown", []).append(node)
    if len(found) < 2:
        return ""
    told = "; ".join(f"{engine}: {name_some(nodes)}" for engine, nodes in found.items())
    return (
        f"the nodes compute with different engines, and speeds were compared only within one engine ({told})"
    )


def _slow(
    evidence: Evidence, unfit: Collection[str], allowed: float
) -> tuple[tuple[NodeFinding, ...], tuple[LinkFinding, ...]]:
    """The stragglers, and the slow links that they do not explain."""
    reasons = _slow_compute(evidence, unfit, allowed)
    network, links = _slow_network(evidence, unfit, allowed)
    for node, reason in network.items():
        reasons[node] = f"{reasons[node]}; {reason}" if node in reasons else reason
    return tuple(NodeFinding(node, reasons[node]) for node in evidence.nodes if node in reasons), links


def _slow_compute(evidence: Evidence, unfit: Collection[str], allowed: float) -> dict[str, str]:
    computed = {node: report for node, report in evidence.computed.items() if node not in unfit}
    return {
        node: f"its matmul is {times:.1f} times slower than the median "
        f"({_portion(computed[node].matmul_flops, computed[node].matmul_flops * times, 'FLOP/s')})"
        for node, times in times_slower(computed).items()
        if times >= allowed
    }


def _slow_network(
    evidence: Evidence, unfit: Collection[str], allowed: float
) -> tuple[dict[str, str], tuple[LinkFinding, ...]]:
    measured = [
        meeting
        for meeting in evidence.meetings
        if not meeting.error and meeting.bandwidth > 0 and not any(node in unfit for node in meeting.nodes)
    ]
    median = usual((meeting.transport, meeting.bandwidth) for meeting in measured if len(meeting.nodes) == 2)
    slow: list[Meeting] = []
    fast: set[str] = set()
    for meeting in measured:
        if meeting.transport not in median:
            continue
        if median[meeting.transport] / (meeting.bandwidth * (len(meeting.nodes) - 1)) >= allowed:
            slow.append(meeting)
        else:
            fast.update(meeting.nodes)
    nodes = {node: _least_slow(told, median) for node, told in _slow_nodes(slow, fast).items()}
    reasons = {node: f"its network is {_slowness(meeting, median)}" for node, meeting in nodes.items()}
    links = (meeting for meeting in slow if not any(node in nodes for node in meeting.nodes))
    return reasons, tuple(LinkFinding(it.nodes, _slow_reason(it, fast, median)) for it in links)


def _slow_nodes(slow: Iterable[Meeting], fast: set[str]) -> dict[str, list[Meeting]]:
    """Nodes that were never fast, and slow with two nodes that were fast elsewhere; with these groups."""
    told: dict[str, dict[str, Meeting]] = {}
    for meeting in slow:
        for node in meeting.nodes:
            others = meeting.others(node)
            if node not in fast and len(others) == 1 and others[0] in fast:
                told.setdefault(node, {})[others[0]] = meeting
    return {node: list(groups.values()) for node, groups in told.items() if len(groups) >= WITNESSES}


def _least_slow(meetings: Iterable[Meeting], median: Mapping[str, float]) -> Meeting:
    return max(meetings, key=lambda meeting: meeting.bandwidth / median[meeting.transport])


def _slowness(meeting: Meeting, median: Mapping[str, float]) -> str:
    standard = median[meeting.transport]
    return (
        f"{standard / meeting.bandwidth:.1f} times slower than the median "
        f"({_portion(meeting.bandwidth, standard, 'B/s')})"
    )


def _slow_reason(meeting: Meeting, fast: set[str], median: Mapping[str, float]) -> str:
    names = _all_of(meeting.nodes)
    possible = [node for node in meeting.nodes if node not in fast]
    at_fault = " or ".join([*possible, "the link" if len(meeting.nodes) == 2 else "one of the links"])
    return (
        f"the all-gather between {names} is {_slowness(meeting, median)}, for which {at_fault} is the reason"
    )


def _all_of(names: Group) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def _portion(value: float, whole: float, unit: str) -> str:
    """``value`` of ``whole``, both with the prefix that suits ``whole``."""
    size, prefix = next((it for it in PREFIXES if whole >= it[0]), PREFIXES[-1])
    return f"{value / size:.3g} of {whole / size:.3g} {prefix}{unit}"
