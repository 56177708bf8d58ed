"""The rules for what a simulated job writes to its storage, and restores from it.

- What the master calls durable is finished in the storage, and has all that its ranks saved, except parts
  that a restore does not need.
- What is durable is never given up for something older, and who restores it is told so.
- A job that ends without success, or lets the last holders of its newest state leave, writes that first: if
  the storage is well, and nothing happens to those who hold it, that is done within the flush timeout.
- An order that was given is carried out, if the network keeps the order of messages, as real streams do.

That a world forms in time, also while the storage is stuck, is a rule of every job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticrun.core.agent.departure import SIGTERM
from elasticrun.core.job.events import Decided, Drop, JobEffect
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import FLUSH
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import FailureKind, RejectCode
from elasticrun.core.protocol.status import JobPhase
from elasticrun.sim.ills import Preempt
from elasticrun.sim.kernel import require
from elasticrun.sim.scenario import (
    AgentCrash,
    AgentStarts,
    Cut,
    Fault,
    Freeze,
    HostCrash,
    MasterCrash,
    Network,
    Reset,
    Split,
    Stop,
    Unkillable,
    ends,
)
from elasticrun.sim.storage import Folder, is_complete
from elasticrun.sim.world import World

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator

#: Seconds after its end for which a fault may matter: until then a node that was lost is known to be.
AFTERMATH = 20.0
#: Seconds within which an order reaches its node, long after all faults.
DELIVERY = 30.0


@dataclass
class View:
    """What one master had decided after its last event."""

    life: tuple[int, int] = (-1, -1)  # generation of the job, and epoch
    phase: JobPhase = JobPhase.GATHERING
    newest: CommitId | None = None  # the newest whole commit
    durable: CommitId | None = None
    flushes: bool = False  # a flush is under way
    flushed: CommitId | None = None  # what was to be written by the newest flush
    since: float = 0.0  # when that began
    leaving_since: float = 0.0  # since when somebody is
    here: frozenset[str] = frozenset()  # incarnations that it knows
    leaving: frozenset[str] = frozenset()  # those of them that are asked to leave
    given: dict[str, tuple[int, float]] = field(default_factory=dict)  # by node: its order, and since when


class Durability:
    """Watches the storage of one simulated job."""

    def __init__(self, sim: Simulator) -> None:
        self.sim = sim
        self._views: dict[int, View] = {}  # by position of the master
        faults = sim.scenario.faults
        self._disturbances = [fault for fault in faults if _disturbs(fault, faults)]

    @property
    def is_off(self) -> bool:
        """Whether the job has no storage."""
        return not self.sim.storage.is_there

    def after_master(self, machine: JobMachine, effects: list[JobEffect]) -> None:
        """Check what a master has decided."""
        if self.is_off:
            return
        state, view = machine.state, self._views.setdefault(machine.state.quorum.position, View())
        life = self.sim.rules.generation, state.epoch
        if view.life != life:
            view = self._views[state.quorum.position] = View(life)
        storing, newest = state.storing, state.ledger.newest_whole()
        if storing.durable is not None and storing.durable != view.durable:
            self._is_in_storage(storing.durable, storing.run)
        view.durable = storing.durable
        flushes = (FLUSH, "") in state.timers
        if flushes and (not view.flushes or view.flushed != storing.flushed):
            view.flushed, view.since = storing.flushed, self.sim.kernel.now
        view.flushes = flushes
        if state.ended and state.phase is not JobPhase.SUCCEEDED and view.phase is not state.phase:
            self._may_be_given_up(machine, view, newest, "the job ends")
        elif view.phase is not JobPhase.RUNNING and _sees_off(effects):
            is_lost = view.newest not in [*state.ledger.whole()]
            if is_lost and view.here - _here(machine) <= view.leaving:
                self._may_be_given_up(machine, view, view.newest, "nodes leave")
        view.newest, view.phase, view.here = newest, state.phase, _here(machine)
        view.leaving = frozenset(state.members.nodes[name].info.incarnation for name in state.leaving)
        if not view.leaving:
            view.leaving_since = self.sim.kernel.now
        given = {node: order.number for node in state.members.nodes if (order := storing.order(node))}
        view.given = {
            node: view.given[node]
            if node in view.given and view.given[node][0] == number
            else (number, self.sim.kernel.now)
            for node, number in given.items()
        }

    def world_formed(self, world: World, machine: JobMachine, effects: list[JobEffect]) -> None:
        """Check what a new world restores."""
        durable = machine.state.storing.durable
        if self.is_off or durable is None:
            return
        restore = next(iter(world.assignments.values())).restore
        is_newest = restore is None or restore.age >= durable.age
        require("what is durable is restored", is_newest, f"{durable} and not {restore}")
        if restore is None:
            told = f"{durable} is restored from {machine.state.config.state_storage}"
            is_told = any(isinstance(effect, Decided) and effect.text == told for effect in effects)
            require("who restores from the storage is told", is_told, str(durable))
        world.durable = durable, machine.state.storing.run

    def load(self, world: World) -> int:
        """Workers that restore nothing from memory load what the storage has. Returns its step."""
        storage = self.sim.storage
        if self.is_off:
            return 0
        if storage.is_away and not self.sim.is_quiet:  # it is mended in the end
            self._fail(world)
            return 0
        newest = storage.newest()
        if world.durable is not None and (newest is None or newest[1] == world.durable[1]):
            is_newest = newest is not None and newest[0].age >= world.durable[0].age
            require("what is durable is what the storage gives", is_newest, f"{world.durable}: {newest}")
        return 0 if newest is None else newest[0].step

    def _fail(self, world: World) -> None:
        """Workers cannot read the storage, and raise."""
        world.genuine = True
        for agent in world.started.values():
            group = agent.workers.group
            if group is not None and group.round == world.number and group.alive:
                agent.workers.end(group, next(iter(group.alive)), 1, FailureKind.EXIT)

    def settled(self, machine: JobMachine) -> None:
        """Check, long after all faults, that each node does what it was told."""
        view = self._views.get(machine.state.quorum.position)
        is_over = view is None or machine.state.ended or not self.sim.master.up
        if self.is_off or is_over or _may_overtake(self.sim.scenario.network):
            return
        assert view is not None
        for name, (number, since) in view.given.items():
            agent = self.sim.newest(name)
            if agent is None or agent.machine.state.departure is not None:
                continue
            order = agent.memory.storing.order
            is_obeyed = order is not None and order.number == number
            is_late = self.sim.kernel.now - since > DELIVERY
            require("an order is carried out", is_obeyed or not is_late, f"{name}: {number}, not {order}")

    # -- what is there

    def _is_in_storage(self, durable: CommitId, run: str) -> None:
        folder = self.sim.storage.folders.get((durable, run), Folder())
        require("what is durable is finished", bool(folder.number), f"{durable} of {run}")
        files = folder.made_of
        ranks = {rank for file in files for commit, rank in file.ranks if commit == durable}
        require("what is durable was saved", len(ranks) == sum(len(f.ranks) for f in files), str(files))
        require("all that is shared is durable", is_complete(files), str(files))
        if self.sim.rules.generation:
            return  # a round's number may have been given again
        saved, kinds = self.sim.saves.saved(durable)
        require("what is durable was saved", ranks <= saved, f"{durable}: {ranks} of {saved}")
        is_whole = ranks == saved if self.sim.saves.own else kinds <= {file.shared for file in files}
        require("all that was saved is durable", is_whole, f"{durable}: {ranks} of {saved}, {kinds}")

    # -- what is given up

    def _may_be_given_up(self, machine: JobMachine, view: View, newest: CommitId | None, why: str) -> None:
        durable = machine.state.storing.durable
        if newest is None or not self.sim.storage.spec.flush:
            return
        if durable is not None and newest.age <= durable.age:
            return
        is_flushed = view.flushed == newest
        reason = self._excuse(machine, view.since if is_flushed else view.leaving_since)
        text = f"{newest} is lost, as {why}"
        require("a flush comes before", is_flushed or bool(reason), text)
        text += f" {self.sim.kernel.now - view.since:g} s after its flush began"
        require("a flush is done in time", bool(reason), text)
        self.sim.kernel.say("RULES", f"{text}: {reason}")

    def _excuse(self, machine: JobMachine, since: float) -> str:
        """Why a flush may have failed; "" if it may not."""
        storage, scenario, now = self.sim.storage, self.sim.scenario, self.sim.kernel.now
        if storage.hanging or storage.failed_at >= since or storage.was_away(since):
            return "the storage failed"
        if _may_overtake(scenario.network):
            return "an older order may have come after a newer one"
        if storage.lost_at + AFTERMATH >= since:
            return "a node was lost that wrote"
        for fault in self._disturbances:
            if fault.at <= now and since <= ends(fault) + AFTERMATH:
                return f"{fault} came in between"
        files = max(1, len(machine.state.ledger.nodes), len(scenario.nodes))
        if scenario.network.delay * 10 + storage.spec.slowest * (files + 1) + 1.0 > storage.spec.flush:
            return "the time is too short"
        return ""


def _disturbs(fault: Fault, faults: Sequence[Fault]) -> bool:
    """Whether a fault may keep nodes that hold something from writing it. Told twice, they go at once."""
    if isinstance(fault, Stop):
        told = [each for each in faults if isinstance(each, Stop | Preempt) and each.node == fault.node]
        return fault.signum != SIGTERM or len(told) > 1
    kinds = AgentCrash | AgentStarts | Cut | Freeze | HostCrash | MasterCrash | Reset | Split | Unkillable
    return isinstance(fault, kinds)


def _may_overtake(network: Network) -> bool:
    """Whether an order may come after a newer one, which nobody gives again: no real stream does that."""
    return bool(network.reorder or network.late)


def _here(machine: JobMachine) -> frozenset[str]:
    return frozenset(node.info.incarnation for node in machine.state.members.nodes.values())


def _sees_off(effects: list[JobEffect]) -> bool:
    """Whether nodes that were asked to leave go now."""
    drops = [effect.farewell for effect in effects if isinstance(effect, Drop)]
    return any(farewell is not None and farewell.code is RejectCode.DRAINED for farewell in drops)
