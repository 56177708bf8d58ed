"""What the master makes of workers' asks about shared data: who may ask, and where the answers go."""

from __future__ import annotations

from typing import Any

from elasticrun.config import JobConfig
from elasticrun.core.job.events import DataAsked, DataOpened, Detached, Expired, Send
from elasticrun.core.job.state import SAVING
from elasticrun.core.protocol.data import AskData, DataAnswer, DataReader, OpenData, ShardFault
from elasticrun.core.protocol.messages import AgentPhase, Waiting
from elasticrun.master.snapshot import restore, take
from tests.core.build import Job, failure, running

READY, RUNNING, FAILED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FAILED


def reader(node: str, round_: int = 0, local_rank: int = 0) -> DataReader:
    return DataReader(round_, local_rank, "data", f"{node}{round_}", 0)


def opens(job: Job, node: str, round_: int = 0, **changes: Any) -> list[DataAnswer]:
    opened = OpenData(f"{node}.1", reader(node, round_, **changes), 1, "plan", 4, 2, 50.0)
    return answers(job.do(DataOpened(job.sessions[node], opened)))


def asks(job: Job, node: str, call: int, round_: int = 0, **what: Any) -> list[DataAnswer]:
    asked = AskData(f"{node}.1", reader(node, round_), call, **what)
    return answers(job.do(DataAsked(job.sessions[node], asked)))


def answers(effects: Any) -> list[DataAnswer]:
    found = [it.message for it in effects if isinstance(it, Send) and isinstance(it.message, DataAnswer)]
    assert all(each.epoch == 1 for each in found)
    return found


def shared() -> Job:
    """A job of two nodes, of which each has opened the data."""
    job = running("ab", max_restarts=3)
    for node in "ab":
        assert [each.refused for each in opens(job, node)] == [""]
    return job


def test_members_of_the_round_are_answered() -> None:
    job = shared()
    [answer] = asks(job, "a", 2, wanted=2)
    assert [each.piece.place for each in answer.leases] == [0]
    assert asks(job, "a", 3, saves=True) == []
    told = asks(job, "b", 2, saves=True)
    assert {each.instance for each in told} == {"a0", "b0"}
    assert (SAVING, "") not in job.machine.state.timers
    assert job.machine.check() == []


def test_others_are_refused() -> None:
    job = shared()
    assert [each.refused for each in opens(job, "a", round_=1)] == [
        "round 1 is over, or has no worker 0 on this node"
    ]
    assert opens(job, "a", local_rank=1)[0].refused.endswith("no worker 1 on this node")
    job.attach("c")
    assert opens(job, "c")[0].refused
    assert job.do(DataAsked(999, AskData("x", reader("x"), 1))) == []


def test_nobody_waits_where_nothing_is_shared() -> None:
    assert answers(running("ab").do(Expired(SAVING))) == []


def test_who_waits_too_long_is_refused() -> None:
    job = shared()
    asks(job, "a", 2, saves=True)
    job.now += 49.0
    assert answers(job.do(Expired(SAVING))) == []
    job.now += 2.0
    [answer] = answers(job.do(Expired(SAVING)))
    assert answer.refused.startswith("rank 1 has not saved within 50 s")


def test_a_failure_lets_nobody_wait_and_a_new_round_begins_anew() -> None:
    job = shared()
    asks(job, "a", 2, saves=True)
    [answer] = answers(job.report("b", FAILED, 0, failure("b", rank=1)))
    assert answer.refused.startswith("the round stops: ")
    job.all_report("ab", READY, 0)
    assert job.machine.state.round == 1
    assert opens(job, "a")[0].refused, "a late word of the round before"
    assert [each.refused for node in "ab" for each in opens(job, node, round_=1)] == ["", ""]
    assert asks(job, "a", 2, round_=1, wanted=1)[0].leases[0].piece.place == 0


def test_a_round_that_is_stopped_with_all_workers_alive_may_save_still() -> None:
    job = shared()
    asks(job, "a", 2, saves=True)
    job.machine.state.current.must_stop(*_drained())
    assert answers(job.report("b", RUNNING, 0)) == []
    assert len(asks(job, "b", 2, saves=True)) == 2


def _drained() -> Any:
    from elasticrun.core.recovery.budget import StopCause

    return StopCause.MEMBER_LOST, "b is drained"


def test_an_answer_for_a_node_that_is_away_waits_until_it_asks_again() -> None:
    job = shared()
    asks(job, "a", 2, saves=True)
    job.machine.state.members.nodes["a"].session = None
    assert [each.instance for each in asks(job, "b", 2, saves=True)] == ["b0"]


def test_what_is_left_out_is_told_to_all() -> None:
    job = shared()
    for _ in range(4):
        call = job.machine.state.desks._desks["data"]._readers[0].call  # type: ignore[union-attr]
        [answer] = asks(job, "a", call + 1, wanted=1)
        asks(job, "a", call + 2, faults=(ShardFault(answer.leases[0].id, 0, "f: gone"),))
    told = [
        each.message.text for each in job.said if isinstance(each, Send) and isinstance(each.message, Waiting)
    ]
    assert told == ["data: a shard of epoch 0 is left out: f: gone"] * 2


def test_a_master_goes_on_from_a_snapshot() -> None:
    job = shared()
    asks(job, "a", 2, wanted=1)
    asks(job, "a", 3, saves=True)
    job.machine = restore(job.machine.state.config, take(job.machine.state))
    [answer] = asks(job, "b", 2, wanted=4)
    assert [each.piece.place for each in answer.leases] == [1]
    told = asks(job, "b", 3, saves=True)
    assert [each.place for each in told[0].left.free] == [0, 1]  # type: ignore[union-attr]
    assert isinstance(job.machine.state.config, JobConfig)
    job.do(Detached(job.sessions["a"], "gone"))
