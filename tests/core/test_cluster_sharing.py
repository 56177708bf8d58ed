"""Shares of an operator's jobs: what is written for each, why, and when it is decided again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elasticrun.core.cluster.sharing import (
    FIRST_PAUSE,
    PATIENCE,
    REWORD,
    Ask,
    Grant,
    Granted,
    Limit,
    Shared,
    Stage,
    share_out,
)

GPU = "nvidia.com/gpu"
NOW = 1000.0


def ask(name: str, least: int, most: int, nodes: int | None = None, **more: object) -> Ask:
    """A job that has what it was granted; ``nodes``: None, if that was never decided."""
    has = nodes or 0
    granted = None if nodes is None else Granted(nodes, "as before", NOW)
    made = Ask(name, least, most, GPU, 1, granted=granted, live=has, held=has, running=has)
    return replace(made, **more)  # type: ignore[arg-type] # mypy cannot know the names


def shared(asks: Sequence[Ask], units: int = 4, now: float = NOW) -> Shared:
    return share_out(asks, {GPU: units}, now)


def said(found: Shared) -> Mapping[str, tuple[int, str]]:
    return {it.name: (it.granted.nodes, it.granted.why) for it in found.grants}


def carried_out(asks: Sequence[Ask], found: Shared) -> list[Ask]:
    shares = {it.name: it.granted for it in found.grants}
    return [replace(it, granted=shares.get(it.name, it.granted)) for it in asks]


def test_a_job_that_starts_waits_for_the_pods_of_one_that_shrinks() -> None:
    asks = [ask("first", 1, 4, 4), ask("second", 2, 2)]
    found = shared(asks)
    assert said(found) == {
        "first": (2, "room is made for a job that starts, or units are gone"),
        "second": (0, "it gets 2 nodes as soon as pods of other jobs have ended"),
    }
    assert [it.name for it in found.grants] == ["first", "second"]
    asks = carried_out(asks, found)
    assert shared(asks).grants == ()
    asks[0] = replace(asks[0], held=2)
    assert said(shared(asks)) == {"second": (2, "its least number of nodes can be had")}


def test_when_sharing_begins_what_runs_stays_and_what_never_ran_waits() -> None:
    trains = ask("trains", 2, 4, live=2, held=2, running=2)
    never_ran = ask("never-ran", 4, 4, live=4, held=4)
    assert {name: nodes for name, (nodes, _) in said(shared([trains, never_ran])).items()} == {
        "trains": 2,
        "never-ran": 0,
    }


def test_pods_that_will_end_cost_nobody_its_share() -> None:
    for stage in (Stage.SUSPENDED, Stage.OVER):
        asks = [ask("goes-on", 1, 4, 4), ask("ends", 2, 2, 0, stage=stage, held=2), ask("comes", 2, 2)]
        found = shared(asks, units=6)
        assert said(found)["comes"] == (0, "it gets 2 nodes as soon as pods of other jobs have ended")
        assert "goes-on" not in said(found)


def test_pods_that_stay_are_no_capacity() -> None:
    asks = [ask("wrong", 1, 1, 2, stage=Stage.FIXED), ask("comes", 3, 3)]
    assert said(shared(asks)) == {
        "comes": (0, f"it needs 3 units, and 2 can be had; a unit is one {GPU}"),
    }


def test_a_job_keeps_what_it_had_when_sharing_began() -> None:
    found = shared([ask("old", 1, 3, live=3, held=3, running=3)])
    assert found.grants == (Grant("old", 3, Granted(3, "it keeps what it had", NOW)),)
    assert not found.grants[0].is_change


def test_a_suspended_job_gives_its_share_back() -> None:
    found = shared([ask("paused", 1, 4, 4, stage=Stage.SUSPENDED)])
    assert said(found) == {"paused": (0, "it is suspended")}
    assert shared(carried_out([ask("paused", 1, 4, 4, stage=Stage.SUSPENDED)], found)).grants == ()


def test_a_job_that_takes_nothing_has_what_it_wants() -> None:
    found = shared([ask("free", 1, 3, kind="", takes=0)], units=0)
    assert said(found) == {"free": (3, "it requests nothing of what is shared")}


def test_another_reason_to_wait_is_told_after_a_while() -> None:
    waits = ask("waits", 8, 8, 0)
    found = shared([waits])
    assert found == Shared((), NOW + REWORD)
    found = shared([waits], now=NOW + REWORD)
    assert said(found) == {"waits": (0, f"it needs 8 units, and 4 can be had; a unit is one {GPU}")}
    assert not found.grants[0].is_change


def test_nodes_that_find_no_room_are_no_capacity_until_a_pause_has_passed() -> None:
    stuck = ask("stuck", 1, 4, 4, running=2, hindered=NOW, hindrance="replica 3: Unschedulable")
    for since in (NOW, NOW - PATIENCE):  # those that it has got since have their time as well
        assert shared([replace(stuck, hindered=since)]) == Shared((), NOW + PATIENCE)
    then = NOW + PATIENCE
    found = shared([stuck], now=then)
    assert said(found) == {
        "stuck": (2, "more did not run, and are tried again later: replica 3: Unschedulable")
    }
    limit = found.grants[0].granted.limit
    assert limit == Limit(2, then + FIRST_PAUSE, 1, "replica 3: Unschedulable")
    fits = replace(carried_out([stuck], found)[0], held=2, hindered=None)
    other = ask("other", 2, 2)
    assert said(shared([fits, other], now=then)) == {"other": (2, "its least number of nodes can be had")}
    assert shared([fits], now=then) == Shared((), limit.until)
    again = carried_out([fits], shared([fits], now=limit.until))[0]
    assert again.nodes == 4
    assert again.granted is not None and again.granted.limit == replace(limit, until=0.0)
    # It is stuck again: it is asked later. If it runs, all that is forgotten.
    later = limit.until + PATIENCE
    found = shared([replace(again, hindered=limit.until)], now=later)
    assert found.grants[0].granted.limit.until == later + 2 * FIRST_PAUSE
    found = shared([replace(again, running=4)], now=later)
    assert found.grants[0].granted == replace(again.granted, limit=Limit(), at=later)


def test_a_job_whose_least_finds_no_room_waits_and_others_take_its_units() -> None:
    stuck = ask("stuck", 3, 3, 3, running=2, hindered=NOW, hindrance="replica 2: Unschedulable")
    then = NOW + PATIENCE
    asks = [stuck, ask("small", 2, 2, 0)]
    found = shared(asks, now=then)
    assert said(found) == {
        "stuck": (0, "its pods did not run, and are tried again later: replica 2: Unschedulable"),
        "small": (0, "it gets 2 nodes as soon as pods of other jobs have ended"),
    }
    asks = carried_out(asks, found)
    asks[0] = replace(asks[0], held=0, live=0, running=0, hindered=None)
    found = shared(asks, now=then)
    assert said(found) == {"small": (2, "its least number of nodes can be had")}


def test_a_limit_that_somebody_set_for_ever_does_not_hold() -> None:
    lied = Granted(1, "", NOW, Limit(1, 1e11, 3))
    found = shared([ask("limited", 1, 4, 1, granted=lied)])
    assert said(found)["limited"][0] == 4


def test_nodes_go_to_the_job_that_was_measured_to_do_more_with_them() -> None:
    flat = ask("flat", 1, 8, 4, measured=((1, 10.0), (2, 11.0), (4, 11.5)))
    steep = ask("steep", 1, 8, 4, measured=((1, 3.0), (4, 11.8)))
    assert said(shared([replace(flat, measured=()), replace(steep, measured=())], 8)) == {}
    nodes = {name: nodes for name, (nodes, _) in said(shared([flat, steep], 8)).items()}
    assert nodes["flat"] < 4
    freed = [replace(flat, granted=Granted(nodes["flat"], "", NOW), held=nodes["flat"]), steep]
    assert said(shared(freed, 8))["steep"][0] == 8 - nodes["flat"]


def test_more_that_somebody_asks_for_has_not_to_pay() -> None:
    large = ask("large", 1, 64, 63)
    assert shared([large], units=64).grants == ()
    assert said(shared([replace(large, is_asked=True)], units=64))["large"][0] == 64


def test_more_pods_than_anybody_could_have_cost_nothing() -> None:
    found = share_out([ask("huge", 1, 10_000, takes=1 << 50)], {GPU: 1 << 60}, NOW)
    assert said(found)["huge"][0] == 1 << 10


def test_other_roles_are_there_with_the_first_node_and_go_with_the_last() -> None:
    served = ask("served", 1, 4, besides=3)
    assert said(shared([served], units=3)) == {
        "served": (0, f"it needs 4 units, and 3 can be had; a unit is one {GPU}"),
    }
    ends = ask("ends", 2, 2, 0, stage=Stage.OVER, held=2)
    assert said(shared([served, ends], units=5)) == {
        "served": (0, "it gets 2 nodes as soon as pods of other jobs have ended"),
    }
    found = shared([served], units=5)
    assert said(found)["served"][0] == 2
    served = replace(carried_out([served], found)[0], held=5, live=2, running=2)
    comes = ask("comes", 1, 1)
    assert said(shared([served, comes], units=5)) == {
        "served": (1, "room is made for a job that starts, or units are gone"),
        "comes": (0, "it gets 1 nodes as soon as pods of other jobs have ended"),
    }


def test_what_roles_take_of_a_job_whose_nodes_take_nothing_is_no_capacity() -> None:
    asks = [ask("light", 1, 4, takes=0, besides=3), ask("comes", 2, 2)]
    assert said(shared(asks)) == {
        "light": (4, "it requests nothing of what is shared"),
        "comes": (0, f"it needs 2 units, and 1 can be had; a unit is one {GPU}"),
    }
