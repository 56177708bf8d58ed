"""The event log of a simulated job, as its master would write it, and the job's history from that.

Theory. The entries are what ``core/job/chronicler.py`` makes of each event of the master, with the progress
that agents would tell beside them, which the simulated world knows. Workers make a step each second, from
the step on that the state they restore was saved after; a script that restores nothing begins with the first.
So a log speaks of steps where masters speak of commits, of which there may be few. A master that starts
again goes on where its journal ends; one that has lost its journal begins another job, with another history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from elasticrun.core.history.history import History
from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.events import Beat, JobEffect, JobEvent
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.progress_notes import ProgressNotes
from elasticrun.core.job.round import Round
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.chronicle import Happening, LogEntry, RoundStarted, StateSaved
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.round_progress import Milestone, Reached, RoundProgress
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.simulator import Simulator
from elasticrun.sim.world import World

#: The time on the wall clock at which simulated jobs begin, in seconds since 1970.
EPOCH = 1e9
STEP = 1.0  # seconds that each step takes
SAMPLE = 0.5  # seconds between two looks at how far workers are


class LogBook:
    """Of one job with one master."""

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._machine: JobMachine | None = None
        self._round = -1  # that runs, as far as the master knew after its last event
        self._saved: dict[CommitId, int] = {}  # the step after which each state was saved
        self._first = 0  # step of the newest round
        self._told: tuple[World, int] | None = None  # the newest progress, in steps of its round
        self.stops: dict[int, str] = {}  # why each round was stopped, as was known in the end; "": it was not
        self.entries: list[LogEntry] = []
        self._begin()
        sim.observers.append(self._hear)
        self._sample()

    def _begin(self) -> None:
        self.history, self._notes = History(), ProgressNotes()
        self._newest: tuple[int, Round | None] = -1, None
        self._has_ended = False

    def _hear(self, now: float, event: JobEvent, effects: Sequence[JobEffect]) -> None:
        master = self._sim.master
        if isinstance(event, Beat) or not master.journal or master.journal[-1][0] is not event:
            return  # it changes nothing, or was never written down as the process ends in the middle of it
        if master.machine is not self._machine:
            self._take_over(is_new=len(master.journal) == 1)
        self._write(self._progress(now))  # before what may end the round
        state = master.machine.state
        self._write((now, each) for each in self._chronicler.after(event, state, effects))
        self._round = state.round if state.phase is JobPhase.RUNNING else -1
        self._note_stops(state)

    def _note_stops(self, state: JobState) -> None:
        """Note why rounds stop, until the job has ended: then nodes that go home stop the last one as well.

        An event may excuse the round before: a node is lost, and no worker was at fault.
        """
        for number, round_ in () if self._has_ended else (self._newest, (state.round, state.current)):
            if round_ is not None and round_.stop is not None:
                cause, reason = round_.stop
                self.stops[number] = f"{cause.value}: {reason}"
        self._newest, self._has_ended = (state.round, state.current), state.ended

    def _take_over(self, is_new: bool) -> None:
        """Another process of the master has begun."""
        master = self._sim.master
        if is_new:
            self._begin()
        before = self._sim.saving.replay(self._sim.config, master.journal[:-1])
        self._chronicler, self._machine, self._round = Chronicler(before.state), master.machine, -1
        self._newest = -1, None

    def _write(self, told: Iterable[tuple[float, Happening]]) -> None:
        for at, each in told:
            entry = LogEntry(self._sim.master.machine.state.events, at, EPOCH + at, self._in_steps(each))
            self.entries.append(entry)
            self.history.take(entry)

    def _in_steps(self, told: Happening) -> Happening:
        state = self._sim.master.machine.state
        if isinstance(told, RoundStarted):
            restore = next(iter(state.current.assignments.values())).restore
            self._first = 0 if restore is None else self._step_of(restore)
            self.stops[told.round] = ""
            return replace(told, restored_step=self._first)
        if isinstance(told, StateSaved):
            return replace(told, step=self._step_of(CommitId(told.round, told.step)))
        return told

    def _step_of(self, commit: CommitId) -> int:
        """Of a commit that was never looked at: the step of one before it."""
        older = (at for each, at in self._saved.items() if each.age <= commit.age)
        return self._saved.get(commit, max(older, default=0))

    # -- progress

    def _sample(self) -> None:
        kernel, master = self._sim.kernel, self._sim.master
        if master.up:
            self._write(self._progress(kernel.now + master.offset))
        kernel.after(SAMPLE, self._sample)

    def _progress(self, now: float) -> Iterator[tuple[float, Happening]]:
        """What the agents of the round that runs would tell now."""
        world = self._sim.rules.newest
        if world is None or world.number != self._round or world.complete_at is None:
            return
        now_here = self._sim.kernel.now
        trained = now_here - world.complete_at - max(world.waited(name, now_here) for name in world.started)
        done = int(trained / STEP)
        commit, _ = self._sim.saves.newest
        if commit is not None and commit.round == world.number:
            self._saved.setdefault(commit, self._first + done)
        if self._told == (world, done):
            return
        self._told = world, done
        age = now_here - world.complete_at
        reached = [Reached(each, age) for each in (Milestone.SPAWNED, Milestone.CONNECTED)]
        step, ago = -1, 0.0
        if done:
            step, ago = self._first + done, trained - done * STEP
            reached.append(Reached(Milestone.FIRST_STEP, ago))
        told = RoundProgress(world.number, tuple(reached), step, step_ago=ago)
        for name in world.started:
            yield from self._notes.take(name, told, now)
        yield from self._notes.rest()
