"""One node: an agent's machine, its link as agent/link.py keeps it, and workers that live and die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticrun.core.agent import AgentMachine
from elasticrun.core.agent_events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTick,
    Directed,
    DumpStacks,
    Finish,
    GroupGone,
    ImportsSeen,
    LinkDown,
    LinkUp,
    Preempted,
    Prepared,
    RunProbe,
    SignalTask,
    SignalWorkers,
    StallSeen,
    StartTask,
    StartWorkers,
    StopSignal,
    SweepWorkers,
    Transmit,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.own_failures import Stopping
from elasticrun.core.protocol import (
    AgentMessage,
    Assignment,
    Evidence,
    Failure,
    FailureKind,
    Heartbeat,
    JobEnded,
    Leave,
    MasterMessage,
    NodeInfo,
    RejectCode,
    Rejected,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    Welcome,
)
from tests.sim.clinic import Visit
from tests.sim.network import Stream
from tests.sim.scenario import NodeSpec

if TYPE_CHECKING:
    from tests.sim.master import SimMaster
    from tests.sim.simulator import Simulator

TERMS = AgentTerms(shutdown_timeout=3.0, kill_timeout=4.0, master_timeout=60.0)
ATTEMPT_TIMEOUT = 3.0
SPARE_PORTS = 4  # that a node holds for tasks that are added
SIGKILL = 9


class Group:
    """The workers of one round on one node."""

    def __init__(self, assignment: Assignment, size: int) -> None:
        self.assignment = assignment
        self.round = assignment.round
        self.lives = {task.local_rank: task.life for task in assignment.tasks}  # the newest of each task
        self.tasks = {task.local_rank: task for task in assignment.tasks}
        self.known = dict.fromkeys(self.tasks, assignment.cluster)  # to each of them
        self.alive = dict.fromkeys(self.tasks if assignment.cluster else range(size))
        self.finished = 0
        self.told = Stopping()
        self.echoed = False
        self.waits = False  # it makes no steps
        self.waits_since = 0.0
        self.hangs = False  # and is why others make none


class SimAgent:
    """One incarnation."""

    def __init__(self, sim: Simulator, spec: NodeSpec, number: int) -> None:
        self.sim = sim
        self.kernel = sim.kernel
        self.spec = spec
        self.name = spec.name
        self.incarnation = f"{spec.name}.{number}"
        info = NodeInfo(
            node=spec.name,
            incarnation=self.incarnation,
            host=f"host-{spec.name}",
            address=f"address-{spec.name}",
            local_world_size=spec.local_world_size,
            role=spec.role,
            node_rank=spec.node_rank,
            position=self._position(),
            roles=spec.roles,
        )
        terms = replace(TERMS, join_timeout=sim.config.join_timeout, endpoints=sim.config.endpoints)
        self.machine = AgentMachine("job", "1", info, terms)
        self.idle_since = self.kernel.now  # nothing has run here
        self.group: Group | None = None
        self.probe: Visit | None = None  # until it is swept
        self.disturbed = -1.0  # when it was frozen last
        self.preempted = False
        self.stream: Stream | None = None
        self.linked = False  # Welcome was read on ``stream``
        self.tickets: set[str] = set()  # the keys of the masters that have welcomed it
        self.cuts = 0  # cuts of the network that hold now
        self.frozen = 0
        self.crashed = False
        self.finish: Finish | None = None
        self.signalled: list[int] = []
        # Whether the newest stream has brought a directive, from which on what an earlier one holds is stale.
        # Until then nothing but agent/link.py, which never reads a closed stream, keeps it away; nor does
        # anything else keep away what a forgotten master said, whose epoch may have been the same.
        self._fenced = False
        self._leaving = False  # no other stream follows
        self._down_since: float | None = None
        self._longest_absence = 0.0
        self.stubborn = False
        self.unkillable = False
        self._parked: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._offset = float(self.kernel.rng.randrange(1000))
        self._tick_at: float | None = None
        self.has_imported = not spec.imports  # once; it may import anew
        self._imports = 0  # how often it has begun to
        if spec.imports:
            self.imports(spec.imports)
        self.kernel.after(spec.prepares, self.handle, Prepared(self._free_port(), self._task_ports()))
        self.connect()

    def _position(self) -> int:
        return -1

    @property
    def over(self) -> bool:
        """No longer a process."""
        return self.crashed or self.finish is not None

    # -- the machine

    def handle(self, event: AgentEvent, not_before: float = 0.0) -> None:
        """Feed the machine and carry out its effects; a clock never shows less than its alarm was set to."""
        if self.over or self._park(self.handle, event, not_before):
            return
        now = max(self.kernel.now + self._offset, not_before)
        effects = self.machine.handle(event, now)
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
        """Workers that started now would wait for so long."""
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
                self._send(message)
            case StartWorkers(assignment):
                self._start(assignment)
            case StartTask(assignment, local_rank):
                self._start_task(assignment, local_rank)
            case SignalTask(local_rank, signum):
                self._signal_task(local_rank, signum)
            case SignalWorkers(_, _, spared):
                self.sim.rules.tasks.before_stop(self, spared)
                self._signal(spared)
            case RunProbe(start):
                assert self.group is None and self.probe is None
                self.sim.clinic.run(self, start)
            case DumpStacks():
                assert self.group is not None
            case SweepWorkers(round_):
                self._sweep(round_)
            case Finish():
                self._leave(effect)

    def _sweep(self, round_: int) -> None:
        after = 0.01 + 0.5 * self.kernel.random() if not self.unkillable else None
        if self.probe is not None:
            if after is not None:
                self.kernel.after(after, self._probe_swept, self.probe, round_)
            return
        assert self.group is not None and self.group.round == round_
        if after is not None:
            self.kernel.after(after, self._swept, self.group)

    def _leave(self, finish: Finish) -> None:
        self.finish = finish
        if self.stream is not None:
            self.stream.hang_up()
        self.stream = None

    # -- faults

    def _park(self, action: Callable[..., None], *args: Any) -> bool:
        """While frozen, keep what happens for later."""
        if self.frozen:
            self._parked.append((action, args))
        return bool(self.frozen)

    def thaw(self) -> None:
        """Handle what happened meanwhile."""
        self.frozen -= 1
        self.disturbed = self.kernel.now
        if not self.frozen:
            parked, self._parked = self._parked, []
            for action, args in parked:
                action(*args)

    def crash(self) -> None:
        """The agent and its spawner are killed; the workers follow in a moment."""
        self.crashed = True
        if self.stream is not None:
            self.stream.break_off("reset", 0.0, self.kernel.rng.choice((0.01, 5.0)) * self.kernel.random())
        self.stream = None
        if self.group is not None:
            self.kernel.after(0.1, self._swept, self.group)

    def stop(self, signum: int) -> None:
        """A signal for the launcher."""
        self.signalled.append(signum)
        self.handle(StopSignal(signum))

    def preempt(self) -> None:
        """The platform takes the node away."""
        self.preempted = True
        self.handle(Preempted("the platform says so"))

    # -- the link

    def connect(self) -> None:
        """One attempt to attach, as agent/link.py makes them."""
        if self.over or self._leaving or self.stream is not None or self._park(self.connect):
            return
        if self.cuts or not self.sim.master.up:
            self.kernel.after(0.05 + self.kernel.random(), self.connect)
            return
        self._open(self.sim.master)

    def _open(self, master: SimMaster) -> None:
        stream = self.stream = Stream(self.kernel, self.sim.scenario.network, self, master)
        stream.send_up(self.machine.hello())
        self.kernel.after(ATTEMPT_TIMEOUT, self._give_up_attempt, stream)

    def _give_up_attempt(self, stream: Stream) -> None:
        if stream is self.stream and not self.linked:
            stream.break_off("no answer", 0.0, self.kernel.random())

    def stream_ended(self, stream: Stream, reason: str) -> None:
        """Our end of a stream is closed."""
        if self.over or stream is not self.stream or self._park(self.stream_ended, stream, reason):
            return
        self.stream, self._fenced = None, False
        if self.linked:
            self.linked = False
            self._down_since = self.kernel.now
            self.handle(LinkDown(reason))
        self.kernel.after(0.05 + 0.5 * self.kernel.random(), self.connect)

    def longest_absence(self) -> float:
        """For how many seconds in a row there was no master, at most."""
        if self._down_since is None:
            return self._longest_absence
        return max(self._longest_absence, self.kernel.now - self._down_since)

    def waited_for_a_master(self) -> bool:
        """Whether there was none for as long as an agent waits; times may be rounded."""
        return self.longest_absence() > TERMS.master_timeout - 0.001

    def receive(self, stream: Stream, message: MasterMessage) -> None:
        """A message arrives, perhaps long after its stream broke."""
        if self.over or self._park(self.receive, stream, message):
            return
        if isinstance(message, Welcome):
            if stream is self.stream:
                self.linked, self._fenced = True, False
                self.tickets.add(stream.key)
                self._longest_absence, self._down_since = self.longest_absence(), None
                self.handle(LinkUp(message.epoch))
                self.kernel.after(message.heartbeat_interval, self._beat, stream, message.heartbeat_interval)
        elif isinstance(message, Rejected) and message.code is RejectCode.NAME_IN_USE:
            return  # the link tries again
        elif stream is self.stream:
            self._fenced = self._fenced or isinstance(message, StartRound | StopRound | StartProbe | JobEnded)
            self._leaving = self._leaving or isinstance(message, Rejected)
            self.handle(Directed(message))
        elif self._fenced and self._may_be_late(stream):
            self.handle(Directed(message))

    def _may_be_late(self, stream: Stream) -> bool:
        return stream.generation == self.sim.rules.generation

    def _beat(self, stream: Stream, interval: float) -> None:
        if self.over or stream is not self.stream or self._park(self._beat, stream, interval):
            return
        stream.send_up(Heartbeat(self.incarnation))
        self.kernel.after(interval, self._beat, stream, interval)

    def _send(self, message: AgentMessage) -> None:
        if self.stream is not None and self.linked:
            self._leaving = self._leaving or isinstance(message, Leave)
            self.stream.send_up(message)

    # -- the workers

    def _free_port(self) -> int:
        return self.sim.rules.free_port(self.name)

    def _task_ports(self) -> tuple[int, ...]:
        number = len(self.spec.roles) + SPARE_PORTS if self.spec.roles else 0
        return tuple(self._free_port() for _ in range(number))

    def _start(self, assignment: Assignment) -> None:
        self.sim.rules.before_start(self, assignment)
        self.group = Group(assignment, self.spec.local_world_size)
        self.kernel.after(0.02 + 0.3 * self.kernel.random(), self._started, self.group)

    def _started(self, group: Group) -> None:
        is_whole = bool(self.spec.roles) or len(group.alive) == self.spec.local_world_size
        if group is self.group and is_whole:
            self.sim.group_started(self, group)

    def _start_task(self, assignment: Assignment, local_rank: int) -> None:
        group = self.group
        self.sim.rules.tasks.before_start(self, assignment, local_rank)
        assert group is not None
        (task,) = [task for task in assignment.tasks if task.local_rank == local_rank]
        group.alive[local_rank] = None
        group.tasks[local_rank], group.lives[local_rank] = task, task.life
        group.known[local_rank] = assignment.cluster
        after = 0.02 + 0.3 * self.kernel.random()
        self.kernel.after(after, self.sim.tf.task_started, self, group, local_rank, task.life)

    def _signal_task(self, local_rank: int, signum: int) -> None:
        group = self.group
        assert group is not None
        self.sim.rules.tasks.before_signal(self, local_rank)
        if self.unkillable or (self.stubborn and signum != SIGKILL):
            return
        code = -9 if signum == SIGKILL else self.kernel.rng.choice((-15, 42, 1, 0))
        life = group.lives[local_rank]
        self.kernel.after(
            self.kernel.random(), self.end_worker, group, local_rank, code, FailureKind.SIGNAL, None, life
        )

    def end_worker(
        self,
        group: Group,
        local_rank: int,
        code: int,
        kind: FailureKind,
        told: dict[str, Any] | None = None,
        life: int | None = None,
    ) -> None:
        """A worker ends by itself or by the launcher's signal; ``told`` is what else is known of it.

        Of a task it may be given which life ends, if it has not by then.
        """
        if group is not self.group or local_rank not in group.alive:
            return
        if life is not None and group.lives[local_rank] != life:
            return
        del group.alive[local_rank]
        if group.assignment.cluster:
            self.sim.tf.task_ended(self, group, local_rank, code)
        if code == 0:
            group.finished += 1
            self.handle(WorkerFinished(group.round, local_rank))
            return
        if self.sim.tf.is_heard(group, local_rank):
            self.sim.echo(self.name, group)
        rank = group.assignment.first_rank + local_rank
        failure = Failure(
            self.name, self.spec.name, rank, local_rank, self.spec.role, 1, kind, code, **told or {}
        )
        self.handle(WorkerFailed(group.round, failure, group.told))

    def _signal(self, spared: frozenset[int]) -> None:
        group = self.group
        assert group is not None
        group.told = Stopping(frozenset({15}), 1.0)
        if self.stubborn:
            return
        if self.sim.tf.is_heard(group):
            self.sim.echo(self.name, group)
        for local_rank in group.alive.keys() - spared if spared else group.alive:
            code = self.kernel.rng.choice((-15, -15, 1, 143))
            delay = self.kernel.random()
            life = group.lives.get(local_rank)
            self.kernel.after(delay, self.end_worker, group, local_rank, code, FailureKind.SIGNAL, None, life)

    def _swept(self, group: Group) -> None:
        if group is not self.group:
            return
        if group.alive and self.sim.tf.is_heard(group):
            self.sim.echo(self.name, group)
        self.group, self.idle_since = None, self.kernel.now
        self.handle(GroupGone(group.round, self._free_port(), self._task_ports()))

    def _probe_swept(self, visit: Visit, round_: int) -> None:
        if visit is self.probe:
            self.probe = None
            self.handle(GroupGone(round_, self._free_port(), self._task_ports()))

    def stalls(self, group: Group, silence: float) -> None:
        """The watch of the workers has seen no step for some seconds, or, if these are 0, one again."""
        first = group.assignment.first_rank
        rank = next(iter(group.alive), 0)
        lasting = self.kernel.now - group.waits_since
        never = self.sim.scenario.max_restarts == 0  # then nothing but the user's timeout ends it
        evidence = Evidence.TIMEOUT if never else Evidence.STILL
        stall = Stall(
            first + rank, rank, 7, silence, 2.0, not group.hangs, evidence=evidence, lasting=lasting
        )
        self.handle(StallSeen(group.round, stall if silence else None))
