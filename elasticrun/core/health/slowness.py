"""Which nodes compute slowly, compared with which others, and which are measured again before that is said.

Compute is compared with the upper median, so that of two nodes the slower one is compared with the faster.
Only what was measured in the same way is compared: plain Python's products say nothing about torch's; so each
engine has a median of its own.

Noise slows a node down, and hardly ever speeds it up (by TOLERANCE at most, see ``probe/compute.py``), so the
fastest of several measurements is nearest to the truth. So a measurement may be wrong in two ways only, and
the nodes that may be involved measure again. *A node seems slow*, because it was held up; it measures again,
if it would be called slow. *A slow node does not seem slow*, because the median was held up. Half of many
nodes are not held up at the same moment, but one or two of a few are; so if any of at most FEW nodes is near
to being slow, all of them measure again. Near is half way from equal to slow: a node at half speed does not
seem even that only if the node that it is compared with is held up for almost a third of its time, in all its
measurements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elasticrun.core.protocol.messages import ProbeReport

#: By how much a measurement may be off, as a share: a node at half speed may seem only 1.8 times slower.
TOLERANCE = 0.1
#: The most nodes of one engine that all measure again.
FEW = 8


def slowness_allowed(ratio: float) -> float:
    """How many times slower than the median a node must be to be a straggler.

    It is ``ratio`` less TOLERANCE, but lowered at most half way to 1: no node is slower than itself.
    """
    return max(ratio * (1 - TOLERANCE), (1 + ratio) / 2)


def usual(measured: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The upper median of the values measured in each way; ``measured`` has pairs of way and value."""
    found: dict[str, list[float]] = {}
    for how, value in measured:
        found.setdefault(how, []).append(value)
    return {how: _upper_median(values) for how, values in found.items()}


def times_slower(computed: Mapping[str, ProbeReport]) -> dict[str, float]:
    """How many times slower than the median of its engine each node computes."""
    median = usual((report.engine, report.matmul_flops) for report in computed.values())
    return {node: median[report.engine] / report.matmul_flops for node, report in computed.items()}


def to_measure_again(computed: Mapping[str, ProbeReport], ratio: float) -> tuple[str, ...]:
    """The nodes whose next measurement may change which are slow; ``ratio`` is that of a straggler."""
    allowed = slowness_allowed(ratio)
    near = (1 + allowed) / 2
    times = times_slower(computed)
    again: set[str] = set()
    by_engine: dict[str, list[str]] = {}
    for node, report in computed.items():
        by_engine.setdefault(report.engine, []).append(node)
    for alike in by_engine.values():
        if len(alike) > FEW:
            again.update(node for node in alike if times[node] >= allowed)
        elif any(times[node] >= near for node in alike):
            again.update(alike)
    return tuple(node for node in computed if node in again)


def _upper_median(values: Iterable[float]) -> float:
    """The median; the larger one of the two in the middle. (``statistics`` would import ``random``.)"""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
