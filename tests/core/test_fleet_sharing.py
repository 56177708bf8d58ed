"""Replicas of a job that has a share of a cluster: never more than that, and waiting without any."""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.fleet.decide import decide
from elasticrun.core.fleet.replicas import (
    Bounds,
    Count,
    Decision,
    Operation,
    Phase,
    Record,
    Role,
    Seen,
    Shape,
    Share,
    Wish,
)
from elasticrun.core.fleet.roles import elastic_of
from elasticrun.core.fleet.story import ADMITTED
from tests.core import test_fleet_roles as roles
from tests.core.test_fleet_scaling import World, told

WISH = Wish(Shape(2, 5), 4)


def world(share: int | None) -> World:
    return World(replace(WISH, share=Share(share, "as was decided")))


def admitted(decision: Decision) -> tuple[bool, str]:
    (found,) = [each for each in decision.conditions if each.kind == ADMITTED]
    return found.holds, found.text


def share(there: World, nodes: int | None) -> Decision:
    there.wish = replace(there.wish, share=Share(nodes, "as was decided"))
    there.look()
    return there.look()


def test_a_job_waits_until_its_share_is_decided() -> None:
    there = world(None)
    decision = there.look()
    assert (there.live, decision.phase, decision.held) == ([], "Waiting", 0)
    assert admitted(decision) == (False, "its share of the cluster is not decided yet")
    decision = share(there, 3)
    assert (there.live, decision.phase, decision.held, decision.wanted) == ([0, 1, 2], "Running", 3, 3)
    assert admitted(decision) == (True, "3 replicas: as was decided")


def test_a_job_that_runs_keeps_what_it_has_until_its_share_is_decided() -> None:
    there = World(WISH)
    assert share(there, None).phase == "Running"
    assert there.live == [0, 1, 2, 3]
    there.record = Record()  # is lost, with the share
    assert share(there, None).held == 4
    assert there.live == [0, 1, 2, 3]


def test_a_smaller_share_takes_the_newest_and_a_larger_one_adds() -> None:
    there = world(4)
    decision = share(there, 2)
    assert (there.live, decision.held) == ([0, 1], 4)  # two still end
    there.gone()
    assert there.look().held == 2
    share(there, 5)
    assert there.live == [0, 1, 4, 5]  # as many as are wanted, and not more


def test_a_share_of_none_removes_all_and_the_job_goes_on_later() -> None:
    there = world(2)
    there.seen[1] = replace(there.seen[1], phase=Phase.ENDED, exit_code=14)
    there.look()  # it was told to leave, as if all had been
    decision = share(there, 0)
    assert (there.live, decision.phase) == ([], "Waiting")
    assert admitted(decision) == (False, "as was decided")
    there.gone()
    assert there.look().phase == "Waiting"
    assert share(there, 2).phase == "Running"


def test_a_job_that_waits_takes_no_operation() -> None:
    assert told(world(0).look(Operation("a", more=1))) == [
        ("a", "Failed", "the job waits for its share of the cluster")
    ]


def test_in_takes_some_of_the_share_and_out_waits_for_a_larger_one() -> None:
    there = world(3)
    there.look(Operation("in", more=-1))
    assert there.live == [0, 1]
    there.gone()
    assert told(there.look(Operation("in", more=-1)))[0][1] == "Succeeded"
    out = Operation("out", more=2)
    assert told(there.look(out))[0][1:] == ("Running", "until there are 4 replicas")
    assert there.live == [0, 1, 3]
    there.wish = replace(there.wish, share=Share(4))
    there.look(out)
    assert told(there.look(out))[0][1] == "Succeeded"


def test_without_sharing_nothing_is_said_of_it() -> None:
    decision = decide(WISH, [Seen(0, Phase.RUNNING)], Record(), 0.0)
    assert decision.held is None
    assert all(each.kind != ADMITTED for each in decision.conditions)


SERVED = Shape(4, 7, 3, (Bounds("chief", 1, 1), Bounds("ps", 1, 2), Bounds("worker", 2, 4)))


def test_a_share_is_of_the_last_elastic_role() -> None:
    assert elastic_of(SERVED) == "worker"
    assert elastic_of(replace(SERVED, roles=(*SERVED.roles[:2], Bounds("worker", 3, 3)))) == "ps"
    assert elastic_of(replace(SERVED, roles=(Bounds("a", 1, 1), Bounds("b", 0, 0)))) == "a"
    assert elastic_of(WISH.shape) == ""


def test_of_several_roles_the_elastic_one_shrinks_and_the_others_stay() -> None:
    wish = Wish(SERVED, 6, roles=(Role("chief", 1), Role("ps", 2), Role("worker", 3)))
    there = roles.World(replace(wish, share=Share(3)))
    assert list(there.live.values()) == ["chief", "ps", "ps", "worker", "worker", "worker"]
    there.wish = replace(wish, share=Share(2, "so"))
    decision = there.look()
    assert list(there.live.values()) == ["chief", "ps", "ps", "worker", "worker"]
    assert decision.roles == (Count("chief", 1, 1), Count("ps", 2, 2), Count("worker", 2, 2))
    assert admitted(decision) == (True, "2 replicas of worker: so")
    there.wish = replace(wish, share=Share())
    there.delete(2)  # nothing is decided, so nothing is started
    assert list(there.live.values()) == ["chief", "ps", "worker", "worker"]
    there.wish = replace(wish, share=Share(0, "no room"))
    there.look()
    decision = there.look()
    assert (there.live, decision.phase, decision.held) == ({}, "Waiting", 0)
    assert decision.wanted == 0


def test_operations_on_a_role_that_is_not_elastic_leave_the_share() -> None:
    wish = Wish(SERVED, 6, roles=(Role("chief", 1), Role("ps", 2), Role("worker", 3)), share=Share(2))
    there = roles.World(wish)
    fewer = [Operation("ps", more=-1, role="ps"), Operation("worker", more=-1, role="worker")]
    there.look(*fewer)
    decision = there.look(*fewer)
    assert list(there.live.values()) == ["chief", "ps", "worker", "worker"]
    assert [each[1:] for each in told(decision)] == [
        ("Succeeded", "1 replicas of ps, as was asked for"),
        ("Failed", "there would be 1 replicas of worker of at least 2"),
    ]
