"""A worker's asks about shared data over the socket of a real agent, which a master's rule answers."""

from __future__ import annotations

import binascii
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from elasticrun.agent.memory.relay import DataRelay
from elasticrun.core.data.desk import MAX_DESKS, Desks
from elasticrun.core.data.leases import Progress
from elasticrun.core.protocol.data import (
    MAX_FAILED,
    MAX_PIECES,
    AskData,
    DataAnswer,
    DataLeft,
    DataReader,
    FailedPiece,
    OpenData,
    ShardPiece,
)
from elasticrun.data import Plan
from elasticrun.data.agent_line import VARIABLE, AgentLine
from elasticrun.data.shared_leases import SharedLeases
from elasticrun.errors import DataError
from elasticrun.rpc.packing import packed
from elasticrun.rpc.records import from_json, to_json
from tests.support.memory_client import save
from tests.support.memory_host import MemoryHost
from tests.support.processes import DEADLINE

pytestmark = pytest.mark.torch
DEEP = binascii.b2a_base64(zlib.compress(b"[" * 100_000), newline=False).decode()
BODY = {
    name: value
    for name, value in to_json(AskData("-", DataReader(0, 0, "data", "one", 0), 1)).items()
    if name != "incarnation"
}


class Master:
    """Answers the only rank there is, in the agent's loop."""

    def __init__(self) -> None:
        self.desks = Desks()
        self.is_away = False
        self.asked: list[OpenData | AskData] = []
        self.relay = DataRelay("me", self.hear)

    def hear(self, ask: OpenData | AskData) -> None:
        self.asked.append(ask)
        if self.is_away:
            return
        told = self.desks.open(0, ask) if isinstance(ask, OpenData) else self.desks.ask(0, ask, 0.0)
        for _, answer in told:
            self.relay.answered(answer)


def hosted(master: Master | None = None) -> MemoryHost:
    host = MemoryHost()
    host.relay = None if master is None else master.relay
    return host


def line_to(host: MemoryHost) -> Callable[[float], AgentLine]:
    return lambda patience: AgentLine.connect(host.environment(), patience)


def test_an_epoch_over_the_socket() -> None:
    master, plan = Master(), Plan.of_samples(10_000, 1, shuffle=False)
    with hosted(master) as host:
        it = SharedLeases(plan, "data", 1, connect=line_to(host))
        leases = [lease for _ in range(3000) for lease in it.take(0)]
        assert [each.shard.start for each in leases] == [*range(3000)]
        it.consume({lease.id: Progress(lease.shard.stop) for lease in leases[::2]})
        state = json.loads(json.dumps(it.state()))
        assert len(state["free"]) >= 1500, "so long that it is compressed on its way"
        other = SharedLeases(plan, "data", 1, connect=line_to(host))
        with pytest.raises(DataError, match="rank 0 reads data twice in this round"):
            other.take(0)
        again = SharedLeases(plan, "again", 1, connect=line_to(host))
        again.load(state)
        assert again.take(0)[0].shard.start == 1
        assert {each.reader.round for each in master.asked} == {1}


def test_a_worker_saves_while_it_reads_as_many_datasets_as_a_round_may_have() -> None:
    with hosted(Master()) as host:
        read = [
            SharedLeases(Plan.of_samples(8, 4), str(n), 1, connect=line_to(host)) for n in range(MAX_DESKS)
        ]
        assert [len(each.take(0)) for each in read] == [1] * MAX_DESKS
        memory = host.connect()
        save(memory, 1, b"state")
        memory.close()


def test_a_master_that_is_away_answers_when_it_is_back() -> None:
    master = Master()
    with hosted(master) as host:
        it = SharedLeases(Plan.of_samples(8, 4), "data", 1, connect=line_to(host))
        master.is_away = True
        it._call += 1
        it._send(OpenData("", it._reader(), 1, it._digest, 2, 1, 60.0))
        host.settle()
        assert not it._line.has_answer  # type: ignore[union-attr]
        master.is_away = False
        host.call(master.relay.attached)
        assert it._hear() is not None


def test_the_longest_state_goes_there_and_back() -> None:
    """Else no round could load it that was saved with many leases open."""
    draw = random.Random(3)

    def piece() -> ShardPiece:
        epoch, place = draw.randrange(2**53), draw.randrange(2**53)
        return ShardPiece(epoch, place, draw.randrange(2**61), draw.randrange(2**61, 2**62))

    def cause() -> str:
        return "".join(map(chr, draw.choices(range(0x4E00, 0x9FFF), k=100)))

    left = DataLeft(
        1,
        2,
        tuple(piece() for _ in range(MAX_PIECES)),
        tuple(FailedPiece(piece(), cause()) for _ in range(MAX_FAILED)),
    )
    master, reader = Master(), DataReader(1, 0, "data", "one", 0)
    master.is_away = True
    with hosted(master) as host:
        line = line_to(host)(DEADLINE)
        asked = OpenData("me", reader, 1, "d" * 64, 2**62, 1, 60.0, "e" * 64, left)
        body = to_json(asked)
        del body["incarnation"]
        line.ask("OpenData", body)
        host.settle()
        assert master.asked == [asked]
        answer = DataAnswer(1, 1, "one", 1, left=left)
        host.call(lambda: master.relay.answered(answer))
        assert from_json(DataAnswer, line.answer()) == answer


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"ask": "data", "kind": "Hello", "body": {}}, "it asks for nothing that is known: 'Hello'"),
        ({"ask": "data", "kind": "AskData", "body": "abc"}, "makes no sense"),
        ({"ask": "data", "kind": "AskData", "body": 3}, "it asks for nothing that is known"),
        ({"ask": "data", "kind": "AskData", "body": DEEP}, "it is nested too deeply"),
        ({"ask": "data", "kind": "AskData", "body": packed({"call": "x" * 500_000})}, "has the fields"),
        ({"ask": "data", "kind": "AskData", "body": packed({**BODY, "call": "x" * 500_000})}, "xxx"),
    ],
    ids=["kind", "text", "body", "deep", "fields", "long"],
)
def test_what_makes_no_sense_is_refused_and_ends_nothing_but_its_connection(message: Any, said: str) -> None:
    with hosted(Master()) as host:
        line = line_to(host)(DEADLINE)
        line._send(message)
        with pytest.raises(DataError, match=said):
            line.answer()


def test_an_agent_that_passes_nothing_on_says_so() -> None:
    with hosted() as host:
        line = line_to(host)(DEADLINE)
        line.ask("AskData", {})
        with pytest.raises(DataError, match="nobody answers that here"):
            line.answer()


def test_an_agent_that_has_gone() -> None:
    with hosted(Master()) as host:
        line, environment = line_to(host)(DEADLINE), host.environment()
    with pytest.raises(DataError, match=r"has hung up without an answer|does not answer"):
        line.answer()
    with pytest.raises(DataError, match="the agent has gone"):
        line.ask("AskData", {})
    with pytest.raises(DataError, match="the agent cannot be reached"):
        AgentLine.connect(environment, DEADLINE)


def test_an_agent_that_does_not_answer_in_time() -> None:
    master = Master()
    master.is_away = True
    with hosted(master) as host:
        it = SharedLeases(Plan.of_samples(8, 4), "data", 1, connect=line_to(host))
        it._connect = lambda _: line_to(host)(0.01)
        with pytest.raises(DataError, match="the agent has not answered: is the job's master away"):
            it.take(0)


@pytest.mark.parametrize("value", ["", "1:none", "2:name:token:0"])
def test_without_an_agent(value: str) -> None:
    with pytest.raises(DataError, match="start the script with elastic-run"):
        AgentLine.connect({VARIABLE: value}, 1.0)


def test_a_child_cannot_ask() -> None:
    with hosted(Master()) as host:
        line = line_to(host)(DEADLINE)
        line._process -= 1  # as in a child
        with pytest.raises(DataError, match="a process that was forked cannot read shared data"):
            line.ask("AskData", {})
