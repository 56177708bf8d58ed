"""One node: the machine of its agent, and the code that carries out its effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticrun.core.agent.events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTick,
    DumpStacks,
    Finish,
    GroupGone,
    ImportsSeen,
    PassJudgement,
    Preempted,
    Prepared,
    RunProbe,
    SignalTask,
    SignalWorkers,
    StartTask,
    StartWorkers,
    StopSignal,
    Store,
    SweepWorkers,
    Transmit,
)
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.protocol.messages import (
    NodeInfo,
    Report,
)
from elasticrun.sim.clinic import Visit
from elasticrun.sim.kernel import require
from elasticrun.sim.link import MASTER_TIMEOUT
from elasticrun.sim.memories import SimMemory
from elasticrun.sim.scenario import NodeSpec
from elasticrun.sim.workers import SimWorkers

if TYPE_CHECKING:
    from elasticrun.sim.simulator import Simulator

TERMS = AgentTerms(shutdown_timeout=3.0, kill_timeout=4.0, master_timeout=MASTER_TIMEOUT)
SPARE_PORTS = 4  # that a node holds for tasks that are added


class SimAgent:
    """One incarnation."""

    def __init__(self, sim: Simulator, spec: NodeSpec, number: int) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        self.spec = spec
        self.name = spec.name
        self.incarnation = f"{spec.name}.{number}"
        self.link = sim.make_link(self)
        info = NodeInfo(
            node=spec.name,
            incarnation=self.incarnation,
            host=f"host-{spec.name}",
            address=f"address-{spec.name}",
            local_world_size=spec.local_world_size,
            role=spec.role,
            node_rank=spec.node_rank,
            position=self.link.position,
            roles=spec.roles,
        )
        config = sim.config
        flush = config.state_flush_timeout if config.state_storage else 0.0
        terms = replace(
            TERMS, join_timeout=config.join_timeout, endpoints=config.endpoints, flush_timeout=flush
        )
        self.machine = AgentMachine("job", "1", info, terms)
        self.workers = SimWorkers(self)
        self.memory = SimMemory(self)
        self.probe: Visit | None = None  # until it is swept
        self.disturbed = -1.0  # when it was last frozen or thawed
        self.preempted = False
        self.frozen = 0
        self.crashed = False
        self.finish: Finish | None = None
        self.signalled: list[int] = []
        self._parked: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._offset = float(self.kernel.rng.randrange(1000))
        self._tick_at: float | None = None
        self.has_imported = not spec.imports  # once; it may import anew
        self._imports = 0  # how many imports have begun
        if spec.imports:
            self.imports(spec.imports)
        self.kernel.after(spec.prepares, self.handle, Prepared(self.free_port(), self.task_ports()))
        self.link.connect()

    @property
    def over(self) -> bool:
        """Whether the agent has ended or crashed."""
        return self.crashed or self.finish is not None

    # -- the machine

    def handle(self, event: AgentEvent, not_before: float = 0.0) -> None:
        """Feed the machine and carry out its effects; its clock shows at least ``not_before``."""
        if self.over or self.park(self.handle, event, not_before):
            return
        now = max(self.kernel.now + self._offset, not_before)
        effects = self.machine.handle(event, now)
        if self.sim.scenario.deep:
            self.machine.check()
        if self.kernel.tracing:
            self.kernel.say(self.incarnation, f"{event} -> {', '.join(map(str, effects)) or '-'}")
        for effect in effects:
            self._carry_out(effect)
        self.sim.rules.after_agent(self, effects)
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline != self._tick_at:
            self._tick_at = deadline
            self.kernel.at(max(self.kernel.now, deadline - self._offset), self._tick, deadline)

    def imports(self, seconds: float) -> None:
        """Begin an import: workers started now would wait that long."""
        self._imports += 1
        self.handle(ImportsSeen(True))
        self.kernel.after(seconds, self._have_imported, self._imports)

    def _have_imported(self, number: int) -> None:
        if number == self._imports:
            self.has_imported = True
            self.handle(ImportsSeen(False))

    def _tick(self, deadline: float) -> None:
        if self._tick_at == deadline:
            self._tick_at = None
            self.handle(AgentTick(), deadline)

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Transmit(message):
                if isinstance(message, Report):  # else its stream would end
                    told = message.status.contradiction()
                    require("what an agent tells does not contradict itself", not told, told)
                self.link.send(message)
            case StartWorkers(assignment):
                self.memory.begin(assignment)
                self.workers.start(assignment)
            case StartTask(assignment, local_rank):
                self.workers.start_task(assignment, local_rank)
            case SignalTask(local_rank, signum):
                self.workers.signal_task(local_rank, signum)
            case SignalWorkers(_, _, spared):
                self.sim.rules.tasks.before_stop(self, spared)
                self.workers.signal(spared)
            case RunProbe(start, _):
                assert self.workers.group is None and self.probe is None
                self.sim.clinic.run(self, start)
            case PassJudgement():
                self.memory.judge(effect)
            case Store(order):
                self.memory.storing.obey(order)
            case DumpStacks():
                assert self.workers.group is not None
            case SweepWorkers(round_):
                self._sweep(round_)
            case Finish():
                self._leave(effect)

    def _sweep(self, round_: int) -> None:
        if self.probe is None:
            self.workers.sweep(round_)
        elif not self.workers.unkillable:
            self.kernel.after(0.01 + 0.5 * self.kernel.random(), self._probe_swept, self.probe, round_)

    def _probe_swept(self, visit: Visit, round_: int) -> None:
        if visit is self.probe:
            self.probe = None
            self.handle(GroupGone(round_, self.free_port(), self.task_ports()))

    def _leave(self, finish: Finish) -> None:
        self.finish = finish
        self.memory.storing.die()
        self.link.hang_up()

    # -- faults

    def park(self, action: Callable[..., None], *args: Any) -> bool:
        """If frozen, keep an action for later; returns whether it did."""
        if self.frozen:
            self._parked.append((action, args))
        return bool(self.frozen)

    def thaw(self) -> None:
        """End a freeze; after the last one, carry out what was kept."""
        self.frozen -= 1
        self.disturbed = self.kernel.now
        if not self.frozen:
            parked, self._parked = self._parked, []
            for action, args in parked:
                action(*args)

    def crash(self) -> None:
        """The agent and its spawner are killed; the workers follow in a moment."""
        self.crashed = True
        self.link.die()
        self.workers.die()
        self.memory.storing.die()

    def lose_power(self) -> None:
        """Crash while the storage is written; another incarnation comes soon."""
        if not self.over:
            self.kernel.say("FAULT", f"{self.incarnation} is lost while it writes")
            self.sim.storage.lost_at = self.kernel.now
            self.crash()
            self.kernel.after(0.5, self._come_back)

    def _come_back(self) -> None:
        if self.sim.newest(self.name) is None:
            self.sim.spawn(self.spec)

    def stop(self, signum: int) -> None:
        """Send a signal to the launcher."""
        self.signalled.append(signum)
        self.handle(StopSignal(signum))

    def preempt(self) -> None:
        """Announce that the platform takes the node away."""
        self.preempted = True
        self.handle(Preempted("the platform says so"))

    # -- ports

    def free_port(self) -> int:
        """A port of this node for the store of the next round."""
        return self.sim.rules.free_port(self.name)

    def task_ports(self) -> tuple[int, ...]:
        """Ports of this node for tasks of the next round."""
        number = len(self.spec.roles) + SPARE_PORTS if self.spec.roles else 0
        return tuple(self.free_port() for _ in range(number))
