"""The master's machine under arbitrary interleavings of what agents, honest and otherwise, may say."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from elasticrun.config import (
    Action,
    FailureClass,
    HealthCheckMode,
    HealthConfig,
    JobConfig,
    Policy,
    PolicyRule,
)
from elasticrun.core.job.events import (
    OUTCOMES,
    Answered,
    Attached,
    Beat,
    Decided,
    Detached,
    Drop,
    Ended,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
    Send,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.job.state import BACKOFF, CHECK, GROWTH, SCALING
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Evidence,
    Failure,
    FailureKind,
    GroupReport,
    Hello,
    JobEnded,
    MasterMessage,
    NodeInfo,
    ProbeReport,
    RejectCode,
    Stall,
    StartProbe,
    StartRound,
    StopRound,
    Trust,
    Vote,
    Waiting,
    Welcome,
    World,
)
from elasticrun.core.protocol.orders import (
    CancelScale,
    CheckNodes,
    CordonNode,
    DrainNode,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    StopJob,
    UncordonNode,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.master.snapshot import Snapshot, restore, take
from elasticrun.sim.count_rules import counts_are_exact
from elasticrun.sim.fingerprint import difference, fingerprint

BUSY = (AgentPhase.RUNNING, AgentPhase.FINISHED)
TEXTS = [
    "",
    "ValueError: no",
    "RuntimeError: uncorrectable ECC error",
    "RuntimeError: Connection closed by peer",
]
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
VOTES = (Vote(World(3, 2, 1), None), Vote(World(4, 2, 1), World(3, 2, 1)))
POLICIES = [
    Policy(),
    Policy(same_error_rounds=2, fast_failures_free=0, backoff_first=3.0),
    Policy(refill_after=20.0, rules=(PolicyRule(FailureClass.USER_ERROR, Action.RECHECK),)),
    Policy(rules=tuple(PolicyRule(each, Action.LEAVE) for each in (FailureClass.HANG, FailureClass.UNKNOWN))),
    Policy(rules=(PolicyRule(FailureClass.NETWORK, Action.GIVE_UP),)),
]
NAMES = ["a", "b", "c", "d", "e"]


class Agent:
    """A model of one incarnation: it says what it is, and may do as it is told."""

    def __init__(self, name: str, life: int, node_rank: int | None, imports: bool) -> None:
        self.name = name
        self.incarnation = f"{name}.{life}"
        self.info = NodeInfo(name, self.incarnation, name, f"{name}.net", 1 + len(name) % 2, "r", node_rank)
        self.phase = AgentPhase.PREPARING
        self.imports = imports  # its workers would wait for that
        self.round = -1
        self.sequence = 0
        self.epoch = -1
        self.failures: tuple[Failure, ...] = ()
        self.session: int | None = None
        self.probe: ProbeReport | None = None
        self.stall: Stall | None = None
        self.votes: tuple[Vote, ...] = ()
        self.told: MasterMessage | None = None  # the newest directive

    def status(self) -> AgentStatus:
        port = 7000 if self.phase is AgentPhase.READY else 0
        stall = self.stall if self.phase is AgentPhase.RUNNING else None
        warming = self.imports and port > 0
        return AgentStatus(
            self.sequence,
            self.phase,
            self.round,
            self.failures,
            port,
            self.probe,
            stall,
            self.votes,
            warming,
        )


#: Events after which a job may be stopped.
LATE = 30


class JobRules(RuleBasedStateMachine):
    """Rules are what may happen; invariants are what holds after each."""

    agents = Bundle("agents")

    @initialize(
        smallest=st.integers(1, 3),
        more=st.integers(0, 2),
        unit=st.sampled_from([1, 1, 2]),
        restarts=st.integers(0, 3),
        last_call=st.sampled_from([0.0, 2.0]),
        mode=st.sampled_from(HealthCheckMode),
        stragglers=st.booleans(),
        policy=st.sampled_from(POLICIES),
    )
    def begin(
        self,
        smallest: int,
        more: int,
        unit: int,
        restarts: int,
        last_call: float,
        mode: HealthCheckMode,
        stragglers: bool,
        policy: Policy,
    ) -> None:
        smallest = -(-smallest // unit) * unit
        self.config = JobConfig(
            min_nodes=smallest,
            max_nodes=smallest + more,
            node_unit=unit,
            max_restarts=restarts,
            last_call_timeout=last_call,
            join_timeout=200.0,
            health=HealthConfig(mode=mode, exclude_stragglers=stragglers),
            policy=policy,
        )
        self.machine = JobMachine(self.config)
        self.journal: list[tuple[JobEvent, float]] = []  # since the snapshot
        self.snapshot: Snapshot | None = None
        self.now = 0.0
        self.sessions = 0
        self.lives = dict.fromkeys(NAMES, 0)
        self.live: dict[int, Agent] = {}  # by session
        self.seen = (-1, -1, 0)  # round, epoch, used
        self.charged_rounds: set[int] = set()
        self.gone: set[str] = set()  # incarnations that were excluded or drained
        self.known = self.machine.state.current
        self.feed(MasterStarted(1))

    # -- feeding

    def feed(self, event: JobEvent) -> None:
        if not isinstance(event, Beat):
            self.journal.append((event, self.now))
        effects = self.machine.handle(event, self.now)
        for effect in effects:
            if isinstance(effect, Send):
                self.deliver(effect)
            elif isinstance(effect, Drop):
                agent = self.live.pop(effect.session, None)
                codes = (RejectCode.EXCLUDED, RejectCode.DRAINED)
                if agent is not None and effect.farewell is not None and effect.farewell.code in codes:
                    self.gone.add(agent.incarnation)
                if agent is not None and agent.session == effect.session:
                    agent.session = None
            else:
                assert isinstance(effect, Decided | Ended | Answered)
                assert not isinstance(effect, Ended) or self.machine.state.ended
        if self.machine.state.current is not self.known:
            self.known = self.machine.state.current
            self.welcome_world()

    def welcome_world(self) -> None:
        """A world was formed, or, by a replay, put in place of an equal one."""
        machine = self.machine
        size, limits = len(machine.state.current.assignments), machine.state.limits
        assert limits.min_nodes <= size <= limits.max_nodes
        assert size % limits.node_unit == 0
        members = {
            machine.state.members.nodes[name].info.incarnation for name in machine.state.current.assignments
        }
        assert not members & self.gone, "who had to go is no member again"
        assert not machine.state.current.assignments.keys() & machine.state.health.doubtful.keys()
        assert not machine.state.current.assignments.keys() & machine.state.cordoned.keys()
        phases = {
            machine.state.members.nodes[name].status.phase for name in machine.state.current.assignments
        }
        assert phases == {AgentPhase.READY}, "no member is being probed"

    def deliver(self, effect: Send) -> None:
        agent, message = self.live[effect.session], effect.message
        if isinstance(message, Welcome):
            agent.epoch = message.epoch
        elif not isinstance(message, Waiting):
            assert isinstance(message, StartRound | StopRound | StartProbe | JobEnded)
            old = agent.told
            assert old is None or stamp(message) > stamp(old), "directives of one session are in order"
            agent.told = message

    def say(self, agent: Agent) -> None:
        agent.sequence += 1
        if agent.session is not None:
            self.feed(Reported(agent.session, agent.status()))

    # -- what agents do

    @rule(
        target=agents, name=st.sampled_from(NAMES), rank=st.none() | st.integers(0, 3), imports=st.booleans()
    )
    def start(self, name: str, rank: int | None, imports: bool) -> Agent:
        self.lives[name] += 1
        agent = Agent(name, self.lives[name], rank, imports)
        self.connect(agent, Trust.STRANGER)
        return agent

    @rule(agent=agents, trust=st.sampled_from(Trust))
    def connect(self, agent: Agent, trust: Trust) -> None:
        self.sessions += 1
        before = agent.session, agent.told
        agent.session, agent.told = self.sessions, None
        self.live[self.sessions] = agent
        holder = self.machine.state.members.nodes.get(agent.info.node)
        session = holder.session if holder is not None else None
        hello = Hello("job", "1", agent.info, agent.status(), agent.epoch, trust=trust)
        self.feed(Attached(self.sessions, hello))
        if self.sessions not in self.live and before[0] in self.live:
            agent.session, agent.told = before  # refused, so the stream of before goes on
        if holder is not None and session is not None:
            is_itself = holder.info.incarnation == agent.incarnation and trust is Trust.RETURNING
            expected = self.sessions if is_itself else session
            assert holder.session == expected, "no Hello ends another node"
        assert agent.incarnation not in self.gone or self.sessions not in self.live

    @rule(agent=agents)
    def prepare(self, agent: Agent) -> None:
        if agent.phase is AgentPhase.PREPARING:
            agent.phase = AgentPhase.READY
            self.say(agent)

    @rule(agent=agents)
    def import_or_have_imported(self, agent: Agent) -> None:
        agent.imports = not agent.imports
        if agent.phase is AgentPhase.READY:
            self.say(agent)

    @rule(agent=agents)
    def obey(self, agent: Agent) -> None:
        told = agent.told
        if isinstance(told, StartRound) and agent.phase is AgentPhase.READY:
            if told.assignment.round > agent.round:
                agent.phase, agent.round, agent.failures = AgentPhase.RUNNING, told.assignment.round, ()
                agent.stall = None
                self.say(agent)
        elif isinstance(told, StartProbe) and agent.phase is AgentPhase.READY:
            if agent.probe is None or agent.probe.check != told.check:
                agent.phase = AgentPhase.CHECKING
                self.say(agent)
        elif isinstance(told, StopRound) and told.round >= agent.round and agent.phase in BUSY:
            agent.phase = AgentPhase.STOPPING
            self.say(agent)

    @rule(
        agent=agents,
        error=st.sampled_from(["", "", "", "no GPU"]),
        dead=st.sampled_from(["", "", "", "a", "ab", "abc"]),
        flops=st.sampled_from([1e12, 1e12, 2e11]),
    )
    def answer(self, agent: Agent, error: str, dead: str, flops: float) -> None:
        """A probe ends, well or because the master wants something else by now."""
        if agent.phase is not AgentPhase.CHECKING:
            return
        agent.phase, told = AgentPhase.READY, agent.told
        if isinstance(told, StartProbe):
            bad = [bool(set(group.nodes) & set(dead)) for group in told.groups]
            groups = tuple(GroupReport("no") if each else GroupReport("", 1e9, 1e-4) for each in bad)
            agent.probe = ProbeReport(told.check, error, flops, groups)
        self.say(agent)

    @rule(
        agent=agents,
        step=st.integers(0, 1),
        in_collective=st.booleans(),
        evidence=st.sampled_from(
            [None, Evidence.NONE, Evidence.STILL, Evidence.LAST_BOUND, Evidence.TIMEOUT]
        ),
        lasting=st.sampled_from([0.0, 1.0, 100.0]),
    )
    def stall(
        self, agent: Agent, step: int, in_collective: bool, evidence: Evidence | None, lasting: float
    ) -> None:
        if agent.phase is AgentPhase.RUNNING:
            agent.stall = None
            if evidence is not None:
                agent.stall = Stall(0, 0, step, 9.0, 3.0, in_collective, evidence=evidence, lasting=lasting)
            if evidence not in (None, Evidence.NONE):
                self.charged_rounds.add(agent.round)
            self.say(agent)

    @rule(agent=agents)
    def stop_workers(self, agent: Agent) -> None:
        if agent.phase in (AgentPhase.STOPPING, AgentPhase.FAILED):
            agent.phase = AgentPhase.READY
            self.say(agent)

    @rule(agent=agents)
    def finish(self, agent: Agent) -> None:
        if agent.phase is AgentPhase.RUNNING:
            agent.phase = AgentPhase.FINISHED
            self.say(agent)

    @rule(
        agent=agents,
        kind=st.sampled_from([FailureKind.EXIT, FailureKind.PORT_TAKEN]),
        text=st.sampled_from(TEXTS),
        step=st.sampled_from([-1, 7]),
    )
    def fail(self, agent: Agent, kind: FailureKind, text: str, step: int) -> None:
        if agent.phase is AgentPhase.RUNNING:
            agent.phase = AgentPhase.FAILED
            failure = Failure(agent.name, agent.name, 0, 0, "r", agent.round, kind, 1, step=step)
            agent.failures = (replace(failure, traceback=TRACEBACK + text) if text else failure,)
            if kind is FailureKind.EXIT:
                self.charged_rounds.add(agent.round)
            self.say(agent)

    @rule(agent=agents)
    def leave(self, agent: Agent) -> None:
        if agent.session is not None:
            self.feed(Left(agent.session, "stopped"))

    @rule(agent=agents)
    def detach(self, agent: Agent) -> None:
        if agent.session is not None:
            self.live.pop(agent.session, None)
            session, agent.session = agent.session, None
            self.feed(Detached(session, "reset"))

    @rule(agent=agents)
    def beat(self, agent: Agent) -> None:
        if agent.session is not None:
            self.feed(Beat(agent.session))

    # -- orders

    @rule(name=st.sampled_from(NAMES))
    def drain(self, name: str) -> None:
        node = self.machine.state.members.nodes.get(name)
        has_ended = self.machine.state.ended
        if node is not None and not has_ended:
            self.gone.add(node.info.incarnation)
        self.feed(DrainNode(name, "an order"))
        assert has_ended or name not in self.machine.state.members.nodes

    @rule(smallest=st.integers(1, 3), more=st.integers(0, 2))
    def scale(self, smallest: int, more: int) -> None:
        unit = self.config.node_unit
        low = -(-smallest // unit) * unit
        self.feed(ScaleJob(low, low + more))

    @rule(count=st.integers(0, 2), name=st.sampled_from(NAMES))
    def scale_in(self, count: int, name: str) -> None:
        self.feed(ScaleIn("an order", count) if count else ScaleIn("an order", nodes=(name,)))

    @rule(count=st.integers(1, 3), timeout=st.sampled_from([0.0, 5.0, 50.0]))
    def scale_out(self, count: int, timeout: float) -> None:
        self.feed(ScaleOut(count, timeout))

    @rule()
    def cancel_scale(self) -> None:
        self.feed(CancelScale("an order"))

    @rule(name=st.sampled_from(NAMES), is_lifted=st.booleans())
    def cordon(self, name: str, is_lifted: bool) -> None:
        self.feed(UncordonNode(name) if is_lifted else CordonNode(name, "an order"))

    @rule()
    def check_all(self) -> None:
        self.feed(CheckNodes("an order"))

    @precondition(lambda self: self.machine.state.events > LATE)
    @rule()
    def stop(self) -> None:
        self.feed(StopJob("an order"))

    # -- time and the master

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 20.0, 100.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.machine.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            due = self.machine.due(self.now)
            assert due, "a deadline that has passed is an event"
            for event in due:
                self.feed(event)
        self.now = until

    @rule()
    def compact_journal(self) -> None:
        """Whatever the moment, a snapshot stands for all events before it."""
        self.snapshot, self.journal = take(self.machine.state), []
        restored = restore(self.config, self.snapshot)
        assert difference(fingerprint(self.machine.state), fingerprint(restored.state)) == ""

    @rule()
    def restart_master(self) -> None:
        """The replayed state takes the place of the live one, so everything afterwards checks it as well."""
        replayed = restore(self.config, self.snapshot) if self.snapshot else JobMachine(self.config)
        for event, now in self.journal:
            replayed.handle(event, now)
        assert difference(fingerprint(self.machine.state), fingerprint(replayed.state)) == ""
        self.machine = replayed
        self.known = replayed.state.current
        for agent in self.live.values():
            agent.session = None
        self.live.clear()
        self.sessions = 0
        self.feed(MasterStarted(self.machine.state.epoch + 1))

    # -- what is not honest, or late

    @rule(status=st.builds(AgentStatus, st.integers(0, 99), st.sampled_from(AgentPhase), st.integers(-1, 9)))
    def stale_session(self, status: AgentStatus) -> None:
        stale = next(number for number in range(10**6) if number not in self.live)
        before = fingerprint(self.machine.state)
        for event in (Reported(stale, status), Beat(stale), Left(stale, ""), Detached(stale, "")):
            assert self.machine.handle(event, self.now) == []
        assert difference(before, fingerprint(self.machine.state)) == ""

    @rule(agent=agents, phase=st.sampled_from(AgentPhase), back=st.integers(0, 5))
    def stale_sequence(self, agent: Agent, phase: AgentPhase, back: int) -> None:
        if agent.session is None:
            return
        late = replace(
            agent.status(), sequence=agent.sequence - back, phase=phase, round=self.machine.state.round
        )
        before = fingerprint(self.machine.state)
        assert self.machine.handle(Reported(agent.session, late), self.now) == []
        assert difference(before, fingerprint(self.machine.state)) == ""

    @rule(
        agent=agents,
        phase=st.sampled_from(AgentPhase),
        far=st.integers(-3, 3),
        check=st.none() | st.integers(0, 3),
        votes=st.sampled_from([(), VOTES]),
    )
    def lie(
        self, agent: Agent, phase: AgentPhase, far: int, check: int | None, votes: tuple[Vote, ...]
    ) -> None:
        """A status that no honest agent sends; the machine must stay within its own rules."""
        honest = (agent.phase, agent.round, agent.probe, agent.votes)
        agent.phase, agent.round = phase, max(-1, self.machine.state.round + far)
        if check is not None:
            groups = (GroupReport("no"),) * check
            number = max(0, self.machine.state.probes + check - 1)  # others are refused before
            agent.probe = ProbeReport(number, "", 1.0, groups)
        agent.votes = votes
        self.say(agent)
        if self.machine.state.round + far > self.machine.state.round:
            self.connect(agent, Trust.RETURNING)
        agent.phase, agent.round, agent.probe, agent.votes = honest
        self.charged_rounds.update(range(-1, self.machine.state.newest + 5))

    # -- what holds

    @invariant()
    def ranks_are_exact(self) -> None:
        given = list(self.machine.state.current.assignments.values())
        if not given:
            return
        assert [each.group_rank for each in given] == list(range(len(given)))
        assert {each.round for each in given} == {self.machine.state.round}
        assert len({(each.store_address, each.store_port) for each in given}) == 1
        assert given[0].store_port == 7000
        assert tuple(self.machine.state.current.assignments) == self.machine.state.previous

    @invariant()
    def a_scale_operation_has_a_deadline_or_nodes_that_leave(self) -> None:
        state = self.machine.state
        if state.scaling is not None:
            waits = (SCALING, "") in state.timers
            assert waits is not bool(state.scaling.leavers)
            assert not state.ended

    @invariant()
    def numbers_only_grow(self) -> None:
        machine = self.machine
        now = (machine.state.round, machine.state.epoch, machine.state.budget.used)
        assert all(new >= old for new, old in zip(now, self.seen, strict=True))
        assert machine.state.budget.spent <= self.config.max_restarts
        assert machine.state.newest >= machine.state.round
        self.seen = now

    @invariant()
    def only_failures_are_charged(self) -> None:
        """Too few steps for a port to be taken more often than is free."""
        assert self.machine.state.budget.used <= len(self.charged_rounds)

    @invariant()
    def facts_fit_the_phase(self) -> None:
        machine, current = self.machine, self.machine.state.current
        assert current.pending <= current.assignments.keys()
        if machine.state.phase is JobPhase.GATHERING:
            assert not current.pending
            waits = machine.state.members.detached or (BACKOFF, "") in machine.state.timers
            assert waits or not self.could_form(), "a world that can form is formed"
        elif machine.state.phase is JobPhase.CHECKING:
            assert machine.state.checkup is not None
            assert not current.pending
            assert machine.state.checkup.pending
            assert machine.state.checkup.pending <= machine.state.members.nodes.keys()
            assert (CHECK, "") in machine.state.timers
        elif machine.state.phase is JobPhase.RUNNING:
            assert current.stop is None
            assert not current.all_finished
        elif machine.state.phase is JobPhase.STOPPING:
            assert current.pending
            assert current.stop is not None
            assert current.pending <= machine.state.members.nodes.keys()
        else:
            assert machine.state.phase in OUTCOMES
        assert (machine.state.checkup is not None) == (machine.state.phase is JobPhase.CHECKING)

    @invariant()
    def a_larger_world_is_waited_for_only_while_one_runs(self) -> None:
        assert self.machine.state.phase is JobPhase.RUNNING or (GROWTH, "") not in self.machine.state.timers

    @invariant()
    def what_is_known_of_health_is_of_nodes_that_are_here(self) -> None:
        health, here = self.machine.state.health, self.machine.state.members.nodes.keys()
        assert health.trusted <= here
        assert health.suspects <= here
        assert health.doubtful.keys() <= here
        assert not health.trusted & health.doubtful.keys()
        assert not health.trusted & health.suspects

    @invariant()
    def each_part_keeps_its_invariants(self) -> None:
        assert self.machine.check() == []

    @invariant()
    def what_is_counted_is_exact(self) -> None:
        counts_are_exact(self.machine)

    def could_form(self) -> bool:
        state = self.machine.state
        calls = not state.previous and not state.last_called and len(state.ready) < state.limits.largest
        calls = calls and state.config.last_call_timeout > 0
        return state.limits.usable(state.candidates.available) > 0 and not calls

    @invariant()
    def the_tables_agree(self) -> None:
        members = self.machine.state.members
        sessions = {node.session: name for name, node in members.nodes.items() if node.session is not None}
        assert sessions == members._by_session
        assert members.detached == sum(node.session is None for node in members.nodes.values())
        assert sessions.keys() == self.live.keys()

    @invariant()
    def everybody_is_told_what_is_in_force(self) -> None:
        """Level-triggered: the newest directive of each attached member is the one that holds now."""
        machine = self.machine
        for agent in self.live.values():
            if machine.state.ended:
                assert isinstance(agent.told, JobEnded)
            elif machine.state.checkup is not None and agent.name in machine.state.checkup.pending:
                assert isinstance(agent.told, StartProbe)
                assert agent.told.check == machine.state.checkup.number
            elif agent.name in machine.state.current.pending:
                wanted = StartRound if machine.state.phase is JobPhase.RUNNING else StopRound
                assert isinstance(agent.told, wanted)

    @invariant()
    def somebody_will_act(self) -> None:
        """While nothing runs, a deadline bounds the wait."""
        if self.machine.state.phase in (JobPhase.GATHERING, JobPhase.CHECKING):
            assert self.machine.next_deadline() is not None


def stamp(message: MasterMessage) -> tuple[int, int]:
    assert isinstance(message, StartRound | StopRound | StartProbe | JobEnded)
    return (message.epoch, message.sequence)


TestJobMachine = JobRules.TestCase
TestJobMachine.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
