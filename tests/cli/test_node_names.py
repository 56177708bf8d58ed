"""Names of nodes that a shell offers: those of the one job here, and nothing where that is not clear."""

from __future__ import annotations

from typing import Any

import click
import pytest

from elasticrun import control
from elasticrun.cli.node_names import complete_node
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.status import JobPhase, JobStatus, NodeStatus
from elasticrun.errors import MasterUnreachableError

STATUS = JobStatus(
    "job",
    JobPhase.RUNNING,
    0,
    1,
    2,
    0,
    0,
    nodes=tuple(NodeStatus(name, None, AgentPhase.READY) for name in ("node0", "node1", "other")),
)


class Here:
    """The job of this host."""

    @classmethod
    async def on_this_host(cls, *which: Any) -> Here:
        if which[0] == "none":
            raise MasterUnreachableError("no such job")
        return cls()

    async def status(self) -> JobStatus:
        return STATUS


@pytest.mark.parametrize(
    ("given", "incomplete", "offered"),
    [
        ({}, "no", ["node0", "node1"]),
        ({"rdzv_id": "job", "pid": 7}, "", ["node0", "node1", "other"]),
        ({"rdzv_id": "none"}, "", []),
        ({"endpoint": "10.0.0.1"}, "", []),
    ],
)
def test_names_that_are_offered(
    given: dict[str, Any], incomplete: str, offered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "JobControl", Here)
    context = click.Context(click.Command("drain"))
    context.params = given
    assert complete_node(context, click.Argument(["node"]), incomplete) == offered
