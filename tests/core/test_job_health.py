"""Health checks, hangs, drains and orders, as the job's machine decides them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elasticrun.config import (
    Action,
    FailureClass,
    HealthCheckMode,
    HealthConfig,
    Policy,
    PolicyRule,
)
from elasticrun.core.job.directives import probe_secret
from elasticrun.core.job.events import (
    Beat,
    Decided,
    Detached,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
)
from elasticrun.core.protocol.commits import CommitId, Holding, Inlet, Part
from elasticrun.core.protocol.messages import (
    AgentPhase,
    Evidence,
    FailureKind,
    GroupReport,
    JobEnded,
    Outcome,
    ProbeReport,
    RejectCode,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    Waiting,
)
from elasticrun.core.protocol.orders import DrainNode, RestartRound, ScaleJob
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import Budget
from elasticrun.core.recovery.settlement import Recovery
from tests.core.build import Job, described, failure, running

READY, RUNNING, CHECKING = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.CHECKING
FINE = GroupReport("", 1e9, 1e-4)
DEAD = GroupReport("timed out")


class Clinic(Job):
    """A job that checks its nodes."""

    def __init__(self, nodes: str, mode: HealthCheckMode = HealthCheckMode.AUTO, **config: Any) -> None:
        health = {key: config.pop(key) for key in ("only", "exclude_stragglers") if key in config}
        sizes: dict[str, Any] = {"min_nodes": len(nodes), "max_nodes": len(nodes), "last_call_timeout": 1.0}
        super().__init__(health=HealthConfig(mode=mode, **health), **(sizes | config))
        self.asked: dict[str, StartProbe] = {}
        self.lines: list[str] = []
        for node in nodes:
            self.attach(node)
            self.hear()
        self.pass_time(1.0)
        self.hear()

    def hear(self) -> None:
        for node in self.sessions:
            self.asked.update((node, start) for start in self.told(node, StartProbe))
            self.lines += [waiting.text for waiting in self.told(node, Waiting)]

    def answer(
        self, node: str, dead: str = "", flops: float = 1e12, error: str = "", engine: str = "torch/cpu"
    ) -> None:
        """A node did what it was asked to, among nodes some of which cannot communicate."""
        start = self.asked.pop(node)
        groups = tuple(DEAD if set(group.nodes) & set(dead) else FINE for group in start.groups)
        status = self.status(node, READY, self.machine.state.round)
        probe = ProbeReport(start.check, error, flops, groups, engine)
        self.do_status(node, replace(status, probe=probe))
        self.hear()

    def do_status(self, node: str, status: Any) -> None:
        self.do(Reported(self.sessions[node], status))

    def answer_all(self, dead: str = "", slow: str = "") -> None:
        for node in sorted(self.asked):
            self.answer(node, dead, 4e11 if node in slow else 1e12)

    def started(self) -> set[str]:
        return {node for node in self.sessions if node in self.machine.state.current.pending}


def test_nodes_are_checked_before_the_first_round() -> None:
    job = Clinic("ab")
    assert job.phase() is JobPhase.CHECKING
    assert [group.nodes for group in job.asked["a"].groups] == [("a", "b")]
    assert (job.asked["b"].groups[0].rank, job.asked["b"].groups[0].address) == (1, "a.net")
    assert job.asked["b"].groups[0].port == job.machine.state.members.nodes["a"].status.store_port
    job.answer_all()
    assert (job.phase(), job.started()) == (JobPhase.RUNNING, {"a", "b"})


@pytest.mark.parametrize(
    ("nodes", "mode", "checked"),
    [
        ("ab", HealthCheckMode.OFF, False),
        ("ab", HealthCheckMode.START, True),
        ("a", HealthCheckMode.AUTO, False),
        ("a", HealthCheckMode.ALWAYS, True),
    ],
)
def test_whether_nodes_are_checked_at_the_start(nodes: str, mode: HealthCheckMode, checked: bool) -> None:
    job = Clinic(nodes, mode)
    assert job.phase() is (JobPhase.CHECKING if checked else JobPhase.RUNNING)


@pytest.mark.parametrize(
    ("nodes", "dead"), [("abc", "b"), ("abcd", "c"), ("abcdefg", "g"), ("abcdefgh", "ae")]
)
def test_a_faulty_node_is_excluded_and_the_others_start(nodes: str, dead: str) -> None:
    job = Clinic(nodes, min_nodes=2)
    job.answer_all(dead)
    assert job.phase() is JobPhase.CHECKING  # once more, to tell them apart
    seen = set()
    while job.asked:
        job.answer(min(job.asked), dead)
        seen |= {
            drop.session
            for drop in job.drops()
            if drop.farewell and drop.farewell.code is RejectCode.EXCLUDED
        }
    assert seen == {job.sessions[node] for node in dead}
    assert (job.phase(), job.started()) == (JobPhase.RUNNING, set(nodes) - set(dead))
    assert all(any(f"{node} was excluded" in line for line in job.lines) for node in dead)


def test_a_spare_takes_the_place_of_a_faulty_node() -> None:
    job = Clinic("ab")
    job.attach("c")
    job.answer("a", error="no GPU")
    job.answer("b", dead="a")
    assert job.phase() is JobPhase.CHECKING  # of the spare and of b, whose only partner was faulty
    job.answer_all()
    while job.asked:
        job.answer_all()
    assert job.started() == {"b", "c"}


def test_whoever_met_only_a_faulty_node_is_checked_alone_if_it_may_work_alone() -> None:
    job = Clinic("ab", min_nodes=1)
    job.answer("a", error="no GPU")
    job.answer("b", dead="a")
    assert (job.phase(), set(job.asked)) == (JobPhase.CHECKING, {"b"})
    assert not job.asked["b"].groups
    job.answer_all()
    assert job.started() == {"b"}


def test_doubtful_nodes_wait_for_another_one_if_a_faulty_one_is_to_be_replaced() -> None:
    job = Clinic("abc", min_nodes=2)
    job.answer("a", error="no GPU")
    job.answer_all(dead="bc")
    job.answer_all(dead="bc")
    assert (job.phase(), job.asked) == (JobPhase.GATHERING, {})
    assert set(job.machine.state.health.doubtful) == {"b", "c"}
    job.attach("d")
    job.hear()
    assert set(job.asked) == {"b", "c", "d"}
    job.answer_all()
    assert job.started() == {"b", "c", "d"}


def test_two_nodes_that_do_not_reach_each_other_end_the_job() -> None:
    job = Clinic("ab")
    job.answer_all(dead="a")
    job.answer_all(dead="a")
    (ended,) = job.told("a", JobEnded)
    assert (job.phase(), ended.outcome) == (JobPhase.UNHEALTHY, Outcome.UNHEALTHY)
    assert "the link between them" in ended.reason


def test_a_bad_link_is_named_and_nobody_goes() -> None:
    job = Clinic("abcd")
    while job.asked:
        for node in sorted(job.asked):
            cut = any(set(group.nodes) == {"a", "b"} for group in job.asked[node].groups)
            job.answer(node, dead="ab" if cut else "")
    assert any("the link between a and b is bad" in line for line in job.lines)
    assert job.started() == set("abcd")


def test_a_job_that_checks_at_its_start_only_checks_no_suspect() -> None:
    job = Clinic("abc", HealthCheckMode.START, max_restarts=1)
    job.answer_all()
    blame(job, "b", "ac")
    job.report("b", READY, 0, failure("b"))
    assert job.started() == {"a", "b", "c"}
    assert "b" in job.machine.state.health.suspects


def test_a_straggler_is_named_and_stays() -> None:
    job = Clinic("abcd")
    job.answer_all(slow="c")
    assert job.phase() is JobPhase.CHECKING
    job.answer_all(slow="c")
    assert any("c is slow" in line for line in job.lines)
    assert job.started() == set("abcd")


def test_who_only_seemed_slow_is_measured_again_and_not_named() -> None:
    job = Clinic("abcd", exclude_stragglers=True)
    job.answer_all(slow="c")
    assert not any(start.groups for start in job.asked.values())
    decided = [effect.text for effect in job.of(Decided)]
    assert decided[-1] == "probing again, to confirm slow nodes: a, b, c, d"
    job.answer_all()
    assert not any("slow" in line for line in job.lines)
    assert job.started() == set("abcd")


def test_a_node_with_another_engine_is_told_of_and_stays() -> None:
    job = Clinic("abcd", exclude_stragglers=True, min_nodes=2)
    job.answer("c", flops=1e7, engine="python3.11")
    job.answer_all()
    assert any("(torch/cpu: a, b, d; python3.11: c)" in line for line in job.lines), job.lines
    assert job.started() == set("abcd")


def test_a_straggler_is_excluded_on_request() -> None:
    job = Clinic("abcd", exclude_stragglers=True, min_nodes=2)
    for _ in range(2):
        job.answer_all(slow="c")
    assert job.started() == set("abd")


def test_a_node_that_never_answers_is_excluded() -> None:
    job = Clinic("abc", min_nodes=2)
    job.answer("a", dead="c")
    job.answer("b", dead="c")
    for _ in range(10):  # c lives, as its heartbeats say, and does nothing else
        for node in job.machine.state.members.nodes:
            job.do(Beat(job.sessions[node]))
        job.pass_time(10.0)
        job.hear()
    job.answer_all()
    assert job.started() == {"a", "b"}


def test_a_lost_node_does_not_hold_up_a_check() -> None:
    job = Clinic("abc", min_nodes=2)
    job.answer("a", dead="c")
    job.do(Detached(job.sessions["c"], "reset"))
    job.hear()
    job.answer("b", dead="c")
    while job.asked:
        job.answer_all()
    assert job.started() == {"a", "b"}


@pytest.mark.parametrize(("dead", "outcome"), [("", Outcome.SUCCEEDED), ("b", Outcome.UNHEALTHY)])
def test_a_check_alone(dead: str, outcome: Outcome) -> None:
    job = Clinic("abc", HealthCheckMode.AUTO, only=True)
    job.answer_all(dead)
    if dead:
        job.answer_all(dead)
    (ended,) = job.told("a", JobEnded)
    assert ended.outcome is outcome
    assert {row.node: row.verdict for row in ended.checkup}.get("b") == ("faulty" if dead else "good")


def test_always_checks_again() -> None:
    job = Clinic("ab", HealthCheckMode.ALWAYS, max_restarts=1)
    job.answer_all()
    blame = failure("a")
    job.report("a", AgentPhase.FAILED, 0, blame)
    job.report("a", READY, 0, blame)
    job.report("b", READY, 0)
    assert job.phase() is JobPhase.CHECKING


def to_be_checked_again(nodes: str, **sizes: int) -> Clinic:
    """All nodes were in a round that failed; j waits outside, and has not imported what its workers need."""
    job = Clinic(nodes, HealthCheckMode.ALWAYS, max_nodes=9, max_restarts=1, **sizes)
    job.answer_all()
    job.all_report(nodes, RUNNING, 0)
    job.join("j")
    for node in nodes:
        job.report(node, READY, 0, failure(node))
        job.hear()
    return job


def test_a_node_that_is_held_back_is_not_checked_and_holds_up_no_check() -> None:
    job = to_be_checked_again("ab")
    assert (job.phase(), set(job.asked)) == (JobPhase.CHECKING, {"a", "b"})
    job.answer_all()
    assert (job.phase(), job.started()) == (JobPhase.RUNNING, {"a", "b"})
    job.all_report("ab", RUNNING, 1)
    job.pass_time(3.0)
    assert (job.phase(), job.asked) == (JobPhase.RUNNING, {})


def test_a_node_that_came_back_during_the_check_is_held_back_like_any_other() -> None:
    job = to_be_checked_again("abc", min_nodes=2)
    job.do(Detached(job.sessions["c"], "reset"))
    del job.asked["c"]
    job.warming.add("c")
    job.attach("c", life=2)
    assert "c" in job.machine.state.held
    while job.asked:
        job.answer_all(dead="c")
    assert (job.phase(), job.started()) == (JobPhase.RUNNING, {"a", "b"})


def test_a_doubt_is_cleared_up_with_a_node_that_was_held_back() -> None:
    job = to_be_checked_again("ab")
    job.answer_all(dead="a")
    job.answer_all(dead="a")
    assert (job.phase(), set(job.asked)) == (JobPhase.CHECKING, {"a", "b", "j"})
    while job.asked:
        job.answer_all(dead="a")
    assert job.started() == {"b", "j"}


def test_an_agent_that_comes_back_during_its_probe_hears_the_same_again() -> None:
    job = Clinic("ab")
    check = job.asked["a"].check
    job.attach("a", CHECKING, -1)
    (again,) = job.told("a", StartProbe)
    assert again.check == check


def test_an_answer_to_another_masters_probe_is_no_answer_to_this() -> None:
    job = Job(health=HealthConfig(mode=HealthCheckMode.AUTO), min_nodes=2, max_nodes=2)
    for node in "ab":  # this master forgot that it checked them
        job.attach(node, CHECKING)
        status = replace(job.status(node, READY, -1), probe=ProbeReport(1, "", 1e12, (FINE,)))
        job.do(Reported(job.sessions[node], status))
    (start,) = job.told("b", StartProbe)
    assert start.check == 2
    assert job.machine.state.checkup is not None and job.machine.state.checkup.pending == {"a", "b"}


def test_a_node_that_lost_its_stream_in_a_check_is_not_excluded() -> None:
    job = Clinic("abcd", min_nodes=2)
    job.do(Detached(job.sessions["d"], "reset"))
    job.attach("d", CHECKING)
    del job.asked["d"]
    job.answer_all(dead="d")
    while job.asked:
        job.answer_all()
    assert job.started() == set("abc")
    assert "d" in job.machine.state.health.suspects and "d" not in job.machine.state.health.trusted
    job.report("d", READY, -1)
    job.hear()
    job.all_report("abc", RUNNING, 0)
    job.hear()
    job.all_report("abc", READY, 0)
    job.hear()
    assert (job.phase(), set(job.asked)) == (JobPhase.CHECKING, {"d", "a"})
    job.answer_all()
    assert job.started() == set("abcd")


def test_a_node_that_followed_another_master_has_no_part_in_a_check_any_more() -> None:
    job = Clinic("abcd", min_nodes=2)
    job.do(MasterStarted(2))  # with what it knew long ago
    for node in "abc":
        job.attach(node, CHECKING)
        job.hear()
    job.attach("d", RUNNING, 3)
    (stop,) = job.told("d", StopRound)
    assert stop.round == 3
    del job.asked["d"]
    job.answer_all(dead="d")
    while job.asked:
        job.answer_all()
    assert job.started() == set("abc")
    assert "d" in job.machine.state.members.nodes


def test_who_leaves_in_a_check_is_forgotten() -> None:
    job = Clinic("abc", min_nodes=2)
    job.answer("a")
    job.do(Left(job.sessions["a"], "stopped"))
    job.hear()
    job.answer_all()
    while job.asked:
        job.answer_all()
    assert job.started() == {"b", "c"}
    assert job.machine.state.health.trusted == {"b", "c"}


@pytest.mark.parametrize("how", ["left", "drained", "lost"])
def test_who_goes_in_a_check_is_not_called_faulty(how: str) -> None:
    job = Clinic("abcd", min_nodes=2)
    job.answer("a")
    goes: dict[str, JobEvent] = {
        "left": Left(job.sessions["b"], "stopped by signal 15"),
        "drained": DrainNode("b", "maintenance"),
        "lost": Detached(job.sessions["b"], "reset"),
    }
    job.do(goes[how])
    job.hear()
    del job.asked["b"]
    while job.asked:
        job.answer_all(dead="b")
        decided = [effect.text for effect in job.of(Decided)]
    assert "3 of 3 checked nodes are good; gone before they were judged: b" in decided
    assert job.started() == {"a", "c", "d"}


def test_who_is_lost_between_two_probes_is_not_asked_to_help() -> None:
    """Else each suspect would wait for it in vain, and have one witness less."""
    job = Clinic("abcd", min_nodes=2)
    job.answer("d")
    job.do(Detached(job.sessions["d"], "reset"))
    job.hear()
    job.answer_all(dead="a")  # only for a while
    asked = [group.nodes for start in job.asked.values() for group in start.groups]
    assert set(asked) == {("b", "a"), ("a", "c"), ("b", "c")}
    job.answer_all()
    assert job.started() == set("abc")


def test_a_job_does_not_end_for_a_doubt_that_is_there_because_a_node_left() -> None:
    job = Clinic("ab")
    job.do(Left(job.sessions["b"], "stopped"))
    job.hear()
    job.answer("a", dead="b")
    assert job.phase() is JobPhase.GATHERING, "whoever comes next can clear it up"
    job.attach("c")
    job.hear()
    del job.asked["b"]
    assert (job.phase(), set(job.asked)) == (JobPhase.CHECKING, {"a", "c"})
    job.answer_all()
    assert job.started() == {"a", "c"}


def test_a_check_alone_that_a_node_left_was_not_passed() -> None:
    job = Clinic("abc", HealthCheckMode.AUTO, only=True)
    job.do(Left(job.sessions["b"], "stopped"))
    job.hear()
    del job.asked["b"]
    while job.asked:
        job.answer_all(dead="b")
    (ended,) = job.told("a", JobEnded)
    assert ended.outcome is Outcome.UNHEALTHY
    assert {row.node: row.verdict for row in ended.checkup} == {"a": "good", "b": "gone", "c": "good"}


# -- what is remembered of suspects that go


def blame(job: Clinic, node: str, others: str) -> None:
    """A worker of the node fails of what makes the node suspect."""
    hint = replace(failure(node), stderr_tail="CUDA error: unspecified launch failure")
    round_ = job.machine.state.round
    job.all_report(node + others, RUNNING, round_)
    job.report(node, AgentPhase.FAILED, round_, hint)
    job.all_report(others, READY, round_)


@pytest.mark.parametrize("host", ["b", "elsewhere"])
def test_a_suspect_that_was_lost_is_checked_when_its_host_is_back(host: str) -> None:
    job = Clinic("abc", min_nodes=2, max_restarts=3)
    job.answer_all()
    blame(job, "b", "ac")
    job.report("b", READY, 0, failure("b"))
    job.hear()
    assert (job.phase(), "b" in job.asked) == (JobPhase.CHECKING, True)
    job.do(Detached(job.sessions["b"], "reset"))
    job.hear()
    while set(job.asked) - {"b"}:
        job.asked.pop("b", None)
        job.answer_all()
    job.asked.clear()
    assert job.started() == {"a", "c"}
    job.all_report("ac", RUNNING, 1)
    job.attach("b", life=2, host=host)
    job.all_report("ac", READY, 1)
    job.hear()
    assert job.phase() is (JobPhase.CHECKING if host == "b" else JobPhase.RUNNING)
    job.answer_all()
    assert job.started() == {"a", "b", "c"}
    assert not job.machine.state.health.hosts or host != "b"


def test_an_excluded_node_that_its_platform_starts_again_is_checked_first() -> None:
    job = Clinic("abc", min_nodes=2)
    job.answer("b", error="no GPU")
    while job.asked:
        job.answer_all(dead="b")
    assert job.started() == {"a", "c"}
    job.all_report("ac", RUNNING, 0)
    job.attach("b", life=2)
    job.all_report("ac", READY, 0)
    job.hear()
    assert "b" in job.asked


def test_a_helper_that_fails_is_trusted_no_more() -> None:
    job = Clinic("a", HealthCheckMode.ALWAYS, max_nodes=2, last_call_timeout=0.0)
    job.attach("b")
    job.hear()
    job.answer("a")
    assert (job.phase(), set(job.asked)) == (JobPhase.CHECKING, {"a", "b"})  # a is trusted, and helps
    while job.asked:
        job.answer_all(dead="a")
    assert set(job.machine.state.health.doubtful) == {"a", "b"}
    assert not job.machine.state.health.trusted


def test_who_hears_late_of_a_probe_meets_the_others_where_they_are() -> None:
    job = Clinic("ab")
    place = job.asked["b"].groups[0]
    job.report("a", CHECKING, -1)  # it offers no port any more
    job.pass_time(14.0)
    job.attach("b")  # its stream broke before it heard
    (again,) = job.told("b", StartProbe)
    assert again.groups[0] == place and place.port


@pytest.mark.parametrize("restarts", [False, True])
def test_who_would_begin_a_probe_too_late_is_checked_anew(restarts: bool) -> None:
    """The others have given it up. With one slot in 60 s, half of a slot's time is 15 s."""
    job = Clinic("abc", min_nodes=2, reattach_timeout=60.0, heartbeat_timeout=1e6)
    del job.asked["c"]
    job.all_report("ab", CHECKING, -1)
    if restarts:  # nobody knows how long that took
        job.do(MasterStarted(2))
        for node in "ab":
            job.attach(node, CHECKING)
    else:
        job.pass_time(16.0)
    job.attach("c")
    job.hear()
    assert set(job.asked) == set("ab")
    job.answer_all(dead="c")
    while job.asked:
        job.answer_all()
    assert job.started() == set("abc")


def test_who_has_begun_a_probe_goes_on_when_the_master_restarts() -> None:
    job = Clinic("abc")
    job.all_report("ab", CHECKING, -1)
    job.answer("c")
    job.do(MasterStarted(2))
    for node in "ab":
        job.attach(node, CHECKING)
    job.attach("c")
    job.hear()
    job.answer_all()
    assert job.started() == set("abc")


def test_who_did_not_hear_that_it_was_excluded_hears_it_when_it_comes_back() -> None:
    job = running("ab", min_nodes=1)
    job.do(MasterStarted(2))
    job.do(DrainNode("b", "maintenance"))
    assert not job.drops()
    job.attach("b", RUNNING, 0)
    (drop,) = job.drops()
    assert drop.farewell is not None and drop.farewell.code is RejectCode.DRAINED


# -- hangs

STALL = Stall(
    rank=0, local_rank=0, step=7, silence=12.0, allowed=10.0, in_collective=True, evidence=Evidence.TIMEOUT
)
STILL = replace(STALL, silence=20.0, evidence=Evidence.STILL, lasting=10.0)
SILENT = replace(STALL, evidence=Evidence.NONE, doubt="rank 0 is outside any collective")
ENDLESS = replace(STALL, silence=1801.0, evidence=Evidence.LAST_BOUND, lasting=1.0)


def stalled(job: Job, node: str, stall: Stall | None) -> None:
    job.do(Reported(job.sessions[node], replace(job.status(node, RUNNING, 0), stall=stall)))


def test_a_hang_needs_every_node_and_names_the_one_that_lags() -> None:
    job = running("ab", max_restarts=1)
    stalled(job, "a", STALL)
    assert job.phase() is JobPhase.RUNNING
    found = replace(STALL, where="load (data.py:3)", stacks="/logs/attempt_0", timestamp=5.0)
    stalled(job, "b", replace(found, rank=1, in_collective=False))
    assert job.phase() is JobPhase.STOPPING
    (failed,) = job.machine.state.current.failures
    assert (failed.node, failed.rank, failed.kind, failed.step) == ("b", 1, FailureKind.HANG, 7)
    assert "made no step for 12.0 s after step 7" in failed.summary and "data.py:3" in failed.summary
    assert (failed.stacks, failed.timestamp) == ("/logs/attempt_0", 5.0), "for whoever looks for the cause"
    job.all_report("ab", READY, 0)
    assert (job.machine.state.budget.used, job.machine.state.round) == (1, 1)


def test_a_silence_without_evidence_on_one_node_is_told_once() -> None:
    job = running("ab", max_restarts=1)
    stalled(job, "a", STILL)
    stalled(job, "b", SILENT)
    assert job.phase() is JobPhase.RUNNING
    assert "b is waited for (rank 0 is outside any collective)" in job.decided()
    stalled(job, "b", replace(SILENT, silence=22.0))
    assert "is waited for" not in job.decided()


def test_nodes_that_are_still_at_the_same_time_hang() -> None:
    job = running("ab", max_restarts=1)
    stalled(job, "a", STILL)
    job.now += 8.0
    stalled(job, "b", STILL)
    assert job.phase() is JobPhase.RUNNING, "for 2 of the last 8 seconds: b may have let a go since"
    stalled(job, "a", replace(STILL, silence=28.0, lasting=18.0))
    assert job.phase() is JobPhase.STOPPING
    (failed,) = job.machine.state.current.failures
    assert "every rank waits for others, and no process below one has used CPU time or I/O" in failed.summary


@pytest.mark.parametrize("stall", [STILL, ENDLESS])
def test_without_any_restart_only_the_users_timeout_stops_a_job(stall: Stall) -> None:
    job = running("a")
    stalled(job, "a", stall)
    assert job.phase() is JobPhase.RUNNING
    assert "--max-restarts 0 allows no restart" in job.decided()
    stalled(job, "a", STALL)
    assert job.phase() is JobPhase.STOPPING


@pytest.mark.parametrize(("stall", "phase"), [(STILL, JobPhase.STOPPING), (ENDLESS, JobPhase.RUNNING)])
def test_patience_alone_takes_no_last_restart(stall: Stall, phase: JobPhase) -> None:
    job = running("a", max_restarts=1)
    job.machine.state.recovery = Recovery(Budget(1, used=1))
    stalled(job, "a", stall)
    assert job.phase() is phase


def test_the_last_bound_is_one_for_every_node() -> None:
    job = running("ab", max_restarts=1)
    stalled(job, "a", replace(STILL, silence=1750.0))
    job.now += 50.0
    stalled(job, "b", ENDLESS)
    assert job.phase() is JobPhase.RUNNING, "a may have gone on a moment ago"
    job.now += 10.0
    stalled(job, "a", replace(STILL, silence=1810.0))
    assert job.phase() is JobPhase.STOPPING


def test_a_stall_that_ends_is_no_hang() -> None:
    job = running("ab")
    stalled(job, "a", STALL)
    stalled(job, "a", None)
    stalled(job, "b", STALL)
    assert job.phase() is JobPhase.RUNNING


def test_who_waited_for_a_node_that_has_finished_has_to_say_again_that_it_hangs() -> None:
    job = running("ab", max_restarts=1)
    stalled(job, "b", STALL)
    job.report("a", AgentPhase.FINISHED, 0)
    assert job.phase() is JobPhase.RUNNING, "b may have been let go a moment ago"
    stalled(job, "b", replace(STALL, silence=22.0))
    assert job.phase() is JobPhase.STOPPING


def test_a_hang_that_a_lost_node_explains_is_free() -> None:
    job = running("ab", min_nodes=1)
    stalled(job, "a", STALL)
    stalled(job, "b", STALL)
    job.do(Detached(job.sessions["b"], "silent"))
    job.report("a", READY, 0)
    assert (job.machine.state.budget.used, job.machine.state.round) == (0, 1)


# -- leaving, draining, scaling


def test_a_node_that_leaves_lets_the_others_save_their_state() -> None:
    job = running("abc", min_nodes=2)
    job.do(Left(job.sessions["b"], "stopped by signal 15"))
    (stop,) = job.told("a", StopRound)
    assert stop.drain
    job.report("a", READY, 0)
    job.report("c", READY, 0)
    assert (job.machine.state.round, job.machine.state.budget.used) == (1, 0)


def test_a_node_that_is_to_leave_may_have_gone_already() -> None:
    leave = tuple(PolicyRule(each, Action.LEAVE) for each in FailureClass)
    job = running("ab", min_nodes=1, policy=Policy(rules=leave))
    blame = replace(failure("a"), stderr_tail="RuntimeError: uncorrectable ECC error")
    job.report("a", AgentPhase.FAILED, 0, blame)
    job.report("a", READY, 0, blame)
    job.do(Detached(job.sessions["a"], "reset"))
    job.report("b", READY, 0)
    assert (job.phase(), set(job.machine.state.current.assignments)) == (JobPhase.RUNNING, {"b"})
    assert job.machine.state.budget.used == 0


def test_an_operator_drains_a_node() -> None:
    job = running("ab", min_nodes=1)
    job.do(DrainNode("b", "maintenance"))
    (drop,) = job.drops()
    assert drop.farewell is not None and drop.farewell.code is RejectCode.DRAINED
    (stop,) = job.told("a", StopRound)
    assert stop.drain
    job.do(DrainNode("b", "again"))
    assert not job.drops()


def test_an_operator_scales_in_and_out() -> None:
    job = running("abc", min_nodes=1)
    job.do(ScaleJob(1, 2))
    assert [not stop.drain for stop in job.told("a", StopRound)] == [True]
    job.all_report("abc", READY, 0)
    assert set(job.machine.state.current.assignments) == {"a", "b"}
    job.all_report("ab", RUNNING, 1)
    job.do(ScaleJob(1, 3))
    assert job.phase() is JobPhase.STOPPING  # c can join
    job.all_report("ab", READY, 1)
    assert job.told("c", StartRound) or "c" in job.machine.state.current.assignments


def test_a_job_describes_itself() -> None:
    job = running("ab")
    job.attach("c")
    assert described(job.machine).splitlines() == [
        "job 'none': running, round 0, 3 nodes of 2:2, 0 of 0 restarts used",
        "  a: node 0, running",
        "  b: node 1, running",
        "  c: spare, ready",
    ]
    waiting = Job(min_nodes=2, max_nodes=2)
    waiting.attach("a")
    assert "1 missing" in described(waiting.machine)
    assert "  a: waiting, ready" in described(waiting.machine), "all wait for it: it is no spare"
    waiting.machine.state.recovery = Recovery(Budget(3, used=5, refunded=3))
    assert "2 of 3 restarts used" in described(waiting.machine), "what was earned back counts no more"


def test_nothing_is_said_about_agents_that_go_after_the_end() -> None:
    job = running("ab")
    job.all_report("ab", AgentPhase.FINISHED, 0)
    assert job.phase() is JobPhase.SUCCEEDED
    job.do(Detached(job.sessions["a"], "hung up"))
    assert not job.of(Decided)


def test_each_probe_has_a_secret_that_a_restarted_master_knows() -> None:
    assert probe_secret("key", 1) == probe_secret("key", 1)
    assert len({probe_secret("key", 1), probe_secret("key", 2), probe_secret("other", 1)}) == 3
    assert len(probe_secret("", 1)) == 32


# -- nodes that hold saved states


class Ward(Clinic):
    """Nodes that are checked again, after they have saved step 5 in round 0."""

    def __init__(self, nodes: str, own: bool, **config: Any) -> None:
        super().__init__(nodes, mode=HealthCheckMode.ALWAYS, max_restarts=3, **config)
        self.answer_all()
        self.held = {
            node: Holding(CommitId(0, 5), len(nodes), (Part(rank, "d", own, "" if own else "x"),))
            for rank, node in enumerate(nodes)
        }
        for node in nodes:
            self.do_status(node, self.status(node, RUNNING, 0))
        self.do(RestartRound("as ordered"))
        for node in nodes:
            self.do_status(node, self.status(node, READY, 0))
            self.hear()
        assert self.phase() is JobPhase.CHECKING

    def do_status(self, node: str, status: Any) -> None:
        port = Inlet(20_000 + ord(node), node.encode() * 32)
        held = () if status.round < 0 else (self.held[node],)
        probe = status.probe or self.machine.state.members.nodes[node].status.probe
        super().do_status(node, replace(status, holdings=held, inlet=port, probe=probe))
        assert self.machine.check() == []


def test_a_node_that_is_drained_while_it_is_checked_sends_what_it_has_saved() -> None:
    job = Ward("abc", own=True, min_nodes=2, state_copies=0)
    job.do(DrainNode("c", "a new disk"))
    assert job.machine.check() == []
    assert not job.drops()
    [stop] = job.told("c", StopRound)
    assert stop.round == 0, "it probes no more"
    del job.asked["c"]
    job.answer_all(dead="c")
    job.answer_all()
    assert job.phase() is JobPhase.GATHERING
    assert [copy.address for copy in job.machine.state.replication.orders("c")] == ["a.net"]
    part = job.held["c"].parts
    job.held["a"] = replace(job.held["a"], parts=(*job.held["a"].parts, *part))
    job.do_status("a", job.status("a", READY, 0))
    assert [drop.session for drop in job.drops()] == [job.sessions["c"]]
    assert {given.restore for given in job.machine.state.current.assignments.values()} == {CommitId(0, 5)}


def test_an_end_that_a_check_brings_about_may_wait_for_the_storage() -> None:
    job = Ward("ab", own=False, state_storage="/run")
    while job.asked:
        job.answer_all(dead="ab")
    assert (job.phase(), job.machine.state.checkup) == (JobPhase.CHECKING, None)
    job.do(DrainNode("a", "a new disk"))
    assert job.machine.check() == []
    assert not job.machine.state.leaving, "it may have to write"
    job.pass_time(60.0)
    assert job.phase() is JobPhase.UNHEALTHY
