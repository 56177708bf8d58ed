"""What the master has nodes copy to one another, and which commit it calls safe by that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from elasticrun.config import Policy
from elasticrun.core.job.commits import ARRIVAL_TIMEOUT, COLLECTING_TIMEOUT, Commits
from elasticrun.core.job.events import Attached, Beat, Detached, MasterStarted, Reported, Send
from elasticrun.core.protocol.commits import (
    MAX_COPIES,
    CommitId,
    Copy,
    Holding,
    Inlet,
    JudgeCommits,
    Part,
    Sent,
)
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus, RejectCode, StopRound
from elasticrun.core.protocol.orders import DrainNode, ScaleJob
from elasticrun.core.protocol.status import JobPhase
from tests.core.build import Job, failure, running

FIRST, SECOND, THIRD = CommitId(0, 5), CommitId(0, 6), CommitId(0, 7)


def inlet(node: str) -> Inlet:
    return Inlet(20_000 + ord(node), node.encode() * 32)


def part(rank: int, own: bool = True, shared: str = "") -> Part:
    return Part(rank, f"d{rank}", own, shared)


def tell(
    job: Job,
    node: str,
    *commits: CommitId,
    also: dict[CommitId, tuple[int, ...]] | None = None,
    copied: CommitId | Sent | None = None,
    takes: bool = True,
) -> None:
    """A member of round 0 has its own part of these, and ``also`` parts of others."""
    rank = order(job).index(node)
    held = dict.fromkeys(commits, (rank,))
    for commit, others in (also or {}).items():
        held[commit] = (*held.get(commit, ()), *others)
    size = len(order(job))
    holdings = tuple(Holding(it, size, tuple(map(part, ranks))) for it, ranks in held.items())
    status = job.status(node, AgentPhase.RUNNING, 0)
    job.do(Reported(job.sessions[node], stocked(status, node, holdings, done(job, copied), takes)))
    assert job.machine.check() == []


def stocked(
    status: AgentStatus,
    node: str,
    holdings: tuple[Holding, ...],
    copied: Sent | None = None,
    takes: bool = True,
) -> AgentStatus:
    return replace(status, holdings=holdings, inlet=inlet(node) if takes else None, copied=copied)


def done(job: Job, commit: CommitId | Sent | None) -> Sent | None:
    """What who has tried to send all tells of a commit: nothing arrived that nobody has told of."""
    if isinstance(commit, Sent):
        return commit
    number = job.machine.state.replication.number
    return None if commit is None else Sent(commit, number, tuple(range(MAX_COPIES)))


def order(job: Job) -> list[str]:
    """The members by group rank."""
    given = job.machine.state.current.assignments
    return sorted(given, key=lambda name: given[name].group_rank)


def verdict(job: Job, node: str) -> JudgeCommits:
    [told] = job.told(node, JudgeCommits)
    return told


def sent(job: Job, node: str) -> tuple[Copy, ...]:
    return verdict(job, node).copies


def to(rank: int, node: str) -> Copy:
    return Copy(rank, f"{node}.net", inlet(node))


def safe(job: Job) -> CommitId | None:
    return job.machine.state.ledger.safe


def test_each_node_sends_its_part_to_the_next_host_once_a_commit_is_whole() -> None:
    job = running("abc")
    for node in "abc":
        assert not job.told(node, JudgeCommits)
        tell(job, node, FIRST)
    assert [sent(job, node) for node in "abc"] == [(to(0, "b"),), (to(1, "c"),), (to(2, "a"),)]
    assert {(told.kept, told.copying, told.safe) for told in (verdict(job, it) for it in "abc")} == {
        (FIRST, FIRST, None)
    }


def test_a_commit_is_safe_once_all_has_arrived() -> None:
    job = running("ab")
    tell(job, "a", FIRST)
    tell(job, "b", FIRST)
    tell(job, "a", FIRST, also={FIRST: (1,)})
    assert safe(job) is None
    tell(job, "b", FIRST, also={FIRST: (0,)})
    assert verdict(job, "a").safe == verdict(job, "b").safe == FIRST
    assert "step 5 of round 0 is safe: 2 hosts have each part of it" in job.decided()


def test_while_one_is_copied_newer_ones_wait_and_the_newest_is_next() -> None:
    job = running("ab")
    for commit in (FIRST, SECOND, THIRD):
        tell(job, "a", FIRST, commit)
        tell(job, "b", FIRST, commit)
        assert (verdict(job, "a").kept, verdict(job, "a").copying) == (commit, FIRST)
    tell(job, "a", FIRST, THIRD, also={FIRST: (1,)})
    tell(job, "b", FIRST, THIRD, also={FIRST: (0,)})
    told = verdict(job, "a")
    assert (told.safe, told.copying, told.copies) == (FIRST, THIRD, (to(0, "b"),))


def test_what_could_not_be_sent_is_not_safe_and_nobody_waits_for_it() -> None:
    job = running("ab")
    for node in "ab":
        tell(job, node, FIRST)
    for node in "ab":
        tell(job, node, FIRST, SECOND)
    tell(job, "a", FIRST, SECOND, copied=FIRST)
    assert not job.told("a", JudgeCommits)
    tell(job, "b", FIRST, SECOND, copied=FIRST)
    told = verdict(job, "b")
    assert (told.safe, told.copying) == (None, SECOND)


def test_the_word_of_senders_ends_no_wait_for_receivers() -> None:
    """Else one commit after the other would be whole before all had told that they have the one before."""
    job = running("ab")
    for node in "ab":
        tell(job, node, FIRST)
    sent_all = Sent(FIRST, job.machine.state.replication.number)
    for node in "ab":
        tell(job, node, FIRST, SECOND)
    tell(job, "a", FIRST, SECOND, also={FIRST: (1,)}, copied=sent_all)
    tell(job, "b", FIRST, SECOND, copied=sent_all)
    assert (safe(job), job.machine.state.replication.copying) == (None, FIRST)
    tell(job, "b", FIRST, SECOND, also={FIRST: (0,)})
    assert (safe(job), job.machine.state.replication.copying) == (FIRST, SECOND)


def test_a_receiver_that_has_dropped_what_it_took_is_waited_for_for_a_bounded_time() -> None:
    job = running("ab", heartbeat_timeout=1e6)
    for node in "ab":
        tell(job, node, FIRST)
    sent_all = Sent(FIRST, job.machine.state.replication.number)
    for node in "ab":
        tell(job, node, FIRST, SECOND, copied=sent_all)
    job.pass_time(ARRIVAL_TIMEOUT - 1)
    assert job.machine.state.replication.copying == FIRST
    job.pass_time(1)
    assert (safe(job), job.machine.state.replication.copying) == (None, SECOND)
    assert job.machine.check() == []


def test_who_takes_nothing_in_is_neither_sent_anything_nor_told_to_send() -> None:
    job = running("abc")
    tell(job, "a", FIRST)
    tell(job, "b", FIRST)
    tell(job, "c", FIRST, takes=False)
    assert [sent(job, node) for node in "abc"] == [(to(0, "b"),), (), ()]
    tell(job, "b", FIRST, also={FIRST: (0,)})
    assert safe(job) is None, "parts 1 and 2 are on one host only"


def test_nobody_is_told_to_send_more_than_a_message_has_room_for() -> None:
    nodes = "abcdefghijklmnopqrs"
    job = running(nodes, state_copies=MAX_COPIES + 1)
    for node in nodes:
        tell(job, node, FIRST)
    assert {len(sent(job, node)) for node in nodes} == {MAX_COPIES}


def test_what_all_have_alike_is_safe_at_once() -> None:
    job = running("ab")
    for rank, node in enumerate("ab"):
        status = job.status(node, AgentPhase.RUNNING, 0)
        holding = Holding(FIRST, 2, (part(rank, own=False, shared="x"),))
        job.do(Reported(job.sessions[node], stocked(status, node, (holding,))))
    told = verdict(job, "a")
    assert (told.safe, told.copying, told.copies) == (FIRST, None, ())


def test_on_one_host_or_without_copies_all_is_as_safe_as_it_can_be() -> None:
    alone = Job(min_nodes=2, max_nodes=2)
    for node in "ab":
        alone.attach(node, host="same")
    without = running("ab", state_copies=0)
    for job in (alone, without):
        for node in "ab":
            tell(job, node, FIRST)
        told = verdict(job, "a")
        assert (told.safe, told.copies) == (FIRST, ())
        assert "is safe" not in job.decided()


def test_what_has_arrived_is_not_safe_if_its_sender_has_lost_it_by_then() -> None:
    job = running("ab")
    for node in "ab":
        tell(job, node, FIRST)
    tell(job, "a", also={FIRST: (1,)})
    tell(job, "b", FIRST, also={FIRST: (0,)})
    assert safe(job) is None, "part 0 is on one host only"


def test_a_commit_that_was_lost_while_it_was_copied_is_not_safe() -> None:
    job = running("abc")
    for node in "abc":
        tell(job, node, FIRST)
    tell(job, "c")
    tell(job, "a", FIRST, also={FIRST: (1,)})
    job.machine.state.replication.begin(FIRST, {"a": [("b", to(0, "b"))]})
    tell(job, "b", FIRST, also={FIRST: (0,)})
    assert safe(job) is None, "nobody has part 2"


def test_who_comes_back_is_told_again_what_to_send() -> None:
    job = running("ab")
    for node in "ab":
        tell(job, node, FIRST)
    job.do(MasterStarted(2))
    job.sessions["a"] = session = max(job.sessions.values()) + 1
    hello = job.hello("a", AgentPhase.RUNNING, 0, 1, 1)
    status = stocked(hello.status, "a", (Holding(FIRST, 2, (part(0),)),))
    job.do(Attached(session, replace(hello, status=status)))
    assert (verdict(job, "a").copying, sent(job, "a")) == (FIRST, (to(0, "b"),))


def test_a_lost_node_is_waited_for_by_nobody_and_the_next_round_restores_its_part() -> None:
    job = running("abc", min_nodes=2, max_restarts=1)
    for node in "abc":
        tell(job, node, FIRST)
    for node, others in (("a", 2), ("b", 0), ("c", 1)):
        tell(job, node, FIRST, also={FIRST: (others,)})
    assert safe(job) == FIRST
    job.do(Detached(job.sessions["c"], "silent"))
    assert job.machine.state.ledger.newest_whole() == FIRST, "a has a copy of its part"
    assert not job.machine.state.replication.is_arriving
    assert job.machine.check() == []


def test_a_new_round_copies_what_it_restores_again() -> None:
    """A part of a lost node is on one host only; who has it sends it."""
    job = running("abc", min_nodes=2, max_restarts=1)
    for node in "abc":
        tell(job, node, FIRST)
    for node, others in (("a", 2), ("b", 0), ("c", 1)):
        tell(job, node, FIRST, also={FIRST: (others,)})
    job.do(Detached(job.sessions["c"], "silent"))
    nodes = job.machine.state.members.nodes
    for node in "ab":
        status = job.status(node, AgentPhase.READY, 0)
        job.do(Reported(job.sessions[node], stocked(status, node, nodes[node].status.holdings)))
    assert job.machine.state.round == 1
    assert [it.restore for it in job.machine.state.current.assignments.values()] == [FIRST, FIRST]
    for node in "ab":
        status = job.status(node, AgentPhase.RUNNING, 1)
        job.do(Reported(job.sessions[node], stocked(status, node, nodes[node].status.holdings)))
    orders = {node: job.machine.state.replication.orders(node) for node in "ab"}
    assert orders == {"a": (to(2, "b"),), "b": (to(1, "a"),)}


# -- what the next world's members lack


def scaled_in(takes: bool = True) -> Job:
    """Nodes a and b have saved; the job is scaled in to a, which alone has no whole commit."""
    job = running("ab", min_nodes=1, state_copies=0)
    for node in "ab":
        tell(job, node, FIRST, takes=takes)
    job.do(ScaleJob(1, 1))
    stop(job, "a", FIRST, takes=takes)
    stop(job, "b", FIRST, takes=takes)
    return job


def stop(
    job: Job,
    node: str,
    *commits: CommitId,
    also: tuple[int, ...] = (),
    copied: CommitId | None = None,
    takes: bool = True,
) -> None:
    """A node's workers have ended; ``also``: parts of others that it has."""
    ranks = ("ab".index(node), *also)
    holdings = tuple(Holding(it, 2, tuple(map(part, ranks))) for it in commits)
    status = job.status(node, AgentPhase.READY, 0)
    job.do(Reported(job.sessions[node], stocked(status, node, holdings, done(job, copied), takes)))
    assert job.machine.check() == []


def restored(job: Job) -> list[CommitId | None]:
    """What each member of the newest round restores, once it has begun."""
    assert job.phase() is JobPhase.RUNNING
    return [given.restore for given in job.machine.state.current.assignments.values()]


def test_who_leaves_the_world_first_sends_its_part_to_who_stays() -> None:
    job = scaled_in()
    assert job.phase() is JobPhase.GATHERING
    assert "b: parts of step 5 of round 0 go to the next world's members first" in job.decided()
    assert (sent(job, "a"), sent(job, "b")) == ((), (to(1, "a"),))
    assert verdict(job, "a").copying == verdict(job, "b").copying == FIRST, "a takes it in by that"
    stop(job, "a", FIRST, also=(1,))
    assert (order(job), restored(job)) == (["a"], [FIRST])


def test_a_part_that_could_not_be_sent_is_tried_again_and_then_waited_for_no_longer() -> None:
    job = scaled_in()
    number = verdict(job, "b").number
    stop(job, "b", FIRST, copied=FIRST)
    assert job.phase() is JobPhase.GATHERING, "a may not have heard yet"
    *_, told = job.told("b", JudgeCommits)
    assert (told.number, told.copies) == (number + 1, (to(1, "a"),))
    stop(job, "b", FIRST, copied=FIRST)
    assert restored(job) == [None]
    why = "step 5 of round 0 cannot be restored: only nodes outside the new world have some parts of it"
    assert why in job.decided()


def test_the_word_of_the_receiver_is_waited_for() -> None:
    """That of the sender comes first."""
    job = scaled_in()
    status = job.status("b", AgentPhase.READY, 0)
    holdings = (Holding(FIRST, 2, (part(1),)),)
    sent_all = Sent(FIRST, job.machine.state.replication.number)
    job.do(Reported(job.sessions["b"], stocked(status, "b", holdings, sent_all)))
    assert job.phase() is JobPhase.GATHERING
    stop(job, "a", FIRST, also=(1,))
    assert (order(job), restored(job)) == (["a"], [FIRST])


def test_a_node_that_goes_while_it_sends_is_waited_for_no_longer() -> None:
    job = scaled_in()
    job.do(Detached(job.sessions["b"], "silent"))
    assert restored(job) == [None]


def test_nobody_waits_for_ever_for_a_node_that_neither_sends_nor_fails() -> None:
    job = scaled_in()
    beat(job, COLLECTING_TIMEOUT - 1)
    assert job.phase() is JobPhase.GATHERING
    beat(job, 2)
    assert restored(job) == [None]


def beat(job: Job, seconds: float) -> None:
    """Time passes, and both nodes are heard of."""
    until = job.now + seconds
    while job.now < until:
        job.pass_time(min(1.0, until - job.now))
        for session in job.sessions.values():
            job.do(Beat(session))


def test_while_parts_are_on_their_way_a_heartbeat_looks_at_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    job, asked = scaled_in(), list[str]()
    has_newest = Commits.has_newest

    def ask(commits: Commits, members: Sequence[str]) -> bool:
        asked.extend(members)
        return has_newest(commits, members)

    monkeypatch.setattr(Commits, "has_newest", ask)
    job.do(Beat(job.sessions["a"]))
    assert (job.phase(), asked) == (JobPhase.GATHERING, [])
    stop(job, "b", FIRST)
    assert asked


def test_while_the_job_backs_off_who_leaves_sends_its_part() -> None:
    """Its time is short."""
    policy = Policy(fast_failures_free=0, backoff_first=5.0)
    job = running("ab", min_nodes=1, state_copies=0, max_restarts=3, policy=policy, heartbeat_timeout=1e6)
    for node in "ab":
        tell(job, node, FIRST)
    job.report("a", AgentPhase.FAILED, 0, failure("a"))
    stop(job, "a", FIRST)
    stop(job, "b", FIRST)
    assert job.phase() is JobPhase.GATHERING
    job.do(DrainNode("b", "a new disk"))
    assert sent(job, "b") == (to(1, "a"),)
    stop(job, "a", FIRST, also=(1,))
    assert job.phase() is JobPhase.GATHERING
    job.pass_time(5.0)
    assert (order(job), restored(job)) == (["a"], [FIRST])


def test_where_nodes_exchange_nothing_nobody_waits() -> None:
    assert restored(scaled_in(takes=False)) == [None]


def test_who_was_lost_and_has_come_back_as_a_spare_sends_its_part() -> None:
    """Its place was taken meanwhile, by c."""
    job = running("ab", max_restarts=3, state_copies=0)
    for node in "ab":
        tell(job, node, FIRST)
    job.attach("c")
    job.do(Detached(job.sessions["b"], "silent"))
    stop(job, "a", FIRST)
    assert restored(job) == [None, None]
    job.sessions["b"] = session = max(job.sessions.values()) + 1
    hello = job.hello("b", AgentPhase.READY, 0, 1, 1)
    kept = {node: (Holding(FIRST, 2, (part(rank),)),) for rank, node in enumerate("ab")}
    job.do(Attached(session, replace(hello, status=stocked(hello.status, "b", kept["b"]))))
    job.report("c", AgentPhase.FAILED, 1, failure("c"))
    for node in "ac":
        status = job.status(node, AgentPhase.READY, 1)
        job.do(Reported(job.sessions[node], stocked(status, node, kept.get(node, ()))))
    assert (verdict(job, "b").round, sent(job, "b")) == (0, (to(1, "a"),)), "b is still in its last round"
    assert verdict(job, "a").round == 1
    both = (Holding(FIRST, 2, (part(0), part(1))),)
    job.do(Reported(job.sessions["a"], stocked(job.status("a", AgentPhase.READY, 1), "a", both)))
    assert (order(job), restored(job)) == (["a", "c"], [FIRST, FIRST])


# -- when gathering fails


class Squad:
    """A job whose members each held their own part of ``commit`` when round 0 or 1 was stopped."""

    def __init__(self, members: str, commit: CommitId, job: Job) -> None:
        self.members, self.commit, self.job = members, commit, job
        self.held: dict[str, dict[CommitId, tuple[int, ...]]] = {}

    def has(self, node: str, *ranks: int, of: CommitId | None = None) -> None:
        self.held.setdefault(node, {})[of or self.commit] = ranks

    def say(self, node: str, phase: AgentPhase, missed: tuple[int, ...] | None = None) -> None:
        """A node tells all; ``missed``: what it could not send of its newest order."""
        holdings = tuple(
            Holding(commit, len(self.members), tuple(map(part, ranks)))
            for commit, ranks in self.held.get(node, {}).items()
        )
        number = self.job.machine.state.replication.number
        told = None if missed is None else Sent(self.copying, number, missed)
        round_ = self.commit.round if node in self.members else 0
        status = stocked(self.job.status(node, phase, round_), node, holdings, told)
        self.job.do(Reported(self.job.sessions[node], status))
        assert self.job.machine.check() == []

    @property
    def copying(self) -> CommitId:
        commit = self.job.machine.state.replication.copying
        assert commit is not None
        return commit

    @property
    def orders(self) -> dict[str, list[tuple[int, str]]]:
        """Who sends what to whom."""
        names = {f"{node}.net": node for node in self.job.machine.state.members.nodes}
        given = {node: self.job.machine.state.replication.orders(node) for node in names.values()}
        return {
            node: [(copy.group_rank, names[copy.address]) for copy in copies]
            for node, copies in given.items()
            if copies
        }


def squad(members: str, drained: str, spares: str = "", **config: int) -> Squad:
    """All members have saved; some are drained, and all have stopped."""
    made = Squad(members, FIRST, running(members, max_nodes=len(members), state_copies=0, **config))
    for rank, node in enumerate(members):
        made.has(node, rank)
        made.say(node, AgentPhase.RUNNING)
    for node in spares:
        made.job.attach(node)
        made.say(node, AgentPhase.READY)
    for node in drained:
        made.job.do(DrainNode(node, "a new disk"))
    for node in members:
        made.say(node, AgentPhase.READY)
    return made


def test_what_was_on_its_way_to_a_lost_node_goes_to_another_one() -> None:
    made = squad("abcd", "bcd", "ef", min_nodes=2)
    assert made.orders == {"b": [(1, "a")], "c": [(2, "e")], "d": [(3, "f")]}
    made.job.do(Detached(made.job.sessions["e"], "silent"))
    made.has("a", 0, 1)
    made.has("f", 3)
    made.say("a", AgentPhase.READY)
    made.say("f", AgentPhase.READY)
    assert made.job.phase() is JobPhase.GATHERING
    assert made.orders == {"c": [(2, "a")]}
    made.has("a", 0, 1, 2)
    made.say("a", AgentPhase.READY)
    assert restored(made.job) == [FIRST, FIRST]
    assert not made.job.machine.state.leaving


def test_what_one_member_has_no_room_for_goes_to_another_one() -> None:
    made = squad("abc", "c", min_nodes=2)
    for taker in "abab":
        assert made.orders == {"c": [(2, taker)]}
        made.say("c", AgentPhase.READY, missed=(0,))
    assert restored(made.job) == [None, None], "nobody takes it in"


def test_who_comes_back_is_tried_anew() -> None:
    made = squad("ab", "b", min_nodes=1)
    made.say("b", AgentPhase.READY, missed=(0,))
    made.job.do(Detached(made.job.sessions["a"], "silent"))
    assert made.job.phase() is JobPhase.GATHERING
    assert not made.job.machine.state.leaving, "nobody is left who could take its part in"
    assert not made.job.machine.state.replication.tried(FIRST)


def test_an_older_commit_is_gathered_if_the_newest_cannot_be() -> None:
    """Part 2 of step 6 reaches nobody; that of step 5 does."""
    made = Squad("abcd", FIRST, running("abcd", min_nodes=2, max_nodes=4, state_copies=0))
    for rank, node in enumerate("abcd"):
        made.has(node, rank)
        made.has(node, rank, of=SECOND)
        made.say(node, AgentPhase.RUNNING)
    for node in "cd":
        made.job.do(DrainNode(node, "a new disk"))
    for node in "abcd":
        made.say(node, AgentPhase.READY)
    assert made.orders == {"c": [(2, "a")], "d": [(3, "b")]}
    made.has("b", 1, 3, of=SECOND)
    made.say("b", AgentPhase.READY)
    for taker in "abab":
        assert (made.copying, made.orders["c"]) == (SECOND, [(2, taker)])
        made.say("c", AgentPhase.READY, missed=(0,))
    assert made.copying == FIRST
    assert made.orders == {"c": [(2, "a")], "d": [(3, "b")]}
    made.has("a", 0, 2)
    made.has("b", 1, 3)
    made.say("a", AgentPhase.READY)
    made.say("b", AgentPhase.READY)
    assert restored(made.job) == [FIRST, FIRST]


def test_a_spare_that_has_not_heard_of_the_round_is_told_of_it_first() -> None:
    """Else what it told of its copies would contradict its round, and end its stream."""
    made = Squad("abc", CommitId(1, 9), running("abcd", min_nodes=2, max_nodes=4, state_copies=0))
    made.job.do(ScaleJob(2, 3))
    for node in "abcd":
        made.job.do(Reported(made.job.sessions[node], made.job.status(node, AgentPhase.READY, 0)))
    for rank, node in enumerate("abc"):
        made.has(node, rank)
        made.say(node, AgentPhase.RUNNING)
    made.say("d", AgentPhase.READY)
    for node in "bc":
        made.job.do(DrainNode(node, "a new disk"))
    for node in "abc":
        made.say(node, AgentPhase.READY)
    assert made.orders == {"b": [(1, "a")], "c": [(2, "d")]}
    told = [effect.message for effect in made.job.of(Send) if effect.session == made.job.sessions["d"]]
    assert [type(message) for message in told] == [StopRound, JudgeCommits]
    assert [message.round for message in told if isinstance(message, JudgeCommits)] == [1]
    assert verdict(made.job, "a").round == 1


# -- drained nodes


def drained() -> Job:
    """Nodes a and b have saved step 5, and b is drained while the round runs."""
    job = running("ab", min_nodes=1, state_copies=0)
    for node in "ab":
        tell(job, node, FIRST)
    job.do(DrainNode("b", "a new disk"))
    assert not job.drops(), "its workers may save once more"
    assert "b is drained: a new disk; it goes once nobody needs what it holds" in job.decided()
    assert "round 0 stops: b drained: a new disk" in job.decided()
    return job


def test_what_workers_save_while_their_node_is_drained_is_restored() -> None:
    job = drained()
    stop(job, "b", FIRST, SECOND)
    stop(job, "a", FIRST, SECOND)
    *_, told = job.told("b", JudgeCommits)
    assert (told.copying, told.copies) == (SECOND, (to(1, "a"),))
    stop(job, "a", FIRST, SECOND, also=(1,))
    [drop] = job.drops()
    assert drop.farewell is not None
    assert (drop.session, drop.farewell.code) == (job.sessions["b"], RejectCode.DRAINED)
    assert (order(job), restored(job)) == (["a"], [SECOND])
    assert not job.machine.state.leaving


def test_what_a_drained_node_cannot_send_is_written_to_the_storage_first() -> None:
    """Though enough nodes stay for a world, they would lose the steps since the last one there."""
    made = Squad("abc", FIRST, running("abc", min_nodes=2, state_copies=0, state_storage="/run"))
    for rank, node in enumerate("abc"):
        made.has(node, rank)
        status = made.job.status(node, AgentPhase.RUNNING, 0)
        made.job.do(Reported(made.job.sessions[node], replace(status, holdings=(held(rank),))))
    made.job.do(DrainNode("c", "a new disk"))
    for rank, node in enumerate("abc"):
        status = made.job.status(node, AgentPhase.READY, 0)
        made.job.do(Reported(made.job.sessions[node], replace(status, holdings=(held(rank),))))
    assert "step 5 of round 0 is written to /run first, within 60 s" in made.job.decided()
    assert (made.job.phase(), [*made.job.machine.state.leaving]) == (JobPhase.GATHERING, ["c"])
    made.job.pass_time(5.0)
    made.job.attach("d")
    assert [*made.job.machine.state.leaving] == ["c"], "a node that comes ends no wait"
    made.job.machine.state.storing.durable = FIRST
    beat(made.job, 1.0)
    made.job.attach("e")
    assert (restored(made.job), made.job.machine.state.leaving) == ([None] * 3, {})


def held(rank: int) -> Holding:
    """The part of one of three nodes."""
    return Holding(FIRST, 3, (part(rank),))


def test_a_node_that_has_saved_nothing_yet_may_save_as_it_is_drained() -> None:
    job = running("ab", min_nodes=1, state_copies=0)
    for node in "ab":
        tell(job, node)
    job.do(DrainNode("b", "a new disk"))
    assert not job.drops()
    stop(job, "b", FIRST)
    stop(job, "a", FIRST)
    stop(job, "a", FIRST, also=(1,))
    assert (order(job), restored(job)) == (["a"], [FIRST])


def test_a_drained_node_of_a_job_that_saves_nothing_goes_at_once() -> None:
    job = running("ab", min_nodes=1)
    job.do(DrainNode("b", "a new disk"))
    assert [drop.session for drop in job.drops()] == [job.sessions["b"]]


def test_a_drained_node_goes_if_it_cannot_send() -> None:
    job = drained()
    stop(job, "b", FIRST, takes=False)
    stop(job, "a", FIRST)
    assert (order(job), restored(job)) == (["a"], [None])
    assert not job.machine.state.leaving


def test_a_drained_node_goes_though_too_few_others_are_there() -> None:
    job = running("ab", state_copies=0)
    for node in "ab":
        tell(job, node, FIRST)
    job.do(DrainNode("b", "a new disk"))
    stop(job, "b", FIRST)
    stop(job, "a", FIRST)
    assert sent(job, "b") == (to(1, "a"),), "who stays keeps it for whoever comes"
    stop(job, "a", FIRST, also=(1,))
    assert [drop.session for drop in job.drops()] == [job.sessions["b"]]
    job.attach("c")
    assert (order(job), restored(job)) == (["a", "c"], [FIRST, FIRST])


def test_a_drained_node_that_is_lost_leaves_nobody_waiting() -> None:
    job = drained()
    job.do(Detached(job.sessions["b"], "silent"))
    stop(job, "a", FIRST)
    assert (order(job), restored(job)) == (["a"], [None])


def test_a_drained_spare_goes_at_once() -> None:
    job = scaled_in()
    stop(job, "a", FIRST, also=(1,))
    job.do(DrainNode("b", "a new disk"))
    assert [drop.session for drop in job.drops()] == [job.sessions["b"]]
    assert job.machine.check() == []


def test_a_node_that_waits_for_others_and_is_drained_goes_at_once() -> None:
    job = running("ab", state_copies=0)
    for node in "ab":
        tell(job, node, FIRST)
    job.do(Detached(job.sessions["b"], "silent"))
    stop(job, "a", FIRST)
    assert job.phase() is JobPhase.GATHERING
    job.do(DrainNode("a", "a new disk"))
    assert [drop.session for drop in job.drops()] == [job.sessions["a"]]
