"""The agent's machine under arbitrary directives, exits, breaks of its link, and signals."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasticrun.core.agent.events import (
    ENDING,
    IDLE,
    AgentEvent,
    AgentTerms,
    AgentTick,
    Broken,
    Directed,
    Finish,
    GroupGone,
    HelloSent,
    LinkDown,
    LinkUp,
    Prepared,
    SignalWorkers,
    StartWorkers,
    StopSignal,
    SweepWorkers,
    Transmit,
    WorkerFailed,
    WorkerFinished,
    WorkersStarted,
)
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
    JobEnded,
    Leave,
    NodeInfo,
    Outcome,
    RejectCode,
    Rejected,
    Report,
    StartRound,
    StopRound,
    Waiting,
    Welcome,
)
from elasticrun.sim.fingerprint import difference, fingerprint

TERMS = AgentTerms(shutdown_timeout=3.0, kill_timeout=4.0, master_timeout=60.0)
ranks = st.integers(0, 2)
epochs = st.integers(1, 4)
sequences = st.integers(0, 30)
rounds = st.integers(0, 8)


def directive(epoch: int, sequence: int, round_: int, kind: str) -> StartRound | StopRound | JobEnded:
    if kind == "start":
        assignment = Assignment(round_, 0, 1, 0, 3, 0, 3, "a.net", 7000, 0, 3)
        return StartRound(epoch, sequence, assignment, "because")
    if kind == "stop":
        return StopRound(epoch, sequence, round_, "because")
    return JobEnded(epoch, sequence, Outcome.FAILED, "because")


class AgentRules(RuleBasedStateMachine):
    """``workers`` is the truth about the node; the machine only hears of it."""

    @initialize(size=st.integers(1, 3))
    def begin(self, size: int) -> None:
        self.machine = AgentMachine("job", "1", NodeInfo("a", "a.1", "a", "a.net", size), TERMS)
        self.size = size
        self.now = 0.0
        self.workers: set[int] = set()
        self.round = -1  # of the group that is there
        self.group = False  # something of a round may be left, and no GroupGone was reported
        self.swept = False
        self.finish: Finish | None = None
        self.stamp = (-1, -1)  # the newest directive, as a naive reader sees it
        self.epoch = -1
        self.newest: StartRound | StopRound | None = None
        self.reported: AgentStatus | None = None
        self.greeted: AgentStatus | None = None  # what Hello told
        self.told_to_stop = -1
        self.started: list[int] = []
        self.leaving = False
        self.ended = False

    def feed(self, event: AgentEvent) -> None:
        effects = self.machine.handle(event, self.now)
        assert self.finish is None or not effects, "nothing happens after Finish"
        self.machine.check()
        for index, effect in enumerate(effects):
            match effect:
                case StartWorkers(assignment):
                    self.start(assignment)
                case SignalWorkers():
                    assert self.workers, "nobody is signalled if nobody is there"
                case SweepWorkers(round_):
                    assert self.group
                    assert round_ == self.round
                    self.swept = True
                case Finish():
                    assert index == len(effects) - 1
                    assert not self.group or effect.exit_status == 10
                    self.finish = effect
                case Transmit(Report(_, status)):
                    assert not self.leaving, "Leave is the last word"
                    assert self.reported is None or status.sequence > self.reported.sequence
                    self.reported = status
                case Transmit(message):
                    assert isinstance(message, Leave)
                    self.leaving = True

    def start(self, assignment: Assignment) -> None:
        assert not self.group, "no agent runs workers of two rounds"
        assert assignment.round > max([-1, *self.started]), "no round is started twice"
        assert assignment.round > self.told_to_stop
        assert isinstance(self.newest, StartRound)
        assert self.newest.assignment == assignment, "only the newest directive counts"
        assert not self.leaving
        assert not self.ended
        self.started.append(assignment.round)
        self.round, self.group, self.swept = assignment.round, True, False
        self.workers = set(range(self.size))

    # -- what happens

    @rule()
    def prepare(self) -> None:
        if self.machine.state.phase is AgentPhase.PREPARING:
            self.feed(Prepared(7000))

    @rule(epoch=epochs, sequence=sequences, round_=rounds, kind=st.sampled_from(["start", "start", "stop"]))
    def direct(self, epoch: int, sequence: int, round_: int, kind: str) -> None:
        message = directive(epoch, sequence, round_, kind)
        if (epoch, sequence) > self.stamp and epoch >= self.epoch:
            self.stamp, self.epoch = (epoch, sequence), epoch
            assert isinstance(message, StartRound | StopRound)
            self.newest = message
            if kind == "stop":
                self.told_to_stop = max(self.told_to_stop, round_)
        self.feed(Directed(message))

    @rule(far=st.integers(1, 3), kind=st.sampled_from(["start", "stop"]))
    def direct_what_is_new(self, far: int, kind: str) -> None:
        """As an honest master would: the next stamp, and a round that is not over."""
        epoch, sequence = max(self.epoch, 1), self.stamp[1] + far
        self.direct(epoch, sequence, self.machine.state.round + (far if kind == "start" else 0), kind)

    @rule(kind=st.sampled_from(["start", "stop", "end"]), back=st.integers(0, 3), round_=rounds)
    def direct_what_is_stale(self, kind: str, back: int, round_: int) -> None:
        before = fingerprint(self.machine)
        stale = [(self.stamp[0], self.stamp[1] - back), (self.epoch - 1, 10**6)]
        for epoch, sequence in stale:
            if epoch >= 0:
                self.feed(Directed(directive(epoch, sequence, round_, kind)))
        self.feed(Directed(Waiting(self.epoch - 1, "late")))
        self.feed(Directed(Welcome(self.epoch, 1.0)))
        assert difference(before, fingerprint(self.machine)) == ""

    @rule()
    def workers_have_started(self) -> None:
        if self.workers:
            self.feed(WorkersStarted(self.round))

    @rule(rank=ranks, code=st.sampled_from([0, 1, -15]))
    def worker_ends(self, rank: int, code: int) -> None:
        if rank not in self.workers:
            return
        self.workers.discard(rank)
        if code == 0:
            self.feed(WorkerFinished(self.round, rank))
        else:
            self.feed(WorkerFailed(self.round, Failure("a", "a", rank, rank, "r", 1, FailureKind.EXIT, code)))

    @rule(rank=ranks, back=st.integers(1, 3))
    def news_of_an_earlier_round(self, rank: int, back: int) -> None:
        before = fingerprint(self.machine)
        old = self.machine.state.round - back
        failure = Failure("a", "a", rank, rank, "r", 1, FailureKind.EXIT, 1)
        late = (WorkersStarted(old), WorkerFinished(old, rank), WorkerFailed(old, failure))
        for event in (*late, GroupGone(old, 7001)):
            self.feed(event)
        assert difference(before, fingerprint(self.machine)) == ""

    @rule()
    def sweep_is_done(self) -> None:
        if self.group and self.swept:
            self.workers.clear()
            self.group = False
            self.feed(GroupGone(self.round, 7001))

    @rule()
    def say_hello(self) -> None:
        before = fingerprint(self.machine)
        self.greeted = self.machine.hello().status
        assert difference(before, fingerprint(self.machine)) == "", "to ask changes nothing"
        self.feed(HelloSent(self.greeted))

    @rule(epoch=epochs)
    def link_up(self, epoch: int) -> None:
        self.epoch = max(self.epoch, epoch)
        before = self.reported
        self.feed(LinkUp(epoch))
        if self.finish is None and not self.leaving:
            known = self.greeted if self.reported is before else self.reported
            assert known == self.machine._outbox.status(), "what Hello did not tell is told now"

    @rule()
    def link_down(self) -> None:
        self.feed(LinkDown("reset"))

    @rule(signum=st.sampled_from([2, 15]))
    def signal(self, signum: int) -> None:
        self.feed(StopSignal(signum))

    @rule(which=st.sampled_from(["end", "rejected", "broken"]))
    def end(self, which: str) -> None:
        if which == "end":
            self.stamp = (max(self.epoch, 1), self.stamp[1] + 1)
            self.epoch = self.stamp[0]
            self.feed_end(JobEnded(*self.stamp, Outcome.SUCCEEDED, "done"))
        elif which == "rejected":
            self.feed_end(Rejected(RejectCode.SUPERSEDED, "no"))
        else:
            self.feed(Broken(10, "no disk"))

    def feed_end(self, message: JobEnded | Rejected) -> None:
        self.ended = True
        self.feed(Directed(message))

    @rule(seconds=st.sampled_from([0.5, 3.0, 4.0, 61.0]), punctual=st.booleans())
    def wait(self, seconds: float, punctual: bool) -> None:
        """A clock that is asked in time, or an agent that was frozen."""
        until = self.now + seconds
        while punctual and (deadline := self.machine.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.feed(AgentTick())
        self.now = until
        self.feed(AgentTick())

    # -- what holds

    @invariant()
    def the_phase_says_what_is_there(self) -> None:
        if self.finish is not None:
            return
        phase = self.machine.state.phase
        assert (phase in IDLE) == (not self.group)
        if self.group:
            assert self.machine.state.round == self.round
            assert self.workers <= self.machine.group.alive
        if phase is AgentPhase.RUNNING:
            assert self.workers
        elif phase is AgentPhase.FINISHED:
            assert not self.workers
            assert not self.machine.state.failures
        elif phase in ENDING:
            assert self.swept or self.workers, "somebody is waited for, or swept"

    @invariant()
    def what_was_told_was_done(self) -> None:
        """Level-triggered: nothing that is wanted waits for another event."""
        if self.finish is not None or self.machine.state.phase in ENDING:
            return
        assert self.machine.state.departure is None, "who wants to go stops its workers or goes"
        if self.group:
            assert self.round > self.told_to_stop
        elif self.machine.state.phase is AgentPhase.READY and isinstance(self.newest, StartRound):
            wanted = self.newest.assignment.round
            assert wanted <= max(self.machine.state.round, self.told_to_stop)

    @invariant()
    def the_master_knows(self) -> None:
        if self.reported is not None and self.finish is None and not self.leaving:
            status = self.machine._outbox.status()
            assert status == self.reported
            assert (status.store_port > 0) == (status.phase is AgentPhase.READY)

    @invariant()
    def an_end_is_bounded(self) -> None:
        if self.finish is None and self.machine.state.phase in ENDING:
            assert self.machine.next_deadline() is not None


TestAgentMachine = AgentRules.TestCase
TestAgentMachine.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
