"""Phases of recoveries, and counts that do not forget: tables, and jobs that live for long."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest

from elasticrun.core.durations import Durations
from elasticrun.core.history.history import KEPT, History
from elasticrun.core.history.phases import PhaseSpan, phases
from elasticrun.core.history.totals import BUCKETS, OTHER, SETTLE, TOTAL, label
from elasticrun.core.history.views import Recovery, RoundView
from elasticrun.core.protocol.chronicle import (
    EntriesLost,
    HangFound,
    Happening,
    JobEnded,
    LogEntry,
    MilestoneReached,
    NodeChanged,
    Place,
    RoundStarted,
    RoundStopped,
    StateSaved,
    StepsDone,
)
from tests.core.story import LASTS, SPAN, WALL, entry, failed, joined, running, stopping, story

ALL = ("detect", "stop", "start", "import", "rendezvous", "restore", "first_step")


def told(*entries: Iterable[LogEntry]) -> History:
    history = History()
    for some in entries:
        for each in some:
            history.take(each)
    return history


def repair(running: float | None = 6.0, over: float | None = 9.0) -> Recovery:
    return Recovery(1, 1.0, "worker failed", "", True, 4.0, running, over)


def view(number: int, **known: float) -> RoundView:
    found = RoundView(number, 0.0, 1, 1, ("a",), 0, None, "")
    found.stopping, found.stopped = known.pop("stopping", None), known.pop("stopped", None)
    found.first_step = known.pop("work", None)
    found.milestones = known
    return found


def plain(spans: Iterable[PhaseSpan]) -> dict[str, tuple[float, float]]:
    return {span.phase.value: (span.began, span.ended) for span in spans}


@pytest.mark.parametrize(
    ("given", "before", "after", "expected"),
    [
        (repair(over=None, running=None), view(0), view(1), {}),
        (repair(), None, view(1, work=9), {"start": (1, 6), "first_step": (6, 9)}),
        (repair(running=None), view(0), view(1, work=9), {"first_step": (1, 9)}),
        (
            repair(over=None),
            view(0, stopping=2, stopped=3),
            view(1),
            {"detect": (1, 2), "stop": (2, 3), "start": (3, 6)},
        ),
        (
            repair(),
            view(0, stopping=2, stopped=3),
            view(1, spawned=5, imported=7, connected=8, restored=8.5, first_step=9, work=9),
            {
                "detect": (1, 2),
                "stop": (2, 3),
                "start": (3, 5),
                "import": (5, 7),
                "rendezvous": (7, 8),
                "restore": (8, 8.5),
                "first_step": (8.5, 9),
            },
        ),
        (  # out of order, before the beginning, after the end
            repair(),
            view(0, stopping=0.5, stopped=0.75),
            view(1, spawned=7, imported=6, restored=20, work=9),
            {
                "detect": (1, 1),
                "stop": (1, 1),
                "start": (1, 7),
                "import": (7, 7),
                "restore": (7, 9),
                "first_step": (9, 9),
            },
        ),
        (repair(over=0.5), None, view(1, work=9), {"start": (1, 1), "first_step": (1, 1)}),
    ],
    ids=[
        "not over",
        "round before unknown",
        "nothing known",
        "no steps",
        "all known",
        "absurd",
        "ends early",
    ],
)
def test_phases(
    given: Recovery, before: RoundView | None, after: RoundView, expected: dict[str, tuple[float, float]]
) -> None:
    spans = phases(given, before, after)
    assert plain(spans) == expected
    assert sum(span.seconds for span in spans) == sum(end - begin for begin, end in expected.values())
    assert all(earlier.ended == later.began for earlier, later in pairwise(spans))


def test_durations_are_counted_in_buckets() -> None:
    durations = Durations(BUCKETS)
    for seconds in (0.0, BUCKETS[0], 0.06, BUCKETS[-1], BUCKETS[-1] + 1):
        durations.add(seconds)
    assert durations.cumulative[:2] == [2, 3]
    assert durations.cumulative[-2:] == [4, 5]
    assert durations.seconds == pytest.approx(0.11 + 2 * BUCKETS[-1] + 1)


def test_a_recovery_counts_with_all_of_its_phases() -> None:
    totals = told(story(2)).totals
    assert totals.settled == 1
    found = {name: each.seconds for name, each in totals.recoveries.items()}
    expected = (0.125, 0.375, 1.25, 2.0, 0.25, 1.0, 0.5)
    assert found == {**dict(zip(ALL, expected, strict=True)), TOTAL: sum(expected)}
    assert totals.newest is not None
    assert totals.newest[1].number == totals.newest[0].round == 1
    assert totals.restarts["worker_failed"] == totals.failures["signal"] == 1
    assert sum(totals.restarts.values()) == sum(totals.failures.values()) == 1


def test_a_recovery_counts_once_its_milestones_are_settled() -> None:
    history = told(story(1), stopping(0, LASTS), running(1, SPAN))
    over = SPAN + 4.0
    history = told(story(1), stopping(0, LASTS), (it for it in running(1, SPAN) if it.at <= over))
    assert history.totals.settled == 0
    history.take(entry(over - 0.25, MilestoneReached("b", 1, "restored")))  # told late
    history.take(entry(over + SETTLE - 0.01, StepsDone(1, 30, None)))
    assert history.totals.settled == 0
    history.take(entry(over + SETTLE, StepsDone(1, 31, None)))
    assert history.totals.settled == 1
    assert history.totals.recoveries["restore"].seconds == 1.25
    history.take(entry(over + SETTLE + 1, StepsDone(1, 32, None)))
    assert history.totals.settled == 1
    for each in stopping(1, over + SETTLE + 2):
        history.take(each)
    assert history.totals.settled == 1


def quiet(number: int, at: float) -> Iterable[LogEntry]:
    """A round of a script that reports no steps."""
    yield entry(at, RoundStarted(number, 2, 4, ("a", "b"), 0, None, ""))
    for name in ("a", "b"):
        yield entry(at + 0.25, NodeChanged(name, "running", number))


@pytest.mark.parametrize("end", [RoundStopped(1), JobEnded("succeeded", "")])
def test_without_steps_a_recovery_ends_when_workers_run(end: RoundStopped | JobEnded) -> None:
    history = told(joined(), quiet(0, 0), stopping(0, 10), quiet(1, 11))
    assert history.totals.settled == 0
    history.take(entry(50, end))
    assert history.totals.settled == 1
    assert history.totals.recoveries[TOTAL].seconds == 1.25
    assert history.totals.recoveries["first_step"].cumulative[-1] == 0


def test_a_recovery_that_fails_again_before_its_first_step_is_none() -> None:
    history = told(story(1), stopping(0, LASTS), quiet(1, SPAN), stopping(1, SPAN + 1))
    assert history.totals.settled == 0
    assert history.totals.newest is None
    history = told(joined(), quiet(0, 0), stopping(0, 1), [entry(2, JobEnded("failed", ""))])
    assert history.totals.settled == 0  # no round came of it


def test_a_log_that_begins_in_the_middle() -> None:
    history = told([entry(3, failed(7)), entry(4, RoundStopped(7))], running(8, 5))
    assert history.totals.settled == 0
    assert sum(history.totals.restarts.values()) == 0
    assert history.totals.failures["signal"] == 1


def test_texts_of_strangers_are_one_value() -> None:
    history = told(story(1), stopping(0, LASTS, "a\n{} new cause"), running(1, SPAN))
    history.take(entry(99, failed(1, how='"}\nx')))
    assert history.totals.restarts[OTHER] == history.totals.failures[OTHER] == 1
    assert label("checkpoint stall") == "checkpoint_stall"


def test_the_rest_is_counted() -> None:
    saved: list[Happening] = [
        StateSaved(Place.MEMORY, 0, 5),
        StateSaved(Place.MEMORY, 0, 6),
        StateSaved(Place.STORAGE, 0, 5),
    ]
    more: list[Happening] = [
        HangFound(0, 30.0),
        EntriesLost(0),
        EntriesLost(4),
        MilestoneReached("a", 0, "first_step"),
    ]
    history = told(joined(), [entry(number, each) for number, each in enumerate([*saved, *more])])
    totals = history.totals
    assert totals.saves == {Place.MEMORY: 2, Place.HOSTS: 0, Place.STORAGE: 1}
    newest = {place: (each.step, each.time) for place, each in history.saved.items()}
    assert newest == {Place.MEMORY: (6, WALL + 1), Place.STORAGE: (5, WALL + 2)}
    assert (totals.hangs, totals.lost, totals.step, totals.stepped) == (1, 5, -1, WALL + 6)


def test_what_a_history_forgets_stays_counted() -> None:
    rounds = KEPT + 1001
    history = told(story(rounds))
    assert len(history.rounds) == KEPT
    assert history.totals.restarts["worker_failed"] == history.totals.failures["signal"] == rounds - 1
    assert history.totals.settled == rounds - 1
    whole = history.totals.recoveries[TOTAL]
    assert whole.cumulative[-1] == rounds - 1
    assert whole.seconds == 5.5 * (rounds - 1)
    assert sum(history.totals.recoveries[name].seconds for name in ALL) == whole.seconds
