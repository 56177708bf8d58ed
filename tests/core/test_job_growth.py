"""A world that runs makes way for a larger one only for nodes that could start at once."""

from __future__ import annotations

import pytest

from elasticrun.core.job.events import Decided, Detached, MasterStarted
from elasticrun.core.job.growth import SETTLE, WARMING_LIMIT, Growth, growth
from elasticrun.core.job.state import GROWTH, WARMING
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.protocol.messages import AgentPhase, StartRound, StopRound, Waiting
from elasticrun.core.protocol.orders import ScaleJob
from elasticrun.core.protocol.status import JobPhase
from tests.core.build import Job, failure, running

READY, RUNNING, FAILED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FAILED


def stopped(job: Job) -> bool:
    return job.phase() is JobPhase.STOPPING


def begin_next(job: Job, old: str, round_: int) -> set[str]:
    """The members of ``old`` have stopped their round; who is in the next one."""
    job.all_report(old, READY, round_)
    assert job.machine.state.round == round_ + 1
    return set(job.machine.state.current.assignments)


@pytest.mark.parametrize(
    ("available", "held", "expected"),
    [
        (0, 0, Growth.NONE),
        (0, 3, Growth.NONE),  # who is held back counts for nothing
        (1, 0, Growth.NONE),  # the unit is 2
        (2, 0, Growth.NOW),
        (2, 1, Growth.SOON),
        (3, 1, Growth.SOON),
        (4, 0, Growth.NOW),
        (4, 1, Growth.NOW),  # the world is full without it
    ],
)
def test_when_a_world_of_2_makes_way(available: int, held: int, expected: Growth) -> None:
    assert growth(2, available, held, WorldLimits(1, 7, 2)) is expected


def test_a_world_runs_on_until_the_joiner_has_imported() -> None:
    job = running("ab", max_nodes=3)
    job.join("c")
    assert [type(m) for m in job.told("c", StopRound)] == [StopRound]
    job.pass_time(10.0)
    assert job.phase() is JobPhase.RUNNING
    job.warm_up("c")
    assert stopped(job)
    assert "round 0 stops: c can join" in [effect.text for effect in job.of(Decided)]
    assert begin_next(job, "ab", 0) == {"a", "b", "c"}


def test_joiners_that_never_import_are_taken_in_at_once() -> None:
    job = running("a", max_nodes=2)
    job.attach("b")
    assert stopped(job)


def test_the_first_that_is_warm_waits_for_the_others() -> None:
    job = running("a", max_nodes=4)
    job.join("b", "c", "d")
    job.warm_up("b")
    job.pass_time(SETTLE / 2)
    job.warm_up("c")
    assert not stopped(job)
    job.warm_up("d")
    assert stopped(job), "nobody else imports"
    assert begin_next(job, "a", 0) == {"a", "b", "c", "d"}


def test_it_does_not_wait_for_long_and_the_others_join_later() -> None:
    job = running("a", max_nodes=4)
    job.join("b", "c", "d")
    job.warm_up("b")
    job.pass_time(SETTLE / 2)
    job.warm_up("c")
    job.pass_time(SETTLE / 2)
    assert stopped(job), "counted from the first one"
    assert begin_next(job, "a", 0) == {"a", "b", "c"}
    job.all_report("abc", RUNNING, 1)
    job.pass_time(SETTLE)
    assert not stopped(job)
    job.warm_up("d")
    assert stopped(job)
    assert begin_next(job, "abc", 1) == {"a", "b", "c", "d"}


def test_it_does_not_wait_for_nodes_for_which_there_is_no_place() -> None:
    job = running("a", max_nodes=2)
    job.join("b", "c")
    job.warm_up("b")
    assert stopped(job)


def test_a_joiner_that_goes_before_the_others_are_warm_stops_nothing() -> None:
    job = running("a", max_nodes=4)
    job.join("b", "c")
    job.warm_up("b")
    job.do(Detached(job.sessions["b"], "reset"))
    assert (GROWTH, "") not in job.machine.state.timers
    job.pass_time(2 * SETTLE)
    assert not stopped(job)


def test_a_worker_fails_while_others_settle() -> None:
    job = running("ab", max_nodes=4, max_restarts=1)
    job.join("c", "d")
    job.warm_up("c")
    job.report("a", FAILED, 0, failure("a"))
    assert stopped(job)
    job.pass_time(SETTLE)
    assert job.machine.state.current.stop_reason.startswith("rank 0"), "growth is not the reason"
    assert begin_next(job, "ab", 0) == {"a", "b", "c"}
    assert job.machine.state.budget.used == 1


def test_who_survives_a_failure_does_not_wait_for_an_import() -> None:
    """The joiner follows: two short pauses, and no wait of unknown length in either."""
    job = running("ab", min_nodes=1, max_nodes=3, max_restarts=1)
    job.join("c")
    job.do(Detached(job.sessions["b"], "reset"))
    assert begin_next(job, "a", 0) == {"a"}
    assert job.told("c", StartRound) == []
    job.report("a", RUNNING, 1)
    job.warm_up("c")
    assert stopped(job)


def test_who_is_needed_imports_while_the_round_forms() -> None:
    job = running("ab", max_nodes=3)
    job.join("c")
    job.do(Detached(job.sessions["b"], "reset"))
    assert begin_next(job, "a", 0) == {"a", "c"}
    assert job.machine.state.held.since == {}


def test_before_the_first_world_nodes_meet_while_they_import() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.join("a", "b")
    assert job.machine.state.current.assignments.keys() == {"a", "b"}
    job.join("c")
    assert "c" in job.machine.state.held


def test_a_spare_of_the_first_world_that_imports_is_held_back() -> None:
    job = Job(min_nodes=2, max_nodes=4, last_call_timeout=5.0, node_unit=2)
    job.join("a", "b", "c")
    assert job.phase() is JobPhase.GATHERING
    job.pass_time(5.0)
    assert list(job.machine.state.held.since) == ["c"]
    job.attach("d")
    assert job.phase() is JobPhase.RUNNING
    job.warm_up("c")
    assert stopped(job)


def test_a_node_that_never_says_that_it_is_done_is_taken_for_ready() -> None:
    job = running("a", max_nodes=4)
    job.join("b")
    job.pass_time(1.0)
    job.join("c")
    for node in "abc":
        job.machine.state.timers.cancel(("heartbeat", node))
    job.pass_time(WARMING_LIMIT - 1.0)
    assert list(job.machine.state.ready) == ["b"]
    assert not stopped(job), "it waits for the other one, for a moment"
    job.pass_time(SETTLE)
    assert stopped(job)


def test_a_node_held_back_that_is_lost_is_forgotten() -> None:
    job = running("a", max_nodes=4)
    job.join("b")
    assert (WARMING, "") in job.machine.state.timers
    job.do(Detached(job.sessions["b"], "reset"))
    assert (WARMING, "") not in job.machine.state.timers
    assert len(job.machine.state.held) == 0


def test_a_warm_parent_that_is_replaced_makes_a_spare_wait_again() -> None:
    job = running("a", max_nodes=1)
    job.attach("b")
    assert "b" in job.machine.state.ready
    job.warming.add("b")
    job.report("b", READY, -1)
    job.do(ScaleJob(1, 2))
    assert not stopped(job)
    job.warm_up("b")
    assert stopped(job)


def test_a_master_that_restarts_hears_again_who_imports() -> None:
    job = running("a", max_nodes=2)
    job.join("b")
    job.do(MasterStarted(2))
    assert len(job.machine.state.held) == 0
    assert (WARMING, "") not in job.machine.state.timers
    job.attach("b")
    job.attach("a", RUNNING, 0)
    assert list(job.machine.state.held.since) == ["b"]
    assert not stopped(job)
    job.warm_up("b")
    assert stopped(job)


def test_who_is_held_back_hears_why_if_it_lasts() -> None:
    job = running("a", max_nodes=2, waiting_notice_interval=10.0)
    job.join("b")
    job.pass_time(9.0)
    assert job.told("b", Waiting) == []
    job.pass_time(1.0)
    (told,) = job.told("b", Waiting)
    assert told.text == "1 node joins once its workers' imports are done"
    assert job.told("a", Waiting) == []
