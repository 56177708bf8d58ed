"""What an event costs does not grow with the number of nodes: no scan.

Counted in lines of core that are executed, which is the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from elasticrun.core.job_events import Beat, Detached, Expired, JobEvent, Reported
from elasticrun.core.protocol import AgentPhase, AgentStatus
from tests.core.build import Job

FEW, MANY = 30, 600


def lines_of(action: Callable[[], object]) -> int:
    """How many lines of core ``action`` executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "/elasticrun/core/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def job_of(nodes: int) -> Job:
    """A round of all nodes but one runs; that one is a spare."""
    job = Job(min_nodes=nodes - 1, max_nodes=nodes - 1)
    for number in range(nodes):
        job.attach(f"n{number}")
    for number in range(nodes - 1):
        job.report(f"n{number}", AgentPhase.RUNNING, 0)
    return job


def events(nodes: int) -> dict[str, JobEvent]:
    return {
        "beat": Beat(5),
        "report of the same": Reported(5, AgentStatus(50, AgentPhase.RUNNING, 0)),
        "report of an end": Reported(5, AgentStatus(50, AgentPhase.FINISHED, 0)),
        "loss of a spare": Detached(nodes, "reset"),
        "silence of a spare": Expired("heartbeat", f"n{nodes - 1}"),
        "stale": Beat(10**6),
    }


@pytest.mark.parametrize("what", events(FEW))
def test_an_event_costs_the_same_for_few_nodes_and_for_many(what: str) -> None:
    few, many = job_of(FEW), job_of(MANY)
    cost = lines_of(lambda: few.do(events(FEW)[what]))
    assert 0 < cost < 120
    assert lines_of(lambda: many.do(events(MANY)[what])) <= 1.2 * cost


def test_an_arrival_costs_the_same_while_too_few_are_there() -> None:
    costs = []
    for nodes in (FEW, MANY):
        job = Job(min_nodes=10**6, max_nodes=10**6)
        for number in range(nodes):
            job.attach(f"n{number}")
        costs.append(lines_of(partial(job.attach, "newcomer")))
    assert costs[1] <= 1.2 * costs[0]


def test_next_deadline_costs_the_same() -> None:
    costs = []
    for nodes in (FEW, MANY):
        job = job_of(nodes)
        job.machine.next_deadline()
        job.now = 1.0
        job.do(Beat(1))
        costs.append(lines_of(job.machine.next_deadline))
    assert costs[1] <= 1.2 * costs[0]
