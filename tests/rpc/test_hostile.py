"""Ten thousand hostile messages against a master process: it serves on, and has not grown."""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from elasticrun import __version__
from elasticrun.config import Endpoint
from elasticrun.core.protocol.messages import AgentMessage, Heartbeat, Leave, Rejected, Welcome
from elasticrun.core.protocol.orders import ControlHello, DrainNode, ShowStatus
from elasticrun.core.protocol.tasks import TaskReport
from elasticrun.errors import ProtocolError
from elasticrun.rpc import codec
from elasticrun.rpc.client import MasterStream
from elasticrun.rpc.codec.control import encode_control
from elasticrun.rpc.control import give_order
from elasticrun.rpc.security.auth import SIZE, Handshake, challenge_in, keyed
from elasticrun.rpc.transport import CONTROL_PATH, PATH
from tests.rpc import raw_http2 as http2
from tests.rpc.harness import (
    DEADLINE,
    LOCKED,
    NONCE,
    TOKEN,
    RawCall,
    hello,
    proven,
    raw_calls,
    report,
    run,
    with_proof,
)
from tests.rpc.process import ROOT, Master, master_process

SEED = 20_031
MESSAGES = 10_000
STREAMS_PER_CONNECTION = 10
CONNECTIONS_AT_ONCE = 16
MAX_GROWTH = 50 << 20  # bytes


# What an attacker says


class Attacker:
    """Makes hostile streams; knows what it has recorded of an honest one, but not the token."""

    def __init__(self, chance: random.Random, recorded: list[bytes]) -> None:
        self._chance = chance
        self._recorded = recorded
        self.kinds: tuple[Callable[[int], bytes], ...] = (
            self.noise,
            self.mutated,
            self.mutated,
            self.cut_short,
            self.wrong_token,
            self.wrong_token,
            self.replayed,
            self.unannounced,
            self.order,
            self.endless,
            self.inflated,
            self.elsewhere,
        )

    def noise(self, stream: int) -> bytes:
        """Bytes that mean nothing."""
        return self._say(stream, self._chance.randbytes(self._chance.randrange(300)))

    def mutated(self, stream: int) -> bytes:
        """A good Hello with some bytes changed, left out or doubled."""
        data = bytearray(self._chance.choice(self._recorded))
        for _ in range(self._chance.randrange(1, 6)):
            at = self._chance.randrange(len(data))
            match self._chance.randrange(3):
                case 0:
                    data[at] ^= 1 << self._chance.randrange(8)
                case 1:
                    del data[at : at + self._chance.randrange(1, 9)]
                case _:
                    data[at:at] = data[at : at + self._chance.randrange(1, 99)]
            data = data or bytearray(1)
        return self._say(stream, bytes(data))

    def cut_short(self, stream: int) -> bytes:
        """The first half of a good Hello, as if that were all."""
        data = self._chance.choice(self._recorded)
        return self._say(stream, data[: self._chance.randrange(len(data))])

    def wrong_token(self, stream: int) -> bytes:
        """A Hello with a proof of nothing."""
        said = replace(hello(), nonce=self._chance.randbytes(SIZE))
        guess = Handshake(keyed(self._chance.randbytes(9).hex()), bytes(SIZE))
        data = codec.encode_agent(said)
        proof = self._chance.choice([self._chance.randbytes(SIZE), guess.of_agent(data)])
        return self._say(stream, self._chance.choice([data, with_proof(data, proof)]))

    def replayed(self, stream: int) -> bytes:
        """What a master accepted once, to the byte."""
        return self._say(stream, *self._recorded)

    def unannounced(self, stream: int) -> bytes:
        """Messages of somebody who never said Hello."""
        messages: list[AgentMessage] = [Heartbeat("i0"), report(3), Leave("i0", "x" * 5000)]
        said = self._chance.choice(messages)
        return self._say(stream, codec.encode_agent(said), codec.encode_agent(said))

    def order(self, stream: int) -> bytes:
        """An order that is not proven, or none at all."""
        said = encode_control(ControlHello("job", __version__, bytes(SIZE), self._chance.randbytes(SIZE)))
        drain = encode_control(DrainNode("n0", "because"))
        parts = self._chance.choice(
            [[said, drain], [drain], [said[:9], drain], [self._chance.randbytes(50)], []]
        )
        payload = b"".join(http2.message(stream, part) for part in parts)
        return (
            http2.call(stream, CONTROL_PATH)
            + payload
            + http2.frame(http2.DATA, http2.END_STREAM, stream, b"")
        )

    def endless(self, stream: int) -> bytes:
        """Promises more than any message may have."""
        promised = self._chance.choice([3 << 20, 1 << 31, 0xFFFFFFFF])
        return http2.call(stream, PATH) + http2.message(stream, self._chance.randbytes(500), promised)

    def inflated(self, stream: int) -> bytes:
        """A Hello whose names are longer than any may be."""
        said = hello(job_id="j" * self._chance.randrange(600, 9000))
        return self._say(stream, codec.encode_agent(said))

    def elsewhere(self, stream: int) -> bytes:
        """Asks for a method that there is not."""
        path = self._chance.choice(["/", "/elasticrun.v1.Master/Stop", "/x" * 60])
        return http2.call(stream, path) + http2.message(stream, b"")

    def address(self) -> str:
        """Where to come from; the loopback has many addresses."""
        network, host = self._chance.randrange(1, 9), self._chance.randrange(1, 255)
        return f"127.{network}.{self._chance.randrange(256)}.{host}"

    def _say(self, stream: int, *said: bytes) -> bytes:
        return http2.call(stream, PATH) + b"".join(http2.message(stream, data) for data in said)


async def record(endpoint: Endpoint) -> list[bytes]:
    """An honest agent's messages on a stream that a master accepted."""
    async with raw_calls(endpoint) as opened:
        call: RawCall = opened()
        challenge = challenge_in(await call.call.initial_metadata())
        assert challenge
        fares = tuple(TaskReport(rank, rank) for rank in range(4))
        said = replace(hello(), status=replace(hello().status, ports=(7001, 7002), tasks=fares))
        shake = Handshake(keyed(TOKEN), challenge)
        agent, master = shake.seals(NONCE)
        messages = [proven(shake, said), agent.close(codec.encode_agent(Leave("i0", "recorded")))]
        for message in messages:
            await call.call.write(message)
        answer = await call.call.read()
        assert isinstance(answer, bytes)
        assert isinstance(codec.decode_master(master.open(answer))[0], Welcome)
        await call.call.done_writing()
        while isinstance(await call.call.read(), bytes):
            pass
    return messages


def outcome(heard: http2.Heard, stream: int) -> str:
    for data in heard.messages.get(stream, ()):
        try:
            (answer,) = codec.decode_master(data)
        except ProtocolError:
            continue
        assert isinstance(answer, Rejected), f"an attacker was answered {answer}"
        return answer.code.value
    return "ended" if stream in heard.ended or heard.gone else "nothing"


async def many_streams(attacker: Attacker, endpoint: Endpoint, chance: random.Random) -> Counter[str]:
    """One connection with several hostile streams, each with a message or more."""
    streams = [2 * number + 1 for number in range(STREAMS_PER_CONNECTION)]
    kinds = {stream: chance.choice(attacker.kinds) for stream in streams}
    data = b"".join(kind(stream) for stream, kind in kinds.items())
    heard = await http2.attack(endpoint, attacker.address(), data, set(streams), DEADLINE)
    return Counter(f"{kinds[stream].__name__}: {outcome(heard, stream)}" for stream in streams)


async def half_a_connection(attacker: Attacker, endpoint: Endpoint, chance: random.Random) -> Counter[str]:
    """Begins something, and is gone: in the middle of a frame, of a message, or of nothing it ever said."""
    whole = attacker.mutated(1) + attacker.replayed(3)
    frames = http2.frame(
        chance.randrange(256), chance.randrange(256), chance.randrange(9), chance.randbytes(40)
    )
    half = http2.call(1, PATH) + http2.message(1, b"x" * 1000, promised=1 << 20)
    data = chance.choice([whole[: chance.randrange(len(whole))], frames, half, chance.randbytes(300), b""])
    await http2.attack(endpoint, attacker.address(), data, set(), DEADLINE)
    return Counter({"half a connection: gone": 1})


async def storm(master: Master, attacker: Attacker, chance: random.Random) -> Counter[str]:
    """MESSAGES hostile streams or more, CONNECTIONS_AT_ONCE connections at a time."""
    total: Counter[str] = Counter()

    async def one() -> None:
        while total.total() < MESSAGES:
            how = half_a_connection if chance.random() < 0.4 else many_streams
            total.update(await how(attacker, master.endpoint, chance))

    await asyncio.gather(*(one() for _ in range(CONNECTIONS_AT_ONCE)))
    return total


async def honest(endpoint: Endpoint, life: str) -> None:
    """An agent that knows the token gets in, and an operator is answered."""
    stream = await MasterStream.open(endpoint, hello(incarnation=life), DEADLINE, LOCKED)
    stream.send(Leave(life, "done"))
    await stream.close(DEADLINE)
    assert (await give_order(endpoint, "job", ShowStatus(), LOCKED, DEADLINE)).ok


def launch(endpoint: Endpoint, directory: Path) -> subprocess.CompletedProcess[str]:
    """A real node that joins the job at the endpoint and runs a script."""
    token, script = directory / "token", directory / "script.py"
    token.write_text(TOKEN)
    token.chmod(0o600)
    script.write_text("print('trained')\n")
    command = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "job", "--token-file", str(token)]
    return subprocess.run(
        [sys.executable, "-m", "elasticrun", *command, "--rdzv-endpoint", str(endpoint), str(script)],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.slow
def test_ten_thousand_hostile_messages(tmp_path: Path) -> None:
    chance = random.Random(SEED)

    async def main(master: Master) -> None:
        recorded = await record(master.endpoint)
        await honest(master.endpoint, "before")
        attacker = Attacker(chance, recorded)
        for _ in range(20):  # what any first of its kind costs once
            await many_streams(attacker, master.endpoint, chance)
        before, open_before = master.memory(), master.descriptors()
        outcomes = await storm(master, attacker, chance)
        await honest(master.endpoint, "after")
        growth, left = master.memory() - before, master.descriptors() - open_before
        print(f"seed {SEED}: {outcomes.total()} hostile messages")
        print("\n".join(f"{count:6d} {what}" for what, count in sorted(outcomes.items())))
        print(f"memory {before >> 20} MiB, grown by {growth / (1 << 20):.1f} MiB; {left} descriptors more")
        assert outcomes.total() >= MESSAGES
        assert growth < MAX_GROWTH
        assert left < 2 * CONNECTIONS_AT_ONCE

    with master_process(tmp_path, LOCKED) as master:
        run(main(master))
        assert master.process.poll() is None
        done = launch(master.endpoint, tmp_path)
        assert (done.returncode, done.stdout.split()) == (0, ["trained"]), done.stderr


@pytest.mark.slow
def test_connections_that_say_nothing_do_not_keep_agents_out_for_long(tmp_path: Path) -> None:
    """They take every descriptor that the master may have, until they are cut for their silence."""

    async def main(master: Master) -> None:
        most = master.descriptors() + 50
        resource.prlimit(master.process.pid, resource.RLIMIT_NOFILE, (most, most))
        silent = []
        for number in range(3 * 50):
            address = (f"127.9.0.{number + 1}", 0)
            _, writer = await asyncio.open_connection(
                master.endpoint.host, master.endpoint.port, local_addr=address
            )
            silent.append(writer)
        await honest(master.endpoint, "patient")
        for writer in silent:
            writer.transport.abort()

    with master_process(tmp_path, LOCKED) as master:
        run(main(master))


def test_a_master_may_have_more_descriptors_than_its_agent(tmp_path: Path) -> None:
    with master_process(tmp_path, LOCKED, descriptors=300) as master:
        soft, hard = resource.prlimit(master.process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 65_536) > 300
