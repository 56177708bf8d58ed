"""Workers that save their state into their agent's vault, and the rules for what is restored.

The rules: whatever is restored was saved by every rank of one round after one step, and nobody has written
over it since. What all ranks have saved is not lost while each agent that held a part of it is here, and is
not given up before all was tried (``sim/gathering_rules.py``).

A master without a journal adopts commits of rounds before its first one only: it may give the number of any
later round again, so what was saved under that number before is no older state of this job. Nobody asks it
to restore that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticrun.core.job.events import JobEffect
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state.events import (
    BufferMade,
    BufferRefused,
    SaveBegins,
    SaveCopied,
    SaveEnds,
    WorkerGone,
)
from elasticrun.sim.copies import SimCopies
from elasticrun.sim.gathering_rules import Gathering
from elasticrun.sim.kernel import require
from elasticrun.sim.workers import Group
from elasticrun.sim.world import World

if TYPE_CHECKING:
    from elasticrun.sim.node import SimAgent
    from elasticrun.sim.simulator import Simulator


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
        self.copies = self.own and self.rng.random() < 0.7  # nodes copy their parts to others
        self.losses = self.rng.choice((0.0, 0.1))  # how likely it is that a part cannot be sent
        if sim.scenario.calm:
            self.shortage, self.slowness, self.losses = 0.0, 0.1, 0.0
            self.own = self.copies = True
        self.inlets: dict[int, SimCopies] = {}  # by port
        self.gathering = Gathering()
        self._safe: dict[
            CommitId, list[set[str]]
        ] = {}  # the incarnations that had each part once it was safe
        self._saved: dict[CommitId, set[int]] = {}  # the ranks that have saved it
        self._ranks: dict[int, int] = {}  # how many ranks each round has
        self.newest: tuple[CommitId | None, float] = None, 0.0  # that all ranks saved at last, and when
        #: By round: each member's group rank and incarnation.
        self._places: dict[int, dict[str, tuple[int, str]]] = {}
        self._held: set[CommitId] = set()  # which all members told in time that they hold it
        self._generation = 0  # of the newest world: how often a master has lost its journal before
        self._first = 0  # the first round of that generation

    # -- workers

    def start(self, world: World) -> None:
        """All workers of a world run: they make steps."""
        if not self.sim.scenario.step:
            return
        restore = next(iter(world.assignments.values())).restore
        start = restore.step if restore is not None else self.sim.durability.load(world)
        for agent in world.started.values():
            group = agent.workers.group
            if group is not None and group.round == world.number:
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
            lasts = 0.3 * self.rng.random()
            self.kernel.after(lasts / 2, _copied, agent, group, rank, step, buffer, self.own)
            self.kernel.after(lasts, self._wrote, agent, group, rank, step, buffer)

    def _wrote(self, agent: SimAgent, group: Group, rank: int, step: int, buffer: int) -> None:
        memory, local_rank = agent.memory, rank - group.assignment.first_rank
        if group is not agent.workers.group:
            return
        commit = CommitId(group.round, step)
        is_alive = local_rank in group.alive
        if not is_alive and memory.contents.get(buffer) != (commit, rank):
            memory.handle(WorkerGone(rank))
            return
        memory.contents[buffer] = commit, rank
        world = self.sim.rules.world_of(agent.name, group.assignment)
        assert world is not None
        if world.generation == self._generation or commit.round < self._first:
            self._note_saved(commit, rank)
        if is_alive:
            memory.handle(SaveEnds(rank, step, 10, f"{commit.round}.{commit.step}.{rank}", self.own))
        else:
            memory.handle(WorkerGone(rank))

    def _note_saved(self, commit: CommitId, rank: int) -> None:
        ranks = self._saved.setdefault(commit, set())
        ranks.add(rank)
        if len(ranks) == self._ranks.get(commit.round):
            self.newest = commit, self.kernel.now

    def answered(self, agent: SimAgent, rank: int, step: int) -> None:
        """A worker goes on, with this save or without."""
        group = agent.workers.group
        if group is not None and rank - group.assignment.first_rank in group.alive:
            self._after_step(agent, group, rank - group.assignment.first_rank, step + 1)

    def saved(self, commit: CommitId) -> tuple[set[int], set[str]]:
        """The ranks that have saved a commit if all have, and what is shared in their parts."""
        ranks = self._saved.get(commit, set())
        kinds = {kind for agent in self.sim.agents for kind in agent.memory.kinds.get(commit, ())}
        return ranks if len(ranks) == self._ranks.get(commit.round) else set(), kinds

    # -- rules

    def world_formed(self, world: World, machine: JobMachine) -> None:
        """Check what a new world restores."""
        restored = {given.restore for given in world.assignments.values()}
        require("all members restore the same", len(restored) == 1, str(restored))
        (restore,) = restored
        if world.generation != self._generation:
            self._forget_from(world)
        if restore is not None:
            saved, size = self._saved.get(restore, set()), self._ranks[restore.round]
            require("what is restored was saved by all", len(saved) == size, f"{restore}: {saved} of {size}")
            is_here = not self.own or self._have_all(machine, restore, world)
            require("each shard that is restored is at a member", is_here, str(restore))
        self._keeps_what_can_be_kept(machine, restore or machine.state.storing.durable, world)
        self._ranks[world.number] = next(iter(world.assignments.values())).world_size
        nodes = machine.state.members.nodes
        self._places[world.number] = {
            name: (given.group_rank, nodes[name].info.incarnation)
            for name, given in world.assignments.items()
        }

    def _forget_from(self, first: World) -> None:
        """Forget what no master adopts after it lost its journal, and formed this world."""
        self._generation, self._first = first.generation, first.number
        for commit in [each for each in self._saved if each.round >= first.number]:
            del self._saved[commit]
            self._held.discard(commit)
            self._safe.pop(commit, None)

    def after_master(self, machine: JobMachine, effects: Sequence[JobEffect]) -> None:
        """Note which commits of the round that runs all its members hold, and which one is safe."""
        if self.copies and self.sim.scenario.deep:
            self.gathering.after_master(machine, effects, self.kernel.now)
        round_, safe = machine.state.round, machine.state.ledger.safe
        for commit in self._saved.keys() - self._held if round_ in self._places else ():
            if commit.round == round_ and self._is_told(machine, commit):
                self._held.add(commit)
        if safe is not None and safe not in self._safe and self.own and safe.round in self._places:
            holders = [*self._holders(machine, safe).values()]
            told = {agent.incarnation for agent in self.sim.agents if agent.memory.has_heard_of(safe)}
            if all(names <= told for names in holders):  # else another master's word may come before
                self._safe[safe] = holders

    def buffer_time(self) -> float:
        """How long it takes to make a buffer, in seconds."""
        return self.slowness * self.rng.random()

    def made(self, buffer: int) -> BufferMade | BufferRefused:
        """What becomes of a buffer that is to be made."""
        is_there = self.rng.random() > self.shortage
        return BufferMade(buffer) if is_there else BufferRefused(buffer, "no room")

    def copy_time(self) -> float:
        """How long it takes to copy a part to another node, in seconds."""
        longest = 1.0 if self.sim.scenario.calm else self.rng.choice((0.1, 1.0, 10.0))
        return longest * self.rng.random()

    def _keeps_what_can_be_kept(self, machine: JobMachine, restore: CommitId | None, world: World) -> None:
        """What all members of its round told in time is not lost while some member now holds each part."""
        for commit in self._held:
            if restore is None or commit.age > restore.age:
                is_here = (
                    self._have_all(machine, commit, world)
                    if self.own
                    else self._is_told(machine, commit)
                    and self._places[commit.round].keys() <= world.assignments.keys()
                )
                require("what all hold is restored", not is_here, f"{commit} and not {restore}")
        here = self._incarnations(machine, world)
        agents = [agent for agent in self.sim.agents if agent.incarnation in here]
        for commit, holders in self._safe.items():
            if restore is None or commit.age > restore.age:
                # Some heard that a newer one is safe, which was lost with the others.
                keep = {agent.incarnation for agent in agents if not agent.memory.may_drop(commit)}
                is_lost = any(not names & keep for names in holders)
                require("what was safe is restored", is_lost, f"{commit} and not {restore}")

    def _holders(self, machine: JobMachine, commit: CommitId) -> dict[int, set[str]]:
        """The incarnations that tell of each part of a commit, by group rank."""
        found: dict[int, set[str]] = {rank: set() for rank, _ in self._places[commit.round].values()}
        for node in machine.state.members.nodes.values():
            for holding in node.status.holdings:
                for part in holding.parts if holding.commit == commit else ():
                    # a master that forgot may give a round's number again
                    found.setdefault(part.group_rank, set()).add(node.info.incarnation)
        return found

    def _incarnations(self, machine: JobMachine, world: World) -> set[str]:
        """Of a world's members."""
        nodes = machine.state.members.nodes
        return {nodes[name].info.incarnation for name in world.assignments}

    def _have_all(self, machine: JobMachine, commit: CommitId, world: World) -> bool:
        """Whether the members of a world tell of each part of a commit."""
        members = self._incarnations(machine, world)
        return all(names & members for names in self._holders(machine, commit).values())

    def _is_told(self, machine: JobMachine, commit: CommitId) -> bool:
        """Whether the master knows each member of a commit's round, and each one tells that it holds it."""
        nodes = machine.state.members.nodes
        return all(
            name in nodes
            and nodes[name].info.incarnation == incarnation
            and any(
                part.group_rank == rank
                for holding in nodes[name].status.holdings
                if holding.commit == commit
                for part in holding.parts
            )
            for name, (rank, incarnation) in self._places[commit.round].items()
        )


def _copied(agent: SimAgent, group: Group, rank: int, step: int, buffer: int, own: bool) -> None:
    """Only the digests of a part are missing, so the vault keeps it if the worker dies now."""
    if group is not agent.workers.group or rank - group.assignment.first_rank not in group.alive:
        return
    agent.memory.handle(SaveCopied(rank, step, 10, f"{group.round}.{step}.{rank} copied", own))
    written = agent.memory.vault.shelf.written_by(rank)
    if written is not None and written.number == buffer and written.is_whole:
        agent.memory.contents[buffer] = CommitId(group.round, step), rank
