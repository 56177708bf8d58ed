"""Which news make the status of a job stale."""

from __future__ import annotations

import pytest

from elasticrun.core.history.staleness import LATER, SOON, Staleness
from elasticrun.core.protocol.chronicle import (
    CheckEnded,
    CheckStarted,
    DataProgress,
    Decision,
    EntriesLost,
    HangFound,
    Happening,
    JobEnded,
    MasterStarted,
    MilestoneReached,
    NodeChanged,
    NodeDetached,
    NodeGone,
    NodeJoined,
    OrderAnswered,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    SaveStalled,
    ScaleEnded,
    ScaleStarted,
    StateSaved,
    StepsDone,
    StragglerFound,
    WorkerFailed,
)

FAILED = WorkerFailed(0, "a", "h", 0, 0, 7, "signal", -9, 3, "killed")


def started(number: int, *names: str, nodes: int = 0, workers: int = 4) -> RoundStarted:
    return RoundStarted(number, nodes or len(names), workers, names, number, None, "all are ready")


def fresh(*told: Happening) -> Staleness:
    """After the status was asked for, once these had been told."""
    made = Staleness()
    for each in told:
        made.take(each)
    made.asked()
    return made


def test_who_has_never_asked_asks_soon() -> None:
    assert Staleness().is_urgent
    assert not fresh().is_urgent


def test_what_was_not_answered_is_asked_again_soon() -> None:
    staleness = fresh()
    assert staleness.due(5.0) == 5.0 + LATER
    staleness.unanswered()
    assert staleness.due(5.0) == 5.0 + SOON


@pytest.mark.parametrize(
    "told",
    [
        MasterStarted(2, is_first=False),
        NodeJoined("a", "h", 2, returns=True),
        NodeDetached("a", "lost"),
        NodeGone("a", "left"),
        CheckStarted("a node is new"),
        CheckEnded(),
        OrderAnswered("cordon", obeyed=True, answer="yes"),
        ScaleStarted(1, "scale in", 1, 1),
        ScaleEnded(1, reached=True, reason="it left"),
        JobEnded("succeeded", "all ended with 0"),
        EntriesLost(3),
        RoundStopped(0),
        started(0, "a", "b"),
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_changes_nodes_ranks_or_limits_is_urgent(told: Happening) -> None:
    made = fresh()
    made.take(told)
    assert (made.is_urgent, made.due(10.0)) == (True, 10.0 + SOON)
    made.asked()
    assert (made.is_urgent, made.due(10.0)) == (False, 10.0 + LATER)


@pytest.mark.parametrize(
    "told",
    [
        FAILED,
        NodeChanged("a", "running", 0),
        MilestoneReached("a", 0, "imported"),
        StepsDone(0, 5, 1.0),
        SaveStalled(0, 0.5),
        DataProgress(0, "d", 0, 1, 1, 0, 9),
        StateSaved(Place.MEMORY, 0, 5),
        HangFound(0, 60.0),
        StragglerFound(0, "a", 2.0),
        RoundStopping(0, "worker_failed", "a worker failed"),
        Decision("running", 0, "all are ready"),
    ],
    ids=lambda it: type(it).__name__,
)
def test_progress_is_not_urgent(told: Happening) -> None:
    made = fresh()
    made.take(told)
    assert not made.is_urgent and made.due(10.0) == 10.0 + LATER


def test_a_recovery_in_the_same_world_is_not_urgent_once_it_is_over() -> None:
    made = fresh(started(0, "a", "b"))
    made.take(FAILED)
    made.take(RoundStopped(0))
    assert made.is_urgent, "what is waited for?"
    made.take(started(1, "a", "b"))
    assert not made.is_urgent


@pytest.mark.parametrize(
    "after",
    [started(1, "b", "a"), started(1, "a"), started(1, "a", "c"), started(1, "a", "b", workers=3)],
    ids=["other ranks", "smaller", "another node", "fewer workers"],
)
def test_a_round_in_another_world_is_urgent(after: RoundStarted) -> None:
    made = fresh(started(0, "a", "b"))
    made.take(after)
    assert made.is_urgent


def test_a_world_of_which_not_all_nodes_are_named_may_be_another_one() -> None:
    made = fresh(started(0, "a", "b", nodes=3))
    made.take(started(1, "a", "b", nodes=3))
    assert made.is_urgent


def test_a_recovery_hides_nothing_that_was_urgent_before() -> None:
    made = fresh(started(0, "a", "b"))
    made.take(OrderAnswered("scale", obeyed=True, answer="yes"))
    made.take(RoundStopped(0))
    made.take(started(1, "a", "b"))
    assert made.is_urgent
