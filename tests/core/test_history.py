"""The story of a job from its entries: who is here, the rounds, what failed, how long it took to go on."""

from __future__ import annotations

import pytest

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.history.history import ECHO, KEPT, History
from elasticrun.core.history.views import RoundView, SavedView
from elasticrun.core.protocol.chronicle import (
    MAX_DATASETS,
    CheckEnded,
    CheckStarted,
    DataProgress,
    Decision,
    EntriesLost,
    HangFound,
    Happening,
    JobEnded,
    LogEntry,
    MasterStarted,
    MilestoneReached,
    NodeChanged,
    NodeDetached,
    NodeGone,
    NodeJoined,
    Place,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    SaveStalled,
    StateSaved,
    StepsDone,
    StragglerFound,
    WorkerFailed,
)

Story = tuple[tuple[float, Happening], ...]


def joined(node: str, returns: bool = False) -> NodeJoined:
    return NodeJoined(node, f"host-{node}", 2, returns)


def started(round_: int, *nodes: str, restart: int = 0) -> RoundStarted:
    return RoundStarted(round_, len(nodes), 2 * len(nodes), nodes, restart, None, "enough are ready")


def failed(round_: int, summary: str = "rank 1 exited with 3") -> WorkerFailed:
    return WorkerFailed(round_, "a", "host-a", 1, 1, 77, "exit", 3, 4, summary)


def running(node: str, round_: int) -> NodeChanged:
    return NodeChanged(node, "running", round_)


def newest(history: History) -> RoundView:
    current = history.current
    assert current is not None
    return current


def here(history: History) -> list[str]:
    return [name for name, node in history.nodes.items() if node.is_attached]


def told(*story: tuple[float, Happening]) -> History:
    history = History()
    for event, (at, happening) in enumerate(story):
        history.take(LogEntry(event, at, 1000.0 + at, happening))
    return history


#: Two nodes train from 3 s on, with a step each second.
TRAINING: Story = (
    (0, MasterStarted(1, is_first=True)),
    (0, joined("a")),
    (1, joined("b")),
    (1, started(0, "a", "b")),
    (2, running("a", 0)),
    (2.5, running("b", 0)),
    (3, MilestoneReached("a", 0, "first_step")),
    (4, StepsDone(0, 2, 1.0)),
)


def test_nothing_was_told() -> None:
    history = History()
    assert history.current is None and history.first is None
    assert history.summary().goodput == 0


def test_a_round_that_trains() -> None:
    history = told(*TRAINING)
    assert (history.epoch, history.first, history.last) == (1, (0, 1000.0), (4, 1004.0))
    assert list(history.nodes) == ["a", "b"]
    assert history.nodes["b"].since == 1 and history.nodes["b"].phase == "running"
    current = newest(history)
    assert (current.running, current.first_step, current.step, current.rate) == (2.5, 3, 2, 1.0)
    assert current.milestones == {"first_step": 3}
    assert list(history.steps) == [(4, 2, 1.0)]
    assert not history.recoveries and history.reports_steps
    assert history.summary(5).total[Activity.PRODUCTIVE] > 0
    assert history.summary().at == 4_000_000


def test_the_last_node_counts_for_a_milestone_and_late_ones_change_no_clock() -> None:
    history = told(
        *TRAINING, (2.2, MilestoneReached("b", 0, "imported")), (2, MilestoneReached("a", 0, "imported"))
    )
    assert newest(history).milestones["imported"] == 2.2
    assert history.last[0] == 4


def test_a_recovery_begins_with_the_first_failure_and_is_over_with_the_first_step() -> None:
    history = told(
        *TRAINING,
        (10, failed(0, "rank 0 lost its peer")),
        (10.5, failed(0)),
        (10.5, RoundStopping(0, "member lost", "b is gone")),
        (10.6, failed(0, "an echo")),
        (10.7, RoundStopped(0)),
        (10.7, started(1, "a", "b", restart=1)),
        (11, running("a", 1)),
        (11.1, running("b", 1)),
        (12, StepsDone(1, 3, None)),
        (13, StepsDone(1, 4, None)),
    )
    (recovery,) = history.recoveries
    assert (recovery.round, recovery.began, recovery.started) == (1, 10, 10.7)
    assert (recovery.running, recovery.over, recovery.seconds) == (11.1, 12, 2)
    assert (recovery.cause, recovery.reason, recovery.is_failure) == ("member lost", "b is gone", True)
    assert history.failed == 3 and [it[2].summary for it in history.failures][-1] == "an echo"
    assert history.restarts == 1
    assert history.rounds[0].stopping == 10.5 and history.rounds[0].stopped == 10.7
    assert history.rounds[0].cause == "member lost" and history.rounds[0].stop_reason == "b is gone"


def test_where_nobody_reports_steps_it_is_over_when_workers_run() -> None:
    history = told(
        (0, joined("a")),
        (0, started(0, "a")),
        (1, running("a", 0)),
        (5, RoundStopping(0, "node joined", "b came")),
        (6, started(1, "a")),
        (7, running("a", 1)),
        (7, running("a", 1)),
    )
    (recovery,) = history.recoveries
    assert recovery.seconds == 2 and not recovery.is_failure
    assert history.rounds[0].stopped == 6, "as the next round has started"
    history.take(LogEntry(99, 9, 9, StepsDone(1, 1, None)))
    assert recovery.seconds == 4, "somebody does, after all"


def test_a_round_that_fails_before_its_first_step_has_a_recovery_of_its_own() -> None:
    history = told(
        *TRAINING,
        (10, RoundStopping(0, "hang", "no step")),
        (11, started(1, "a", "b")),
        (12, RoundStopping(1, "worker failed", "again")),
        (13, started(2, "a", "b")),
        (14, MilestoneReached("a", 2, "first_step")),
    )
    first, second = history.recoveries
    assert first.seconds is None and first.is_failure
    assert second.seconds == 2


def test_a_task_that_starts_again_alone_stops_no_round() -> None:
    later = 10 + ECHO + 1
    history = told(
        *TRAINING,
        (10, failed(0)),
        (11, StepsDone(0, 9, None)),
        (later, RoundStopping(0, "resized", "an operator wants it")),
        (later + 1, started(1, "a")),
    )
    (recovery,) = history.recoveries
    assert recovery.began == later and recovery.cause == "resized"


@pytest.mark.parametrize(
    ("story", "phase"),
    [
        ((), "gathering"),
        (((0, CheckStarted("the first round")),), "checking"),
        (TRAINING, "running"),
        ((*TRAINING, (9, RoundStopping(0, "hang", ""))), "stopping"),
        ((*TRAINING, (9, RoundStopped(0))), "gathering"),
        ((*TRAINING, (9, JobEnded("succeeded", ""))), "succeeded"),
    ],
)
def test_the_phase_is_what_the_entries_say(story: Story, phase: str) -> None:
    assert told(*story).phase == phase


def test_a_job_that_ends_recovers_nothing() -> None:
    history = told(
        *TRAINING, (10, failed(0)), (10, RoundStopped(0)), (10, JobEnded("failed", "no restart is left"))
    )
    assert not history.recoveries
    assert (history.outcome, history.end_reason) == ("failed", "no restart is left")
    assert not told(*TRAINING, (10, JobEnded("succeeded", ""))).recoveries


def test_what_fails_after_the_end_begins_no_recovery() -> None:
    history = told(*TRAINING, (10, JobEnded("failed", "it is stopped")), (11, failed(0)))
    assert not history.recoveries and len(history.failures) == 1
    assert not told(*TRAINING, (10, JobEnded("x", "")), (11, RoundStopping(0, "hang", ""))).recoveries


def test_nodes_that_ran_are_known_of_the_newest_round_only() -> None:
    rounds = [
        each for number in range(1, 4) for each in ((10, started(number, "a")), (11, running("a", number)))
    ]
    history = told(*TRAINING, *rounds)
    assert [it.runs for it in history.rounds] == [set(), set(), set(), {"a"}]
    assert all(it.running is not None for it in history.rounds)


def test_signs_of_other_rounds_begin_nothing() -> None:
    assert not told((0, failed(0))).recoveries
    history = told(*TRAINING, (5, failed(7)), (5, RoundStopping(7, "hang", "")), (5, StepsDone(7, 70, None)))
    assert not history.recoveries
    assert newest(history).step == 2


def test_nodes_come_and_go() -> None:
    history = told(
        *TRAINING,
        (5, NodeDetached("b", "the stream broke")),
        (6, StragglerFound(0, "a", 1.5)),
    )
    assert here(history) == ["a"]
    assert history.nodes["a"].slowness == 1.5
    history.take(LogEntry(20, 7, 0, joined("b", returns=True)))
    assert here(history) == ["a", "b"]
    assert history.nodes["b"].since == 1
    history.take(LogEntry(21, 8, 0, NodeDetached("b", "")))
    history.take(LogEntry(22, 8, 0, NodeChanged("b", "ready", -1)))
    assert here(history) == ["a", "b"]
    assert history.nodes["b"].phase == "ready"
    history.take(LogEntry(23, 9, 0, joined("b")))
    assert history.nodes["b"].since == 9 and history.nodes["b"].phase == "preparing", "it is another agent"
    history.take(LogEntry(24, 10, 0, started(1, "a", "b")))
    assert history.nodes["a"].slowness == 1.0
    history.take(LogEntry(25, 11, 0, NodeGone("b", "")))
    assert list(history.nodes) == ["a"]


@pytest.mark.parametrize(
    "happening",
    [NodeDetached("z", ""), NodeGone("z", ""), NodeChanged("z", "running", 0), StragglerFound(0, "z", 2.0)],
)
def test_a_node_that_never_came_is_passed_over(happening: Happening) -> None:
    assert list(told(*TRAINING, (5, happening)).nodes) == ["a", "b"]


def test_a_node_that_returns_unknown_is_new() -> None:
    assert told((3, joined("a", returns=True))).nodes["a"].since == 3


def test_what_else_is_told() -> None:
    history = told(
        (0, CheckStarted("the first round")),
        (1, Decision("checking", -1, "2 nodes are checked")),
        (2, StateSaved(Place.MEMORY, 0, 12)),
        (3, SaveStalled(0, 1.0)),
        (4, HangFound(0, 60.0)),
    )
    assert (history.is_checking, history.missed) == (True, False)
    assert list(history.decisions) == [(1, 1001.0, "2 nodes are checked")]
    assert history.saved == {Place.MEMORY: SavedView(12, 2, 1002.0)}
    history.take(LogEntry(9, 5, 5, CheckEnded()))
    history.take(LogEntry(9, 5, 5, EntriesLost(0)))
    assert (history.is_checking, history.missed) == (False, True)


def test_only_the_newest_is_kept() -> None:
    history = told(*((0, failed(0)) for _ in range(KEPT + 1)), (0, started(0, "a")))
    assert len(history.failures) == KEPT and history.failed == KEPT + 1


def test_shared_data_are_those_of_the_newest_round_and_bounded() -> None:
    history = History()
    for number in range(MAX_DATASETS + 5):
        history.take(LogEntry(1, 1.0, 1.0, DataProgress(0, str(number), 0, 1, 0, 0, 4)))
    history.take(LogEntry(1, 2.0, 2.0, DataProgress(0, "3", 0, 2, 0, 0, 4)))
    assert len(history.data) == MAX_DATASETS
    assert history.data["3"].done == 2
    history.take(LogEntry(1, 3.0, 3.0, started(1, "a")))
    assert not history.data
