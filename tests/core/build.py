"""Short ways to say who reports what, for the tests of core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from elasticrun.config import JobConfig
from elasticrun.core.agent.events import (
    AgentEffect,
    AgentEvent,
    AgentTerms,
    Finish,
    HelloSent,
    LinkUp,
    Prepared,
    Say,
    Transmit,
)
from elasticrun.core.agent.machine import AgentMachine
from elasticrun.core.job.describe import Usages, describe
from elasticrun.core.job.events import (
    Attached,
    Decided,
    Drop,
    JobEffect,
    JobEvent,
    MasterStarted,
    Reported,
    Send,
)
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Failure,
    FailureKind,
    Hello,
    MasterMessage,
    NodeInfo,
    Report,
    StartRound,
    Trust,
)
from elasticrun.core.protocol.status import JobPhase, status_in_words

Kind = TypeVar("Kind")


def info(node: str, life: int = 1, **changes: Any) -> NodeInfo:
    values: dict[str, Any] = {"host": node, "address": f"{node}.net", "local_world_size": 1} | changes
    return NodeInfo(node, f"{node}.{life}", **values)


def failure(node: str = "a", kind: FailureKind = FailureKind.EXIT, rank: int = 0, code: int = 1) -> Failure:
    return Failure(node, node, rank, 0, "default", 1, kind, code)


class Job:
    """A job machine with agents that are said to do this and that. ``now`` stands still unless moved."""

    def __init__(self, epoch: int = 1, **config: Any) -> None:
        self.machine = JobMachine(JobConfig(**({"last_call_timeout": 0.0} | config)))
        self.now = 0.0
        self.said: list[JobEffect] = []  # by the newest event
        self.sessions: dict[str, int] = {}
        self.warming: set[str] = set()  # nodes that say so whenever they are READY
        self.trust = Trust.RETURNING  # of who says Hello: it is itself
        self._newest = 0
        self._sequences: dict[str, int] = {}
        self.do(MasterStarted(epoch))

    def do(self, event: JobEvent) -> list[JobEffect]:
        self.said = self.machine.handle(event, self.now)
        return self.said

    def status(self, node: str, phase: AgentPhase, round_: int, *failures: Failure) -> AgentStatus:
        self._sequences[node] = self._sequences.get(node, 0) + 1
        port = 7000 + self._sequences[node] if phase is AgentPhase.READY else 0
        warming = port > 0 and node in self.warming
        return AgentStatus(self._sequences[node], phase, round_, failures, port, warming=warming)

    def hello(self, node: str, phase: AgentPhase, round_: int, epoch: int, life: int, **who: Any) -> Hello:
        status = self.status(node, phase, round_)
        return Hello("job", "1", info(node, life, **who), status, epoch, trust=self.trust)

    def attach(
        self,
        node: str,
        phase: AgentPhase = AgentPhase.READY,
        round_: int = -1,
        epoch: int = -1,
        life: int = 1,
        **who: Any,
    ) -> list[JobEffect]:
        self._newest += 1
        self.sessions[node] = self._newest
        return self.do(Attached(self._newest, self.hello(node, phase, round_, epoch, life, **who)))

    def report(self, node: str, phase: AgentPhase, round_: int, *failures: Failure) -> list[JobEffect]:
        return self.do(Reported(self.sessions[node], self.status(node, phase, round_, *failures)))

    def all_report(self, nodes: Sequence[str], phase: AgentPhase, round_: int) -> list[JobEffect]:
        return [effect for node in nodes for effect in self.report(node, phase, round_)]

    def join(self, *nodes: str) -> None:
        """Nodes attach, READY, but their workers would wait for imports."""
        for node in nodes:
            self.warming.add(node)
            self.attach(node)

    def warm_up(self, node: str) -> list[JobEffect]:
        """A READY node's imports are done."""
        self.warming.discard(node)
        return self.report(node, AgentPhase.READY, -1)

    def pass_time(self, seconds: float) -> list[JobEffect]:
        """Let deadlines pass, each at its instant."""
        until, effects = self.now + seconds, list[JobEffect]()
        while (deadline := self.machine.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            for event in self.machine.due(self.now):
                effects += self.do(event)
        self.now = until
        self.said = effects
        return effects

    def phase(self) -> JobPhase:
        return self.machine.state.phase

    def told(self, node: str, kind: type[Kind]) -> list[Kind]:
        """What the newest event told a node."""
        messages = [e.message for e in self.said if isinstance(e, Send) and e.session == self.sessions[node]]
        return [message for message in messages if isinstance(message, kind)]

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.said if isinstance(effect, kind)]

    def decided(self) -> str:
        """What the newest event led to, in words."""
        return "; ".join(said.text for said in self.of(Decided))

    def drops(self) -> list[Drop]:
        return self.of(Drop)


def running(nodes: Sequence[str], **config: Any) -> Job:
    """A job whose round 0 runs on nodes of these names, each a letter if they are one text."""
    sizes = {"min_nodes": len(nodes), "max_nodes": len(nodes), "last_call_timeout": 1.0}
    job = Job(**(sizes | config))
    for node in nodes:
        job.attach(node)
    job.pass_time(1.0)
    job.all_report(nodes, AgentPhase.RUNNING, 0)
    return job


class Agent:
    """An agent's machine of two workers; ``now`` stands still unless moved."""

    def __init__(self, **terms: Any) -> None:
        self.machine = AgentMachine("job", "1", info("a", local_world_size=2), AgentTerms(**terms))
        self.now = 0.0
        self.said: list[AgentEffect] = []

    def do(self, *events: AgentEvent) -> list[AgentEffect]:
        for event in events:
            self.said = self.machine.handle(event, self.now)
            self.machine.check()
        return self.said

    def greet(self) -> Hello:
        """What a new stream begins with, as the link sends it."""
        hello = self.machine.hello()
        self.do(HelloSent(hello.status))
        return hello

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.said if isinstance(effect, kind)]

    def sent(self) -> list[object]:
        return [effect.message for effect in self.said if isinstance(effect, Transmit)]

    def reported(self) -> list[AgentPhase]:
        return [message.status.phase for message in self.sent() if isinstance(message, Report)]

    def heard(self) -> list[str]:
        return [say.text for say in self.of(Say)]

    @property
    def finish(self) -> Finish:
        assert isinstance(self.said[-1], Finish)
        return self.said[-1]


def described(job: JobMachine, usages: Usages | None = None) -> str:
    """What an operator is shown."""
    return status_in_words(describe(job.state, usages))


def start(round_: int, sequence: int = 1, epoch: int = 1) -> StartRound:
    return StartRound(epoch, sequence, Assignment(round_, 0, 1, 0, 2, 0, 2, "a.net", 7001, 0, 3), "because")


def ready_agent(**terms: Any) -> Agent:
    agent = Agent(**terms)
    agent.do(Prepared(7001), LinkUp(1))
    return agent


def message_types(job: Job, node: str) -> list[type[MasterMessage]]:
    return [type(e.message) for e in job.said if isinstance(e, Send) and e.session == job.sessions[node]]
