"""What the master makes of the saved states that nodes hold: what it tells them, what a round restores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticrun.core.job.events import Attached, Detached, MasterStarted, Reported, Send
from elasticrun.core.job.state import UNJUDGED
from elasticrun.core.protocol.commits import CommitId, Holding, JudgeCommits, Part
from elasticrun.core.protocol.messages import AgentPhase, Failure, StartRound, Waiting
from tests.core.build import Job, failure, running

READY, RUNNING, FAILED = AgentPhase.READY, AgentPhase.RUNNING, AgentPhase.FAILED


def holds(job: Job, node: str, *steps: int, round_: int = 0, phase: AgentPhase = RUNNING) -> None:
    """A node reports which steps of a round are in its memory."""
    tell(job, node, phase, parts(node, round_, *steps))


def comes_back(job: Job, node: str, *steps: int, phase: AgentPhase = RUNNING, round_: int = 0) -> None:
    """A node attaches anew, with these steps of a round in its memory."""
    job.sessions[node] = session = max(job.sessions.values(), default=0) + 1
    hello = job.hello(node, phase, round_, 1, 1)
    holdings = parts(node, round_, *steps)
    job.do(Attached(session, replace(hello, status=replace(hello.status, holdings=holdings))))
    assert job.machine.check() == []


def parts(node: str, round_: int, *steps: int) -> tuple[Holding, ...]:
    """The parts of node a or b in a round of these two."""
    rank = "ab".index(node)
    return tuple(Holding(CommitId(round_, step), 2, (Part(rank, f"d{rank}", True),)) for step in steps)


def tell(job: Job, node: str, phase: AgentPhase, holdings: tuple[Holding, ...], *failures: Failure) -> None:
    status = job.status(node, phase, job.machine.state.newest, *failures)
    job.do(Reported(job.sessions[node], replace(status, holdings=holdings)))
    assert job.machine.check() == []


def verdicts(job: Job, node: str) -> list[tuple[CommitId | None, CommitId | None]]:
    return [(message.kept, message.void) for message in job.told(node, JudgeCommits)]


def restart(job: Job) -> None:
    """The worker of node a fails, and both nodes stop; what they hold stays."""
    nodes = job.machine.state.members.nodes
    for node, phase in (("a", FAILED), ("a", READY), ("b", READY)):
        failures = (failure("a"),) if node == "a" else ()
        tell(job, node, phase, nodes[node].status.holdings, *failures)


def restored(job: Job, node: str) -> CommitId | None:
    [message] = job.told(node, StartRound)
    return message.assignment.restore


# -- what members are told


def test_all_members_are_told_once_a_commit_is_held_by_all() -> None:
    job = running("ab")
    holds(job, "a", 5)
    assert not verdicts(job, "a")
    holds(job, "b", 5)
    for node in "ab":
        [told] = job.told(node, JudgeCommits)
        assert told == JudgeCommits(job.machine.state.epoch, 0, CommitId(0, 5), None)


def test_nobody_is_told_the_same_twice() -> None:
    job = running("ab")
    holds(job, "a", 5)
    holds(job, "b", 5)
    holds(job, "b", 5)
    assert not verdicts(job, "a")
    holds(job, "a", 5, 6)
    assert not verdicts(job, "a")


def test_members_are_told_that_a_commit_is_void() -> None:
    job = running("ab")
    holds(job, "a", 5)
    holds(job, "b", 6)
    assert verdicts(job, "a") == verdicts(job, "b") == [(None, CommitId(0, 5))]
    holds(job, "a", 6)
    assert verdicts(job, "a") == verdicts(job, "b") == [(CommitId(0, 6), CommitId(0, 5))]


def test_spares_are_told_nothing() -> None:
    job = running("ab")
    job.attach("c")
    holds(job, "a", 5)
    holds(job, "b", 5)
    assert verdicts(job, "a")
    assert not verdicts(job, "c")


def test_a_node_that_holds_nothing_any_more_is_forgotten() -> None:
    job = running("ab")
    holds(job, "a", 5)
    assert job.machine.state.ledger.nodes == {"a"}
    holds(job, "a")
    assert not job.machine.state.ledger.nodes


def test_a_node_that_goes_takes_only_what_it_held() -> None:
    job = running("ab")
    holds(job, "a", 5)
    job.do(Detached(job.sessions["b"], "silent"))
    assert job.machine.state.ledger.nodes == {"a"}
    job.do(Detached(job.sessions["a"], "silent"))
    assert not job.machine.state.ledger.nodes


# -- who comes back


def test_who_comes_back_is_told_what_was_decided_meanwhile() -> None:
    job = running("ab")
    holds(job, "a", 5)
    holds(job, "b", 5)
    comes_back(job, "b", 5)
    assert verdicts(job, "b") == [(CommitId(0, 5), None)]
    assert not verdicts(job, "a")


def test_who_comes_back_before_anything_was_decided_is_told_nothing() -> None:
    job = running("ab")
    holds(job, "a", 5)
    comes_back(job, "a", 5)
    assert not verdicts(job, "a")


def test_what_was_decided_outlives_the_master() -> None:
    job = running("ab")
    holds(job, "a", 5)
    holds(job, "b", 5)
    job.do(MasterStarted(2))
    comes_back(job, "a", 5)
    assert verdicts(job, "a") == [(CommitId(0, 5), None)]


def test_who_is_not_back_yet_is_told_later() -> None:
    job = running("ab")
    holds(job, "a", 5)
    holds(job, "b", 5)
    job.do(MasterStarted(2))
    comes_back(job, "b", 5)
    holds(job, "b")
    assert verdicts(job, "b") == [(None, None)]
    assert [effect.session for effect in job.of(Send)] == [job.sessions["b"]]
    comes_back(job, "a", 5)
    assert not verdicts(job, "a"), "there is no news"


# -- what a round restores


def test_the_next_round_restores_the_newest_commit_that_all_hold() -> None:
    job = running("ab", max_restarts=1)
    assert all(given.restore is None for given in job.machine.state.current.assignments.values())
    holds(job, "a", 5)
    holds(job, "b", 5)
    holds(job, "a", 5, 6)
    restart(job)
    assert restored(job, "a") == restored(job, "b") == CommitId(0, 5)
    assert "step 5 of round 0 is restored from memory" in job.decided()
    assert "is lost" not in job.decided()


def test_nothing_is_restored_or_said_if_nothing_was_saved() -> None:
    job = running("ab", max_restarts=1)
    restart(job)
    assert restored(job, "a") is None
    assert "restored from memory" not in job.decided()
    assert "is lost" not in job.decided()


def test_what_was_decided_in_a_round_says_nothing_about_the_next_one() -> None:
    job = running("ab", max_restarts=1)
    holds(job, "b", 6)
    holds(job, "a", 5)
    restart(job)
    assert job.machine.state.verdict == UNJUDGED
    assert job.machine.state.ledger.newest_void() is None
    comes_back(job, "a", round_=1)
    assert not verdicts(job, "a")


def test_what_was_restored_is_kept_until_the_new_round_has_saved_something() -> None:
    job = running("ab", max_restarts=1)
    holds(job, "a", 5)
    holds(job, "b", 5)
    restart(job)
    holds(job, "a", 5)
    assert verdicts(job, "b") == [(CommitId(0, 5), None)]
    holds(job, "a", 2, round_=1)
    holds(job, "b", 2, round_=1)
    assert verdicts(job, "a") == [(CommitId(1, 2), None)]


@pytest.mark.parametrize(("steps", "missing"), [((5,), 1), ((), 2)])
def test_a_commit_is_lost_with_a_node_that_held_a_part_of_it(steps: tuple[int, ...], missing: int) -> None:
    job = running("ab", min_nodes=1)
    holds(job, "a", 5)
    holds(job, "b", 5)
    job.do(Detached(job.sessions["b"], "silent"))
    assert job.machine.state.ledger.nodes == {"a"}
    holds(job, "a", *steps, phase=READY)
    lost = f"step 5 of round 0 is lost: nobody here has {missing} of its 2 parts"
    assert lost in job.decided()
    assert f"{lost}; nothing is restored" in [message.text for message in job.told("a", Waiting)]
    assert restored(job, "a") is None


def test_an_older_commit_is_restored_if_the_newest_one_is_lost() -> None:
    job = running("ab", max_restarts=1)
    holds(job, "a", 5, 6)
    holds(job, "b", 5, 6)
    holds(job, "b", 5)
    restart(job)
    lost = "step 6 of round 0 is lost: nobody here has 1 of its 2 parts"
    assert lost in job.decided()
    assert f"{lost}; step 5 of round 0 is restored" in [message.text for message in job.told("a", Waiting)]
    assert "step 5 of round 0 is restored from memory" in job.decided()
    assert restored(job, "b") == CommitId(0, 5)


def test_members_hear_of_it_if_what_was_safe_is_so_no_more() -> None:
    job = running("ab", min_nodes=1)
    holds(job, "a", 5)
    holds(job, "b", 5)
    job.do(Detached(job.sessions["b"], "silent"))
    holds(job, "a", 5, phase=AgentPhase.STOPPING)
    assert verdicts(job, "a") == [(None, None)]


def test_a_master_that_forgot_the_job_restores_what_all_tell_of() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    for node in "ab":
        comes_back(job, node, 5, phase=RUNNING, round_=7)
    for node in "ab":
        tell(job, node, READY, parts(node, 7, 5))
    assert job.machine.state.round == 8
    assert restored(job, "a") == restored(job, "b") == CommitId(7, 5)


# -- what it holds to


def test_it_says_what_does_not_hold() -> None:
    job = Job()
    job.machine.state.ledger.hear("ghost", [Holding(CommitId(0, 5), 1, (Part(7),))])
    assert job.machine.check() == [
        "Commits: parts are numbered below their number",
        "Commits: only nodes that are here hold anything",
    ]


def test_before_its_first_round_a_master_judges_nothing() -> None:
    """Its verdict would name no round."""
    job = Job(min_nodes=2, max_nodes=2)
    job.sessions["a"] = 1
    hello = job.hello("a", READY, 7, 1, 1)
    held = Holding(CommitId(7, 5), 1, (Part(0, "d0", True),))
    job.do(Attached(1, replace(hello, status=replace(hello.status, holdings=(held,)))))
    assert job.told("a", JudgeCommits) == []


def test_a_lost_kind_of_shared_contents_is_named() -> None:
    job = running("ab", min_nodes=1)
    saved = [Part(rank, f"d{rank}", False, f"kind {rank}") for rank in range(2)]
    kept = tuple(Holding(CommitId(0, 5), 2, (part,)) for part in saved)
    tell(job, "a", RUNNING, kept[:1])
    tell(job, "b", RUNNING, kept[1:])
    job.do(Detached(job.sessions["b"], "silent"))
    tell(job, "a", READY, kept[:1])
    assert "step 5 of round 0 is lost: nobody here has a part of what its ranks share" in job.decided()
