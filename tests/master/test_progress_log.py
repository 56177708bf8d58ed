"""What agents tell of their workers becomes entries of the event log, and lines of the master's log."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.config import HealthConfig, JobConfig
from elasticrun.core.protocol.chronicle import Happening, StepsDone, StragglerFound
from elasticrun.core.protocol.round_progress import RoundProgress, StepTimes
from elasticrun.core.protocol.status import JobPhase
from elasticrun.master.progress_log import ProgressLog


class Entries:
    """In place of the chronicle."""

    def __init__(self) -> None:
        self.all: list[tuple[float, Happening]] = []

    def note_all(self, notes: Iterable[tuple[float, Happening]]) -> None:
        self.all += notes


def state(phase: JobPhase = JobPhase.RUNNING, ratio: float = 2.0) -> Any:
    config = JobConfig(health=HealthConfig(straggler_ratio=ratio))
    return SimpleNamespace(phase=phase, round=3, config=config)


def tell(log: ProgressLog, times: int = 5, round_: int = 3) -> None:
    """Two nodes tell of their steps; one of them is slow."""
    for number in range(1, times + 1):
        for node, own in (("a", 0.01), ("b", 0.05)):
            progress = RoundProgress(round_, step=-1, times=StepTimes(0, 8 * number, own, 0.06))
            log.take(node, progress, float(number))


def test_a_straggler_is_an_entry_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    entries: Any = Entries()
    log = ProgressLog(state(), entries)
    tell(log)
    about: Any = pytest.approx(3.0)
    assert entries.all == [(3.0, StragglerFound(3, "b", about))]
    (line,) = caplog.messages
    assert line.startswith("round 3: b makes others wait; a step takes 3.00 times as long")
    log.take("a", RoundProgress(3, step=7), 9.0)
    assert entries.all[-1] == (9.0, StepsDone(3, 7, None))


def test_without_an_event_log_the_warning_comes_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    log = ProgressLog(state(), None)
    tell(log)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("of", "round_"), [(state(JobPhase.STOPPING), 3), (state(), 2), (state(ratio=10.0), 3)]
)
def test_it_is_of_the_round_that_runs_and_beyond_the_ratio(
    caplog: pytest.LogCaptureFixture, of: Any, round_: int
) -> None:
    entries: Any = Entries()
    tell(ProgressLog(of, entries), round_=round_)
    assert (entries.all, caplog.messages) == ([], [])
