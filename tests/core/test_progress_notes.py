"""What of the agents' progress gets into the event log, and when."""

from __future__ import annotations

from elasticrun.core.job.progress_notes import EACH, Note, ProgressNotes
from elasticrun.core.protocol.chronicle import MilestoneReached, SaveStalled, StepsDone
from elasticrun.core.protocol.round_progress import Reached, RoundProgress


class Log:
    def __init__(self) -> None:
        self.notes = ProgressNotes()

    def hear(self, now: float, progress: RoundProgress, node: str = "a") -> list[Note]:
        return list(self.notes.take(node, progress, now))

    def rest(self) -> list[Note]:
        return list(self.notes.rest())


def test_a_milestone_is_told_once_for_each_node_when_it_was_reached() -> None:
    log = Log()
    imported, connected = Reached(2, 3.0), Reached(3, 0.5)
    told = log.hear(10.0, RoundProgress(4, (connected, imported)))
    assert told == [(7.0, MilestoneReached("a", 4, "imported")), (9.5, MilestoneReached("a", 4, "connected"))]
    assert log.hear(11.0, RoundProgress(4, (connected, imported))) == []
    assert log.hear(1.0, RoundProgress(4, (imported,)), "b") == [(0.0, MilestoneReached("b", 4, "imported"))]
    assert log.hear(12.0, RoundProgress(5, (connected,))) == [(11.5, MilestoneReached("a", 5, "connected"))]


def test_steps_are_sampled_and_the_newest_are_told_before_something_else() -> None:
    log = Log()
    assert log.hear(10.0, RoundProgress(0, step=3, step_rate=2.0, step_ago=0.5)) == [
        (9.5, StepsDone(0, 3, 2.0))
    ]
    assert log.hear(10.2, RoundProgress(0, step=4)) == []
    assert log.hear(10.3, RoundProgress(0, step=6), "b") == []
    assert log.hear(10.4, RoundProgress(0, step=5)) == [], "another node is further"
    assert log.rest() == [(10.3, StepsDone(0, 6, None))]
    assert log.rest() == []
    assert log.hear(10.0 + EACH, RoundProgress(0, step=6)) == []
    assert log.hear(10.0 + EACH, RoundProgress(0, step=7)) == [(10.0 + EACH, StepsDone(0, 7, None))]
    assert log.hear(10.1 + EACH, RoundProgress(1, step=2)) == [(10.1 + EACH, StepsDone(1, 2, None))]


def test_a_stall_is_told_before_the_steps_that_it_was_part_of() -> None:
    log = Log()
    assert log.hear(5.0, RoundProgress(0, step=1, stalled=2.0, step_ago=1.0)) == [
        (4.0, SaveStalled(0, 2.0)),
        (4.0, StepsDone(0, 1, None)),
    ]
    assert log.hear(5.5, RoundProgress(0, step=1, stalled=2.5), "b") == []
    assert log.hear(5.6, RoundProgress(0, step=1, stalled=2.25)) == []
    assert log.rest() == [(5.6, SaveStalled(0, 0.5))]
    assert log.hear(7.0, RoundProgress(0, step=1, stalled=2.5)) == []


def test_the_log_grows_by_a_bounded_rate() -> None:
    log = Log()
    told = [
        note
        for each in range(2000)
        for note in log.hear(each / 100, RoundProgress(0, step=each, stalled=each))
    ]
    assert len(told) <= 2 * (20 / EACH + 1)
