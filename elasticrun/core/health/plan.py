"""Which nodes are probed together: the evidence of a health check, and its next step.

A check has at most two steps. In each, a node tests itself and then takes part in all-gathers with other
nodes, one *slot* after the other; the groups of one slot are disjoint, so that no node is in two places.

*Step 1* puts the nodes in pairs, an odd number in pairs and one group of three, and a single node in no
group. If every self test and every group was fine, that is all. A failed group does not say which of its
members is at fault, nor whether it is the link between them.

*Step 2* therefore lets every suspect (a node that no working group has proven good, and whose fault its own
report does not show already) meet two different nodes that are known good: two, because
``core/health/verdicts.py`` condemns on no fewer witnesses. With h nodes known good and u suspects this takes
max(2, ceil(2u/h)) slots, and no helper serves more than one suspect more than another does. Where that would
be more than MAX_SLOTS slots, the first h * MAX_SLOTS / 2 suspects get their helpers, and the others are cut
into *blocks* of at most BLOCK nodes, in which everybody meets everybody. If fewer than two nodes are known
good, all suspects are in blocks, together with helpers that were good earlier (``trusted``), two for each
block as far as they go. A block needs at most BLOCK - 1 slots and is resolved if two of its nodes are good:
they meet, and both then are witnesses against the others. No plan with as many slots does better against the
worst case: of n nodes that meet at most d others each, n/(d + 1) can always be chosen of which no two meet
(Turán). A pair that failed in step 1 meets once more, and now the other one listens: one of the two may
only have been late, and was known to be good by nobody.

Nodes that are gone by then take no part in step 2.

*What step 2 settles.* Let f of N nodes be faulty, each failing every group it is in, and all links be sound.
Then every faulty node is condemned and every other one proven good if

- 3 <= N <= BLOCK and f <= N - 2. If no group of step 1 worked, all suspects are in one block, where two
  good ones meet. Else h >= 2 and u <= 6, so 2u <= MAX_SLOTS * h: every suspect meets two nodes known good.
- N > BLOCK and f <= (4N - 5) / 10. A faulty node spoils one group, so u <= 2f + 1 and h >= N - 2f - 1
  (the ones are for the group of three), whence h >= N / 5, that is h >= 2, and again 2u <= MAX_SLOTS * h.

*Slow nodes.* Nodes whose speed is in doubt (``core/health/slowness.py`` says which) take part in step 2 to
measure themselves once more, even if they are in no group.

*Time.* A faulty node may hold up its partner until the end of their slot, and the partner of the next slot
waits meanwhile. So a group must be given up at a time that depends on its slot alone, the same for everybody
and counted from the start of the step, and not after so many seconds of its own: else a good
node that comes late from a faulty one fails with the next one as well.

With N = 2 there is no third node to ask. If both self tests are fine and the group failed, step 2 only
repeats it, which acquits both if the failure was temporary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest

from elasticrun.core.health.slowness import to_measure_again
from elasticrun.core.protocol.messages import MAX_SUMMARY_TEXT, GroupReport, ProbeReport

#: Names of the nodes of one all-gather; the first one listens.
Group = tuple[str, ...]
#: Disjoint groups, whose all-gathers may run at the same time.
Slot = tuple[Group, ...]
#: What each node of a step reported; None, or no entry, if it was lost or ran out of time.
Reports = Mapping[str, ProbeReport | None]

#: The most slots of any step, hence the most groups of one node.
MAX_SLOTS = 8
#: The most nodes in a block, in which everybody meets everybody.
BLOCK = 8
#: How many nodes known good each suspect meets, and how many must speak against a node to condemn it.
WITNESSES = 2
STEPS = 2


@dataclass(frozen=True)
class Step:
    """One round of probes: the nodes that test themselves, and the groups of each slot."""

    nodes: Group
    slots: tuple[Slot, ...] = ()

    def groups_of(self, node: str) -> tuple[Group, ...]:
        """The groups of ``node`` in the order of their slots, which is the order of its report."""
        return tuple(group for _, group in self._places.get(node, ()))

    def slots_of(self, node: str) -> tuple[int, ...]:
        """The numbers of the slots of these groups, from 0, in the same order."""
        return tuple(slot for slot, _ in self._places.get(node, ()))

    @cached_property
    def _places(self) -> dict[str, list[tuple[int, Group]]]:
        found: dict[str, list[tuple[int, Group]]] = {}
        for number, slot in enumerate(self.slots):
            for group in slot:
                for node in group:
                    found.setdefault(node, []).append((number, group))
        return found


@dataclass(frozen=True)
class Meeting:
    """One all-gather as all its members saw it. It worked only if every one of them says so."""

    nodes: Group
    reports: tuple[GroupReport, ...]  # in the order of ``nodes``

    @property
    def error(self) -> str:
        """The first member's error, "" if the all-gather worked."""
        return next((report.error for report in self.reports if report.error), "")

    @property
    def bandwidth(self) -> float:
        """Bytes per second that the slowest member received; 0.0 if unknown."""
        return min(report.bandwidth for report in self.reports)

    @property
    def transport(self) -> str:
        """What carried it; "" if unknown."""
        return next((report.transport for report in self.reports if report.transport), "")

    def others(self, node: str) -> Group:
        """The members except ``node``."""
        return tuple(member for member in self.nodes if member != node)


@dataclass(frozen=True)
class Evidence:
    """The steps of one check that have ended, with their reports. Immutable; ``after`` gives the next one."""

    steps: tuple[tuple[Step, Reports], ...] = ()

    def after(self, step: Step, reports: Reports) -> Evidence:
        """This evidence, with the reports of ``step``."""
        return Evidence((*self.steps, (step, reports)))

    @cached_property
    def nodes(self) -> Group:
        """Every node that took part, in order of appearance."""
        return tuple(dict.fromkeys(node for step, _ in self.steps for node in step.nodes))

    @cached_property
    def own_faults(self) -> dict[str, str]:
        """The nodes whose fault shows without any group, and what is wrong with each."""
        found: dict[str, str] = {}
        for step, reports in self.steps:
            for node in step.nodes:
                if (report := reports.get(node)) is None:
                    found.setdefault(node, "it never reported how its probe ended")
                elif report.error:
                    found.setdefault(node, f"its self test failed: {short(report.error)}")
        return found

    @cached_property
    def computed(self) -> dict[str, ProbeReport]:
        """The report with the best matmul result of each node that has one."""
        best: dict[str, ProbeReport] = {}
        for step, reports in self.steps:
            for node in step.nodes:
                report = reports.get(node)
                if report is not None and report.matmul_flops > best.get(node, ProbeReport(0)).matmul_flops:
                    best[node] = report
        return best

    @cached_property
    def meetings(self) -> tuple[Meeting, ...]:
        """Every all-gather, in order of slots."""
        return tuple(meeting for step, reports in self.steps for meeting in _meetings(step, reports))

    @cached_property
    def proven(self) -> Group:
        """The nodes known good: a group of theirs worked, and they show no fault of their own."""
        worked = {node for meeting in self.meetings if not meeting.error for node in meeting.nodes}
        return tuple(node for node in self.nodes if node in worked and node not in self.own_faults)

    @cached_property
    def suspects(self) -> Group:
        """The nodes that were in groups, none of which worked, and that show no fault of their own."""
        return self.suspects_without(())

    def suspects_without(self, gone: Collection[str]) -> Group:
        """The suspects that are not ``gone``.

        Nodes whose whole group is suspect come first, side by side with the rest of it.
        """
        cleared = {*self.proven, *self.own_faults, *gone}
        first: dict[str, None] = {}
        rest: dict[str, None] = {}
        for meeting in self.meetings:
            doubtful = [node for node in meeting.nodes if node not in cleared]
            (first if len(doubtful) == len(meeting.nodes) else rest).update(dict.fromkeys(doubtful))
        return tuple({**first, **rest})


def first_step(suspects: Sequence[str], trusted: Sequence[str] = ()) -> Step:
    """The first step of a check of ``suspects``: in pairs, with ``trusted`` nodes as far as these go.

    ``trusted`` are nodes that an earlier check found good; each is asked to help at most one suspect.
    """
    names = list(dict.fromkeys(suspects))
    helpers = _without(trusted, names)[: len(names)]
    groups: list[Group] = list(zip(names, helpers, strict=False))
    alone = names[len(helpers) :]
    groups += zip(alone[0::2], alone[1::2], strict=False)
    if len(alone) % 2 and groups:
        groups[-1] += (alone[-1],)
    return Step((*names, *helpers), (tuple(groups),) if groups else ())


def second_step(
    evidence: Evidence, ratio: float, trusted: Sequence[str] = (), gone: Collection[str] = ()
) -> Step | None:
    """The second step, or None if it would not tell anything.

    ``ratio`` is how many times slower than the median a straggler is.
    ``trusted`` are nodes that an earlier check found good. They are asked only if fewer than two nodes have
    proven good in this check, and only those that have not taken part. ``gone`` nodes take no part.
    """
    if len(evidence.steps) != STEPS - 1:
        return None
    suspects, proven = evidence.suspects_without(gone), _without(evidence.proven, gone)
    slots: tuple[Slot, ...] = ()
    if suspects:
        met = {meeting.nodes for meeting in evidence.meetings}
        slots = _plan(suspects, proven, _without(trusted, evidence.nodes), met)
    members = [node for slot in slots for group in slot for node in group]
    unfit = {*evidence.own_faults, *gone}
    sound = {node: report for node, report in evidence.computed.items() if node not in unfit}
    nodes = tuple(dict.fromkeys([*members, *to_measure_again(sound, ratio)]))
    return Step(nodes, slots) if nodes else None


def _plan(
    suspects: Sequence[str], proven: Sequence[str], trusted: Sequence[str], met: set[Group]
) -> tuple[Slot, ...]:
    """Slots in which suspects meet helpers, or one another; ``met`` are the groups of step 1."""
    if len(proven) < WITNESSES:
        blocks = _blocks(suspects, [*proven, *trusted])
        served = 0
    else:
        served = len(proven) * MAX_SLOTS // WITNESSES
        blocks = _blocks(suspects[served:], [])
    visits = _visits(suspects[:served], proven)
    return _merge([visits, *(_tournament(block, met) for block in blocks)])


def _visits(suspects: Sequence[str], helpers: Sequence[str]) -> list[list[Group]]:
    """Slots in which each suspect meets WITNESSES (two) different helpers, who share the work evenly.

    Visit number i is that of suspect i modulo u to helper i modulo h, and a slot is as many visits in a row
    as are disjoint for sure: min(u, h). A suspect's two visits are u apart, so they would go to the same
    helper if h divides u; the second pass over the suspects is then shifted by one helper. It begins with
    a slot of its own in that case, so that a slot is still a run of different helpers.
    """
    width = min(len(suspects), len(helpers))
    slots: list[list[Group]] = []
    for visit in range(WITNESSES * len(suspects)):
        passes, suspect = divmod(visit, len(suspects))
        shift = passes if len(suspects) % len(helpers) == 0 else 0
        if visit % width == 0:
            slots.append([])
        slots[-1].append((suspects[suspect], helpers[(visit + shift) % len(helpers)]))
    return slots


def _blocks(suspects: Sequence[str], helpers: Sequence[str]) -> list[list[str]]:
    """All suspects in blocks of about one size, with two helpers each as far as there are any.

    Cuts are at even places, so that pairs of the first step, which stand side by side, stay together: a block
    has at least two good nodes if each of its pairs has one.
    """
    size = BLOCK - WITNESSES if helpers else BLOCK
    count = -(-len(suspects) // size)
    pairs = len(suspects) // 2
    cuts = [-(-pairs * number // count) * 2 for number in range(count)] + [len(suspects)]
    return [
        [*suspects[cuts[i] : cuts[i + 1]], *helpers[WITNESSES * i : WITNESSES * (i + 1)]]
        for i in range(count)
    ]


def _tournament(players: Sequence[str], met: set[Group]) -> Iterator[list[Group]]:
    """Slots in which each player meets every other one once.

    Of a pair that ``met`` in step 1, now the other one listens.

    The usual circle: one seat is fixed, the others move by one place. The first slot pairs the players that
    stand side by side.
    """
    seats: list[str | None] = [*players, *([None] if len(players) % 2 else [])]
    ring = seats[0::2] + seats[1::2][::-1]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        yield [(b, a) if (a, b) in met else (a, b) for a, b in pairs if a is not None and b is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _merge(plans: Sequence[Iterator[list[Group]] | list[list[Group]]]) -> tuple[Slot, ...]:
    """The plans of disjoint sets of nodes, side by side; slots that are empty are left out."""
    slots = (tuple(chain.from_iterable(slot)) for slot in zip_longest(*plans, fillvalue=()))
    return tuple(slot for slot in slots if slot)


def _meetings(step: Step, reports: Reports) -> Iterator[Meeting]:
    """What the members of each group of ``step`` said of it."""
    taken: dict[str, int] = {}
    for group in chain.from_iterable(step.slots):
        told = []
        for node in group:
            index = taken.setdefault(node, 0)
            taken[node] += 1
            told.append(_told(node, reports.get(node), index))
        yield Meeting(group, tuple(told))


def _told(node: str, report: ProbeReport | None, index: int) -> GroupReport:
    """The report of ``node`` on its group number ``index``; a missing one is an error as well."""
    if report is None:
        return GroupReport(error=f"{node} never reported")
    if index >= len(report.groups):
        return GroupReport(error=f"the probe of {node} ended before this all-gather")
    return report.groups[index]


def _without(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """``names`` in order, each once, without those of ``taken``."""
    excluded = set(taken)
    return [name for name in dict.fromkeys(names) if name not in excluded]


def short(error: str) -> str:
    """The first line of an error, cut to what fits in a sentence."""
    return error.partition("\n")[0][:MAX_SUMMARY_TEXT]
