"""Goodput of a thousand simulated jobs under faults, from their event logs as masters write them.

The books are kept from entries alone, as by everything that shows a job. Beside them goes a stopwatch, which
knows only when nodes came and went: every microsecond of each node, and of the job, must be accounted once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

import pytest

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.books import PAST
from elasticrun.core.accounting.from_log import micros
from elasticrun.core.history.history import History
from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.events import Beat, JobEffect, JobEvent
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.progress_notes import ProgressNotes
from elasticrun.core.protocol.chronicle import Happening, JobEnded, LogEntry, NodeGone, NodeJoined
from elasticrun.core.protocol.round_progress import Milestone, Reached, RoundProgress
from elasticrun.core.protocol.status import JobPhase
from elasticrun.rpc.event_lines import from_line, to_line
from elasticrun.sim.draw import generate
from elasticrun.sim.kernel import Violation
from elasticrun.sim.simulator import Simulator

JOBS = 1000
CHUNK = 250
STRIDE = 400  # seeds between the first ones of two chunks; a fourth of them have several masters


class Stopwatch:
    """How long each node was here, and how old the job is, by the clock of its entries."""

    def __init__(self) -> None:
        self.lived = Counter[str]()
        self.here: dict[str, int] = {}
        self.first: int | None = None
        self.last = 0
        self.is_over = False

    def note(self, at: int, told: Happening) -> None:
        self.first = at if self.first is None else self.first
        if self.is_over:
            return
        self.last = max(self.last, at)
        match told:
            case NodeJoined(node):
                self.here.setdefault(node, self.last)
            case NodeGone(node) if node in self.here:
                self.lived[node] += self.last - self.here.pop(node)
            case JobEnded():
                self.is_over = True

    def stop(self) -> Counter[str]:
        for node, since in self.here.items():
            self.lived[node] += self.last - since
        return +self.lived


class Log:
    """Writes the entries of a job, and keeps its history from their lines."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.machine: JobMachine | None = None
        self.begin()
        sim.observers.append(self.hear)

    def begin(self) -> None:
        self.history, self.watch, self.notes = History(), Stopwatch(), ProgressNotes()

    def hear(self, now: float, event: JobEvent, effects: Sequence[JobEffect]) -> None:
        master = self.sim.master
        if isinstance(event, Beat):
            self.follow(now)
            return
        if not master.journal or master.journal[-1][0] is not event:
            return  # it was never written down, as the process ends in the middle of it
        if master.machine is not self.machine:  # another process
            self.machine = master.machine
            if len(master.journal) == 1:  # and another job, as the journal is lost
                self.begin()
            self.chronicler = self.replayed()
        self.write(now, self.chronicler.after(event, master.machine.state, effects))
        self.follow(now)

    def replayed(self) -> Chronicler:
        master = self.sim.master
        machine = self.sim.saving.replay(self.sim.config, master.journal[:-1])
        return Chronicler(machine.state)

    def follow(self, now: float) -> None:
        """What agents would tell of the newest world, which the simulator knows better than its master."""
        world, state = self.sim.rules.newest, self.sim.master.machine.state
        if world is None or state.phase is not JobPhase.RUNNING or world.number != state.round:
            return
        saved = [commit.step for commit in self.sim.saves._saved if commit.round == world.number]
        works = len(world.started) == len(world.assignments)
        for number, name in enumerate(sorted(world.started)):
            reached = [Reached(Milestone.SPAWNED, 0.5), Reached(Milestone.IMPORTED, number / 8)]
            if works:
                reached += [Reached(Milestone.CONNECTED, 0.25), Reached(Milestone.FIRST_STEP, 0.125)]
            step = max(saved, default=-1) if works else -1
            progress = RoundProgress(world.number, tuple(reached), step, 1.0, 0.01 * len(saved), 0.3)
            for at, told in self.notes.take(name, progress, now):
                self.write(at, [told])

    def write(self, at: float, told: Sequence[Happening]) -> None:
        for each in told:
            entry = from_line(to_line(LogEntry(0, at, 1e9 + at, each)))
            assert entry is not None
            self.history.take(entry)
            self.watch.note(micros(entry.at), each)

    def judge(self) -> Counter[Activity]:
        summary, watch = self.history.summary(), self.watch
        lived = watch.stop()
        assert watch.first is not None
        assert len(lived) < PAST
        spent = {name: sum(each.values()) for name, each in summary.nodes.items()}
        assert {name: micros for name, micros in spent.items() if micros} == dict(lived)
        assert sum(summary.total.values()) == lived.total()
        assert sum(summary.job.values()) == watch.last - watch.first
        assert min((*summary.total.values(), *summary.job.values())) >= 0
        assert 0 <= summary.goodput <= 1
        assert 0 <= summary.ettr <= 1
        return Counter(summary.job)


@pytest.mark.parametrize("chunk", range(JOBS // CHUNK))
def test_goodput_sums_to_wall_time(chunk: int) -> None:
    seen, jobs, seed = Counter[Activity](), 0, chunk * STRIDE - 1
    while jobs < CHUNK:
        seed += 1
        case = generate(seed, 5)
        if case.hosts:  # several masters, each with a log of its own
            continue
        sim = Simulator(case)
        log = Log(sim)
        with contextlib.suppress(Violation):  # the rules of jobs are the matter of other tests
            sim.run()
        seen.update(log.judge())
        jobs += 1
    for activity in (Activity.PRODUCTIVE, Activity.REDONE, Activity.IMPORT, Activity.CHECKPOINT):
        assert seen[activity], activity
