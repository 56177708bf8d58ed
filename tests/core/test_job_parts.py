"""The parts of the master's machine: who owns which fact, what each holds to, and who passes through whom."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest

import elasticrun.core.job as package
from elasticrun.core.health.checkup import Checkup
from elasticrun.core.job.describe import describe
from elasticrun.core.job.events import (
    OUTCOMES,
    TRANSITIONS,
    Detached,
    JobEffect,
    JobEvent,
    MasterStarted,
    Send,
    Trigger,
)
from elasticrun.core.job.state import CHECK, GROWTH, HEARTBEAT, JOIN, MENDING, REATTACH, WARMING, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.messages import AgentPhase, Outcome, StopRound
from elasticrun.core.protocol.orders import DrainNode, ScaleJob
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import Budget, StopCause
from tests.core.build import Job, failure, info, running
from tests.test_layers import imports

FOLDER = Path(package.__file__ or "").parent
READY, RUNNING, FAILED, FINISHED = (
    AgentPhase.READY,
    AgentPhase.RUNNING,
    AgentPhase.FAILED,
    AgentPhase.FINISHED,
)

#: The modules that assign to a field of the state; all others only read it.
OWNERS = {
    "attendance": {"held", "newest", "probes"},
    "checking": {"checkup", "check_ordered", "table"},
    "commits": {"verdict"},
    "data": {"desks"},
    "formation": {"obstacle", "last_called", "weighed", "round", "current", "previous"},
    "intake": {"epoch", "key", "horizon"},
    "machine": {"phase", "end_reason", "timers", "now", "events"},
    "orders": {"stop_ordered"},
    "outbox": {"sequence"},
    "scaling": {"limits", "scalings", "scaling", "scaled"},
    "settling": {"recovery"},
    "storage": {"ending"},
}


def assigned(path: Path) -> set[str]:
    """The fields of the state that a module assigns to."""
    targets: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Assign(targets=several):
                targets += several
            case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
                targets.append(one)
    flat = [each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])]
    return {
        one.attr
        for one in flat
        if isinstance(one, ast.Attribute) and ast.unparse(one.value) in ("state", "self._state", "self.state")
    }


def test_each_fact_has_one_owner() -> None:
    known = {field.name for field in fields(JobState)}
    found = {path.stem: assigned(path) & known for path in FOLDER.glob("*.py")}
    assert {module: names for module, names in found.items() if names} == OWNERS
    owned = [name for names in OWNERS.values() for name in names]
    assert len(owned) == len(set(owned))


def test_nobody_below_knows_the_machine() -> None:
    """Parts are handed what they need, and rules that they use do not know of a job's phases."""
    core = FOLDER.parent
    own = {"job_events.py", "job_growth.py", "status.py"}  # of the machine, too; the last shows its phase
    for path in core.rglob("*.py"):
        targets = {item.target for item in imports(ast.parse(path.read_text()), "elasticrun.core.x", False)}
        assert not any(target.startswith("elasticrun.core.job.machine") for target in targets), path
        if path.parent != FOLDER and path.name not in own:
            assert not any(target.startswith("elasticrun.core.job") for target in targets), path


# -- what parts hold to

Break = Callable[[Job], object]


def set_field(name: str, value: Any) -> Break:
    return lambda job: setattr(job.machine.state, name, value)


def set_timer(kind: str, node: str = "") -> Break:
    return lambda job: job.machine.state.timers.set((kind, node), 1.0)


def cancel(kind: str, node: str = "") -> Break:
    return lambda job: job.machine.state.timers.cancel((kind, node))


def with_spare() -> Job:
    job = running("ab")
    job.attach("c")
    return job


def importing() -> Job:
    job = running("ab", max_nodes=3)
    job.join("c")
    return job


def restarted() -> Job:
    job = running("ab")
    job.do(MasterStarted(2))
    return job


def stopping() -> Job:
    job = running("ab")
    job.report("a", FAILED, 0, failure())
    return job


def gathering() -> Job:
    job = Job(min_nodes=3, max_nodes=3)
    job.attach("a")
    return job


def two() -> Job:
    return running("ab")


def put_stamps(job: Job) -> None:
    sent = [Send(1, StopRound(1, sequence, 0, "")) for sequence in (9, 8)]
    effects: list[JobEffect] = job.machine._outbox.begin()
    effects += sent


BROKEN: list[tuple[str, Callable[[], Job], Break]] = [
    ("Outbox: stamps grow", two, put_stamps),
    ("Outbox: the newest stamp is the state's", two, put_stamps),
    (
        "Attendance: whoever is ready is a candidate or held back",
        with_spare,
        lambda job: job.machine.state.candidates.remove(node(job, "c")),
    ),
    ("Attendance: no candidate is held back", with_spare, lambda job: job.machine.state.held.add("c", 0.0)),
    ("Attendance: who is held back is waited for", importing, cancel(WARMING)),
    ("Attendance: who is away is counted", two, lambda job: setattr(node(job, "a"), "session", None)),
    ("Attendance: who is away is waited for", restarted, cancel(REATTACH)),
    ("Attendance: silence is noticed", two, cancel(HEARTBEAT, "a")),
    ("Intake: a name has one incarnation", two, lambda job: setattr(node(job, "a"), "info", info("b"))),
    ("Intake: a session is its node's", two, lambda job: setattr(node(job, "a"), "session", 77)),
    (
        "Intake: the epoch is its endpoint's",
        two,
        lambda job: setattr(job.machine.state.quorum, "position", 1),
    ),
    (
        "Formation: no member of the last world runs while nodes gather",
        gathering,
        lambda job: job.machine.state.current.pending.add("a"),
    ),
    ("Formation: nobody is called while a world runs", two, set_timer(JOIN)),
    ("Growing: a larger world is awaited only while one runs", stopping, set_timer(GROWTH)),
    ("Formation: the newest world is its members'", two, set_field("previous", ("b", "a"))),
    ("Checking: a checkup runs while nodes are checked", two, set_field("checkup", Checkup(0, ["a"], []))),
    ("Checking: a probe has a bound", two, set_timer(CHECK)),
    ("Checking: a probe is the newest", two, set_field("checkup", Checkup(9, ["a"], []))),
    (
        "Settling: no more restarts are spent than allowed",
        two,
        lambda job: set_budget(job, Budget(1, used=2)),
    ),
    (
        "Settling: no restart is given back that was not used",
        two,
        lambda job: set_budget(job, Budget(1, refunded=1)),
    ),
    ("Rounds: who may run has an assignment", two, lambda job: job.machine.state.current.pending.add("z")),
    (
        "Rounds: nothing stops a round that runs",
        two,
        lambda job: job.machine.state.current.must_stop(StopCause.HANG, ""),
    ),
    ("Rounds: a round stops for somebody", stopping, lambda job: job.machine.state.current.pending.clear()),
    (
        "Rounds: only known nodes are waited for",
        stopping,
        lambda job: job.machine.state.members.nodes.clear(),
    ),
    ("Rounds: the newest round has the largest number", two, set_field("newest", -1)),
    ("Rounds: tasks are waited for only while a round runs", stopping, set_timer(MENDING)),
]


def node(job: Job, name: str) -> Node:
    return job.machine.state.members.nodes[name]


def set_budget(job: Job, budget: Budget) -> None:
    job.machine.state.recovery = replace(job.machine.state.recovery, budget=budget)


@pytest.mark.parametrize(("rule", "make", "harm"), BROKEN, ids=[rule for rule, _, _ in BROKEN])
def test_a_part_sees_that_its_invariant_is_broken(rule: str, make: Callable[[], Job], harm: Break) -> None:
    job = make()
    assert job.machine.check() == []
    harm(job)
    assert rule in job.machine.check()


def test_every_move_is_in_the_tables() -> None:
    machine = Job().machine
    assert machine._rules.keys() == set(JobPhase) - OUTCOMES.keys()
    ends = {trigger for (_, trigger), phase in TRANSITIONS.items() if phase in OUTCOMES}
    assert machine._begins.keys() == set(Trigger) - ends
    assert machine._takes.keys() == set(get_args(JobEvent))


# -- TensorFlow

#: Modules that are TensorFlow's alone.
OF_TENSORFLOW = (
    "tf_cluster.py",
    "tf_scale.py",
    "round_tasks.py",
    "role_recovery.py",
    "job/tasks.py",
    "job/clusters.py",
)


def test_rounds_of_torch_do_not_pass_through_rules_of_tensorflow() -> None:
    passed = set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(OF_TENSORFLOW):
            passed.add(f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}")

    job = running("ab", max_nodes=3, max_restarts=3)
    sys.setprofile(note)
    try:
        job.report("a", FAILED, 0, failure())
        job.all_report("ab", READY, 0)
        job.all_report("ab", RUNNING, 1)
        job.attach("c")
        job.all_report("ab", READY, 1)
        job.all_report("abc", RUNNING, 2)
        job.do(DrainNode("c", "an order"))
        job.all_report("ab", READY, 2)
        job.pass_time(20.0)
        job.do(ScaleJob(1, 2))
        job.do(Detached(job.sessions["b"], "broke"))
        describe(job.machine.state)
        job.report("a", READY, 3)
        job.report("a", RUNNING, 4)
        job.report("a", FINISHED, 4)
    finally:
        sys.setprofile(None)
    assert OUTCOMES[job.phase()] is Outcome.SUCCEEDED
    assert passed == set()
