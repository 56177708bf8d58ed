"""The event log of simulated jobs: the same for a master that lives and for one that replays its journal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elasticrun.core.job.chronicler import Chronicler
from elasticrun.core.job.events import Beat, JobEffect, JobEvent, MasterStarted
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.chronicle import (
    Happening,
    JobEnded,
    NodeDetached,
    NodeGone,
    NodeJoined,
    RoundStarted,
    RoundStopped,
    RoundStopping,
    WorkerFailed,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.draw import generate
from elasticrun.sim.failover import simulator
from elasticrun.sim.master import State
from elasticrun.sim.simulator import Simulator
from tests.sim.command import REAL

SEEDS = 600
CHUNK = 100


class Grammar:
    """What must hold of the entries of one journal, in their order."""

    def __init__(self, machine: JobMachine) -> None:
        state = machine.state
        self.round = state.round
        self.is_over = state.phase not in (JobPhase.RUNNING, JobPhase.STOPPING)
        self.is_stopping = state.phase is JobPhase.STOPPING
        self.here = set(state.members.nodes)

    def take(self, told: Happening) -> None:
        match told:
            case NodeJoined(node):
                self.here.add(node)
            case NodeDetached(node):
                assert node in self.here
            case NodeGone(node):
                self.here.remove(node)
            case RoundStarted(round_, nodes, workers, names):
                assert round_ > self.round
                assert self.is_over, f"round {self.round} has not stopped"
                assert len(names) == nodes <= workers
                self.round, self.is_over, self.is_stopping = round_, False, False
            case RoundStopping(round_):
                assert (round_, self.is_over, self.is_stopping) == (self.round, False, False)
                self.is_stopping = True
            case RoundStopped(round_):
                assert (round_, self.is_over) == (self.round, False)
                self.is_over = True
            case WorkerFailed(round_):
                assert round_ == self.round


class Watch:
    """Tells what happens in a simulated job as its masters would, and checks it after each event."""

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._machine: JobMachine | None = None
        self.told: list[Happening] = []  # by the masters of this journal, from where it begins
        self.ends = 0
        sim.observers.append(self.hear)

    def hear(self, now: float, event: JobEvent, effects: Sequence[JobEffect]) -> None:
        master = self._sim.master
        if isinstance(event, Beat) or not master.journal or master.journal[-1][0] is not event:
            return  # it was never written down, as the process ends in the middle of it
        if master.machine is not self._machine:  # another process: it replays the journal
            assert isinstance(event, MasterStarted)
            self._machine = master.machine
            self._chronicler, self._grammar, self.told = replayed(self._sim, len(master.journal) - 1)
            self.ends = sum(isinstance(each, JobEnded) for each in self.told)
        told = self._chronicler.after(event, master.machine.state, effects)
        for each in told:
            self._grammar.take(each)
        self.ends += sum(isinstance(each, JobEnded) for each in told)
        assert self._grammar.here == set(master.machine.state.members.nodes)
        assert self.ends <= 1
        self.told += told


def replayed(sim: Simulator, count: int) -> tuple[Chronicler, Grammar, list[Happening]]:
    """What the first entries of the journal tell, and who told it."""
    machine = JobMachine(sim.config)
    chronicler, grammar = Chronicler(machine.state), Grammar(machine)
    told: list[Happening] = []
    for event, now in sim.master.journal[:count]:
        if isinstance(event, State):
            machine = sim.saving.restore(sim.config, event.saved)
            chronicler, grammar = Chronicler(machine.state), Grammar(machine)
            continue
        effects = machine.handle(event, now)
        new = chronicler.after(event, machine.state, effects)
        for each in new:
            grammar.take(each)
        told += new
    return chronicler, grammar, told


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_entries_follow_from_the_journal_and_keep_their_order(first: int) -> None:
    for seed in range(first, first + CHUNK):
        scenario = generate(seed, 5)
        if scenario.hosts:  # several masters at a time: the rules are those of one journal
            continue
        sim = simulator(scenario, saving=REAL)
        watch = Watch(sim)
        sim.run()
        _, _, told = replayed(sim, len(sim.master.journal))
        assert told == watch.told[len(watch.told) - len(told) :], f"seed {seed}"
