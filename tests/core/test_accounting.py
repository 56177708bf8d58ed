"""Where the time goes, in tables: what is told, and what each node and the job have spent by then."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import partial

import pytest

from elasticrun.core.accounting import books as books_module
from elasticrun.core.accounting.activities import Activity, add, nothing
from elasticrun.core.accounting.books import Books
from elasticrun.core.accounting.facts import (
    Fact,
    HangFound,
    JobEnded,
    MilestoneReached,
    NodeCame,
    NodeWent,
    PhaseChanged,
    RoundStarted,
    RoundStopped,
    SaveStalled,
    StateSaved,
    StepsDone,
    Stop,
    StragglerFound,
)
from elasticrun.core.accounting.summary import Summary, in_words
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone
from tests.core.lines import lines_of

PRODUCTIVE, REDONE, SLOW = Activity.PRODUCTIVE, Activity.REDONE, Activity.SLOW
START, IMPORT, RESTORE, RENDEZVOUS = Activity.START, Activity.IMPORT, Activity.RESTORE, Activity.RENDEZVOUS
WAITING, STOPPED, HUNG, CHECKPOINT = Activity.WAITING, Activity.STOPPED, Activity.HUNG, Activity.CHECKPOINT
#: Nodes a and b train: a step every 100 us, the first one at 100.
TRAINING: tuple[Fact, ...] = (
    *(NodeCame(0, "a"), NodeCame(0, "b"), RoundStarted(0, 0, ("a", "b"))),
    MilestoneReached(100, 0, "a", Milestone.FIRST_STEP),
)


def told(*facts: Fact) -> Books:
    books = Books()
    for fact in facts:
        books.take(fact)
    return books


def some(spent: Mapping[Activity, int]) -> dict[Activity, int]:
    """What is not zero."""
    return {activity: micros for activity, micros in spent.items() if micros}


@pytest.mark.parametrize(
    ("restores", "last"),
    [(7, {RESTORE: 20}), (None, {RESTORE: 20}), (0, {})],
    ids=["restores", "unknown", "anew"],
)
def test_a_start_is_split_by_milestones(restores: int | None, last: dict[Activity, int]) -> None:
    books = told(
        NodeCame(0, "a"),
        PhaseChanged(5, "a", AgentPhase.CHECKING),
        PhaseChanged(10, "a", AgentPhase.READY),
        RoundStarted(30, 0, ("a",), restores),
        PhaseChanged(31, "a", AgentPhase.READY),  # told before it heard of the round
        PhaseChanged(33, "a", AgentPhase.RUNNING, 0),
        MilestoneReached(34, 0, "a", Milestone.SPAWNED),
        MilestoneReached(40, 0, "a", Milestone.IMPORTED),
        MilestoneReached(50, 0, "a", Milestone.CONNECTED),
        MilestoneReached(70, 0, "a", Milestone.RESTORED),
        MilestoneReached(80, 0, "a", Milestone.FIRST_STEP),
    )
    begin = 10 + 3 + 10 + (0 if last else 20)
    expected = {START: begin, WAITING: 20, IMPORT: 7, RENDEZVOUS: 10, PRODUCTIVE: 20, **last}
    summary = books.summary(100)
    assert some(summary.nodes["a"]) == some(summary.job) == some(summary.total) == expected


@pytest.mark.parametrize(
    ("facts", "node", "job"),
    [
        # Steps 2 and 3, then one that is under way.
        ([StepsDone(300, 0, 3)], {START: 100, PRODUCTIVE: 300}, None),
        # A failure: the step under way is lost.
        (
            [StepsDone(300, 0, 3), RoundStopped(350, 0, Stop.FAILED)],
            {START: 100, PRODUCTIVE: 200, REDONE: 50, STOPPED: 50},
            None,
        ),
        # But not what is saved. It is told late, so its two steps count for as long as the one before took.
        (
            [
                *(StepsDone(150, 0, 2), StateSaved(340, 0, 4), SaveStalled(345, 0, 10)),
                RoundStopped(350, 0, Stop.FAILED),
            ],
            {START: 100, PRODUCTIVE: 150, REDONE: 90, CHECKPOINT: 10, STOPPED: 50},
            None,
        ),
        # The end of a training: nothing is.
        (
            [StepsDone(300, 0, 3), RoundStopped(350, 0, Stop.FINISHED)],
            {START: 100, PRODUCTIVE: 250, STOPPED: 50},
            None,
        ),
        # Nobody ever saw a step: nobody can tell what was lost.
        ([RoundStopped(350, 0, Stop.FAILED)], {START: 100, PRODUCTIVE: 250, STOPPED: 50}, None),
        # A save.
        (
            [SaveStalled(180, 0, 30), StepsDone(300, 0, 3)],
            {START: 100, PRODUCTIVE: 270, CHECKPOINT: 30},
            None,
        ),
        # A save that took longer than there was time.
        ([SaveStalled(180, 0, 10**9)], {START: 100, PRODUCTIVE: 220, CHECKPOINT: 80}, None),
        # A hang, found late; then there are steps again.
        ([StepsDone(200, 0, 2), HangFound(380, 0, 220)], {START: 100, PRODUCTIVE: 120, HUNG: 180}, None),
        (
            [StepsDone(200, 0, 2), HangFound(250, 0, 200), StepsDone(300, 0, 3)],
            {START: 100, PRODUCTIVE: 200, HUNG: 100},
            None,
        ),
        # A straggler is twice as slow: node a waits for half of the time, and the job is as slow as that.
        (
            [StragglerFound(150, 0, "b", 2.0), StepsDone(300, 0, 3)],
            {START: 100, PRODUCTIVE: 150, SLOW: 150},
            {START: 100, PRODUCTIVE: 300},
        ),
        # It recovers.
        (
            [
                StragglerFound(100, 0, "b", 4.0),
                StepsDone(300, 0, 3),
                StragglerFound(300, 0, "b", 1.0),
            ],
            {START: 100, PRODUCTIVE: 150, SLOW: 150},
            {START: 100, PRODUCTIVE: 300},
        ),
        # Node a becomes the slowest in place of b; b was, and now waits.
        (
            [
                StragglerFound(100, 0, "b", 2.0),
                StepsDone(200, 0, 2),
                StragglerFound(200, 0, "a", 3.0),
                StragglerFound(200, 0, "b", 2.5),
            ],
            {START: 100, PRODUCTIVE: 250, SLOW: 50},
            {START: 100, PRODUCTIVE: 300},
        ),
        # Node a fails first; the round stops later.
        (
            [
                StepsDone(200, 0, 2),
                PhaseChanged(250, "a", AgentPhase.FAILED, 0),
                RoundStopped(260, 0, Stop.FAILED),
            ],
            {START: 100, PRODUCTIVE: 100, REDONE: 50, STOPPED: 150},
            {START: 100, PRODUCTIVE: 100, REDONE: 60, STOPPED: 140},
        ),
        # Node a has finished, and waits for the others.
        (
            [StepsDone(200, 0, 2), PhaseChanged(250, "a", AgentPhase.FINISHED, 0)],
            {START: 100, PRODUCTIVE: 150, WAITING: 150},
            {START: 100, PRODUCTIVE: 300},
        ),
        # What speaks of another round, or of nobody, changes nothing.
        (
            [
                PhaseChanged(200, "a", AgentPhase.FAILED, 7),
                StepsDone(200, 7, 3),
                RoundStarted(200, 0, ()),
                MilestoneReached(200, 0, "nobody", Milestone.SPAWNED),
                StragglerFound(200, 0, "nobody", 2.0),
                PhaseChanged(200, "nobody", AgentPhase.FAILED),
                NodeWent(200, "nobody"),
                NodeCame(200, "a"),
            ],
            {START: 100, PRODUCTIVE: 300},
            None,
        ),
    ],
)
def test_training(facts: list[Fact], node: dict[Activity, int], job: dict[Activity, int] | None) -> None:
    summary = told(*TRAINING, *facts).summary(400)
    assert some(summary.nodes["a"]) == node
    assert some(summary.job) == (node if job is None else job)


def test_steps_up_to_the_high_water_mark_are_redone() -> None:
    """Round 0 reached step 11, round 1 goes on from step 4: 5 steps after its first are redone, of 8."""
    books = told(
        *(*TRAINING, StepsDone(1100, 0, 11), RoundStopped(1150, 0, Stop.FAILED)),
        *(PhaseChanged(1160, "a", AgentPhase.READY), RoundStarted(1200, 1, ("a",), 4)),
        *(MilestoneReached(1250, 1, "a", Milestone.FIRST_STEP), StepsDone(1290, 1, 6)),
    )
    assert books.summary(1300).nodes["a"][REDONE] == 50 + 40 + 10  # what is open is behind the mark, too
    books.take(StepsDone(2090, 1, 14))
    spent = some(books.summary(2090).nodes["a"])
    assert spent == {
        START: 100 + 50,
        PRODUCTIVE: 1000 + 300,
        REDONE: 50 + 40 + 500,
        STOPPED: 10,
        WAITING: 40,
    }


def test_steps_of_which_only_the_state_is_known_are_redone_if_it_is_lost() -> None:
    """Round 0 saved step 12 in memory, round 1 goes on from step 4 as it was lost, and saves step 14."""
    books = told(
        *(*TRAINING, StepsDone(1100, 0, 11), StateSaved(1200, 0, 12), RoundStopped(1250, 0, Stop.FAILED)),
        *(RoundStarted(1250, 1, ("a", "b"), 4), MilestoneReached(1250, 1, "a", Milestone.FIRST_STEP)),
        *(StateSaved(2150, 1, 14), StateSaved(2160, 1, 14), RoundStopped(2160, 1, Stop.CHANGED)),
    )
    again = 900 * 7 // 9
    expected = {START: 100, PRODUCTIVE: 1100 + 900 - again, REDONE: 50 + again + 10}
    assert some(books.summary(2160).job) == expected


def test_a_round_that_ends_well_has_reached_what_it_saved() -> None:
    """It went on from an older step than the one before had saved, in numbers that only saves tell."""
    books = told(
        *(*TRAINING, StepsDone(200, 0, 2), StateSaved(250, 0, 6400), RoundStopped(250, 0, Stop.FAILED)),
        *(RoundStarted(250, 1, ("a", "b"), 6000), MilestoneReached(250, 1, "a", Milestone.FIRST_STEP)),
        *(StateSaved(650, 1, 6401), RoundStopped(1650, 1, Stop.FINISHED)),
    )
    assert some(books.summary(1650).job) == {START: 100, PRODUCTIVE: 150 + 1001, REDONE: 399}


def test_steps_of_a_script_that_loads_its_own_state_are_new() -> None:
    books = told(
        *(*TRAINING, StepsDone(1100, 0, 11), RoundStarted(1100, 1, ("a", "b"), None)),
        *(StepsDone(1200, 1, 1), StepsDone(1300, 1, 99), RoundStarted(1300, 2, ("a", "b"), 11)),
        *(StepsDone(1400, 2, 12), StepsDone(1500, 2, 13)),
    )
    assert some(books.summary(1500).job) == {START: 300, PRODUCTIVE: 1200}


def test_the_job_is_as_far_as_the_member_that_is_least_far() -> None:
    books = told(
        *(NodeCame(0, "a"), NodeCame(0, "b"), NodeCame(0, "spare"), RoundStarted(0, 0, ("a", "b"))),
        *(MilestoneReached(10, 0, "a", Milestone.IMPORTED), MilestoneReached(20, 0, "b", Milestone.SPAWNED)),
        *(MilestoneReached(50, 0, "b", Milestone.IMPORTED), PhaseChanged(70, "b", AgentPhase.FAILED)),
        PhaseChanged(80, "a", AgentPhase.STOPPING),
        *(PhaseChanged(90, node, AgentPhase.READY) for node in ("a", "b")),
        PhaseChanged(95, "spare", AgentPhase.READY),
    )
    summary = books.summary(100)
    assert some(summary.job) == {START: 20 + 5, IMPORT: 30, RENDEZVOUS: 30, STOPPED: 10, WAITING: 5}
    assert some(summary.nodes["spare"]) == {START: 95, WAITING: 5}


def test_a_round_that_hangs_before_its_first_step() -> None:
    books = told(NodeCame(0, "a"), RoundStarted(10, 0, ("a",)), HangFound(60, 0, 20))
    summary = books.summary(100)
    assert some(summary.job) == some(summary.nodes["a"]) == {START: 60, HUNG: 40}


def test_a_node_that_comes_back_goes_on_with_what_it_had() -> None:
    books = told(*TRAINING, NodeWent(200, "a"), NodeCame(300, "a"))
    summary = books.summary(400)
    assert some(summary.nodes["a"]) == {START: 200, PRODUCTIVE: 100}
    assert some(summary.nodes["b"]) == {START: 100, PRODUCTIVE: 300}
    assert some(summary.total) == {START: 300, PRODUCTIVE: 400}


def test_what_is_said_of_rounds_that_nobody_is_in_changes_nothing() -> None:
    """An agent still speaks of a round that is over; a member has left before its round was heard of."""
    books = told(
        NodeCame(0, "a"), PhaseChanged(10, "a", AgentPhase.RUNNING, 3), RoundStarted(20, 0, ("a", "gone"))
    )
    books.take(RoundStopped(30, 0, Stop.FAILED))  # without a step
    summary = books.summary(40)
    assert some(summary.nodes["a"]) == {START: 30, STOPPED: 10}
    assert summary.nodes.keys() == {"a"}


def test_a_member_that_is_late_with_its_first_step_trains_with_the_others() -> None:
    books = told(*TRAINING, MilestoneReached(150, 0, "b", Milestone.FIRST_STEP))
    assert some(books.summary(200).nodes["b"]) == {START: 100, PRODUCTIVE: 100}


def test_nothing_is_accounted_after_the_end() -> None:
    books = told(*TRAINING, StepsDone(300, 0, 3), RoundStopped(300, 0, Stop.FINISHED), JobEnded(310))
    books.take(NodeCame(500, "c"))
    summary = books.summary(10**6)
    assert (summary.at, some(summary.job)) == (310, {START: 100, PRODUCTIVE: 200, STOPPED: 10})
    assert summary.nodes.keys() == {"a", "b"}


def test_an_end_that_nobody_announced_is_a_failure() -> None:
    summary = told(*TRAINING, StepsDone(300, 0, 3), JobEnded(340)).summary(0)
    assert some(summary.job) == {START: 100, PRODUCTIVE: 200, REDONE: 40}


def test_of_nodes_that_left_only_the_newest_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books_module, "PAST", 2)
    books = Books()
    for number in range(5):
        books.take(NodeCame(10 * number, f"n{number}"))
        books.take(NodeWent(10 * number + 10, f"n{number}"))
    summary = books.summary(50)
    assert summary.nodes.keys() == {"n3", "n4"}
    assert some(summary.total) == {START: 50}


def test_a_look_costs_nothing_for_nodes_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()
    for number in range(50):
        books.take(NodeCame(10 * number, f"n{number}"))
        books.take(NodeWent(10 * number + 10, f"n{number}"))
    books.take(NodeCame(500, "n7"))  # it is back, and what it had spent is its own again
    added: list[Mapping[Activity, int]] = []

    def note(to: dict[Activity, int], more: Mapping[Activity, int]) -> None:
        added.append(more)
        add(to, more)

    monkeypatch.setattr(books_module, "add", note)
    summary = books.summary(520)
    assert [some(each) for each in added] == [{START: 30}]
    assert some(summary.total) == {START: 520} and len(summary.nodes) == 50
    books.take(NodeWent(530, "n7"))
    assert some(summary.nodes["n7"]) == {START: 30}, "a summary stays as it was"
    assert some(books.summary(0).total) == {START: 530}


def test_memory_does_not_grow_with_facts() -> None:
    books = told(*TRAINING)

    def live(first: int) -> None:
        for number in range(first, first + 300):
            at = 1000 * number
            for fact in (
                RoundStarted(at, number, ("a", "b"), number),
                StepsDone(at + 10, number, number + 2),
                StragglerFound(at + 20, number, "a", 2.0),
                SaveStalled(at + 30, number, 5),
                HangFound(at + 40, number, at + 35),
                RoundStopped(at + 50, number, Stop.FAILED),
                NodeWent(at + 60, "b"),
                NodeCame(at + 70, "b"),
            ):
                books.take(fact)

    live(1)
    before = len(pickle.dumps(books))
    live(301)
    assert len(pickle.dumps(books)) < before + 100  # numbers grow


def test_a_fact_costs_the_same_however_many_nodes_there_are() -> None:
    def cost(nodes: int) -> int:
        names = tuple(f"n{number}" for number in range(nodes))
        books = told(*(NodeCame(0, name) for name in names), RoundStarted(1, 0, names))
        facts = (
            PhaseChanged(2, "n0", AgentPhase.RUNNING, 0),
            MilestoneReached(3, 0, "n1", Milestone.IMPORTED),
            *(StepsDone(4, 0, 1), SaveStalled(6, 0, 1), StepsDone(8, 0, 2), HangFound(9, 0, 8)),
            *(StragglerFound(9, 0, "n0", 2.0), StepsDone(10, 0, 3), StragglerFound(11, 0, "n1", 3.0)),
            *(PhaseChanged(12, "n0", AgentPhase.FAILED, 0), RoundStopped(13, 0, Stop.FAILED)),
            *(NodeWent(14, "n0"), NodeCame(15, "n0"), PhaseChanged(16, "n1", AgentPhase.READY)),
        )
        return sum(lines_of(partial(books.take, fact)) for fact in facts)

    assert cost(1000) == cost(3)


SUMMARY = Summary(
    at=10_000_000_000,
    start=0,
    nodes={
        "a": nothing() | {PRODUCTIVE: 9_000_000_000, HUNG: 1_000_000_000},
        "b": nothing() | {PRODUCTIVE: 5_000_000_000, START: 3_000_000_000, HUNG: 1_000_000_000},
    },
    total=nothing() | {PRODUCTIVE: 14_000_000_000, START: 3_000_000_000, HUNG: 2_000_000_000},
    job=nothing() | {PRODUCTIVE: 9_000_000_000, HUNG: 1_000_000_000},
)


def test_ratios() -> None:
    assert (SUMMARY.goodput, SUMMARY.ettr) == (14 / 19, 0.9)
    young = Books(17).summary(0)
    assert (young.at, young.start, young.goodput, young.ettr) == (17, 17, 0.0, 0.0)


def test_in_words() -> None:
    assert in_words(SUMMARY).splitlines() == [
        "goodput 73.7 % of 5 h 16 min of all nodes, ETTR 90.0 % of 2 h 46 min of the job",
        "nodes: productive 73.7 %, start 15.8 %, hung 10.5 %",
        "job: productive 90.0 %, hung 10.0 %",
        "most time was lost on b 44.4 %, a 10.0 %",
    ]
    assert in_words(Books().summary(0)).splitlines() == [
        "goodput 0.0 % of 0.00 s of all nodes, ETTR 0.0 % of 0.00 s of the job",
        "nodes: no time yet",
        "job: no time yet",
    ]


def test_what_is_settled_never_falls() -> None:
    books = told(*TRAINING, StepsDone(300, 0, 3))
    assert some(books.settle(500)) == {START: 100, PRODUCTIVE: 200}  # the newest 200 may still be lost
    assert some(books.summary(500).job) == {START: 100, PRODUCTIVE: 400}
    books.take(HangFound(600, 0, 400))
    assert some(books.settle(700)) == {START: 100, PRODUCTIVE: 200, HUNG: 300}
    books.take(JobEnded(800))
    ended = {START: 100, PRODUCTIVE: 200, HUNG: 400, REDONE: 100}
    assert some(books.settle(800)) == some(books.settle(900)) == ended


def test_before_the_first_step_all_is_settled() -> None:
    books = told(NodeCame(0, "a"), PhaseChanged(10, "a", AgentPhase.READY))
    assert some(books.settle(30)) == {START: 10, WAITING: 20}
    books.take(RoundStarted(30, 0, ("a",)))
    assert some(books.settle(50)) == {START: 30, WAITING: 20}
