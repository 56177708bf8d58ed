"""Workers that save their state into their agent's vault, and the rules for what is restored.

The rules: whatever is restored was saved by every rank of one round after one step, and nobody has written
over it since. What all ranks have saved is not lost while each agent that held a part of it is here.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from elasticrun.core.agent.events import HoldingsChanged, PassJudgement
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import Assignment
from elasticrun.core.state.events import (
    BufferMade,
    BufferRefused,
    DropBuffer,
    Grant,
    Hold,
    Judged,
    MakeBuffer,
    Refuse,
    RoundBegins,
    SaveBegins,
    SaveEnds,
    Stored,
    Tick,
    VaultEvent,
    WorkerGone,
)
from elasticrun.core.state.vault import Vault
from elasticrun.sim.kernel import require
from elasticrun.sim.workers import Group
from elasticrun.sim.world import World

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent
    from elasticrun.sim.simulator import Simulator

Stamp = tuple[CommitId, int]  # what a buffer holds: whose state, and of which rank


class SimMemory:
    """The saved states of one node."""

    def __init__(self, agent: SimAgent) -> None:
        self.agent = agent
        self.vault = Vault()
        self.contents: dict[int, Stamp | None] = {}  # by buffer; None: nothing, or half of something
        self._tick_at: float | None = None

    def begin(self, assignment: Assignment) -> None:
        """Workers of a round are about to start: what they restore must be there."""
        if assignment.restore is not None:
            for buffer in self.vault.stored(assignment.restore):
                stamp = self.contents[buffer.number]
                require(
                    "what is restored is as it was saved", stamp == (buffer.commit, buffer.rank), str(stamp)
                )
        self.handle(RoundBegins.of(assignment, self.agent.spec.local_world_size))

    def judge(self, effect: PassJudgement) -> None:
        """Hear from the master what became of the commits."""
        self.handle(Judged(effect.kept, effect.void))

    def handle(self, event: VaultEvent) -> None:
        """Feed the vault and carry out its effects."""
        agent = self.agent
        if agent.over or agent.park(self.handle, event):
            return
        effects = self.vault.handle(event, agent.kernel.now)
        if agent.kernel.tracing:
            agent.kernel.say(agent.incarnation, f"{event} -> {', '.join(map(str, effects)) or '-'}")
        for effect in effects:
            self._carry_out(effect)
        deadline = self.vault.next_deadline()
        if deadline is not None and deadline != self._tick_at:
            self._tick_at = deadline
            agent.kernel.at(deadline, self._tick, deadline)

    def _tick(self, deadline: float) -> None:
        if self._tick_at == deadline:
            self._tick_at = None
            self.handle(Tick())

    def _carry_out(self, effect: Any) -> None:
        saves = self.agent.sim.saves
        match effect:
            case Grant(rank, step, buffer):
                self.contents[buffer] = None
                saves.granted(self.agent, rank, step, buffer)
            case Stored(rank, step) | Refuse(rank, step):
                saves.answered(self.agent, rank, step)
            case MakeBuffer(buffer):
                made = saves.rng.random() > saves.shortage
                done = BufferMade(buffer) if made else BufferRefused(buffer, "no room")
                self.agent.kernel.after(saves.slowness * saves.rng.random(), self.handle, done)
            case DropBuffer(buffer):
                self.contents.pop(buffer, None)
            case Hold(holdings):
                self.agent.kernel.after(0.0, self.agent.handle, HoldingsChanged(holdings))


class Saves:
    """All workers of a simulated job that save, step after step."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        #: Its own chance, so that a job without saves goes on as before.
        self.rng = random.Random(f"saves {sim.scenario.seed}")
        self.shortage = self.rng.choice((0.0, 0.0, 0.3))  # how likely it is that there is no room
        self.slowness = self.rng.choice((0.1, 0.1, 60.0))  # seconds that it takes at most to make a buffer
        self.own = self.rng.random() < 0.5  # ranks save shards, and not all the same
        self._saved: dict[CommitId, set[int]] = {}  # the ranks that have saved it
        self._ranks: dict[int, int] = {}  # how many ranks each round has
        self._places: dict[int, dict[str, str]] = {}  # by round: the members' incarnations
        self._held: set[CommitId] = set()  # which all members told in time that they hold it

    # -- workers

    def start(self, world: World) -> None:
        """All workers of a world run: they make steps."""
        if not self.sim.scenario.step:
            return
        for agent in world.started.values():
            group = agent.workers.group
            if group is not None and group.round == world.number:
                start = group.assignment.restore.step if group.assignment.restore else 0
                for local_rank in group.alive:
                    self._after_step(agent, group, local_rank, start + 1)

    def _after_step(self, agent: SimAgent, group: Group, local_rank: int, step: int) -> None:
        took = self.sim.scenario.step * (0.7 + 0.6 * self.rng.random())
        self.kernel.after(took, self._save, agent, group, local_rank, step)

    def _save(self, agent: SimAgent, group: Group, local_rank: int, step: int) -> None:
        if group is not agent.workers.group or local_rank not in group.alive or group.waits:
            return
        rank = group.assignment.first_rank + local_rank
        contents = "a" if self.rng.random() < 0.98 else self.rng.choice("bc")
        agent.memory.handle(SaveBegins(rank, step, self.rng.choice((10, 30, 60)), 10, contents))

    def granted(self, agent: SimAgent, rank: int, step: int, buffer: int) -> None:
        """A worker may write: it takes a while, and the worker may die before it is done."""
        group = agent.workers.group
        if group is not None:
            self.kernel.after(0.3 * self.rng.random(), self._wrote, agent, group, rank, step, buffer)

    def _wrote(self, agent: SimAgent, group: Group, rank: int, step: int, buffer: int) -> None:
        memory, local_rank = agent.memory, rank - group.assignment.first_rank
        if group is not agent.workers.group:
            return
        if local_rank not in group.alive:
            memory.handle(WorkerGone(rank))
            return
        commit = CommitId(group.round, step)
        memory.contents[buffer] = commit, rank
        self._saved.setdefault(commit, set()).add(rank)
        memory.handle(SaveEnds(rank, step, 10, f"{commit.round}.{commit.step}.{rank}", self.own))

    def answered(self, agent: SimAgent, rank: int, step: int) -> None:
        """A worker goes on, with this save or without."""
        group = agent.workers.group
        if group is not None and rank - group.assignment.first_rank in group.alive:
            self._after_step(agent, group, rank - group.assignment.first_rank, step + 1)

    # -- rules

    def world_formed(self, world: World, machine: JobMachine) -> None:
        """Check what a new world restores."""
        restored = {given.restore for given in world.assignments.values()}
        require("all members restore the same", len(restored) == 1, str(restored))
        (restore,) = restored
        if restore is not None:
            saved, size = self._saved.get(restore, set()), self._ranks[restore.round]
            require("what is restored was saved by all", len(saved) == size, f"{restore}: {saved} of {size}")
            is_here = not self.own or self._is_told(machine, restore)
            require("each shard that is restored is here", is_here, str(restore))
        self._keeps_what_can_be_kept(machine, restore)
        self._ranks[world.number] = next(iter(world.assignments.values())).world_size
        nodes = machine.state.members.nodes
        self._places[world.number] = {name: nodes[name].info.incarnation for name in world.assignments}

    def after_master(self, machine: JobMachine) -> None:
        """Note which commits of the round that runs all its members hold."""
        round_ = machine.state.round
        for commit in self._saved.keys() - self._held if round_ in self._places else ():
            if commit.round == round_ and self._is_told(machine, commit):
                self._held.add(commit)

    def _keeps_what_can_be_kept(self, machine: JobMachine, restore: CommitId | None) -> None:
        """What all members of its round told in time is not lost while they are here and hold it."""
        for commit in self._held:
            if restore is None or commit.age > restore.age:
                lost = not self._is_told(machine, commit)
                require("what all hold is restored", lost, f"{commit} and not {restore}")

    def _is_told(self, machine: JobMachine, commit: CommitId) -> bool:
        """Whether the master knows each member of a commit's round, and each one tells that it holds it."""
        nodes = machine.state.members.nodes
        return all(
            name in nodes
            and nodes[name].info.incarnation == incarnation
            and any(holding.commit == commit for holding in nodes[name].status.holdings)
            for name, incarnation in self._places[commit.round].items()
        )
