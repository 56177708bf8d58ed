"""Store servers as the agent sees them: a starter that a test plays, and real sockets."""

from __future__ import annotations

import array
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from elasticrun.agent.programs import STORE_SERVER
from elasticrun.agent.spawner.client import Command, Exited, SpawnFailed, Started, WarmNews
from elasticrun.agent.workers.store import CLOSE, FIRST_NUMBER, RoundStore
from elasticrun.agent.workers.warm_recipes import torch_key
from elasticrun.config import Entrypoint, EntrypointKind, WorkerConfig
from elasticrun.core.agent.events import StoreLost
from elasticrun.core.protocol.messages import Assignment, FailureKind, NodeInfo

NODE = NodeInfo("box/0", "i", "box", "127.0.0.1", 1)
SCRIPT = Entrypoint(EntrypointKind.SCRIPT, "train.py", (), sys.executable)
WARM = WorkerConfig(SCRIPT, 1, warm_imports=("torch",))
SECOND = FIRST_NUMBER - 1


def seat(round_: int) -> Assignment:
    return Assignment(round_, 0, 1, 0, 1, 0, 1, "127.0.0.1", 7000 + round_, 0, 0, store_hosted=True)


class FakeStarter:
    """Keeps the sockets that servers are given, as the spawner would."""

    def __init__(self) -> None:
        self.servers: dict[int, socket.socket] = {}
        self.outputs: dict[int, int] = {}
        self.commands: list[Command] = []
        self.killed: list[int] = []

    def spawn(self, worker: int, command: Command) -> None:
        self.commands.append(command)
        self.servers[worker] = socket.socket(fileno=os.dup(command.stdin))
        self.outputs[worker] = os.dup(command.stderr)

    def signal(self, worker: int, signum: int) -> None:
        assert signum == signal.SIGKILL
        self.killed.append(worker)

    def sweep(self, spares_detached: bool = False, spare: Sequence[int] = ()) -> None:
        raise AssertionError("nobody swept")

    def order(self, worker: int) -> tuple[bytes, bool]:
        """What a server is told, and whether that came with a socket."""
        data, ancillary, _, _ = self.servers[worker].recvmsg(16, socket.CMSG_SPACE(4), socket.MSG_DONTWAIT)
        fds = array.array("i")
        for _, _, raw in ancillary:
            fds.frombytes(raw)
        for fd in fds:
            os.close(fd)
        return data, len(fds) == 1

    def close(self, worker: int) -> None:
        self.servers.pop(worker).close()
        os.close(self.outputs.pop(worker))


class Bench:
    def __init__(self, config: WorkerConfig = WARM) -> None:
        self.starter = FakeStarter()
        self.lost: list[StoreLost] = []
        self.on_lost: Callable[[], None] = lambda: None
        self.store = RoundStore(config, NODE, self.starter, self._heard)
        self.listener = socket.create_server(("127.0.0.1", 0))

    def _heard(self, lost: StoreLost) -> None:
        self.lost.append(lost)
        self.on_lost()

    def close(self) -> None:
        self.listener.close()
        self.store.close()
        for worker in [*self.starter.servers]:
            self.starter.close(worker)


async def a_turn_of_the_loop() -> None:
    passed = asyncio.Event()
    asyncio.get_running_loop().call_soon(passed.set)
    await passed.wait()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_none_serves_if_the_user_wants_that_of_rank_0() -> None:
    bench = Bench(replace(WARM, env=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)))
    assert not bench.store.is_able
    bench.close()


def test_one_server_serves_round_after_round_and_sweeps_spare_it(bench: Bench) -> None:
    store, starter = bench.store, bench.starter
    assert store.is_able
    assert store.end_round() == ()
    for round_ in (0, 1):
        store.start(seat(round_), bench.listener)
        assert starter.order(FIRST_NUMBER) == (str(7000 + round_).encode(), True)
        assert store.end_round() == (FIRST_NUMBER,)
        assert starter.order(FIRST_NUMBER) == (CLOSE, False)
    (command,) = starter.commands
    assert (command.warm, command.program, command.argv) == (
        "0",
        STORE_SERVER,
        [sys.executable, STORE_SERVER],
    )
    assert command.cpus == frozenset(os.sched_getaffinity(0))


def test_the_end_of_a_server_that_serves_is_told_once_with_its_last_words(bench: Bench) -> None:
    store = bench.store
    store.start(seat(3), bench.listener)
    assert store.on_started(Started(FIRST_NUMBER, 77))
    os.write(bench.starter.outputs[FIRST_NUMBER], b"Traceback\nRuntimeError: no\n")
    bench.starter.close(FIRST_NUMBER)
    assert store.on_exited(Exited(FIRST_NUMBER, -9))
    assert not store.on_exited(Exited(FIRST_NUMBER, -9))
    (lost,) = bench.lost
    assert (lost.round, lost.failure.kind, lost.failure.pid) == (3, FailureKind.STORE_LOST, 77)
    assert lost.failure.message.startswith("killed by SIGKILL")
    assert lost.failure.message.endswith("; its last line: RuntimeError: no")


def test_a_server_that_never_served_is_missed_only_by_who_comes_to_it(bench: Bench) -> None:
    async def scenario() -> None:
        store = bench.store
        store.start(seat(3), bench.listener)
        assert store.on_exited(Exited(FIRST_NUMBER, 1))
        assert not store.is_able, "torch cannot do it here"
        await a_turn_of_the_loop()
        assert bench.lost == []
        told = asyncio.Event()
        bench.on_lost = told.set
        with socket.create_connection(bench.listener.getsockname()):
            await asyncio.wait_for(told.wait(), 30)
            await a_turn_of_the_loop()
        (lost,) = bench.lost
        assert (lost.round, lost.failure.message) == (3, "ended with exit code 1")

    asyncio.run(scenario())


def test_nobody_comes_to_a_store_of_a_round_that_is_over(bench: Bench) -> None:
    async def scenario() -> None:
        bench.store.start(seat(0), bench.listener)
        bench.store.on_spawn_failed(SpawnFailed(FIRST_NUMBER, 11, "no processes"))
        bench.store.end_round()
        loop = asyncio.get_running_loop()
        assert not loop.remove_reader(bench.listener), "as nobody is waited for"
        assert bench.lost == []

    asyncio.run(scenario())


def test_a_server_that_was_killed_is_replaced(bench: Bench) -> None:
    store = bench.store
    store.start(seat(0), bench.listener)
    assert store.on_exited(Exited(FIRST_NUMBER, -9))  # somebody has still its stderr
    assert bench.lost[0].failure.exit_code == -9
    assert store.is_able
    store.start(seat(1), bench.listener)
    assert bench.starter.order(SECOND) == (b"7001", True)


def test_a_server_that_ended_a_moment_ago_is_replaced_before_we_hear_of_it(bench: Bench) -> None:
    store = bench.store
    store.start(seat(0), bench.listener)
    store.end_round()
    bench.starter.close(FIRST_NUMBER)
    store.start(seat(1), bench.listener)
    assert bench.starter.order(SECOND) == (b"7001", True)
    assert store.on_exited(Exited(FIRST_NUMBER, -9))
    assert bench.lost == []
    bench.starter.close(SECOND)
    assert store.end_round() == (SECOND,)


def test_a_server_that_cannot_be_started_loses_the_round(bench: Bench) -> None:
    async def scenario() -> None:
        bench.store.start(seat(0), bench.listener)
        told = asyncio.Event()
        bench.on_lost = told.set
        with socket.create_connection(bench.listener.getsockname()):
            assert bench.store.on_spawn_failed(SpawnFailed(FIRST_NUMBER, 11, "no processes"))
            await asyncio.wait_for(told.wait(), 30)
        assert "no processes" in bench.lost[0].failure.message
        assert not bench.store.is_able

    asyncio.run(scenario())


def test_an_end_between_two_rounds_is_nobodys_loss(bench: Bench) -> None:
    store = bench.store
    store.start(seat(0), bench.listener)
    store.end_round()
    assert store.on_spawn_failed(SpawnFailed(FIRST_NUMBER, 0, "it was stopped before it had started"))
    assert bench.lost == []
    assert store.is_able
    assert store.end_round() == ()


def test_what_is_not_about_a_server_is_left_to_others(bench: Bench) -> None:
    assert not bench.store.on_started(Started(0, 5))
    assert not bench.store.on_spawn_failed(SpawnFailed(-1, 0, "no"))
    assert not bench.store.on_exited(Exited(3, 0))


def test_a_replacement_gives_the_next_round_a_server_of_its_own(bench: Bench) -> None:
    store, starter = bench.store, bench.starter
    store.on_warm_news(WarmNews(True, "imported more", replacement="0"))  # nothing was forked from its parent
    assert starter.commands == []
    store.start(seat(0), bench.listener)
    store.on_warm_news(WarmNews(True, "another one", replacement="1"))
    store.on_warm_news(WarmNews(True, "imported more", replacement="0"))
    assert starter.killed == [], "it serves"
    assert len(starter.commands) == 2, "while nobody waits"
    assert store.end_round() == (FIRST_NUMBER, SECOND), "no sweep waits until it has ended"
    assert starter.killed == [FIRST_NUMBER]
    store.start(seat(1), bench.listener)
    assert starter.order(SECOND) == (b"7001", True)
    store.on_exited(Exited(FIRST_NUMBER, -9))
    assert bench.lost == []
    assert store.end_round() == (SECOND,)
    store.on_warm_news(WarmNews(True, "imported more", replacement="0"))
    assert starter.killed == [FIRST_NUMBER, SECOND], "nobody needs it"


def test_without_a_warm_parent_rank_0_serves(bench: Bench) -> None:
    store = bench.store
    store.start(seat(0), bench.listener)
    store.on_warm_news(WarmNews(False, "one worker starts cold"))
    store.on_warm_news(WarmNews(False, "workers start cold", over="0"))
    assert store.is_able, "the server is there"
    store.on_exited(Exited(FIRST_NUMBER, -9))
    assert not store.is_able


@pytest.mark.parametrize("imports", [None, (), ("tensorflow",)])
def test_who_imports_no_torch_cannot_serve(imports: tuple[str, ...] | None) -> None:
    config = WorkerConfig(SCRIPT, 1, warm_imports=imports)
    assert torch_key(config) is None
    bench = Bench(config)
    assert not bench.store.is_able
    bench.close()


def test_at_the_end_servers_are_killed_and_not_heard_of(bench: Bench) -> None:
    bench.store.start(seat(0), bench.listener)
    bench.store.close()
    assert bench.starter.killed == [FIRST_NUMBER]
    assert not bench.store.on_exited(Exited(FIRST_NUMBER, -9))
    assert bench.lost == []
