"""From entries of the event log to what the accounting is told, and to books."""

from __future__ import annotations

import pytest

from elasticrun.core.accounting import facts
from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.books import Books
from elasticrun.core.accounting.facts import Fact, Stop
from elasticrun.core.accounting.from_log import FAILURES, facts_of
from elasticrun.core.protocol import chronicle
from elasticrun.core.protocol.chronicle import Happening, LogEntry
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone


def entry(told: Happening, at: float = 1.5) -> LogEntry:
    return LogEntry(7, at, 100.0, told)


def started(round_: int, restored: int | None, *names: str, nodes: int = 0) -> chronicle.RoundStarted:
    size = nodes or len(names)
    return chronicle.RoundStarted(round_, size, size, names, 0, restored, "")


AT = 1_500_000


@pytest.mark.parametrize(
    ("told", "fact"),
    [
        (chronicle.NodeJoined("a", "host", 2, False), facts.NodeCame(AT, "a")),
        (chronicle.NodeGone("a", "lost"), facts.NodeWent(AT, "a")),
        (chronicle.NodeChanged("a", "running", 3), facts.PhaseChanged(AT, "a", AgentPhase.RUNNING, 3)),
        (chronicle.NodeChanged("a", "of another version", 3), None),
        (started(0, None, "a"), facts.RoundStarted(AT, 0, ("a",), 0)),
        (started(0, 8, "a"), facts.RoundStarted(AT, 0, ("a",), 8)),
        (started(1, None, "a"), facts.RoundStarted(AT, 1, ("a",), None)),
        (started(1, 8, "a", "b"), facts.RoundStarted(AT, 1, ("a", "b"), 8)),
        *(
            (chronicle.RoundStopping(2, cause, ""), facts.RoundStopped(AT, 2, Stop.FAILED))
            for cause in sorted(FAILURES)
        ),
        (chronicle.RoundStopping(2, "growth", ""), facts.RoundStopped(AT, 2, Stop.CHANGED)),
        (chronicle.RoundStopped(2), facts.RoundStopped(AT, 2, Stop.FINISHED)),
        (
            chronicle.MilestoneReached("a", 2, "first_step"),
            facts.MilestoneReached(AT, 2, "a", Milestone.FIRST_STEP),
        ),
        (chronicle.MilestoneReached("a", 2, "of another version"), None),
        (chronicle.StepsDone(2, 30, 1.5), facts.StepsDone(AT, 2, 30)),
        (chronicle.StateSaved(chronicle.Place.MEMORY, 2, 30), facts.StateSaved(AT, 2, 30)),
        (chronicle.SaveStalled(2, 0.25), facts.SaveStalled(AT, 2, 250_000)),
        (chronicle.HangFound(2, 0.5), facts.HangFound(AT, 2, 1_000_000)),
        (chronicle.StragglerFound(2, "a", 1.5), facts.StragglerFound(AT, 2, "a", 1.5)),
        (chronicle.JobEnded("succeeded", ""), facts.JobEnded(AT)),
        (chronicle.CheckEnded(), None),
    ],
)
def test_an_entry_means_a_fact_or_nothing(told: Happening, fact: Fact | None) -> None:
    assert list(facts_of(entry(told))) == ([] if fact is None else [fact])


RUNNING = AgentPhase.RUNNING


def books_of(*given: Fact) -> Books:
    books = Books()
    for fact in given:
        books.take(fact)
    return books


CAME = (facts.NodeCame(0, "a"), facts.NodeCame(0, "b"))


@pytest.mark.parametrize(
    ("before", "number", "spent"),
    [
        ((facts.RoundStarted(10, 0, ("a",)),), 0, {Activity.START: 20, Activity.IMPORT: 80}),
        ((facts.RoundStarted(10, 0, ("a",)),), 1, {Activity.START: 100}),
        ((), 0, {Activity.START: 100}),
        (
            (facts.RoundStarted(10, 0, ("a",)), facts.RoundStopped(15, 0, Stop.CHANGED)),
            0,
            {Activity.START: 100},
        ),
        (
            (
                facts.RoundStarted(10, 0, ("a",)),
                facts.MilestoneReached(15, 0, "a", Milestone.FIRST_STEP),
            ),
            0,
            {Activity.START: 100},
        ),
    ],
    ids=["is in it", "another round", "no round", "it has stopped", "it has made steps"],
)
def test_a_node_that_the_list_of_members_left_out(
    before: tuple[Fact, ...], number: int, spent: dict[Activity, int]
) -> None:
    """Long lists are cut: see ``MAX_NAMES``. A node that runs workers of the round is in it."""
    books = books_of(*CAME, *before, facts.PhaseChanged(20, "b", RUNNING, number))
    found = books.summary(100).nodes["b"]
    assert {each: micros for each, micros in found.items() if micros} == spent
    assert sum(found.values()) == 100


def test_a_node_that_was_left_out_trains_with_the_others() -> None:
    books = books_of(
        *CAME,
        facts.RoundStarted(10, 0, ("a",)),
        facts.PhaseChanged(20, "b", RUNNING, 0),
        facts.MilestoneReached(30, 0, "a", Milestone.FIRST_STEP),
        facts.StepsDone(60, 0, 4),
        facts.RoundStopped(80, 0, Stop.FAILED),
    )
    for name in ("a", "b"):
        spent = books.summary(100).nodes[name]
        assert (spent[Activity.PRODUCTIVE], spent[Activity.REDONE], spent[Activity.STOPPED]) == (30, 20, 20)
