"""What the master writes to the job's storage, when, and what waits for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.job.events import Answered, Attached, Detached, Left, MasterStarted, Reported
from elasticrun.core.protocol.commits import CommitId, Holding, Part
from elasticrun.core.protocol.messages import (
    AgentPhase,
    Failure,
    JobEnded,
    RejectCode,
    StartRound,
    StopRound,
    Waiting,
    WriteState,
)
from elasticrun.core.protocol.orders import (
    CheckNodes,
    CordonNode,
    DrainNode,
    Order,
    RestartRound,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    StopJob,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.storing import StoreOrder, StoreReport, StoreStage
from tests.core.build import Job, failure, running

READY, RUNNING, FAILED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FAILED
WRITING, WRITTEN, GAVE_UP = StoreStage.WRITING, StoreStage.WRITTEN, StoreStage.FAILED
EVERY, FLUSH = 300.0, 60.0
FIRST, SECOND = CommitId(0, 5), CommitId(0, 6)


class Team(Job):
    """Nodes that run round 0 of a job with a storage; each tells all of its facts whenever it reports."""

    def __init__(self, nodes: str = "ab", **config: object) -> None:
        self.nodes = nodes
        made = running(
            nodes, **{"state_storage": "/run", "max_restarts": 3, "heartbeat_timeout": 1e6, **config}
        )
        self.__dict__.update(made.__dict__)
        self.steps: dict[str, tuple[CommitId, ...]] = dict.fromkeys(nodes, ())
        self.reports: dict[str, StoreReport | None] = dict.fromkeys(nodes)
        self.leaving: dict[str, str] = dict.fromkeys(nodes, "")
        self.phases = dict.fromkeys(nodes, RUNNING)
        self.own = True

    def say(self, node: str, *failures: Failure) -> None:
        status = self.status(node, self.phases[node], self.machine.state.newest, *failures)
        size = len(self.nodes)
        parts = (Part(self.nodes.index(node), f"d{node}", self.own, "" if self.own else "x"),)
        self.do(
            Reported(
                self.sessions[node],
                replace(
                    status,
                    holdings=tuple(Holding(commit, size, parts) for commit in self.steps[node]),
                    stored=self.reports[node],
                    leaving=self.leaving[node],
                ),
            )
        )
        assert self.machine.check() == []

    def hold(self, *commits: CommitId) -> None:
        """All nodes hold these; the newest event is that of the last node."""
        for node in self.nodes:
            self.steps[node] = commits
            self.say(node)

    def order(self, node: str) -> StoreOrder | None:
        """What a node was just told to write."""
        [message] = self.told(node, WriteState)
        return message.order

    def in_force(self, node: str) -> StoreOrder:
        order = self.machine.state.storing.order(node)
        assert order is not None
        return order

    def answer(self, node: str, stage: StoreStage = WRITTEN, reason: str = "") -> None:
        order = self.in_force(node)
        self.reports[node] = StoreReport(order.number, order.run, stage, reason)
        self.say(node)

    def write(self) -> None:
        """All write what they were told to, and the commit is finished."""
        for node in [each for each in self.nodes if self.machine.state.storing.order(each)]:
            self.answer(node)
        [finisher] = [each for each in self.nodes if self.machine.state.storing.order(each)]
        self.answer(finisher)

    def stop(self, *nodes: str) -> None:
        for node in nodes:
            self.phases[node] = READY
            self.say(node)

    def fail(self, node: str) -> None:
        """The worker of a node fails, and all stop."""
        self.phases[node] = FAILED
        self.say(node, failure(node))
        self.stop(*self.nodes)

    def leave(self, node: str) -> None:
        """A node says that it will be taken away."""
        self.leaving[node] = "stopped by signal 15"
        self.say(node)

    @property
    def durable(self) -> CommitId | None:
        return self.machine.state.storing.durable


# -- one commit


def test_the_newest_whole_commit_is_written_finished_and_told() -> None:
    job = Team()
    job.hold(FIRST)
    assert "step 5 of round 0 is written to /run" in job.decided()
    first = job.order("a")
    assert first is not None
    assert (first.commit, first.files, [part.group_rank for part in first.parts]) == (FIRST, 2, [0])
    assert [part.group_rank for part in job.in_force("b").parts] == [1]
    job.answer("b", WRITING)
    assert not job.told("a", WriteState)
    job.answer("b")
    job.answer("a")
    finish = job.order("a")
    assert finish is not None
    assert (finish.parts, finish.files) == ((), 2)
    assert "is in /run" not in job.decided()
    job.answer("a")
    assert (job.order("a"), job.order("b")) == (None, None), "nothing has to stay for that"
    assert job.durable == FIRST
    assert "step 5 of round 0 is in /run" in job.decided()


def test_all_orders_of_a_run_name_the_same_run() -> None:
    job = Team()
    job.hold(FIRST)
    assert job.in_force("a").run == job.in_force("b").run != ""


def test_the_next_one_is_written_when_the_time_is_up() -> None:
    job = Team()
    job.hold(FIRST)
    job.write()
    job.hold(FIRST, SECOND)
    assert not job.told("b", WriteState)
    job.pass_time(EVERY - 1)
    assert job.machine.state.storing.commit is None
    job.pass_time(1)
    assert job.in_force("a").commit == SECOND


def test_once_the_time_is_up_the_next_one_is_written_as_soon_as_it_is_there() -> None:
    job = Team()
    job.hold(FIRST)
    job.write()
    job.pass_time(EVERY)
    assert job.machine.state.storing.commit is None, "it is in the storage"
    job.hold(FIRST, SECOND)
    assert job.in_force("a").commit == SECOND


def test_a_slow_storage_gets_one_commit_at_a_time() -> None:
    job = Team()
    job.hold(FIRST)
    job.hold(FIRST, SECOND)
    job.pass_time(EVERY)
    assert job.in_force("a").commit == FIRST
    job.write()
    assert job.in_force("a").commit == SECOND


def test_without_a_storage_nobody_is_told_to_write() -> None:
    job = Team(state_storage=None)
    job.hold(FIRST)
    assert not job.told("b", WriteState)
    job.reports["a"] = StoreReport(1, "", WRITTEN)
    job.say("a")
    assert not job.said


def test_what_nobody_ordered_is_not_believed() -> None:
    job = Team()
    job.hold(FIRST)
    order = job.in_force("a")
    for number, run in ((order.number + 7, order.run), (order.number, "another")):
        job.reports["a"] = StoreReport(number, run, WRITTEN)
        job.say("a")
        assert job.in_force("a") == order


# -- what goes wrong


def test_a_commit_that_cannot_be_written_is_given_up_and_told() -> None:
    job = Team()
    job.hold(FIRST)
    job.answer("a", GAVE_UP, "no room in /run")
    why = "step 5 of round 0 is not written to /run: a: no room in /run"
    assert why in job.decided()
    assert [message.text for message in job.told("b", Waiting)] == [why]
    assert (job.order("a"), job.order("b"), job.durable) == (None, None, None)
    job.pass_time(EVERY)
    assert job.machine.state.storing.commit is None, "the same one is not tried again"
    job.hold(FIRST, SECOND)
    job.write()
    assert job.durable == SECOND


def test_a_lost_node_s_part_is_written_by_another_one_that_has_it() -> None:
    job = Team("abc", min_nodes=2)
    both = tuple(Part(rank, f"d{name}", True) for rank, name in enumerate("ab"))
    job.steps = dict.fromkeys("abc", (FIRST,))
    for node in "abc":
        job.say(node)
    number = job.in_force("b").number
    holding = Holding(FIRST, 3, (Part(2, "dc", True), both[1]))
    status = replace(job.status("c", RUNNING, 0), holdings=(holding,))
    job.do(Reported(job.sessions["c"], status))
    job.do(Detached(job.sessions["b"], "gone"))
    assert job.machine.check() == []
    job.nodes = "ac"
    assert job.machine.state.storing.needs_writers, "node c is busy"
    order = job.in_force("c")
    job.do(
        Reported(
            job.sessions["c"],
            replace(
                job.status("c", RUNNING, 0),
                holdings=(holding,),
                stored=StoreReport(order.number, order.run, WRITTEN),
            ),
        )
    )
    again = job.order("c")
    assert again is not None
    assert [part.group_rank for part in again.parts] == [1]
    assert again.number > number


def test_a_commit_is_given_up_if_a_part_is_lost_while_it_is_written() -> None:
    job = Team(min_nodes=1)
    job.hold(FIRST)
    job.do(Detached(job.sessions["b"], "gone"))
    assert "is not written to /run: nobody here has part 1 of it any more" in job.decided()
    assert job.order("a") is None


def test_who_finishes_may_be_lost_and_another_one_does_it() -> None:
    job = Team(min_nodes=1)
    job.hold(FIRST)
    for node in "ba":
        job.answer(node)
    assert not job.in_force("a").parts
    job.do(Detached(job.sessions["a"], "gone"))
    order = job.order("b")
    assert order is not None
    assert not order.parts


def test_a_commit_is_given_up_if_nobody_is_left_to_finish_it() -> None:
    job = Team("a")
    job.hold(FIRST)
    job.answer("a")
    job.do(Detached(job.sessions["a"], "gone"))
    assert "nobody is left who could finish it" in job.decided()
    assert job.machine.check() == []


def test_a_part_that_is_lost_and_not_needed_is_left_out() -> None:
    job = Team(min_nodes=1)
    job.own = False
    job.hold(FIRST)
    job.answer("a", GAVE_UP, "full")
    job.hold(FIRST, SECOND)
    job.do(Detached(job.sessions["b"], "gone"))
    job.nodes = "a"
    job.pass_time(EVERY)
    assert "without 1 parts that are lost and not needed" in job.decided()
    order = job.in_force("a")
    assert (order.files, order.partial, order.parts[0].of) == (1, True, 1)


# -- who comes back


def comes_back(job: Team, node: str, report: StoreReport | None) -> None:
    job.sessions[node] = session = max(job.sessions.values()) + 1
    hello = job.hello(node, RUNNING, 0, 1, 1)
    parts = (Part(job.nodes.index(node), f"d{node}", True),)
    holdings = tuple(Holding(commit, len(job.nodes), parts) for commit in job.steps[node])
    status = replace(hello.status, holdings=holdings, stored=report)
    job.do(Attached(session, replace(hello, status=status)))
    assert job.machine.check() == []


def test_who_comes_back_hears_its_order_again() -> None:
    job = Team()
    job.hold(FIRST)
    order = job.in_force("b")
    comes_back(job, "b", None)
    assert job.order("b") == order


def test_what_was_ordered_outlives_the_master() -> None:
    job = Team()
    job.hold(FIRST)
    order = job.in_force("a")
    job.do(MasterStarted(2))
    comes_back(job, "a", StoreReport(order.number, order.run, WRITTEN))
    assert job.machine.state.storing.order("a") is None, "it was done meanwhile"
    assert job.order("a") is None
    comes_back(job, "b", None)
    job.answer("b")
    job.answer("a")
    assert job.durable == FIRST


def test_who_is_not_back_yet_hears_later_that_it_was_given_up() -> None:
    job = Team()
    job.hold(FIRST)
    order = job.in_force("a")
    job.do(MasterStarted(2))
    comes_back(job, "a", StoreReport(order.number, order.run, GAVE_UP, "full"))
    assert "a: full" in job.decided()
    comes_back(job, "b", StoreReport(order.number + 1, order.run, WRITTEN))
    assert job.order("b") is None


def test_who_believes_in_an_order_that_is_none_hears_so() -> None:
    job = Team()
    comes_back(job, "a", StoreReport(7, "another", WRITING))
    assert job.order("a") is None
    comes_back(job, "b", None)
    assert not job.told("b", WriteState)


# -- what is restored


def test_memory_is_restored_before_the_storage_if_it_is_newer() -> None:
    job = Team()
    job.hold(FIRST)
    job.write()
    job.hold(FIRST, SECOND)
    job.fail("a")
    [start] = job.told("a", StartRound)
    assert start.assignment.restore == SECOND


def test_the_storage_is_restored_if_memory_has_only_what_is_older() -> None:
    job = Team(min_nodes=1, state_copies=0)
    job.hold(FIRST)
    job.write()
    job.do(Detached(job.sessions["b"], "gone"))
    job.nodes = "a"
    job.stop("a")
    [start] = job.told("a", StartRound)
    assert start.assignment.restore is None
    assert "step 5 of round 0 is restored from /run" in job.decided()


# -- before the end


def test_a_job_that_fails_writes_its_newest_commit_first() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.fail("a")
    assert job.phase() is JobPhase.STOPPING
    assert "step 5 of round 0 is written to /run first, within 60 s" in job.decided()
    job.answer("a", WRITING)
    assert "before the job ends" in "; ".join(note.text for note in note_texts(job))
    job.write()
    assert job.phase() is JobPhase.FAILED
    assert job.durable == FIRST
    [ended] = job.told("a", JobEnded)
    assert "SIGTERM" not in ended.reason


def note_texts(job: Team) -> list[Waiting]:
    job.pass_time(10.0)
    return job.told("a", Waiting)


def test_an_older_one_that_is_being_written_makes_way() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    assert not job.in_force("a").urgent
    job.hold(FIRST, SECOND)
    job.fail("a")
    assert (job.in_force("a").commit, job.in_force("a").urgent) == (SECOND, True)
    job.write()
    assert (job.phase(), job.durable) == (JobPhase.FAILED, SECOND)


def test_what_is_in_the_storage_delays_no_end() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.write()
    job.fail("a")
    assert job.phase() is JobPhase.FAILED


def test_no_end_waits_for_ever() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.fail("a")
    job.pass_time(FLUSH - 1)
    assert job.phase() is JobPhase.STOPPING
    job.pass_time(1)
    assert job.phase() is JobPhase.FAILED
    assert job.machine.check() == []


def test_no_end_waits_for_a_storage_that_has_failed() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.fail("a")
    job.answer("a", GAVE_UP, "full")
    assert (job.phase(), job.durable) == (JobPhase.FAILED, None)


def test_what_was_given_up_before_is_tried_once_more_at_the_end() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.answer("a", GAVE_UP, "full")
    job.fail("a")
    assert job.phase() is JobPhase.STOPPING
    job.write()
    assert (job.phase(), job.durable) == (JobPhase.FAILED, FIRST)


def test_an_end_that_nobody_wants_to_wait_does_not() -> None:
    job = Team(max_restarts=0, state_flush_timeout=0.0)
    job.hold(FIRST)
    job.fail("a")
    assert job.phase() is JobPhase.FAILED


def test_while_an_end_waits_its_nodes_may_be_lost() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.fail("a")
    job.do(Detached(job.sessions["a"], "gone"))
    assert job.machine.check() == []
    assert job.phase() is JobPhase.FAILED


def test_a_part_that_is_lost_meanwhile_is_left_out_if_no_restore_needs_it() -> None:
    """All ranks have the same, so that the other node has all of it."""
    job = Team(max_restarts=0)
    job.own = False
    job.hold(FIRST)
    job.fail("a")
    job.do(Detached(job.sessions["b"], "gone"))
    assert job.phase() is JobPhase.STOPPING
    order = job.order("a")  # nothing else: had it to leave off, it would free what it has to write
    assert order == job.in_force("a")
    assert (order.commit, order.files, order.partial, order.urgent) == (FIRST, 1, True, True)
    assert [(part.group_rank, part.which, part.of) for part in order.parts] == [(0, 0, 1)]
    assert "without 1 parts that are lost and not needed" in job.decided()
    job.answer("a")
    job.answer("a")
    assert (job.phase(), job.durable) == (JobPhase.FAILED, FIRST)


def test_after_the_end_nodes_may_go_whatever_they_had_to_write() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.fail("a")
    job.pass_time(FLUSH)
    assert job.phase() is JobPhase.FAILED
    job.do(Detached(job.sessions["b"], "gone"))
    assert job.machine.check() == []


def test_who_has_written_a_part_that_another_node_writes_anew_may_free_it() -> None:
    job = Team("abc", max_restarts=0)
    job.own = False
    job.hold(FIRST)
    job.answer("a")
    job.steps["a"] = ()
    job.say("a")
    job.do(Detached(job.sessions["c"], "gone"))
    assert job.order("a") is None
    assert job.in_force("b").files == 1


@pytest.mark.parametrize("is_newer", [True, False])
def test_after_a_world_was_formed_the_next_flush_has_its_own_time(is_newer: bool) -> None:
    """One was wanted as too few nodes were left; then another node came."""
    job = Team(max_restarts=0)
    job.own = False
    job.hold(FIRST)
    job.leave("b")
    job.stop("b", "a")
    assert "within 60 s" in job.decided()
    job.pass_time(FLUSH - 5)
    job.attach("c")
    assert (job.phase(), job.machine.state.round) == (JobPhase.RUNNING, 1)
    job.pass_time(5)
    third = CommitId(1, 9)
    job.nodes, job.phases["c"], job.steps["c"], job.reports["c"] = "ac", RUNNING, (), None
    job.leaving["c"], job.phases["a"] = "", RUNNING
    for node in "ac" if is_newer else "":
        job.steps[node] = (third,)
        job.say(node)
    job.fail("c")
    assert job.phase() is JobPhase.STOPPING
    job.pass_time(FLUSH - 1)
    assert job.phase() is JobPhase.STOPPING
    job.pass_time(1)
    assert job.phase() is JobPhase.FAILED


def test_after_the_end_nothing_is_written() -> None:
    job = Team(max_restarts=0)
    job.hold(FIRST)
    job.write()
    job.fail("a")
    job.hold(FIRST, SECOND)
    assert not job.told("b", WriteState)
    job.leave("b")
    assert not job.drops()


def test_the_last_step_of_a_good_end_is_written_first() -> None:
    """The model that a training has come to is the one that counts."""
    job = Team()
    job.hold(FIRST)
    job.write()
    job.hold(FIRST, SECOND)
    for node in "ab":
        job.phases[node] = AgentPhase.FINISHED
        job.say(node)
    assert job.phase() is JobPhase.RUNNING
    job.write()
    assert (job.durable, job.phase()) == (SECOND, JobPhase.SUCCEEDED)


def test_a_storage_that_cannot_be_written_makes_no_good_end_a_bad_one() -> None:
    job = Team()
    job.hold(FIRST)
    for node in "ab":
        job.phases[node] = AgentPhase.FINISHED
        job.say(node)
    assert job.phase() is JobPhase.RUNNING
    job.answer("a", StoreStage.FAILED, "no room")
    assert (job.durable, job.phase()) == (None, JobPhase.SUCCEEDED)


def test_nodes_that_are_lost_after_a_good_end_start_nothing_anew() -> None:
    job = Team()
    job.hold(FIRST)
    for node in "ab":
        job.phases[node] = AgentPhase.FINISHED
        job.say(node)
    job.do(Detached(job.sessions["b"], "gone"))  # with its part, so nothing can be written any more
    assert (job.phase(), job.machine.state.newest) == (JobPhase.SUCCEEDED, 0)


@pytest.mark.parametrize(
    "order",
    [
        RestartRound("edited"),
        ScaleIn("night", 1),
        ScaleOut(1, 9.0),
        ScaleJob(1, 1),
        CheckNodes("slow"),
        CordonNode("b", "loud"),
        DrainNode("b", "a new disk"),
        StopJob("no money"),
    ],
)
def test_while_a_good_end_waits_no_order_starts_or_stops_anything(order: Order) -> None:
    job = Team(min_nodes=1, max_nodes=2)
    job.hold(FIRST)
    for node in "ab":
        job.phases[node] = AgentPhase.FINISHED
        job.say(node)
    job.do(order)
    text = "the job ends once its state is stored: all workers of round 0 ended with 0"
    assert job.of(Answered) == [Answered(False, text)]
    assert job.machine.check() == []
    job.write()
    assert (job.durable, job.phase()) == (FIRST, JobPhase.SUCCEEDED)


def test_a_job_that_gives_up_waiting_for_nodes_writes_first() -> None:
    job = Team(join_timeout=600.0)
    job.hold(FIRST)
    job.do(Left(job.sessions["b"], "told to"))
    job.nodes = "a"
    job.own = False
    job.stop("a")
    assert job.phase() is JobPhase.GATHERING
    job.pass_time(600.0)
    assert job.phase() is JobPhase.TIMED_OUT, "a part is lost, so there is nothing to write"


# -- nodes that leave


def test_all_nodes_that_are_taken_away_stay_until_it_is_written() -> None:
    job = Team()
    job.hold(FIRST)
    job.leave("a")
    [stop] = job.told("b", StopRound)
    assert stop.drain
    job.leave("b")
    job.stop("a", "b")
    assert job.phase() is JobPhase.GATHERING
    assert not job.drops()
    job.write()
    assert job.durable == FIRST
    codes = [drop.farewell.code for drop in job.drops() if drop.farewell is not None]
    assert codes == [RejectCode.DRAINED] * 2
    assert job.machine.check() == []


def test_nodes_that_leave_wait_for_a_bounded_time() -> None:
    job = Team()
    job.hold(FIRST)
    for node in "ab":
        job.leave(node)
    job.stop("a", "b")
    job.pass_time(FLUSH - 1)
    assert job.machine.state.leaving.keys() == {"a", "b"}
    job.pass_time(1)
    assert not job.machine.state.leaving
    assert job.machine.check() == []


def test_a_node_that_leaves_while_enough_stay_waits_for_no_storage() -> None:
    job = Team(min_nodes=1)
    job.own = False
    job.hold(FIRST)
    job.leave("b")
    job.stop("b", "a")
    [start] = job.told("a", StartRound)
    assert start.assignment.restore == FIRST
    assert "b" not in job.machine.state.members.nodes


def test_a_node_that_has_saved_nothing_yet_may_save_as_it_is_told_to_leave() -> None:
    job = Team()
    job.leave("a")
    assert not job.drops()
    [stop] = job.told("b", StopRound)
    assert stop.drain
    for node in "ab":
        job.steps[node] = (FIRST,)
    job.stop("a", "b")
    assert (job.phase(), job.in_force("a").commit) == (JobPhase.GATHERING, FIRST)
    job.write()
    assert (job.durable, [drop.session for drop in job.drops()]) == (FIRST, [job.sessions["a"]])


def test_a_node_without_saved_states_leaves_once_its_workers_have_stopped() -> None:
    job = Team()
    job.leave("a")
    job.stop("a", "b")
    [drop] = job.drops()
    assert drop.farewell is not None
    assert (drop.session, drop.farewell.code) == (job.sessions["a"], RejectCode.DRAINED)


def test_a_node_whose_workers_have_ended_well_saves_nothing_more() -> None:
    job = Team()
    job.phases["a"] = AgentPhase.FINISHED
    job.say("a")
    job.leave("a")
    assert [drop.session for drop in job.drops()] == [job.sessions["a"]]
    assert job.phase() is JobPhase.RUNNING


def test_a_node_that_has_stopped_may_say_that_it_leaves() -> None:
    job = Team("a")
    job.hold(FIRST)
    job.phases["a"] = FAILED
    job.say("a", failure("a"))
    job.leave("a")
    job.stop("a")
    assert job.in_force("a").commit == FIRST
    job.write()
    assert not job.machine.state.members.nodes


def test_who_comes_back_may_say_in_its_hello_that_it_leaves() -> None:
    """It was told while its stream was broken."""
    job = Team()
    job.hold(FIRST)
    before = job.machine.state.members.nodes["a"].status
    job.do(Detached(job.sessions["a"], "gone"))
    hello = job.hello("a", RUNNING, 0, job.machine.state.epoch, 1)
    status = replace(before, sequence=hello.status.sequence, leaving="stopped by signal 15")
    job.do(Attached(99, replace(hello, status=status)))
    assert job.machine.state.leaving == {"a": "leaving: stopped by signal 15"}


def test_who_says_again_that_it_leaves_changes_nothing() -> None:
    job = Team()
    job.hold(FIRST)
    job.leave("a")
    job.say("a")
    assert not job.said
    assert job.machine.state.leaving == {"a": "leaving: stopped by signal 15"}


def test_nodes_that_are_all_new_restore_what_is_in_the_storage() -> None:
    job = Team("a", last_call_timeout=0.0)
    job.hold(FIRST)
    job.write()
    job.do(Detached(job.sessions["a"], "gone"))
    job.attach("n")
    [start] = job.told("n", StartRound)
    assert start.assignment.restore is None
    assert "step 5 of round 0 is restored from /run" in job.decided()
    [note] = job.told("n", Waiting)
    assert note.text.endswith("nobody here has 1 of its 1 parts; step 5 of round 0 is restored from /run")
