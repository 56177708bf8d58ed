"""Goodput, steps and figures of nodes in a status: which are shown, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.core.job.describe import describe
from elasticrun.core.job.events import Detached
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures
from elasticrun.core.protocol.status import ROOM, JobPhase, JobStatus, NodeStatus, fitting, status_in_words
from tests.core.build import Job

FIGURES = NodeFigures(1.5, 4, 3 << 30, 8 << 30, 0.0, 0.0)
STATUS = JobStatus("job", JobPhase.RUNNING, 0, 1, 1, 0, 3)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, None),
        ({"goodput": 0.5}, None),
        ({"goodput": 0.9712, "ettr": 0.979}, "  goodput 97.1 %, ETTR 97.9 %"),
        ({"goodput": 0.5, "ettr": 0.5, "step": 7}, "  goodput 50.0 %, ETTR 50.0 %, step 7"),
        (
            {"goodput": 0.5, "ettr": 0.5, "step": 1234, "steps_rate": 8.123},
            "  goodput 50.0 %, ETTR 50.0 %, step 1234 (8.12 steps/s)",
        ),
    ],
)
def test_goodput_is_shown_when_it_is_known(changes: dict[str, Any], line: str | None) -> None:
    text = status_in_words(replace(STATUS, **changes))
    assert text.splitlines()[1:] == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((), "; 1.5 of 4 cores, 3.0 of 8.0 GiB"),
        ((GpuFigures("x", None, 0, 1),), "; 1.5 of 4 cores, 3.0 of 8.0 GiB"),
        (
            (GpuFigures("x", 0.25, 0, 1), GpuFigures("x", 0.75, 0, 1)),
            "; 1.5 of 4 cores, 3.0 of 8.0 GiB, GPUs 50 %",
        ),
    ],
)
def test_figures_of_a_node(gpus: tuple[GpuFigures, ...], words: str) -> None:
    node = NodeStatus("a", 0, AgentPhase.RUNNING, figures=replace(FIGURES, gpus=gpus))
    assert status_in_words(replace(STATUS, nodes=(node,))).endswith(f"  a: node 0, running{words}")


def test_figures_take_room() -> None:
    gpus = tuple(GpuFigures("x" * 500, None, 0, 1) for _ in range(64))
    nodes = [
        NodeStatus(str(each), 0, AgentPhase.RUNNING, figures=replace(FIGURES, gpus=gpus))
        for each in range(99)
    ]
    assert 0 < len(list(fitting(nodes))) <= ROOM // (64 * 500)


def test_figures_are_those_of_a_nodes_session() -> None:
    job = Job(min_nodes=1, max_nodes=1)
    job.attach("a")
    state, session = job.machine.state, job.sessions["a"]
    (node,) = describe(state, figures={session: FIGURES}).nodes
    assert node.figures == FIGURES
    (node,) = describe(state, figures={session + 1: FIGURES}).nodes
    assert node.figures is None
    job.do(Detached(session, "it broke"))
    assert all(node.figures is None for node in describe(state, figures={session: FIGURES}).nodes)
