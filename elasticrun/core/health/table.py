"""The table of a health check: a row for each node that took part, with its measurements and its verdict."""

from __future__ import annotations

from collections.abc import Mapping

from elasticrun.core.health.plan import Evidence
from elasticrun.core.health.verdicts import Verdict
from elasticrun.core.protocol.messages import MAX_CHECKS, GroupReport, NodeCheck, ProbeReport


def check_table(evidence: Evidence, verdict: Verdict) -> tuple[NodeCheck, ...]:
    """The rows of the table, the worst first; at most MAX_CHECKS."""
    words: dict[str, tuple[str, str]] = {}
    for link in (*verdict.slow_links, *verdict.bad_links):
        words.update(dict.fromkeys(link.nodes, ("good", link.reason)))
    for word, findings in (
        ("straggler", verdict.stragglers),
        ("undecided", verdict.undecided),
        ("faulty", verdict.faulty),
    ):
        words.update({found.node: (word, found.reason) for found in findings})
    words.update(dict.fromkeys(verdict.gone, ("gone", "it left, or was lost, before it was judged")))
    groups = _worked(evidence)
    rows = [_row(node, evidence.computed, groups, words.get(node, ("good", ""))) for node in evidence.nodes]
    order = ("faulty", "undecided", "gone", "straggler", "good")
    return tuple(sorted(rows, key=lambda row: (order.index(row.verdict), not row.detail))[:MAX_CHECKS])


def _row(
    node: str,
    computed: Mapping[str, ProbeReport],
    groups: Mapping[str, list[GroupReport]],
    words: tuple[str, str],
) -> NodeCheck:
    own = computed.get(node, ProbeReport(0))
    worked = groups.get(node, [])
    best = max(worked, key=lambda report: report.bandwidth, default=GroupReport())
    return NodeCheck(
        node=node,
        matmul_flops=own.matmul_flops,
        bandwidth=best.bandwidth,
        latency=min((report.latency for report in worked if report.latency), default=0.0),
        verdict=words[0],
        detail=words[1],
        engine=" ".join(filter(None, (own.engine, best.transport))),
    )


def _worked(evidence: Evidence) -> dict[str, list[GroupReport]]:
    """Each node's reports on its groups that worked."""
    found: dict[str, list[GroupReport]] = {}
    for meeting in evidence.meetings:
        if not meeting.error:
            for node, report in zip(meeting.nodes, meeting.reports, strict=True):
                found.setdefault(node, []).append(report)
    return found
