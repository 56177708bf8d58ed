"""Simulated nodes and links for the health check: which of them are faulty or slow, and what they report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from elasticrun.core.health.plan import Evidence, Reports, Step, first_step, second_step
from elasticrun.core.health.verdicts import Verdict, judge
from elasticrun.core.protocol.messages import GroupReport, ProbeReport

FLOPS = 1e12
BANDWIDTH = 10e9
RATIO = 2.0  # how many times slower than the median a straggler is
KINDS = ("broken", "crooked", "dead", "silent")


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(count))


def link(a: str, b: str) -> frozenset[str]:
    return frozenset((a, b))


@dataclass(frozen=True)
class Fleet:
    """Nodes with their faults, the same in every step."""

    broken: frozenset[str] = frozenset()  # the self test fails, and the probe ends there
    crooked: frozenset[str] = frozenset()  # the self test fails, but all-gathers work
    dead: frozenset[str] = frozenset()  # the self test is fine, every group fails
    silent: frozenset[str] = frozenset()  # never reports, and every group fails
    cut: frozenset[frozenset[str]] = frozenset()  # links that are broken
    slow: tuple[tuple[str, float], ...] = ()  # how many times slower a node computes
    slow_links: tuple[tuple[frozenset[str], float], ...] = ()
    one_sided: bool = False  # only the last member of a failed group sees the failure

    @property
    def faulty(self) -> frozenset[str]:
        return self.broken | self.crooked | self.dead | self.silent

    def reports(self, step: Step) -> Reports:
        return {node: self.report(step, node) for node in step.nodes}

    def report(self, step: Step, node: str) -> ProbeReport | None:
        if node in self.silent:
            return None
        flops = FLOPS / dict(self.slow).get(node, 1.0)
        if node in self.broken:
            return ProbeReport(1, error="matmul gave a wrong result", matmul_flops=flops)
        groups = tuple(self.group(group, node) for group in step.groups_of(node))
        return ProbeReport(1, "wrong sum" if node in self.crooked else "", flops, groups)

    def group(self, group: Sequence[str], node: str) -> GroupReport:
        links = {link(a, b) for a in group for b in group if a != b}
        if links & self.cut or not (self.broken | self.dead | self.silent).isdisjoint(group):
            seen = not self.one_sided or node == group[-1]
            return GroupReport(error=f"{node} saw no answer") if seen else GroupReport("", BANDWIDTH, 1e-4)
        slower = max([dict(self.slow_links).get(it, 1.0) for it in links])
        return GroupReport("", BANDWIDTH / slower / (len(group) - 1), 1e-4)

    def check(self, suspects: Sequence[str], trusted: Sequence[str] = (), ratio: float = RATIO) -> Evidence:
        """A whole check, as a master would run it."""
        step = first_step(suspects, trusted)
        evidence = Evidence().after(step, self.reports(step))
        following = second_step(evidence, ratio, trusted)
        return evidence if following is None else evidence.after(following, self.reports(following))

    def verdict(self, suspects: Sequence[str], trusted: Sequence[str] = ()) -> Verdict:
        return judge(self.check(suspects, trusted))


def afflicted(
    kinds: Mapping[str, str], cut: Collection[frozenset[str]] = (), one_sided: bool = False
) -> Fleet:
    """A fleet with a fault of the given kind, one of KINDS, for each node."""
    by_kind = {kind: frozenset(node for node in kinds if kinds[node] == kind) for kind in KINDS}
    return Fleet(
        broken=by_kind["broken"],
        crooked=by_kind["crooked"],
        dead=by_kind["dead"],
        silent=by_kind["silent"],
        cut=frozenset(cut),
        one_sided=one_sided,
    )


def is_fine(verdict: Verdict) -> bool:
    """Whether there is nothing to report."""
    return verdict == Verdict(verdict.good)


def blamed(verdict: Verdict) -> set[str]:
    return {found.node for found in verdict.faulty}
