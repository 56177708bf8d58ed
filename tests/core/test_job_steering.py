"""Scale in and out, cordons, ordered checks and stops: what the machine makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.config import HealthCheckMode, HealthConfig
from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.cordons import MAX_CORDONED
from elasticrun.core.job.describe import describe
from elasticrun.core.job.events import Answered, Detached, Ended, JobEvent, MasterStarted, Reported
from elasticrun.core.job.orders import in_full
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.membership.scaling import Member, choose_leavers
from elasticrun.core.protocol.chronicle import OrderAnswered, ScaleEnded, ScaleStarted
from elasticrun.core.protocol.messages import (
    AgentPhase,
    GroupReport,
    JobEnded,
    Outcome,
    ProbeReport,
    RejectCode,
    StartProbe,
    StopRound,
)
from elasticrun.core.protocol.orders import (
    CancelScale,
    CheckNodes,
    CordonNode,
    DrainNode,
    RestartRound,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    StopJob,
    UncordonNode,
)
from elasticrun.core.protocol.status import JobPhase, ScaleEnd, status_in_words
from elasticrun.core.recovery.budget import StopCause
from elasticrun.master.snapshot import restore, take
from elasticrun.sim.fingerprint import difference, fingerprint
from tests.core.build import Job, failure, running

READY, RUNNING, FAILED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FAILED


def answer(job: Job, order: JobEvent) -> Answered:
    job.do(order)
    assert job.machine.check() == []
    (answered,) = job.of(Answered)
    return answered


def refused(job: Job, order: JobEvent) -> str:
    """The answer to an order that changes nothing."""
    before = fingerprint(job.machine.state)
    answered = answer(job, order)
    assert not answered.ok
    assert difference(before, fingerprint(job.machine.state)) == ""
    return answered.text


def obeyed(job: Job, order: JobEvent) -> str:
    answered = answer(job, order)
    assert answered.ok, answered.text
    return answered.text


def stopped(job: Job, names: str, round_: int = 0) -> None:
    """The workers of these nodes have ended."""
    for name in names:
        if name in job.machine.state.members.nodes:
            job.report(name, READY, round_)


def lose(job: Job, name: str) -> None:
    job.do(Detached(job.sessions[name], "reset"))


def words(job: Job) -> str:
    return status_in_words(describe(job.machine.state))


def world(job: Job) -> tuple[str, ...]:
    assert job.machine.check() == []
    assert job.phase() is JobPhase.RUNNING
    return tuple(job.machine.state.current.assignments)


def bounds(job: Job) -> tuple[int, int]:
    limits = job.machine.state.limits
    return limits.min_nodes, limits.max_nodes


# -- which members leave


def test_the_leavers_are_chosen_by_a_rule() -> None:
    members = [
        Member("host", 9, doubt=True, is_anchor=True),
        Member("old", 1),
        Member("new", 4),
        Member("shut", 2, cordoned=True),
        Member("ill", 3, doubt=True),
    ]
    names, words = choose_leavers(members, 5)
    assert names == ("ill", "shut", "new", "old", "host")
    assert words == (
        "ill (its health is in doubt), shut (it is cordoned), new (it came last), old (it came last),"
        " host (no other is left)"
    )
    assert choose_leavers(members, 1) == (("ill",), "ill (its health is in doubt)")


def test_nodes_leave_and_nothing_replaces_them() -> None:
    job = running("abc", min_nodes=1, max_nodes=3)
    job.attach("d")
    text = obeyed(job, ScaleIn("night", 1))
    assert text == "operation 1: c (it came last) is asked to leave; the job then wants 1 to 2 nodes"
    farewell = job.drops()[0].farewell
    assert farewell is not None
    assert farewell.code is RejectCode.DRAINED
    assert job.machine.state.current.stop == (StopCause.MEMBER_LEFT, "c scaled in: night")
    (order,) = job.told("a", StopRound)
    assert order.drain
    stopped(job, "ab")
    assert world(job) == ("a", "b"), "the spare stays one"
    assert bounds(job) == (1, 2)
    assert job.machine.state.budget.used == 0
    assert job.machine.state.scaling is None
    assert words(job).count("spare") == 1


def test_the_node_that_runs_the_master_and_those_listed_stay_longest() -> None:
    job = running("abc", min_nodes=1, max_nodes=3)
    job.machine.state.seniority.host = "c.1"
    assert "b (it came last)" in obeyed(job, ScaleIn("night", 1))
    job = running("abc", min_nodes=1, max_nodes=3)
    job.machine.state.health.suspect("a")
    job.machine.state.cordoned["b"] = "cordoned"
    assert "a (its health is in doubt), b (it is cordoned)" in obeyed(job, ScaleIn("night", 2))


def test_named_nodes_leave_each_once() -> None:
    job = running("abc", min_nodes=1, max_nodes=3)
    text = obeyed(job, ScaleIn("night", nodes=("a", "b", "a")))
    assert text == "operation 1: a, b are asked to leave; the job then wants 1 to 1 nodes"
    stopped(job, "c")
    assert world(job) == ("c",)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (
            ScaleIn("", 2),
            "1 of 3 nodes would be left of 2:3, but the job needs 2; lower MIN first (elastic-ctl scale)",
        ),
        (
            ScaleIn("", 7),
            "0 of 3 nodes would be left of 2:3, but the job needs 2; lower MIN first (elastic-ctl scale)",
        ),
        (ScaleIn("", nodes=("a", "x")), "there is no node 'x'; the nodes are: a, b, c, d"),
        (ScaleIn("", nodes=("d",)), "d is no member of round 0: elastic-ctl drain d sends it away"),
        (ScaleOut(2**31 - 1, 9.0), "2147483647 nodes are too many: the job may have 2147483644 more"),
        (CordonNode("x", ""), "there is no node 'x'; the nodes are: a, b, c, d"),
        (UncordonNode("x"), "there is no node 'x'; the nodes are: a, b, c, d"),
        (UncordonNode("a"), "a is not cordoned"),
    ],
)
def test_what_cannot_be_done_changes_nothing(order: JobEvent, text: str) -> None:
    job = running("abc", min_nodes=2, max_nodes=3)
    job.attach("d")
    assert refused(job, order) == text


def test_worlds_stay_multiples_of_the_unit() -> None:
    job = running("abcd", min_nodes=2, max_nodes=4, node_unit=2)
    assert refused(job, ScaleOut(1, 9.0)) == "1 is no multiple of 2 (--node-unit)"
    obeyed(job, ScaleIn("", 1))
    stopped(job, "abcd")
    assert (len(world(job)), bounds(job)) == (2, (2, 3))


def test_a_node_that_leaves_already_is_not_counted() -> None:
    job = running("abc", min_nodes=1, max_nodes=3, state_storage="/disk")
    obeyed(job, DrainNode("c", "a new disk"))
    idle = "no round runs: the job is stopping; try again once one does"
    assert refused(job, ScaleIn("", 1)) == idle
    job.machine.state.phase = JobPhase.RUNNING  # as if it had to be waited for while a round runs
    job.machine.state.current.stop = None
    text = "c is drained: a new disk, and leaves already"
    assert answer(job, ScaleIn("", nodes=("c",))) == Answered(False, text)


def test_there_is_one_operation_at_a_time() -> None:
    job = running("abc", min_nodes=1, max_nodes=3)
    obeyed(job, ScaleIn("", 1))
    pending = (
        "scale in by 1 (operation 1) goes on until the nodes have left and their round has stopped; order"
        " this one after it"
    )
    for order in (ScaleIn("", 1), ScaleOut(1, 9.0), ScaleJob(1, 9)):
        assert refused(job, order) == pending
    stopped(job, "ab")
    pending = "scale out by 1 (operation 2) waits for a world of 3 nodes for at most 9 s more"
    assert obeyed(job, ScaleOut(1, 9.0)) == "operation 2: 2 -> 3 nodes, once they come, within 9 s"
    first = "; order this one after it, or elastic-ctl scale cancel first"
    assert refused(job, ScaleOut(1, 9.0)) == pending + first
    assert describe(job.machine.state).scaling == pending
    assert f"\n  {pending}\n" in words(job)


def test_nodes_that_hold_a_state_are_waited_for() -> None:
    job = running("ab", min_nodes=1, max_nodes=2, state_storage="/disk")
    obeyed(job, ScaleIn("night", nodes=("b",)))
    assert "b" in job.machine.state.leaving
    stopped(job, "a")
    assert describe(job.machine.state).scaling
    stopped(job, "b")
    assert world(job) == ("a",)
    assert not describe(job.machine.state).scaling
    assert "scale in is done: 1 left; the job wants 1 to 1 nodes" in job.decided()


def test_an_operation_is_not_over_while_one_that_leaves_is_here() -> None:
    job = running("ab", min_nodes=1, max_nodes=2, state_storage="/disk")
    obeyed(job, ScaleIn("night", nodes=("b",)))
    state = job.machine.state
    state.round += 1  # as if another round ran while it is still here
    job.do(RestartRound(""))
    assert state.scaling is not None


# -- more nodes


def test_nodes_that_come_in_time_join_at_once() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(2, 60.0))
    job.attach("c")
    assert (job.phase(), bounds(job)) == (JobPhase.RUNNING, (1, 2)), "one alone changes nothing"
    job.attach("d")
    assert "4 nodes are there for a world of 4: they join" in job.decided()
    assert bounds(job) == (1, 4)
    stopped(job, "ab")
    assert world(job) == ("a", "b", "c", "d")
    assert "scale out is done: the world has 4 nodes" in job.decided()
    assert job.machine.state.scaling is None
    job.pass_time(100.0)
    assert bounds(job) == (1, 4)


def test_nodes_that_come_while_others_gather_join_at_once() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(1, 60.0))
    obeyed(job, RestartRound("edited"))
    job.attach("c")
    assert bounds(job) == (1, 2), "who stops is not known to come back"
    stopped(job, "ab")
    assert len(world(job)) == 3
    assert job.machine.state.round == 1, "there is one stop for both"


def test_who_is_being_checked_is_not_counted_yet() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(1, 60.0))
    obeyed(job, CheckNodes("slow"))
    stopped(job, "ab")
    assert job.phase() is JobPhase.CHECKING
    job.attach("c")
    assert bounds(job) == (1, 2)


def test_a_job_to_which_nobody_comes_is_as_it_was() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(1, 9.0))
    job.pass_time(10.0)
    reason = "not enough nodes came within 9 s for a world of 3; the job wants 1 to 2 nodes as before"
    assert f"scale out failed: {reason}" in job.decided()
    assert (bounds(job), world(job)) == ((1, 2), ("a", "b"))
    assert describe(job.machine.state).scaled == ScaleEnd(1, False, reason)
    assert describe(job.machine.state).scaling == ""
    assert job.machine.next_deadline() is not None


def grown_by_a_part(seconds: float) -> Job:
    """A job of two nodes that waits for two more, of which one is lost as it comes."""
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(2, seconds))
    job.attach("c")
    job.attach("d")
    lose(job, "d")
    stopped(job, "ab")
    assert (len(world(job)), bounds(job)) == (3, (1, 4))
    return job


def test_a_world_that_grew_by_a_part_shrinks_again() -> None:
    job = grown_by_a_part(9.0)
    job.pass_time(10.0)
    assert job.machine.state.current.stop is not None
    assert job.machine.state.current.stop[0] is StopCause.RESIZED
    assert bounds(job) == (1, 2)
    stopped(job, "abc", 1)
    assert world(job) == ("a", "b")


def test_a_wait_for_nodes_is_cancelled() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(2, 3600.0))
    job.attach("c")
    why = "cancelled: no money; the job wants 1 to 2 nodes as before"
    assert obeyed(job, CancelScale("no money")) == f"operation 1 is over: {why}"
    assert (bounds(job), world(job)) == ((1, 2), ("a", "b"))
    assert describe(job.machine.state).scaled == ScaleEnd(1, False, why)
    assert refused(job, CancelScale("")) == "no scale out waits for nodes"
    assert obeyed(job, ScaleOut(1, 9.0)).startswith("operation 2: 2 -> 3 nodes")
    assert bounds(job) == (1, 3), "c is there already"
    assert "operation 2 is over: cancelled; the job" in obeyed(job, CancelScale(""))
    stopped(job, "ab")
    assert world(job) == ("a", "b")


def test_a_cancelled_operation_lets_a_world_shrink_that_grew_by_a_part() -> None:
    job = grown_by_a_part(60.0)
    obeyed(job, CancelScale(""))
    assert job.machine.state.current.stop is not None
    assert job.machine.state.current.stop[0] is StopCause.RESIZED
    stopped(job, "abc", 1)
    assert (world(job), bounds(job)) == (("a", "b"), (1, 2))


def test_nodes_that_were_asked_to_leave_are_not_called_back() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleIn("", 1))
    text = "nodes that were asked to leave cannot be called back"
    assert refused(job, CancelScale("")).endswith(text)
    stopped(job, "a")
    assert world(job) == ("a",)


def test_an_operation_ends_with_the_job() -> None:
    job = running("a", min_nodes=1, max_nodes=1)
    obeyed(job, ScaleOut(1, 9.0))
    job.report("a", AgentPhase.FINISHED, 0)
    assert job.phase() is JobPhase.SUCCEEDED
    assert job.machine.state.scaling is None
    scaled = job.machine.state.scaled
    assert scaled is not None
    assert scaled.reason == "the job has ended: all workers of round 0 ended with 0"


def test_a_master_that_starts_again_keeps_the_deadline() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(1, 9.0))
    obeyed(job, CordonNode("b", "loud"))
    again = restore(job.machine.state.config, take(job.machine.state))
    assert difference(fingerprint(job.machine.state), fingerprint(again.state)) == ""
    job.machine = again
    job.do(MasterStarted(2))
    for name in "ab":
        job.attach(name, RUNNING, 0, 1)
    job.pass_time(10.0)
    assert (bounds(job), world(job)) == ((1, 2), ("a", "b"))
    assert job.machine.state.cordoned == {"b": "cordoned: loud"}


def test_the_event_log_tells_when_operations_begin_and_end() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    chronicler = Chronicler(job.machine.state)

    def told(event: JobEvent) -> list[object]:
        found = chronicler.after(event, job.machine.state, job.do(event))
        return [it for it in found if isinstance(it, OrderAnswered | ScaleStarted | ScaleEnded)]

    text = "operation 1: 2 -> 3 nodes, once they come, within 9 s"
    begun = told(ScaleOut(1, 9.0))
    assert begun == [OrderAnswered("ScaleOut", True, text), ScaleStarted(1, "scale out", 1, 3)]
    job.now += 9.0
    (expired,) = job.machine.due(job.now)
    scaled = "not enough nodes came within 9 s for a world of 3; the job wants 1 to 2 nodes as before"
    assert told(expired) == [ScaleEnded(1, False, scaled)]
    assert told(RestartRound(""))[1:] == []


def test_an_operation_that_begins_and_ends_at_once_is_told_whole() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    chronicler = Chronicler(job.machine.state)
    obeyed(job, ScaleIn("night", 1))
    stopped(job, "a")
    found = chronicler.after(StopJob(""), job.machine.state, [])
    told = [it for it in found if isinstance(it, ScaleStarted | ScaleEnded)]
    end = ScaleEnded(1, True, "1 left; the job wants 1 to 1 nodes")
    assert told == [ScaleStarted(1, "scale in", 1, 1), end]


# -- cordons


def test_a_cordoned_member_goes_on_and_is_in_no_new_world() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    text = "b is cordoned; it goes on in round 0, and no later world has it"
    assert obeyed(job, CordonNode("b", "loud")) == text
    assert job.phase() is JobPhase.RUNNING
    assert refused(job, CordonNode("b", "loud")) == "b is cordoned: loud already"
    few = "0 nodes would be left for the next world, but it needs 1; nothing has changed"
    assert refused(job, CordonNode("a", "loud")) == few
    assert "b: node 1, running, cordoned: loud" in words(job)
    obeyed(job, RestartRound("edited"))
    stopped(job, "ab")
    assert world(job) == ("a",)
    assert obeyed(job, UncordonNode("b")) == "b may be chosen for the next world again"
    stopped(job, "a", 1)
    assert world(job) == ("a", "b")


def test_a_cordon_on_a_member_can_be_lifted_before_it_matters() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, CordonNode("b", ""))
    assert job.machine.state.cordoned == {"b": "cordoned"}
    obeyed(job, UncordonNode("b"))
    assert world(job) == ("a", "b")


def test_a_cordon_holds_for_the_name() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    job.attach("c")
    assert obeyed(job, CordonNode("c", "loud")) == "c is cordoned: no new world has it"
    lose(job, "c")
    job.attach("c", life=2)
    assert "c" not in job.machine.state.ready
    lose(job, "c")
    obeyed(job, UncordonNode("c"))
    assert job.machine.state.cordoned == {}


def test_who_waits_is_told_who_is_cordoned() -> None:
    job = Job(min_nodes=2, max_nodes=3)
    for name in "abc":
        job.attach(name, AgentPhase.PREPARING)
    obeyed(job, CordonNode("c", "loud"))
    lose(job, "a")
    waiting = describe(job.machine.state).waiting_for
    assert waiting.startswith("1 of at least 2 nodes is here (b), 1 missing")
    assert waiting.endswith("; c is cordoned: loud")


def test_there_are_not_too_many_cordons() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    job.machine.state.cordoned |= {f"n{number}": "cordoned" for number in range(MAX_CORDONED)}
    assert (
        refused(job, CordonNode("b", "")) == "4096 nodes are cordoned, which is the most; lift a cordon first"
    )


def test_a_job_of_several_hosts_needs_all_to_begin() -> None:
    job = Job(2, min_nodes=1, max_nodes=2, endpoints=2)
    job.attach("a", position=0)
    job.attach("b", AgentPhase.PREPARING, position=1)
    text = "the job has not begun, and needs all hosts of --rdzv-endpoint for that; wait until it has"
    assert refused(job, CordonNode("b", "")) == text


@pytest.mark.parametrize("given", ["node1", "node1/4f"])
def test_the_beginning_of_a_name_is_enough(given: str) -> None:
    names = ["node0/a", "node1/4f"]
    assert in_full(CordonNode(given, "why"), names) == CordonNode("node1/4f", "why")
    assert in_full(UncordonNode(given), names) == UncordonNode("node1/4f")
    assert in_full(ScaleIn("why", nodes=(given, "x")), names) == ScaleIn("why", nodes=("node1/4f", "x"))
    assert in_full(ScaleIn("why", 1), names) == ScaleIn("why", 1)


@pytest.mark.parametrize(
    ("given", "node"), [("gpu1", "gpu1"), ("gpu2", "gpu2/a"), ("gpu3", "gpu3"), ("gpu4", "gpu4/a")]
)
def test_a_cordon_of_a_node_that_has_gone_is_lifted_by_its_name(given: str, node: str) -> None:
    """``gpu1`` begins only the name of gpu10 among the nodes that are here."""
    names, cordoned = ["gpu10", "gpu2/b", "gpu4/a"], ["gpu1", "gpu10", "gpu2/a", "gpu3/a", "gpu3/b"]
    assert in_full(UncordonNode(given), names, cordoned) == UncordonNode(node)
    assert in_full(CordonNode("gpu1", ""), names, cordoned) == CordonNode("gpu10", "")


def test_the_beginning_of_several_cordoned_names_lifts_nothing() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    job.machine.state.cordoned |= dict.fromkeys(("c1", "c2"), "cordoned")
    text = "'c' begins the names of 2 nodes; give more of one of: c1, c2"
    assert refused(job, UncordonNode("c")) == text


# -- checks


def probed(job: Job, name: str) -> None:
    """A node has passed the probe that it was told to make."""
    checkup = job.machine.state.checkup
    assert checkup is not None
    groups = tuple(GroupReport("", 1e9, 1e-4, "gloo") for _ in checkup.groups_of(name))
    job.report(name, AgentPhase.CHECKING, 0)
    probe = ProbeReport(checkup.number, "", 1e12, groups, "torch/cpu")
    status = replace(job.status(name, READY, 0), probe=probe)
    job.do(Reported(job.sessions[name], status))


@pytest.mark.parametrize("mode", list(HealthCheckMode))
def test_all_nodes_are_checked_however_the_job_was_started(mode: HealthCheckMode) -> None:
    job = running("ab")
    state = job.machine.state
    state.config = replace(state.config, health=HealthConfig(mode=mode))
    text = (
        "round 0 is stopped, then all nodes are checked: their accelerators, and the links between them; it"
        " spends no restart"
    )
    assert obeyed(job, CheckNodes("slow")) == text
    (order,) = job.told("a", StopRound)
    assert (order.reason, order.drain) == ("check ordered: slow", True)
    job.report("a", READY, 0)
    assert obeyed(job, CheckNodes("again")).startswith("all nodes are checked before the next round")
    job.report("b", READY, 0)
    assert job.phase() is JobPhase.CHECKING
    assert job.told("a", StartProbe)
    assert refused(job, CheckNodes("again")) == "the nodes are being checked"
    for name in "ab":
        probed(job, name)
    assert world(job) == ("a", "b")
    assert (job.machine.state.budget.used, job.machine.state.check_ordered) == (0, "")


# -- stops


def test_a_stopped_job_ends_with_grace() -> None:
    job = running("ab")
    assert obeyed(job, StopJob("no money")) == "the job ends; its workers may save their state (2 nodes)"
    (order,) = job.told("a", StopRound)
    assert (order.reason, order.drain) == ("stopped by an operator: no money", True)
    assert refused(job, StopJob("again")) == "the job is stopped by an operator: no money already"
    stopped(job, "ab")
    assert job.phase() is JobPhase.STOPPED
    (ended,) = job.of(Ended)
    assert (ended.outcome, ended.reason) == (Outcome.STOPPED, "stopped by an operator: no money")
    assert job.told("a", JobEnded)[0].outcome is Outcome.STOPPED


@pytest.mark.parametrize(
    "order",
    [
        ScaleIn("", 1),
        ScaleOut(1, 9.0),
        ScaleJob(1, 1),
        CordonNode("b", ""),
        CheckNodes(""),
        RestartRound(""),
        StopJob(""),
    ],
)
def test_nothing_is_promised_of_a_world_that_a_stop_forbids(order: JobEvent) -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, StopJob("no money"))
    assert refused(job, order).startswith("the job is stopped by an operator: no money")
    stopped(job, "ab")
    assert job.phase() is JobPhase.STOPPED


def test_workers_that_finish_first_have_succeeded() -> None:
    job = running("ab")
    obeyed(job, StopJob(""))
    for name in "ab":
        job.report(name, AgentPhase.FINISHED, 0)
    assert job.phase() is JobPhase.SUCCEEDED


def test_a_failure_that_ends_the_job_is_told_in_place_of_the_stop() -> None:
    job = running("ab", max_restarts=0)
    job.report("a", FAILED, 0, failure("a"))
    obeyed(job, StopJob(""))
    stopped(job, "ab")
    assert job.phase() is JobPhase.FAILED


def test_a_job_that_gathers_stops_at_once() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.attach("a")
    obeyed(job, StopJob(""))
    assert job.phase() is JobPhase.STOPPED


def test_a_job_that_is_checked_stops_at_once() -> None:
    health = HealthConfig(mode=HealthCheckMode.START)
    job = Job(min_nodes=2, max_nodes=2, health=health)
    for name in "ab":
        job.attach(name)
    assert job.phase() is JobPhase.CHECKING
    obeyed(job, StopJob(""))
    assert (job.phase(), job.machine.state.checkup) == (JobPhase.STOPPED, None)


@pytest.mark.parametrize(
    "order",
    [
        ScaleIn("", 1),
        ScaleOut(1, 9.0),
        CordonNode("a", ""),
        UncordonNode("a"),
        CheckNodes(""),
        StopJob(""),
        CancelScale(""),
    ],
)
def test_after_the_end_every_order_is_refused(order: JobEvent) -> None:
    job = running("a")
    job.report("a", AgentPhase.FINISHED, 0)
    assert refused(job, order) == "the job has ended: all workers of round 0 ended with 0"


def test_an_order_for_fewer_nodes_says_which_or_how_many() -> None:
    for order in (ScaleIn("why"), ScaleIn("why", 1, ("a",))):
        assert order.contradiction() == "give either a count of nodes or their names"
    assert ScaleIn("why", 1).contradiction() == ScaleIn("why", nodes=("a",)).contradiction() == ""


def test_the_parts_watch_their_invariants() -> None:
    job = running("ab", min_nodes=1, max_nodes=2)
    obeyed(job, ScaleOut(1, 9.0))
    job.machine.state.limits = WorldLimits(1, 9)
    assert "Scaling: bounds are those of the last order" in job.machine.check()
