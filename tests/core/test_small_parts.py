"""Ranks, rendezvous, restart, roster, membership, round, timers: examples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.job.round import Round
from elasticrun.core.membership import nodes as membership
from elasticrun.core.membership.nodes import Admission, Membership
from elasticrun.core.membership.ranks import RoundTerms, assign_ranks, order_by_seat, order_members
from elasticrun.core.membership.rendezvous import Candidate, WorldLimits, choose_world
from elasticrun.core.membership.roster import (
    answer,
    describe_spares,
    describe_waiting,
    name_some,
    some_lines,
    superseded,
)
from elasticrun.core.protocol.messages import (
    MAX_FAILURES,
    AgentPhase,
    AgentStatus,
    Assignment,
    FailureKind,
    RejectCode,
    Trust,
)
from elasticrun.core.protocol.orders import ControlHello, ControlReply
from elasticrun.core.recovery.budget import MAX_STORE_RETRIES, Budget, StopCause, excused
from elasticrun.core.timers import Deadlines
from tests.core.build import failure, info

STRANGER, MEMBER, RETURNING = Trust


@pytest.mark.parametrize(
    ("selected", "previous", "expected"),
    [
        ("", "", ""),
        ("bac", "", "bac"),  # nobody was there before: in order of arrival
        ("abc", "cab", "cab"),  # nobody moves
        ("dab", "abc", "abd"),  # a newcomer takes the seat that became free
        ("xab", "axb", "axb"),  # it is no newcomer if it was there
        ("bcx", "abc", "bcx"),  # rank 0 goes to a survivor, not to a newcomer
        ("bcx", "aqbc", "bcx"),
        ("acx", "abc", "axc"),
        ("acxy", "abc", "axcy"),
        ("acyx", "abc", "aycx"),
        ("ad", "abcd", "ad"),  # a seat that nobody takes disappears
        ("xy", "abc", "xy"),
    ],
)
def test_order_by_seat(selected: str, previous: str, expected: str) -> None:
    assert "".join(order_by_seat(list(selected), list(previous))) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "abc"), ({"c": 0}, "cab"), ({"a": 2, "b": 0, "c": 1}, "bca"), ({"a": 7, "b": 5}, "bac")],
)
def test_given_ranks_come_first(given: dict[str, int], expected: str) -> None:
    ranks = {name: given.get(name) for name in "abc"}
    assert "".join(order_members(list("abc"), list("abc"), ranks)) == expected


def test_assignments_count_global_group_and_role_ranks() -> None:
    members = [
        info("a", local_world_size=2, role="train"),
        info("b", local_world_size=3, role="eval"),
        info("c", local_world_size=1, role="train"),
    ]
    given = assign_ranks(members, RoundTerms(4, "a.net", 7001, 1, 3))
    assert list(given) == ["a", "b", "c"]
    assert [each.group_rank for each in given.values()] == [0, 1, 2]
    assert [each.first_rank for each in given.values()] == [0, 2, 5]
    assert [each.role_first_rank for each in given.values()] == [0, 0, 2]
    assert [each.role_world_size for each in given.values()] == [3, 3, 3]
    last = given["c"]
    assert (last.round, last.group_world_size, last.world_size) == (4, 3, 6)
    assert (last.store_address, last.store_port) == ("a.net", 7001)
    assert (last.restart_count, last.max_restarts) == (1, 3)


@pytest.mark.parametrize(
    ("limits", "ready", "usable"),
    [
        (WorldLimits(2, 4), 1, 0),
        (WorldLimits(2, 4), 2, 2),
        (WorldLimits(2, 4), 9, 4),
        (WorldLimits(3, 8, 2), 3, 0),
        (WorldLimits(3, 8, 2), 4, 4),
        (WorldLimits(3, 8, 2), 7, 6),
        (WorldLimits(3, 7, 2), 7, 6),
    ],
)
def test_usable(limits: WorldLimits, ready: int, usable: int) -> None:
    assert limits.usable(ready) == usable


def test_smallest_and_largest_are_multiples_of_the_unit() -> None:
    assert (WorldLimits(3, 7, 2).smallest, WorldLimits(3, 7, 2).largest) == (4, 6)
    assert (WorldLimits(4, 8, 4).smallest, WorldLimits(4, 8, 4).largest) == (4, 8)


def test_choice_prefers_old_members_then_given_ranks_then_arrival() -> None:
    candidates = [
        Candidate("new", 1),
        Candidate("ranked", 5, node_rank=3),
        Candidate("front", 6, node_rank=0),
        Candidate("old", 9),
        Candidate("older", 8),
    ]
    chosen, reason = choose_world(candidates, ["older", "old"], WorldLimits(1, 4))
    assert chosen == ["older", "old", "front", "ranked"]
    assert reason == "4 nodes of 1:4 ready, 1 to spare"
    chosen, reason = choose_world(candidates, [], WorldLimits(1, 5))
    assert chosen == ["front", "ranked", "new", "older", "old"]
    assert reason == "5 nodes of 1:5 ready"


def test_no_choice_below_the_minimum() -> None:
    assert choose_world([Candidate("a", 1)], [], WorldLimits(3, 4, 2)) == (
        [],
        "1 node ready, at least 4 needed",
    )


@pytest.mark.parametrize("cause", [StopCause.MEMBER_LOST, StopCause.NODE_JOINED])
def test_membership_is_free(cause: StopCause) -> None:
    assert Budget(0, 0, 5).settle(cause) == (Budget(0, 0, 0), f"free: {cause.value}")


def test_failures_spend_until_nothing_is_left() -> None:
    budget, reason = Budget(2).settle(StopCause.WORKER_FAILED)
    assert (budget, reason) == (Budget(2, 1), "restart 1 of 2")
    assert Budget(2, 1).settle(StopCause.WORKER_FAILED) == (Budget(2, 2), "restart 2 of 2")
    assert Budget(2, 2).settle(StopCause.WORKER_FAILED) == (None, "all 2 restarts are used")
    assert Budget(0).settle(StopCause.WORKER_FAILED) == (None, "no restart allowed (--max-restarts 0)")


def test_a_port_that_is_taken_again_and_again_is_charged() -> None:
    budget: Budget | None = Budget(1)
    for retry in range(1, MAX_STORE_RETRIES + 1):
        assert budget is not None
        budget, reason = budget.settle(StopCause.PORT_TAKEN)
        assert (budget, reason) == (Budget(1, 0, retry), f"free: port taken, attempt {retry + 1}")
    assert budget is not None
    assert budget.settle(StopCause.PORT_TAKEN) == (Budget(1, 1), "restart 1 of 1")
    assert budget.settle(StopCause.WORKER_FAILED) == (Budget(1, 1), "restart 1 of 1")


@pytest.mark.parametrize(
    ("cause", "fact", "after"),
    [
        (StopCause.WORKER_FAILED, StopCause.MEMBER_LOST, StopCause.MEMBER_LOST),
        (StopCause.WORKER_FAILED, StopCause.PORT_TAKEN, StopCause.PORT_TAKEN),
        (StopCause.WORKER_FAILED, StopCause.STORE_LOST, StopCause.STORE_LOST),
        (StopCause.STORE_LOST, StopCause.MEMBER_LOST, StopCause.MEMBER_LOST),
        (StopCause.STORE_LOST, StopCause.WORKER_FAILED, StopCause.STORE_LOST),
        (StopCause.WORKER_FAILED, StopCause.NODE_JOINED, StopCause.WORKER_FAILED),
        (StopCause.PORT_TAKEN, StopCause.MEMBER_LOST, StopCause.MEMBER_LOST),
        (StopCause.PORT_TAKEN, StopCause.WORKER_FAILED, StopCause.PORT_TAKEN),
        (StopCause.MEMBER_LOST, StopCause.WORKER_FAILED, StopCause.MEMBER_LOST),
        (StopCause.NODE_JOINED, StopCause.WORKER_FAILED, StopCause.NODE_JOINED),
    ],
)
def test_causes_are_only_ever_excused(cause: StopCause, fact: StopCause, after: StopCause) -> None:
    assert excused(cause, fact) is after


def test_who_is_here_and_who_is_missing() -> None:
    limits = WorldLimits(3, 4)
    assert describe_waiting([], limits) == "0 of at least 3 nodes are here, 3 missing"
    assert describe_waiting([info("a")], limits) == "1 of at least 3 nodes is here (a), 2 missing"
    ranked = [info("a", node_rank=0), info("c", node_rank=2)]
    assert describe_waiting(ranked, limits) == (
        "2 of at least 3 nodes are here (a, c), 1 missing: node rank 1"
    )
    assert describe_waiting([info("a", node_rank=5), info("b", node_rank=6)], WorldLimits(3, 3)).endswith(
        "missing: node rank 0, 1, 2"
    )
    far = [info("a", node_rank=0), info("b", node_rank=0), info("c", node_rank=0)]
    assert describe_waiting(far, limits).endswith("(a, b, c), but some of them cannot start yet")
    assert name_some(list("abcdefghij")) == "a, b, c, d, e, f, g, h and 2 more"


def test_of_many_lines_the_first_are_told() -> None:
    assert some_lines(["a", "b"]) == ["a", "b"]
    assert some_lines(list("abcdefgh")) == list("abcdefgh")
    assert some_lines(list("abcdefghij"))[7:] == ["h", "and 2 more; the master's log has them all"]


def test_nothing_is_said_of_ranks_if_all_smaller_ones_are_here() -> None:
    present = [info("a", node_rank=0), info("b", node_rank=1)]
    text = describe_waiting([*present, info("c", node_rank=1)], WorldLimits(2, 8, 4))
    assert text == "3 of at least 4 nodes are here (a, b, c), 1 missing: node rank 2, 3"
    assert describe_waiting([], WorldLimits(1, 1)) == "0 of at least 1 nodes are here, 1 missing"


def test_why_spares_wait() -> None:
    assert describe_spares(4, 1, 0, WorldLimits(1, 4)) == (
        "the world is full with 4 of at most 4 nodes; 1 spare node waits for a place"
    )
    assert describe_spares(2, 3, 0, WorldLimits(1, 4, 2)) == (
        "the world of 2 nodes cannot grow now; 3 spare nodes wait for a place"
    )
    late = "1 node joins once its workers' imports are done"
    assert describe_spares(2, 0, 1, WorldLimits(1, 4)) == late
    assert describe_spares(4, 1, 1, WorldLimits(1, 4)).endswith(f"for a place; {late}")
    assert describe_spares(2, 0, 2, WorldLimits(1, 4)).startswith("2 nodes join once their workers'")


def test_the_farewell_of_a_superseded_agent_says_what_to_do() -> None:
    farewell = superseded("a")
    assert farewell.code is RejectCode.SUPERSEDED
    assert "--node-rank" in farewell.message


def test_membership_admits_supersedes_and_refuses() -> None:
    members = Membership()
    status = AgentStatus(1, AgentPhase.READY)
    assert members.judge(1, info("a"), STRANGER) is Admission.JOINS
    assert not members.has_met(info("a"))
    node, replaced = members.attach(1, info("a"), status)
    assert (node.session, replaced, node.arrival, members.detached) == (1, None, 1, 0)
    assert members.has_met(info("a"))
    assert members.judge(0, info("a"), RETURNING) is Admission.STALE
    assert members.judge(1, info("a"), RETURNING) is Admission.REATTACHES
    assert members.judge(2, info("a"), RETURNING) is Admission.REATTACHES
    assert members.attach(2, info("a"), AgentStatus(1, AgentPhase.FAILED)) == (node, 1)
    assert node.status is status  # its sequence is not newer
    assert members.attach(2, info("a"), status) == (node, None)
    assert members.node_of(1) is None
    assert members.node_of(2) is node


def test_a_replaced_incarnation_is_refused_even_if_it_was_lost_before() -> None:
    members = Membership()
    status = AgentStatus(1, AgentPhase.READY)
    members.attach(1, info("a", 1), status)
    members.remove("a")
    # It may come back as long as no other came.
    assert members.judge(2, info("a", 1), STRANGER) is Admission.JOINS
    members.attach(2, info("a", 2), status)
    members.remove("a")
    assert members.judge(3, info("a", 1), RETURNING) is Admission.REFUSED
    assert members.judge(3, info("a", 2), STRANGER) is Admission.JOINS


def test_there_is_room_for_so_many_nodes_that_may_be_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MOST_SPARES", 2)
    members = Membership(max_nodes=1)
    for number, node in enumerate("abc"):
        members.attach(number, info(node), AgentStatus(1, AgentPhase.READY), STRANGER)
    assert members.judge(3, info("d"), STRANGER) is Admission.CROWDED
    assert members.judge(3, info("d"), MEMBER) is Admission.JOINS
    assert members.judge(3, info("a"), RETURNING) is Admission.REATTACHES
    told = answer(Admission.CROWDED, "d", None, 3)
    assert told is not None and told.code is RejectCode.TOO_MANY and "3 nodes" in told.message


@pytest.mark.parametrize("life", [1, 2])
@pytest.mark.parametrize("trust", [STRANGER, MEMBER])
def test_nobody_takes_the_name_of_a_node_with_a_session(life: int, trust: Trust) -> None:
    members = Membership()
    members.attach(1, info("a", 1), AgentStatus(1, AgentPhase.RUNNING))
    assert members.judge(2, info("a", life), trust) is Admission.IN_USE


@pytest.mark.parametrize(
    ("life", "trust", "admission"),
    [
        (1, STRANGER, Admission.IN_USE),  # the agent itself has a ticket
        (2, STRANGER, Admission.IN_USE),
        (1, MEMBER, Admission.REATTACHES),  # it was never welcomed
        (2, MEMBER, Admission.SUPERSEDES),
        (1, RETURNING, Admission.REATTACHES),
    ],
)
def test_who_may_have_the_name_of_a_node_that_a_restarted_master_waits_for(
    life: int, trust: Trust, admission: Admission
) -> None:
    members = Membership()
    members.attach(1, info("a", 1), AgentStatus(1, AgentPhase.RUNNING))
    members.detach_all()
    assert members.judge(1, info("a", life), trust) is admission


def test_detached_nodes_are_counted() -> None:
    members = Membership()
    for number, name in enumerate("abc"):
        members.attach(number, info(name), AgentStatus(1, AgentPhase.READY))
    members.detach_all()
    assert members.detached == 3
    assert not members.nodes["a"].ready
    members.remove("a")
    members.attach(0, info("b"), AgentStatus(2, AgentPhase.RUNNING))  # sessions count anew with each master
    assert members.detached == 1
    assert members.nodes["b"].status.sequence == 2
    members.retire(members.nodes["c"], None)
    assert members.judge(9, info("c"), RETURNING) is Admission.REFUSED


def test_a_round_hears_each_failure_once_and_not_too_many() -> None:
    round_ = Round(pending={"a"})
    for rank in range(MAX_FAILURES + 2):
        round_.hear(failure(rank=rank))
        round_.hear(failure(rank=rank))
    assert [heard.rank for heard in round_.failures] == list(range(MAX_FAILURES))
    assert round_.stop == (StopCause.WORKER_FAILED, failure().summary)
    round_.hear(failure(kind=FailureKind.PORT_TAKEN))
    assert round_.stop[0] is StopCause.PORT_TAKEN
    round_.lose("a", "gone")
    assert round_.stop == (StopCause.MEMBER_LOST, "gone")
    assert round_.stop_reason == "gone"


@pytest.mark.parametrize(
    ("kind", "step", "is_hosted", "cause"),
    [
        (FailureKind.PORT_TAKEN, -1, False, StopCause.PORT_TAKEN),
        (FailureKind.PORT_TAKEN, 7, False, StopCause.WORKER_FAILED),  # the store was there: steps were made
        (FailureKind.PORT_TAKEN, -1, True, StopCause.WORKER_FAILED),  # the port was never released
        (FailureKind.STORE_LOST, -1, True, StopCause.STORE_LOST),
        (FailureKind.STORE_LOST, -1, False, StopCause.WORKER_FAILED),  # there was no such store
    ],
)
def test_a_round_believes_what_is_said_of_the_store_only_where_it_can_be(
    kind: FailureKind, step: int, is_hosted: bool, cause: StopCause
) -> None:
    own = Assignment(0, 0, 1, 0, 1, 0, 1, "a", 1, 0, 0, store_hosted=is_hosted)
    round_ = Round({"a": own}, {"a"})
    round_.hear(replace(failure(kind=kind), step=step))
    assert round_.stop is not None
    assert round_.stop[0] is cause


def test_losing_a_node_that_is_no_member_or_has_finished_stops_nothing() -> None:
    round_ = Round(pending={"a"}, finished={"a"})
    round_.lose("x", "gone")
    round_.lose("a", "gone")
    assert (round_.pending, round_.stop, round_.stop_reason) == (set(), None, "")


def test_a_deadline_that_only_moves_later_has_one_entry() -> None:
    timers: Deadlines[str] = Deadlines()
    for at in range(100):
        timers.set("a", float(at))
        timers.set("a", float(at))
    assert len(timers._heap) == 1
    assert timers.next() == 99.0


def test_deadlines_of_one_instant_come_in_the_order_in_which_they_were_set() -> None:
    timers: Deadlines[str] = Deadlines()
    for name in "cab":
        timers.set(name, 1.0)
    assert timers.pop_due(1.0) == ["c", "a", "b"]


def test_deadlines_come_in_order_and_move_both_ways() -> None:
    timers: Deadlines[str] = Deadlines()
    assert timers.next() is None
    assert timers.first_due(9.0) is None
    timers.set("a", 3.0)
    timers.set("b", 2.0)
    timers.set_default("b", 9.0)
    timers.set_default("c", 9.0)
    assert timers.first_due(1.0) is None
    assert timers.first_due(2.0) == "b"
    assert "b" in timers  # asking changes nothing
    timers.set("b", 5.0)  # later
    assert timers.next() == 3.0
    timers.set("b", 1.0)  # earlier
    assert timers.next() == 1.0
    timers.cancel("b")
    timers.cancel("nobody")
    assert timers.next() == 3.0
    assert timers.pop_due(2.9) == []
    assert timers.pop_due(9.0) == ["a", "c"]
    assert timers.next() is None


def test_an_order_without_a_proof_proves_nothing() -> None:
    assert (ControlHello("job", "1").proof, ControlReply(True, "done").proof) == (b"", b"")
