"""The books of 240 simulated jobs under faults: they sum to what a stopwatch says, in each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.books import Books
from elasticrun.core.accounting.facts import (
    HangFound,
    JobEnded,
    MilestoneReached,
    NodeCame,
    NodeWent,
    PhaseChanged,
    RoundStarted,
    RoundStopped,
    StepsDone,
    Stop,
)
from elasticrun.core.accounting.summary import Summary
from elasticrun.core.job.events import JobEffect, JobEvent
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.round_progress import Milestone
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause
from elasticrun.sim.draw import generate
from elasticrun.sim.simulator import Simulator

SEEDS = 320  # of four, one has several hosts, and masters that move
CHUNK = 160
LOST = {StopCause.WORKER_FAILED, StopCause.HANG, StopCause.MEMBER_LOST}
TRAINED = (Activity.PRODUCTIVE, Activity.REDONE, Activity.HUNG)


class Watch:
    """Tells the books what a master knows after each of its events, and holds a stopwatch beside them."""

    def __init__(self, sim: Simulator) -> None:
        self.sim, self.books, self.at = sim, Books(), 0
        self.known: dict[str, tuple[str, AgentPhase]] = {}  # incarnation and phase of each node
        self.lived = Counter[str]()  # by the stopwatch, in microseconds
        self.trained = 0
        self.round, self.is_open, self.trains, self.is_over = -1, False, False, False
        self.spawned = set[str]()
        self.step, self.moved_at = 0, 0
        sim.observers.append(self.note)

    def note(self, _now: float, _event: JobEvent, _effects: Sequence[JobEffect]) -> None:
        """An event was handled."""
        self.pass_until(round(self.sim.kernel.now * 1_000_000))
        if self.is_over:
            return
        state = self.sim.master.machine.state
        if self.is_open:
            self.follow_round()
        self.follow_nodes(state)
        if self.is_open and (state.round != self.round or state.phase is not JobPhase.RUNNING):
            self.stop(state)
        if state.round > self.round and state.phase is JobPhase.RUNNING:
            self.start(state)
        for name, (incarnation, phase) in self.known.items():
            now = state.members.nodes[name].status.phase
            if now is not phase:
                self.known[name] = incarnation, now
                self.books.take(PhaseChanged(self.at, name, now))
        if state.ended:
            self.books.take(JobEnded(self.at))
            self.is_over = True

    def pass_until(self, now: int) -> None:
        if not self.is_over:
            self.lived.update(dict.fromkeys(self.known, now - self.at))
            self.trained += (now - self.at) * self.trains
            self.at = now

    def follow_nodes(self, state: JobState) -> None:
        here = {name: node.info.incarnation for name, node in state.members.nodes.items()}
        for name in [name for name, (was, _) in self.known.items() if here.get(name) != was]:
            del self.known[name]
            self.books.take(NodeWent(self.at, name))
        for name in here.keys() - self.known.keys():
            self.known[name] = here[name], AgentPhase.PREPARING
            self.books.take(NodeCame(self.at, name))

    def follow_round(self) -> None:
        """How far the newest world is, which the simulator knows better than its master."""
        world = self.sim.rules.newest
        if world is None or world.number != self.round:
            return
        for name in world.started.keys() - self.spawned:
            self.spawned.add(name)
            self.books.take(MilestoneReached(self.at, self.round, name, Milestone.SPAWNED))
        if len(world.started) == len(world.assignments) and not self.trains:
            for name in world.started:
                self.books.take(MilestoneReached(self.at, self.round, name, Milestone.FIRST_STEP))
            self.trains = not self.known.keys().isdisjoint(world.started)
            self.moved_at = self.at
        steps = [commit.step for commit in self.sim.saves._saved if commit.round == self.round]
        if steps and max(steps) > self.step:
            self.step, self.moved_at = max(steps), self.at
            self.books.take(StepsDone(self.at, self.round, self.step))
            self.trains = True

    def start(self, state: JobState) -> None:
        restore = next(iter(state.current.assignments.values())).restore
        self.round, self.is_open, self.trains = state.round, True, False
        self.spawned, self.step = set(), restore.step if restore is not None else 0
        self.books.take(RoundStarted(self.at, self.round, tuple(state.current.assignments), self.step))

    def stop(self, state: JobState) -> None:
        cause = state.current.stop[0] if state.current.stop is not None else None
        if cause is StopCause.HANG:
            self.books.take(HangFound(self.at, self.round, self.moved_at))
        is_done = state.phase is JobPhase.SUCCEEDED
        why = Stop.FINISHED if is_done else Stop.FAILED if cause in LOST else Stop.CHANGED
        self.books.take(RoundStopped(self.at, self.round, why))
        self.is_open = self.trains = False

    def finish(self) -> Summary:
        """Compare, after the end."""
        self.pass_until(max(self.at, round(self.sim.kernel.now * 1_000_000)))
        summary = self.books.summary(self.at)
        assert {name: sum(spent.values()) for name, spent in summary.nodes.items()} == dict(self.lived)
        assert sum(summary.total.values()) == self.lived.total()
        assert sum(summary.job.values()) == self.at
        assert sum(summary.job[each] for each in TRAINED) == self.trained
        return summary


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_books_sum_to_what_a_stopwatch_says(first: int) -> None:
    seen = Counter[Activity]()
    for seed in range(first, first + CHUNK):
        case = generate(seed, 6)
        if case.hosts:
            continue
        sim = Simulator(case)
        watch = Watch(sim)
        sim.run()
        seen.update(watch.finish().total)
    for activity in (*TRAINED, Activity.START, Activity.IMPORT, Activity.WAITING, Activity.STOPPED):
        assert seen[activity], activity
