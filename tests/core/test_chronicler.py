"""What happened in a job, from its machine: table tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elasticrun.config import HealthCheckMode, HealthConfig
from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.events import Detached, JobEffect, JobEvent, Left, Reported
from elasticrun.core.protocol.chronicle import (
    MAX_TEXT,
    CheckEnded,
    CheckStarted,
    Decision,
    HangFound,
    Happening,
    JobEnded,
    MasterStarted,
    NodeChanged,
    NodeDetached,
    NodeGone,
    NodeJoined,
    OrderAnswered,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    StateSaved,
    WorkerFailed,
)
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import AgentPhase, Evidence, Stall
from elasticrun.core.protocol.orders import ScaleJob
from tests.core.build import Job, failure

READY, RUNNING, FAILED, FINISHED = (
    AgentPhase.READY,
    AgentPhase.RUNNING,
    AgentPhase.FAILED,
    AgentPhase.FINISHED,
)


class ToldJob(Job):
    """A job whose happenings are told; decisions, which repeat them in words, are apart."""

    def __init__(self, **config: Any) -> None:
        self.happened: list[Happening] = []
        self.decisions: list[Decision] = []
        self._chronicler: Chronicler | None = None
        self.last: JobEvent = Left(0, "")
        super().__init__(**config)

    def do(self, event: JobEvent) -> list[JobEffect]:
        if self._chronicler is None:
            self._chronicler = Chronicler(self.machine.state)
        self.last = event
        effects = super().do(event)
        told = self._chronicler.after(event, self.machine.state, effects)
        self.decisions += [it for it in told if isinstance(it, Decision)]
        self.happened += [it for it in told if not isinstance(it, Decision)]
        return effects

    def news(self) -> list[Happening]:
        """What happened since the last time."""
        found, self.happened = self.happened, []
        return found


def two_nodes(**config: Any) -> ToldJob:
    """Round 0 runs on a and b, and all of that was told."""
    job = ToldJob(**({"min_nodes": 2, "max_nodes": 2} | config))
    job.attach("a")
    job.attach("b")
    job.all_report("ab", RUNNING, 0)
    job.news()
    return job


def test_a_job_from_its_first_master_to_its_good_end() -> None:
    job = ToldJob(min_nodes=2, max_nodes=2)
    assert job.news() == [MasterStarted(1, is_first=True)]
    job.attach("a")
    assert job.news() == [NodeJoined("a", "a", 1, returns=False), NodeChanged("a", "ready", -1)]
    job.attach("b")
    assert job.news() == [
        NodeJoined("b", "b", 1, returns=False),
        NodeChanged("b", "ready", -1),
        RoundStarted(0, 2, 2, ("a", "b"), 0, None, "2 nodes of 2:2 ready"),
    ]
    job.all_report("ab", RUNNING, 0)
    assert job.news() == [NodeChanged("a", "running", 0), NodeChanged("b", "running", 0)]
    job.all_report("ab", FINISHED, 0)
    ended = "all workers of round 0 ended with 0"
    assert job.news() == [
        NodeChanged("a", "finished", 0),
        NodeChanged("b", "finished", 0),
        RoundStopped(0),
        JobEnded("succeeded", ended),
    ]
    assert job.decisions[-1] == Decision("succeeded", 0, ended)


def test_a_failure_its_round_and_the_next_one() -> None:
    job = two_nodes(max_restarts=1)
    failed = failure("b", rank=1, code=3)
    job.report("b", FAILED, 0, failed)
    assert job.news() == [
        NodeChanged("b", "failed", 0),
        WorkerFailed(0, "b", "b", 1, 0, 1, "exit", 3, -1, failed.summary),
        RoundStopping(0, "worker failed", failed.summary),
    ]
    job.report("b", FAILED, 0, failed)
    assert job.news() == [], "it was told"
    job.report("b", READY, 0, failed)
    assert job.news() == [NodeChanged("b", "ready", 0)]
    job.report("a", READY, 0)
    assert job.news() == [
        NodeChanged("a", "ready", 0),
        RoundStopped(0),
        RoundStarted(1, 2, 2, ("a", "b"), 1, None, "2 nodes of 2:2 ready"),
    ]


def test_a_node_that_ends_its_round_at_once_is_told_in_order() -> None:
    """One event leads from a round that runs through its stop into the next one."""
    job = ToldJob(min_nodes=1, max_nodes=1, max_restarts=1)
    job.attach("a")
    job.news()
    failed = failure("a")
    job.report("a", READY, 0, failed)
    assert job.news() == [
        NodeChanged("a", "ready", 0),
        WorkerFailed(0, "a", "a", 0, 0, 1, "exit", 1, -1, failed.summary),
        RoundStopping(0, "worker failed", failed.summary),
        RoundStopped(0),
        RoundStarted(1, 1, 1, ("a",), 1, None, "1 node of 1:1 ready"),
    ]


def test_nodes_that_go_and_come_back() -> None:
    job = two_nodes(max_nodes=3, max_restarts=1)
    job.do(Detached(job.sessions["b"], "the stream broke"))
    assert NodeGone("b", "the stream broke") in job.news(), (
        "an agent that runs workers is lost with its stream"
    )
    job.do(Detached(job.sessions["b"], "again"))
    assert job.news() == [], "nobody has that session any more"
    job.do(Left(job.sessions["a"], "told to"))
    assert NodeGone("a", "told to") in job.news()


def test_a_node_that_may_come_back_is_not_gone() -> None:
    job = two_nodes()
    assert job._chronicler is not None
    state = job.machine.state
    state.members.detach_all()  # as for a master that was started again
    told = job._chronicler.after(Detached(job.sessions["a"], "the master went"), state, [])
    assert told == [NodeDetached("a", "the master went")]


def test_a_silent_node_is_gone() -> None:
    job = two_nodes(max_restarts=3, heartbeat_timeout=15.0)
    job.pass_time(20.0)
    gone = [it for it in job.news() if isinstance(it, NodeGone)]
    assert {it.node for it in gone} == {"a", "b"}
    assert {it.reason for it in gone} == {"its agent was silent for too long"}


def test_an_agent_that_comes_back_is_told_from_a_new_one() -> None:
    job = two_nodes(max_restarts=3)
    before = job.sessions["b"]
    job.attach("b", RUNNING, 0)
    assert job.news() == [NodeJoined("b", "b", 1, returns=True)]
    job.do(Detached(before, "the stream of before"))
    assert job.news() == [], "it has another stream"


def test_saved_states_are_told_once_for_each_place() -> None:
    job = two_nodes()
    assert job._chronicler is not None
    state, commit = job.machine.state, CommitId(0, 7)
    state.verdict = (commit, None, None, None)
    state.storing.durable = commit
    told = job._chronicler.after(Detached(-1, ""), state, [])
    assert told == [StateSaved(Place.MEMORY, 0, 7), StateSaved(Place.STORAGE, 0, 7)]
    state.verdict = (commit, None, commit, None)
    assert job._chronicler.after(Detached(-1, ""), state, []) == [StateSaved(Place.HOSTS, 0, 7)]
    state.verdict = (None, None, None, None)
    assert job._chronicler.after(Detached(-1, ""), state, []) == [], "the next round has not told yet"


def test_an_order_and_its_answer() -> None:
    job = two_nodes(max_nodes=4)
    job.do(ScaleJob(1, 3))
    (answered,) = [it for it in job.news() if isinstance(it, OrderAnswered)]
    assert (answered.order, answered.obeyed) == ("ScaleJob", True)


def test_a_check_before_the_first_round() -> None:
    job = ToldJob(min_nodes=2, max_nodes=2, health=HealthConfig(HealthCheckMode.ALWAYS))
    job.attach("a")
    job.attach("b")
    (started,) = [it for it in job.news() if isinstance(it, CheckStarted)]
    assert started.reason
    job.pass_time(10_000.0)
    assert CheckEnded() in job.news()


def test_a_long_text_is_cut() -> None:
    job = two_nodes(max_restarts=1)
    job.do(Left(job.sessions["a"], "x" * 10 * MAX_TEXT))
    assert [len(it.reason) for it in job.news() if isinstance(it, NodeGone)] == [MAX_TEXT]


def stalled(job: ToldJob, node: str, silence: float, evidence: Evidence = Evidence.NONE) -> list[Happening]:
    stall = Stall(0, 0, 7, silence, 10.0, False, evidence=evidence)
    job.do(Reported(job.sessions[node], replace(job.status(node, RUNNING, 0), stall=stall)))
    return job.news()


def test_a_round_hangs_once_all_of_its_nodes_are_silent() -> None:
    job = two_nodes()
    assert stalled(job, "a", 20.0) == []
    assert stalled(job, "b", 15.0) == [HangFound(0, 15.0)]
    assert stalled(job, "a", 40.0) == []
    assert Chronicler(job.machine.state).after(job.last, job.machine.state, []) == []
    job.report("a", RUNNING, 0)
    job.report("a", RUNNING, 0)
    assert job.news() == []
    assert stalled(job, "a", 50.0) == [HangFound(0, 15.0)]
    job.report("a", FAILED, 0, failure("a"))
    job.all_report("ab", READY, 0)
    assert not any(isinstance(it, HangFound) for it in job.news())


def test_a_hang_of_those_that_still_run_is_told_before_the_stop() -> None:
    job = two_nodes()
    job.report("b", FINISHED, 0)
    job.news()
    told = stalled(job, "a", 60.0, Evidence.TIMEOUT)
    hang = [it for it in told if isinstance(it, HangFound | RoundStopping)]
    assert hang[0] == HangFound(0, 60.0)
    assert isinstance(hang[1], RoundStopping)


def test_a_spare_does_not_hang() -> None:
    job = two_nodes()
    job.attach("c")
    job.news()
    stall = Stall(0, 0, 7, 20.0, 10.0, False)
    job.do(Reported(job.sessions["c"], replace(job.status("c", READY, 0), stall=stall)))
    assert not any(isinstance(it, HangFound) for it in job.news())
