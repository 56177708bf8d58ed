"""What ``elastic-ctl`` asks of a running job, as values.

An order is obeyed only if it comes with a proof that the sender knows the job's token; a job without a
token obeys nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticrun.config import TaskRole


@dataclass(frozen=True, slots=True)
class ControlHello:
    """First message of somebody who wants to steer the job."""

    job_id: str
    version: str
    nonce: bytes = b""
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class ShowStatus:
    """Who is there, and what the job does."""


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Let a node leave with grace."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScaleJob:
    """Run with another number of nodes."""

    min_nodes: int
    max_nodes: int


@dataclass(frozen=True, slots=True)
class ScaleRole:
    """Run another number of a TensorFlow job's parameter servers, or of the workers that they serve."""

    role: TaskRole
    count: int


@dataclass(frozen=True, slots=True)
class SaveAllStacks:
    """Have every node save the stacks of its workers."""


ControlRequest = ShowStatus | DrainNode | ScaleJob | ScaleRole | SaveAllStacks


@dataclass(frozen=True, slots=True)
class ControlReply:
    """What came of a request."""

    ok: bool
    text: str
    proof: bytes = b""  # that the master knows the job's token
