"""Whether a node was started for this job."""

from __future__ import annotations

from typing import Any

import pytest

from elasticrun.config import TaskRole
from elasticrun.core.job.events import Decided, Drop
from elasticrun.core.membership.fit import MAX_TOLD, same_program
from elasticrun.core.protocol.messages import AgentPhase, JobEnded, RejectCode, Rejected, Waiting, Welcome
from elasticrun.core.protocol.orders import ScaleJob
from elasticrun.core.protocol.status import JobPhase
from tests.core.build import Job, info

RUNNING, FINISHED = AgentPhase.RUNNING, AgentPhase.FINISHED
BOUNDS = {"min_nodes": 1, "max_nodes": 2}


def job(**first: Any) -> Job:
    """A job of one or two nodes, whose first node runs."""
    job = Job(**BOUNDS)
    job.attach("a", **{**BOUNDS, "program": "/x/a.py", **first})
    job.report("a", RUNNING, 0)
    return job


def farewell(job: Job) -> Rejected | None:
    (drop,) = job.drops()
    assert drop.session == job.sessions["b"]
    return drop.farewell


@pytest.mark.parametrize("bounds", [{"min_nodes": 1, "max_nodes": 3}, {"min_nodes": 2, "max_nodes": 2}])
def test_other_bounds_are_refused_and_both_sides_hear_of_it(bounds: dict[str, Any]) -> None:
    here = job()
    here.attach("b", **bounds)
    refused = farewell(here)
    assert refused is not None and refused.code is RejectCode.MISFIT
    low, high = bounds["min_nodes"], bounds["max_nodes"]
    own = f"{low}:{high}" if low < high else f"{low}"
    assert refused.message.startswith(f"b was started with --nnodes {own}, but the job has --nnodes 1:2: ")
    assert [said.text for said in here.told("a", Waiting)] == [f"refused: {refused.message}"]
    assert list(here.machine.state.members.nodes) == ["a"]


def test_the_first_node_has_nobody_to_tell() -> None:
    here = Job(**BOUNDS)
    here.attach("b", min_nodes=3, max_nodes=3)
    assert farewell(here) is not None
    assert here.phase() is JobPhase.GATHERING


def test_bounds_that_an_operator_ordered_fit_as_well() -> None:
    here = job()
    here.do(ScaleJob(1, 3))
    here.attach("b", min_nodes=1, max_nodes=3)
    here.attach("c", min_nodes=1, max_nodes=2)
    assert list(here.machine.state.members.nodes) == ["a", "b", "c"]


def test_another_framework_is_refused() -> None:
    here = job()
    here.attach("b", roles=(TaskRole.WORKER,))
    refused = farewell(here)
    assert refused is not None and refused.code is RejectCode.MISFIT
    assert refused.message.startswith("b was started for TensorFlow, but a for torch: ")


def test_who_was_admitted_is_not_judged_again() -> None:
    here = job()
    here.do(ScaleJob(2, 3))
    here.attach("b", min_nodes=2, max_nodes=3)
    here.do(ScaleJob(1, 2))
    here.attach("b", min_nodes=2, max_nodes=3)
    assert here.told("b", Welcome)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ({"program": "/x/b.py"}, "b was started with another program, '/x/b.py', but a runs '/x/a.py'"),
        ({"local_world_size": 4}, "b was started with another --nproc-per-node, 4, but a runs 1"),
    ],
)
def test_both_sides_are_warned_of_a_difference(who: dict[str, Any], words: str) -> None:
    here = job()
    here.attach("b", **who)
    for node in ("a", "b"):
        assert words in [said.text for said in here.told(node, Waiting)]


def test_a_stranger_cannot_flood_the_others() -> None:
    here = job()
    told = 0
    for life in range(MAX_TOLD + 5):
        here.attach(f"b{life}", program=f"/x/{life}.py")
        told += len(here.told("a", Waiting))
        assert [it for it in here.of(Decided) if "another program" in it.text]
    assert told == MAX_TOLD


def test_what_is_shown_of_a_program_is_short_and_harmless() -> None:
    here = job()
    here.attach("b", program="/" + "x" * 300 + "\x1b[2J\n")
    (said,) = here.told("a", Waiting)
    assert said.text.isprintable() and "...xxx" in said.text and "x?[2J?'" in said.text
    assert len(said.text) < 250


@pytest.mark.parametrize(
    ("one", "other", "host", "same"),
    [
        ("/x/a.py", "/x/a.py", "h", True),
        ("/x/a.py", "/y/a.py", "g", True),  # a copy on another host
        ("/x/a.py", "/y/a.py", "h", False),
        ("/x/a.py", "/x/b.py", "g", False),
        ("-m a", "-m b", "g", False),
        ("", "/x/a.py", "h", True),
        ("/x/a.py", "", "h", True),
    ],
)
def test_the_same_program(one: str, other: str, host: str, same: bool) -> None:
    assert same_program(info("a", program=one, host="h"), info("b", program=other, host=host)) is same


@pytest.mark.parametrize(("program", "other"), [("/y/a.py", ""), ("/x/b.py", "'/x/a.py'")])
def test_a_spare_hears_what_the_job_ran(program: str, other: str) -> None:
    here = Job(min_nodes=1, max_nodes=1)
    here.attach("a", program="/x/a.py")
    here.attach("b", program=program)
    here.report("a", RUNNING, 0)
    here.report("a", FINISHED, 0)
    (ended,) = here.told("b", JobEnded)
    assert ended.other_program == other
    (ended,) = here.told("a", JobEnded)
    assert ended.other_program == ""


def test_nothing_has_run_before_the_first_world() -> None:
    here = Job(min_nodes=2, max_nodes=2, join_timeout=5.0)
    here.attach("a", program="/x/a.py")
    assert here.machine.state.fit.other_program(info("b", program="/x/b.py")) == ""
    assert not here.of(Drop)
