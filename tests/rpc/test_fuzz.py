"""No messages that decode break an encode, stop another node, or grow the master beyond its bound.

A master in a process of its own serves a *witness*, an honest agent, while *liars* say whatever their
messages can carry: absurd numbers, long texts, other nodes' names, in orders that no agent has. Afterwards
the witness must have its stream and its round still, every answer must decode, the journal must be one that a
master accepts, and the master must not have grown. It takes 5,000 messages, and ``ELASTICRUN_FUZZ=100000``
of them for a night.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import grpc.aio
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from elasticrun import __version__
from elasticrun.config import (
    Action,
    FailureClass,
    HealthCheckMode,
    HealthConfig,
    JobConfig,
    Policy,
    PolicyRule,
    TaskRole,
)
from elasticrun.core.protocol.messages import (
    AgentMessage,
    AgentPhase,
    AgentStatus,
    Failure,
    FailureKind,
    GroupReport,
    Heartbeat,
    Hello,
    JobEnded,
    JournalCopy,
    Leave,
    MasterMessage,
    NodeInfo,
    ProbeReport,
    Rejected,
    Report,
    Stall,
    StartRound,
    StopRound,
    Vote,
    World,
)
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.core.protocol.usage import TaskUsage
from elasticrun.errors import ProtocolError
from elasticrun.master.journal import TAIL, read_journal, replay
from elasticrun.master.service import JOURNAL_NAME
from elasticrun.rpc import codec
from tests.rpc.harness import DEADLINE, OPEN, RawCall, raw_calls
from tests.rpc.process import Master, master_process

MESSAGES = int(os.environ.get("ELASTICRUN_FUZZ", "5000"))
BATCH = 250  # messages of one example
LIARS = 8  # at once
MAX_GROWTH = 64 << 20  # bytes
ALL_RESTART = Policy(
    same_error_rounds=0,
    backoff_first=0.0,
    rules=tuple(PolicyRule(each, Action.RESTART) for each in FailureClass),
)
FULL = JobConfig("job", 1, 1, last_call_timeout=0.0, heartbeat_timeout=3600.0)
OPEN_WORLD = replace(
    FULL,
    max_nodes=64,
    max_restarts=10**6,
    policy=ALL_RESTART,
    health=HealthConfig(mode=HealthCheckMode.OFF),
)


class Liar:
    """Makes messages that decode, from a seed."""

    def __init__(self, seed: int, incarnation: str, round_: int) -> None:
        self._chance = random.Random(seed)
        self.incarnation = incarnation
        self.name = f"x{self._chance.randrange(LIARS)}"
        self._sequence = 0
        self.round = round_  # that the witness is in

    def hello(self) -> Hello:
        chance = self._chance
        roles = (chance.choice(list(TaskRole)),) * chance.choice([0] * 20 + [1, 2, 256])
        info = NodeInfo(
            self.name,
            self.incarnation,
            self._text(1, 500),
            self._text(1, 500),
            chance.choice([1, 1, 2, 2**14]),
            self._text(1, 500),
            chance.choice([None, None, None, 0, 2**30]),
            chance.choice([0, 2**30]),
            chance.choice([-1, 0, 1, 2**10]),
            roles,
        )
        return Hello("job", __version__, info, self._status(), self._number(-1))

    def message(self) -> AgentMessage:
        kind = self._chance.random()
        if kind < 0.9:
            return Report(self.incarnation, self._status())
        if kind < 0.96:
            usage = [TaskUsage(rank, 1e30, 2**60, 2**53, 0.0, 1e30) for rank in range(self._count(256))]
            return Heartbeat(self.incarnation, tuple(usage))
        if kind < 0.965:
            return self.hello()
        if kind < 0.975:
            return Leave(self.incarnation, self._text(0, 9000))
        return Report(
            self.incarnation,
            AgentStatus(self._next(), AgentPhase.READY, self.round, store_port=1),
        )

    def _status(self) -> AgentStatus:
        chance = self._chance
        self._next()
        round_ = self._number(-1)
        votes = tuple(self._vote(round_) for _ in range(self._count(64))) if round_ >= 0 else ()
        return AgentStatus(
            min(self._sequence, 2**53),
            chance.choice(list(AgentPhase)),
            round_,
            tuple(self._failure() for _ in range(self._count(8))),
            chance.choice([0, 1, 65535]),
            self._probe() if chance.random() < 0.2 else None,
            self._stall() if chance.random() < 0.2 else None,
            votes,
            chance.random() < 0.3,
            tuple(range(1, 1 + self._count(256))),
            tuple(
                TaskReport(rank, chance.choice([0, 1, 2**53]), chance.random() < 0.5, None)
                for rank in range(self._count(256))
            ),
        )

    def _next(self) -> int:
        self._sequence += self._chance.choice([0, 1, 1, 1, 1, 2**20])
        return self._sequence

    def _vote(self, round_: int) -> Vote:
        world = World(
            self._chance.choice([0, round_]),
            max(0, self._number(-1)),
            self._chance.choice([1, 2, 2**20]),
        )
        base = None if self._chance.random() < 0.5 else replace(world, round=0)
        return Vote(world, base, tuple(self._text(1, 30) for _ in range(self._count(64))))

    def _failure(self) -> Failure:
        chance = self._chance
        return Failure(
            self.name if chance.random() < 0.995 else "witness",
            self._text(1, 100),
            chance.choice([0, 2**30]),
            chance.choice([0, 2**30]),
            self._text(1, 100),
            chance.choice([0, 2**30]),
            chance.choice(list(FailureKind)),
            chance.choice([-(2**31), -9, 1, 42, 2**31 - 1]),
            self._text(0, 9000),
            self._text(0, 9000),
            self._text(0, 9000),
            self._text(0, 4000),
            chance.choice([0.0, 5e-324, 1e11]),
            chance.choice([-1, 0, 2**53]),
            chance.choice([0, 2**30]),
            chance.random() < 0.5,
            self._text(0, 9000),
        )

    def _probe(self) -> ProbeReport:
        group = GroupReport(self._text(0, 300), self._rate(), self._chance.choice([0.0, 1e9]), "tcp")
        return ProbeReport(
            max(0, self._number(0)),
            self._text(0, 9),
            self._rate(),
            (group,) * self._count(64),
        )

    def _stall(self) -> Stall:
        step = self._chance.choice([-1, 0, 2**53])
        return Stall(2**30, 2**30, step, 1e9, 0.0, True, self._text(0, 300), "/nowhere", 1e11)

    def _number(self, low: int) -> int:
        """Mostly near what holds now, so that much is believed; rarely absurd."""
        if self._chance.random() < 0.01:
            return self._chance.choice([2**31, 2**32 - 9, 2**53])
        return max(
            low,
            self.round + self._chance.choice([-1, 0, 0, 0, 0, 0, 1, 2, -self.round, -self.round - 1]),
        )

    def _rate(self) -> float:
        return self._chance.choice([0.0, 5e-324, 1.0, 1e12, 1e30])

    def _count(self, most: int) -> int:
        return self._chance.choice([0, 0, 0, 0, 0, 1, 2, most])

    def _text(self, least: int, most: int) -> str:
        length = self._chance.choice([least, least, least + 1, least + 5, most])
        return (
            self._chance.choice(["x", "\x00", "\n", "\x1b[31m", "é", "😀", "ValueError: ", " "])[:1] * length
        )


class Witness:
    """An honest agent that wants nothing but to train."""

    def __init__(self) -> None:
        self.stops = 0
        self.over = ""
        self.round = -1
        self.is_running = False
        self._sequence = 0
        self._changed = asyncio.Event()

    async def serve(self, call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        """Do as it is told until the stream ends."""
        info = NodeInfo("witness", "witness-1", "localhost", "127.0.0.1", 1)
        await call.write(codec.encode_agent(Hello("job", __version__, info, self._now(AgentPhase.READY))))
        try:
            while isinstance(data := await call.read(), bytes):
                for message in () if data == codec.GOODBYE else codec.decode_master(data):
                    await self._obey(call, message)
                self._changed.set()
            self.over = self.over or "its stream ended"
        except (ProtocolError, grpc.aio.AioRpcError) as error:
            self.over = repr(error)
        self._changed.set()

    async def trains(self) -> None:
        """Wait until it does, or cannot any more."""
        while not self.is_running and not self.over:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), DEADLINE)
        assert not self.over, f"the witness was stopped: {self.over}"

    def _now(self, phase: AgentPhase) -> AgentStatus:
        self._sequence += 1
        port = 7000 if phase is AgentPhase.READY else 0
        return AgentStatus(self._sequence, phase, self.round, store_port=port)

    async def _obey(self, call: grpc.aio.StreamStreamCall[bytes, bytes], message: MasterMessage) -> None:
        if isinstance(message, StartRound) and message.assignment.round > self.round:
            self.round, self.is_running = message.assignment.round, True
            await self._say(call, AgentPhase.RUNNING)
        elif isinstance(message, StopRound) and self.is_running and message.round >= self.round:
            self.is_running = False
            self.stops += 1
            await self._say(call, AgentPhase.STOPPING)
            await self._say(call, AgentPhase.READY)
        elif isinstance(message, JobEnded | Rejected | JournalCopy):
            self.over = str(message)[:500]

    async def _say(self, call: grpc.aio.StreamStreamCall[bytes, bytes], phase: AgentPhase) -> None:
        await call.write(codec.encode_agent(Report("witness-1", self._now(phase))))


async def lie(call: RawCall, liar: Liar, count: int) -> Counter[str]:
    """One stream of a liar: it says much, then hears what it was answered."""
    said: Counter[str] = Counter()

    async def write() -> None:
        try:
            for number in range(count):
                message = liar.message() if number else liar.hello()
                await call.call.write(codec.encode_agent(message))
                said[type(message).__name__] += 1
            await call.call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            said["cut off"] += 1

    writer = asyncio.create_task(write())
    try:
        while isinstance(data := await asyncio.wait_for(call.call.read(), 4 * DEADLINE), bytes):
            for answer in () if data == codec.GOODBYE else codec.decode_master(data):
                said[f"-> {type(answer).__name__}"] += 1
                if isinstance(answer, Rejected):
                    said[f"-> {answer.code.value}"] += 1
            if data == codec.GOODBYE:
                await writer
                await call.call.done_writing()
    except grpc.aio.AioRpcError:
        said["ended"] += 1
    finally:
        await writer
    return said


class Trial:
    """A master, its witness, and one event loop for all examples."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self.loop = asyncio.new_event_loop()
        self.witness = Witness()
        self.said: Counter[str] = Counter()
        self._opened = raw_calls(master.endpoint)
        self._task = self.loop.run_until_complete(self._begin())
        self.run(self.witness.trains())
        self._lives = 0

    async def _begin(self) -> asyncio.Task[None]:
        """In the loop, as gRPC asks for the one that runs."""
        open_call = await self._opened.__aenter__()
        return asyncio.ensure_future(self.witness.serve(open_call().call))

    def run(self, main: object) -> None:
        self.loop.run_until_complete(main)  # type: ignore[arg-type]

    def batch(self, seed: int) -> None:
        self.run(self._batch(seed))

    async def _batch(self, seed: int) -> None:
        each = BATCH // LIARS
        async with raw_calls(self.master.endpoint) as opened:
            liars = []
            for number in range(LIARS):
                self._lives += 1
                life = f"i{self._lives}" if (seed + number) % 5 else "i0"
                liars.append(lie(opened(), Liar(seed + number, life, self.witness.round), each))
            for said in await asyncio.gather(*liars):
                self.said += said
        await self.witness.trains()

    def close(self) -> None:
        self._task.cancel()
        self.run(asyncio.wait((self._task,)))
        self.run(self._opened.__aexit__(None, None, None))
        self.loop.close()

    @property
    def messages(self) -> int:
        return sum(self.said[kind] for kind in ("Hello", "Report", "Heartbeat", "Leave"))


EXCLUDING = replace(
    OPEN_WORLD,
    policy=replace(
        ALL_RESTART,
        rules=tuple(PolicyRule(each, Action.LEAVE) for each in FailureClass),
    ),
)
CONFIGS = {"full": FULL, "open": OPEN_WORLD, "excluding": EXCLUDING}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_sequence_of_messages_stops_another_node_or_grows_the_master(
    tmp_path: Path, config: JobConfig
) -> None:
    with master_process(tmp_path, OPEN, job=config) as master:
        trial = Trial(master)
        for seed in range(8):  # what any first of its kind costs once
            trial.batch(seed)
        before = master.memory()

        @settings(
            max_examples=max(1, MESSAGES // len(CONFIGS) // BATCH),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.integers(0, 2**40))
        def lies(seed: int) -> None:
            trial.batch(seed)

        lies()
        growth = master.memory() - before
        size = (tmp_path / JOURNAL_NAME).stat().st_size
        witness = trial.witness
        trial.close()
        print(f"{trial.messages} messages, the witness was stopped {witness.stops} times; {dict(trial.said)}")
        print(f"memory {before >> 20} MiB, grown by {growth / (1 << 20):.1f} MiB; journal {size >> 10} KiB")
        assert growth < MAX_GROWTH
        assert size < 3 * TAIL
        if config is FULL:
            assert witness.stops == 0
    found = read_journal(tmp_path / JOURNAL_NAME)
    assert found is not None
    assert not replay(tmp_path / JOURNAL_NAME, *found).state.ended
