"""What the probes of a health check do and find, as values; a part of ``core/protocol/messages.py``."""

from typing import Annotated

from elasticrun.core.protocol.bounds import (
    CHECKS,
    MAX_SENTENCE,
    PORTS,
    RATES,
    SECONDS,
    Counted,
    Keep,
    Length,
    Name,
    Sentence,
    Text,
)
from elasticrun.dataclass import dataclass

#: The most groups of one probe.
MAX_GROUPS = 64
#: The most nodes in one group of a probe.
MAX_GROUP_NODES = 64
#: The most rows of a health check's table, the worst first.
MAX_CHECKS = 500


@dataclass(frozen=True, slots=True)
class GroupReport:
    """How one all-gather of a probe went, seen from one of its members."""

    error: Sentence = ""  # "" if it was fine
    bandwidth: Annotated[float, RATES] = 0.0  # bytes per second that this node received
    latency: Annotated[float, SECONDS] = 0.0  # seconds for an all-gather of a few bytes
    transport: Sentence = ""  # what carried it, for example gloo; "": unknown


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What one probe of a node found."""

    check: Annotated[int, CHECKS]  # the number of the probe, as the master gave it
    error: Text = ""  # of the self test: what is wrong with this node by itself; "" if nothing is
    matmul_flops: Annotated[float, RATES] = 0.0  # floating point operations per second
    # In the order in which they were asked for.
    groups: Annotated[tuple[GroupReport, ...], Length(MAX_GROUPS)] = ()
    engine: Sentence = ""  # what multiplied, for example torch/cpu; "": unknown


@dataclass(frozen=True, slots=True)
class ProbeGroup:
    """One all-gather that a node takes part in."""

    slot: Counted  # when it runs: the same for all its members, which may be idle in other slots
    rank: Counted  # of this node in ``nodes``
    nodes: Annotated[tuple[Name, ...], Length(MAX_GROUP_NODES)]
    address: Name  # where rank 0 listens
    port: Annotated[int, PORTS]

    def contradiction(self) -> str:
        """A contradiction in the rank, as a sentence; "" if there is none."""
        size = len(self.nodes)
        return "" if self.rank < size else f"rank must be in a world of {size}, got {self.rank}"


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """What the health check found out about one node, for a table."""

    node: Annotated[str, Length(MAX_SENTENCE, least=1, keep=Keep.HEAD)]
    matmul_flops: Annotated[float, RATES]  # per second; 0.0: unknown
    bandwidth: Annotated[float, RATES]  # bytes per second; 0.0: unknown
    latency: Annotated[float, SECONDS]  # seconds; 0.0: unknown
    verdict: Sentence  # one word
    detail: Sentence = ""
    engine: Sentence = ""  # what multiplied, and what carried the all-gather
