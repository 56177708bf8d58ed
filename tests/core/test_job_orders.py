"""Orders of operators: each is judged by the machine, answered once, and changes nothing if it is refused."""

from __future__ import annotations

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.job.events import (
    Answered,
    JobEvent,
)
from elasticrun.core.job.orders import in_full
from elasticrun.core.protocol.messages import AgentPhase, SaveStacks
from elasticrun.core.protocol.orders import DrainNode, RestartRound, SaveAllStacks, ScaleJob, ScaleRole
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.fingerprint import difference, fingerprint
from tests.core.build import Job, running


def answer(job: Job, order: JobEvent) -> Answered:
    job.do(order)
    (answered,) = job.of(Answered)
    return answered


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (DrainNode("b", "its disk fails"), "b is asked to leave"),
        (ScaleJob(1, 2), "the job now wants 1 to 2 nodes"),
        (SaveAllStacks(), "2 nodes save the stacks of their workers beside their logs"),
        (
            RestartRound("edited"),
            "the workers of round 0 are stopped and start again; no state is in memory",
        ),
    ],
)
def test_an_order_is_answered(order: JobEvent, text: str) -> None:
    assert answer(running("ab"), order) == Answered(True, text)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (DrainNode("c", ""), "there is no node 'c'; the nodes are: a, b"),
        (ScaleJob(3, 3), "no multiple of 2 (--node-unit) lies in 3:3"),
        (
            ScaleRole(TaskRole.PS, 2),
            "this is no TensorFlow job; change its number of nodes (elastic-ctl scale N)",
        ),
        (ScaleRole(TaskRole.PS, 0), "ps=0 is not possible: the chief needs at least one; give 1 or more"),
    ],
)
def test_an_order_that_is_refused_changes_nothing(order: JobEvent, text: str) -> None:
    job = running("ab", node_unit=2)
    before = fingerprint(job.machine.state)
    assert answer(job, order) == Answered(False, text)
    assert job.decided() == f"an order is refused: {text}"
    assert difference(before, fingerprint(job.machine.state)) == ""


@pytest.mark.parametrize(
    ("given", "node"),
    [
        ("node1/4f1c02", "node1/4f1c02"),
        ("node1/4", "node1/4f1c02"),
        ("node1", "node1"),  # it begins two names
        ("a", "a"),  # the whole name of one, and it begins another one
        ("x", "x"),
    ],
)
def test_the_beginning_of_one_name_is_made_the_whole_name(given: str, node: str) -> None:
    names = ["node0/a", "node1/4f1c02", "node1/77aa00", "a", "ab"]
    assert in_full(DrainNode(given, "why"), names) == DrainNode(node, "why")
    assert in_full(ScaleJob(1, 2), names) == ScaleJob(1, 2)


def test_an_order_in_an_old_journal_that_was_refused_is_refused_again() -> None:
    """The beginning of a name was no name then, so the machine knows whole names only."""
    job = running(["node0/a", "node1/4f1c02"])
    refused = answer(job, DrainNode("node1", ""))
    assert refused == Answered(False, "there is no node 'node1'; the nodes are: node0/a, node1/4f1c02")


def test_the_beginning_of_several_names_drains_nobody() -> None:
    job = running(["node0/a", "node1/b", "other/c"])
    before = fingerprint(job.machine.state)
    text = "'node' begins the names of 2 nodes; give more of one of: node0/a, node1/b"
    assert answer(job, DrainNode("node", "")) == Answered(False, text)
    assert difference(before, fingerprint(job.machine.state)) == ""


def test_an_answer_lists_some_of_many_nodes() -> None:
    refused = answer(running([f"n{number}" for number in range(10)]), DrainNode("x", ""))
    assert refused.text.endswith("the nodes are: n0, n1, n2, n3, n4, n5, n6, n7 and 2 more")


def test_an_ordered_restart_spends_none() -> None:
    job = running("ab")
    job.do(RestartRound("edited"))
    assert job.machine.state.current.stop_reason == "restart ordered: edited"
    for name in "ab":
        job.report(name, AgentPhase.READY, 0)
    assert (job.phase(), job.machine.state.round) == (JobPhase.RUNNING, 1)
    assert job.machine.state.budget.used == 0


def test_a_round_that_is_being_stopped_is_not_restarted() -> None:
    job = running("ab")
    job.do(RestartRound("edited"))
    refusal = "no round runs: the job is stopping; try again once one does"
    assert answer(job, RestartRound("again")) == Answered(False, refusal)


def test_stacks_are_asked_of_nodes_that_are_attached() -> None:
    job = running("ab")
    job.do(SaveAllStacks())
    assert [job.told(name, SaveStacks) for name in "ab"] == [[SaveStacks(1)]] * 2
    assert job.decided() == "2 nodes save the stacks of their workers, as was ordered"


@pytest.mark.parametrize(
    "order",
    [DrainNode("a", ""), ScaleJob(1, 1), ScaleRole(TaskRole.PS, 2), SaveAllStacks(), RestartRound("")],
)
def test_after_the_end_every_order_is_refused(order: JobEvent) -> None:
    job = running("a")
    job.report("a", AgentPhase.FINISHED, 0)
    assert job.phase() is JobPhase.SUCCEEDED
    assert answer(job, order) == Answered(False, "the job has ended: all workers of round 0 ended with 0")
