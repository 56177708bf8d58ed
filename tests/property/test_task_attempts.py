"""Master and agents of a TensorFlow job together: deaths, orders and messages in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasticrun.config import JobConfig, Policy, TaskRole
from elasticrun.core.agent.events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    AgentTick,
    Directed,
    Finish,
    GroupGone,
    HelloSent,
    LinkDown,
    LinkUp,
    PortsOffered,
    Prepared,
    SignalTask,
    SignalWorkers,
    StartTask,
    StartWorkers,
    SweepWorkers,
    Transmit,
    WorkerFailed,
    WorkerFinished,
)
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.job.events import (
    Attached,
    Detached,
    Drop,
    Expired,
    JobEffect,
    JobEvent,
    MasterStarted,
    Reported,
    Send,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    Assignment,
    Failure,
    FailureKind,
    Heartbeat,
    Hello,
    Leave,
    MasterMessage,
    NodeInfo,
    Report,
    StartRound,
    Trust,
    Welcome,
)
from elasticrun.core.protocol.orders import ScaleRole
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.protocol.tasks import Cluster
from elasticrun.core.tensorflow.round_tasks import RoundTasks
from elasticrun.sim.fingerprint import difference, fingerprint
from tests.core.tf_build import tasks_of

CHIEF, WORKER, PS, EVALUATOR = TaskRole
SHAPES: list[dict[str, tuple[TaskRole, ...]]] = [
    {"a": (CHIEF, WORKER, PS, PS)},
    {"a": (CHIEF, PS), "b": (WORKER, PS), "c": (WORKER, EVALUATOR)},
    {"a": (PS,), "b": (PS, PS), "c": (CHIEF, WORKER)},
    {"a": (WORKER, EVALUATOR), "b": (WORKER,)},
]
POLICIES = [Policy(), Policy(fast_failures_free=0, backoff_first=2.0)]
TERMS = AgentTerms(shutdown_timeout=5.0, kill_timeout=1e6, master_timeout=1e6)
Key = tuple[str, int]


class Node:
    """A node with an agent; ``running`` is the truth about its processes, by local rank."""

    def __init__(self, name: str, roles: Sequence[TaskRole]) -> None:
        info = NodeInfo(name, f"{name}.1", name, f"{name}.net", len(roles), roles=tuple(roles))
        self.machine = AgentMachine("job", "1", info, TERMS)
        self.name = name
        self.running: dict[int, int] = {}  # which attempt
        self.born: dict[int, int] = {}  # the newest attempt of the round
        self.dying: set[int] = set()  # those that were signalled
        self.told: Assignment | None = None  # the newest that was heard
        self.swept = False
        self.session: int | None = None
        self.up: deque[AgentMessage] = deque()
        self.down: deque[MasterMessage] = deque()
        self.finish: Finish | None = None
        self.next_port = 9000

    def fresh_ports(self, number: int) -> tuple[int, ...]:
        self.next_port += number
        return tuple(range(self.next_port - number, self.next_port))


class TaskRules(RuleBasedStateMachine):
    """Rules are what may happen; what holds is asserted where it could break, and after each rule."""

    @initialize(shape=st.sampled_from(SHAPES), restarts=st.integers(0, 4), policy=st.sampled_from(POLICIES))
    def begin(self, shape: dict[str, tuple[TaskRole, ...]], restarts: int, policy: Policy) -> None:
        size = len(shape)
        self.config = JobConfig(
            min_nodes=size,
            max_nodes=size,
            max_restarts=restarts,
            last_call_timeout=0.0,
            heartbeat_timeout=1e6,
            reattach_timeout=1e5,
            join_timeout=1e6,
            policy=policy,
        )
        self.now = 0.0
        self.job = JobMachine(self.config)
        self.journal: list[tuple[JobEvent, float]] = []
        self.sessions = 0
        self.deaths = 0  # that nobody asked for
        self.ports: set[tuple[str, int]] = set()
        self.tasks: RoundTasks | None = None  # as watched
        self.cluster: Cluster = ()
        self.was_over = False
        self.attempts: dict[Key, int] = {}  # wanted
        self.retiring: dict[Key, int] = {}  # with the attempt of the chief until which they stay
        self.nodes = {name: Node(name, roles) for name, roles in shape.items()}
        self.tell_master(MasterStarted(1))
        for node in self.nodes.values():
            self.tell(node, Prepared(7000, node.fresh_ports(len(shape[node.name]) + 2)))
            self.connect(node)
        self.deliver_all()

    # -- the master

    def tell_master(self, event: JobEvent) -> None:
        self.journal.append((event, self.now))
        used = self.job.state.budget.used
        effects = self.job.handle(event, self.now)
        assert self.job.state.budget.used <= used + 1
        assert self.job.state.budget.used <= self.deaths, "each loss is charged at most once"
        self.watch(event)
        for effect in effects:
            self.carry_out_masters(effect)

    def carry_out_masters(self, effect: JobEffect) -> None:
        match effect:
            case Send(session, message):
                for node in self.nodes.values():
                    if node.session == session:
                        node.down.append(message)
            case Drop(session):
                for node in self.nodes.values():
                    if node.session == session:
                        node.session = None

    def watch(self, event: JobEvent) -> None:
        """What changed in what the master wants, and whether it may."""
        tasks = tasks_of(self.job)
        attempts = {
            (name, rank): task.attempt for name, of in tasks.wanted.items() for rank, task in of.items()
        }
        if tasks is self.tasks:
            is_changed, self.cluster = tasks.cluster != self.cluster, tasks.cluster
            raised = {
                key for key in attempts.keys() & self.attempts.keys() if attempts[key] != self.attempts[key]
            }
            assert all(attempts[key] == self.attempts[key] + 1 for key in raised), "one attempt at a time"
            self.only_the_lost_are_restarted(raised, event)
            assert not is_changed or tasks.leader in raised, "the chief knows the cluster"
            assert not (raised and self.was_over), "who is done is not restarted"
            waits = self.job.state.members.detached and not isinstance(event, ScaleRole | Expired)
            assert not (raised and waits), "all losses are judged together"
            for key in self.attempts.keys() - attempts.keys():
                self.may_go(key)
        else:
            self.tasks, self.retiring, self.cluster = tasks, {}, tasks.cluster
            assert set(attempts.values()) <= {0}
        for key in tasks._retiring:
            self.retiring.setdefault(key, attempts[tasks.leader])
        if isinstance(event, ScaleRole):
            self.retiring = dict.fromkeys(self.retiring, attempts.get(tasks.leader, 0))
        self.attempts, self.was_over = attempts, tasks.is_over

    def only_the_lost_are_restarted(self, raised: set[Key], event: JobEvent) -> None:
        tasks = tasks_of(self.job)
        roles = {key: tasks.wanted[key[0]][key[1]].role for key in raised}
        takes_chief = isinstance(event, ScaleRole) or PS in roles.values()
        for name, rank in raised:
            node = self.nodes[name]
            is_dead = rank not in node.running or node.running[rank] != self.attempts[name, rank]
            assert is_dead or (takes_chief and (name, rank) == tasks.leader), f"{name} {rank} attempts"
        if PS in roles.values() or (isinstance(event, ScaleRole) and raised):
            assert tasks.leader in raised

    def may_go(self, key: Key) -> None:
        """Only the chief's next attempt lets go of what was taken away."""
        name, rank = tasks_of(self.job).leader
        assert self.nodes[name].born[rank] >= self.retiring.pop(key)

    # -- the agents

    def tell(self, node: Node, event: AgentEvent) -> None:
        if node.finish is None:
            effects = node.machine.handle(event, self.now)
            node.machine.check()
            for effect in effects:
                self.carry_out(node, effect)

    def carry_out(self, node: Node, effect: AgentEffect) -> None:
        match effect:
            case Transmit(message):
                node.up.append(message)
            case StartWorkers(assignment):
                assert not node.running
                node.born = {}
                for task in assignment.tasks:
                    self.start(node, assignment, task.local_rank)
            case StartTask(assignment, local_rank):
                assert node.machine.state.phase is AgentPhase.RUNNING
                self.start(node, assignment, local_rank)
            case SignalTask(local_rank, _):
                wanted = {task.local_rank: task.attempt for task in node.told.tasks} if node.told else {}
                attempt = node.running[local_rank]
                assert wanted.get(local_rank, attempt + 1) > attempt, "who is not named keeps its attempt"
                node.dying.add(local_rank)
            case SignalWorkers(_, _, spared):
                node.dying |= set(node.running) - spared
            case SweepWorkers():
                # Who serves only is told last, if at all.
                asked = node.dying | node.machine.state.scope.servers
                assert set(node.running) <= asked, "nobody is killed who was not told to end"
                node.swept = True
            case Finish():
                assert not node.running
                node.finish = effect

    def start(self, node: Node, assignment: Assignment, local_rank: int) -> None:
        (task,) = [task for task in assignment.tasks if task.local_rank == local_rank]
        assert local_rank not in node.running, "the attempt before is dead"
        assert task.attempt > node.born.get(local_rank, -1), "attempts only grow"
        others = {t.port for t in assignment.tasks if t.port and t.local_rank in node.running}
        assert task.port == 0 or task.port not in others, "its address is its own"
        node.running[local_rank] = node.born[local_rank] = task.attempt
        node.dying.discard(local_rank)

    def end(self, node: Node, local_rank: int, code: int) -> None:
        was_asked = local_rank in node.dying
        attempt = node.running.pop(local_rank)
        node.dying.discard(local_rank)
        self.deaths += not was_asked
        if code == 0:
            self.tell(node, WorkerFinished(node.machine.state.round, local_rank, attempt))
            return
        kind = FailureKind.EXIT if code > 0 else FailureKind.SIGNAL
        failure = Failure(node.name, node.name, 0, local_rank, "default", 1, kind, code)
        self.tell(node, WorkerFailed(node.machine.state.round, failure, attempt=attempt))

    def connect(self, node: Node) -> None:
        self.sessions += 1
        node.session = self.sessions
        node.up.clear()
        node.down.clear()
        hello = node.machine.hello()
        self.tell(node, HelloSent(hello.status))
        node.up.append(hello)

    def receive(self, node: Node) -> None:
        """The agent hears the next message."""
        message = node.down.popleft()
        if isinstance(message, Welcome):
            self.tell(node, LinkUp(message.epoch))
            return
        if isinstance(message, StartRound):
            node.told = message.assignment
        self.tell(node, Directed(message))

    def hear(self, node: Node) -> None:
        """The master hears the next message."""
        message, session = node.up.popleft(), node.session
        assert session is not None
        match message:
            case Hello():
                self.tell_master(Attached(session, replace(message, trust=Trust.RETURNING)))
            case Report(_, status):
                self.tell_master(Reported(session, status))
            case Leave() | Heartbeat():
                raise AssertionError(f"nobody asked {node.name} to {message}")

    # -- what happens

    @rule(count=st.integers(1, 2), order=st.integers(-1, 1), seconds=st.sampled_from([0.0, 2.0]))
    def servers_die_and_are_counted_anew(self, count: int, order: int, seconds: float) -> None:
        """The last ones die, and before they are back another number is ordered."""
        listed = [key for key, _ in tasks_of(self.job)._listed(PS)]
        for name, rank in listed[-count:]:
            if rank in self.nodes[name].running:
                self.end(self.nodes[name], rank, 1)
        self.deliver_all()
        self.scale(PS, order)
        self.wait(seconds)

    @rule(data=st.data(), code=st.sampled_from([1, -9, -9, 42, 0]))
    def task_dies(self, data: st.DataObject, code: int) -> None:
        alive = [(name, rank) for name, node in self.nodes.items() for rank in sorted(node.running)]
        if alive:
            name, rank = data.draw(st.sampled_from(alive))
            is_leader = (name, rank) == tasks_of(self.job).leader
            self.end(self.nodes[name], rank, 1 if code == 0 and is_leader else code)

    @rule(chance=st.integers(0, 7))
    def leader_ends_with_0(self, chance: int) -> None:
        name, rank = tasks_of(self.job).leader
        if chance == 7 and name in self.nodes and rank in self.nodes[name].running:
            self.end(self.nodes[name], rank, 0)

    @rule(role=st.sampled_from([PS, PS, WORKER, CHIEF]), more=st.sampled_from([-2, -1, -1, 0, 1, 1, 2]))
    def scale(self, role: TaskRole, more: int) -> None:
        self.tell_master(ScaleRole(role, tasks_of(self.job).count(role) + more))

    @rule(more=st.sampled_from([-1, 1]), again=st.sampled_from([-1, 0, 1]), is_settled=st.booleans())
    def scale_at_leisure(self, more: int, again: int, is_settled: bool) -> None:
        self.scale(PS, more)
        if is_settled:
            self.settle()
        self.scale(PS, again)
        self.settle()

    @rule(data=st.data(), number=st.integers(1, 6))
    def deliver(self, data: st.DataObject, number: int) -> None:
        """Some messages arrive, in the order of their stream."""
        for _ in range(number):
            ways = [(node, way) for node in self.nodes.values() for way in ("up", "down")]
            ways = [(n, way) for n, way in ways if n.session and (n.up if way == "up" else n.down)]
            if not ways:
                return
            node, way = data.draw(st.sampled_from(ways))
            (self.hear if way == "up" else self.receive)(node)

    @rule(data=st.data())
    def signalled_task_dies(self, data: st.DataObject) -> None:
        dying = [(name, rank) for name, node in self.nodes.items() for rank in sorted(node.dying)]
        if dying:
            name, rank = data.draw(st.sampled_from(dying))
            self.end(self.nodes[name], rank, data.draw(st.sampled_from([-15, 42, 1, 0])))

    @rule(seconds=st.sampled_from([0.5, 3.0, 6.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            for event in self.job.due(self.now):
                self.tell_master(event)
            for node in self.nodes.values():
                self.tell(node, AgentTick())
        self.now = until

    def next_deadline(self) -> float | None:
        found = [self.job.next_deadline()]
        found += [node.machine.next_deadline() for node in self.nodes.values() if node.finish is None]
        return min((at for at in found if at is not None), default=None)

    @rule(name=st.sampled_from("abc"))
    def offer_ports(self, name: str) -> None:
        node = self.nodes.get(name)
        if node is not None and node.machine.state.phase is AgentPhase.RUNNING:
            self.tell(node, PortsOffered(node.fresh_ports(2)))

    @rule()
    def restart_master(self) -> None:
        replayed = JobMachine(self.config)
        for event, now in self.journal:
            replayed.handle(event, now)
        assert difference(fingerprint(self.job.state), fingerprint(replayed.state)) == ""
        self.job, self.tasks = replayed, tasks_of(replayed)
        self.sessions = 0
        for node in self.nodes.values():
            node.session = None
            node.up.clear()
            node.down.clear()
        self.tell_master(MasterStarted(self.job.state.epoch + 1))
        for node in self.nodes.values():
            if node.finish is None:
                self.tell(node, LinkDown("reset"))
                self.connect(node)

    @rule(name=st.sampled_from("abc"))
    def stream_breaks(self, name: str) -> None:
        """To the master that is the loss of a node; it comes back, and the next round begins."""
        node = self.nodes.get(name)
        if node is not None and node.session is not None and node.finish is None:
            self.tell_master(Detached(node.session, "reset"))
            self.tell(node, LinkDown("reset"))
            self.connect(node)

    @rule()
    def settle(self) -> None:
        """Once nothing happens any more, everything is as it is wanted."""
        for _ in range(20):
            self.deliver_all()
            for node in self.nodes.values():
                for rank in sorted(node.dying):
                    self.end(node, rank, -15)
                if node.swept:
                    self.end_round(node)
            self.wait(6.0)
        if self.job.state.phase is JobPhase.RUNNING:
            for name in self.job.state.current.pending:  # others are spares, as one whose tasks have ended
                self.all_is_as_wanted(self.nodes[name])

    def deliver_all(self) -> None:
        busy = True
        while busy:
            busy = False
            for node in self.nodes.values():
                while node.session and node.up:
                    self.hear(node)
                    busy = True
                while node.session and node.down:
                    self.receive(node)
                    busy = True

    def end_round(self, node: Node) -> None:
        node.swept = False
        node.running.clear()
        node.dying.clear()
        self.tell(node, GroupGone(node.machine.state.round, 7000, node.fresh_ports(6)))

    def all_is_as_wanted(self, node: Node) -> None:
        tasks = tasks_of(self.job)
        assert node.machine.state.phase in (AgentPhase.RUNNING, AgentPhase.FINISHED)
        for rank, attempt in node.running.items():
            assert tasks.wanted[node.name][rank].attempt == attempt, "what runs is wanted"
        for rank, task in tasks.wanted[node.name].items():
            if rank not in node.running:
                assert node.born[rank] == task.attempt, "what is wanted runs, or ended by itself"
                assert not (task.role is PS or (task.role is WORKER and dict(tasks.cluster).get(PS)))
        assert not tasks._retiring

    # -- what holds

    @invariant()
    def each_part_of_the_master_keeps_its_invariants(self) -> None:
        assert self.job.check() == []

    @invariant()
    def a_cluster_is_exact(self) -> None:
        tasks = tasks_of(self.job)
        addresses = [address for _, places in tasks.cluster for address in places]
        assert len(set(addresses)) == len(addresses)
        kept = [
            task
            for name, of in tasks.wanted.items()
            for rank, task in of.items()
            if (name, rank) not in tasks._retiring
        ]
        for role, places in tasks.cluster:
            mine = sorted((task.index, task.port) for task in kept if task.role is role)
            assert [index for index, _ in mine] == list(range(len(places)))
            assert [port for _, port in mine] == [int(place.rpartition(":")[2]) for place in places]

    @invariant()
    def what_is_told_is_what_is_wanted(self) -> None:
        tasks = tasks_of(self.job)
        for name, given in self.job.state.current.assignments.items():
            assert given.tasks == tasks.of(name)
            if not tasks._retiring:
                assert given.cluster == tasks.cluster

    @invariant()
    def a_loss_waits_for_something(self) -> None:
        tasks = tasks_of(self.job)
        if self.job.state.phase is JobPhase.RUNNING and tasks.lost and not tasks.is_over:
            assert self.job.state.members.detached or ("mending", "") in self.job.state.timers
        assert not tasks.lost.keys() & tasks._retiring


TestTaskLives = TaskRules.TestCase
TestTaskLives.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
