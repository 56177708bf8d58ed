"""A real memory server, and workers that speak to it over its socket."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from elasticrun.agent.memory import server
from elasticrun.agent.memory.gate import VARIABLE
from elasticrun.agent.memory.server import CONNECTIONS, MAX_MESSAGE, make_buffer
from elasticrun.checkpoint.agent_memory import ROUND, AgentMemory, SaveRefused
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from tests.support.memory_host import DEADLINE, MemoryHost

T = TypeVar("T")

NOBODY = 65534


#: Enough for every test, and so little that a bug cannot take the memory of the box.
ROOM = 64 << 20


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "free_bytes", lambda: ROOM)


@pytest.fixture
def host() -> Iterator[MemoryHost]:
    with MemoryHost() as host:
        yield host


@pytest.fixture
def pair() -> Iterator[MemoryHost]:
    """A node of two workers."""
    with MemoryHost(2) as host:
        yield host


class Client:
    """A peer that says what it likes."""

    def __init__(self, host: MemoryHost) -> None:
        _, _, name, self.token, _ = host.environment()[VARIABLE].split(":")
        self.round = host.round
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(DEADLINE)
        self.channel.connect(f"\0{name}")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def say(self, data: bytes) -> dict[str, Any]:
        """Send anything, and hear the answer. {}: it hung up."""
        self.channel.sendall(data)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        data = self.channel.recv(MAX_MESSAGE)
        answer: dict[str, Any] = json.loads(data) if data else {}
        return answer

    def ask(self, what: str, **fields: object) -> dict[str, Any]:
        return self.say(json.dumps({"ask": what, **fields}).encode())

    def hello(self, **others: object) -> dict[str, Any]:
        return self.ask("hello", **{"token": self.token, "local_rank": 0, "round": self.round, **others})

    def begin(self, **others: object) -> dict[str, Any]:
        return self.ask("begin", **{"step": 1, "whole": 100, "share": 100, "contents": "", **others})

    def end(self, **others: object) -> dict[str, Any]:
        return self.ask("end", **{"step": 1, "length": 10, "digest": "aa", "own": False, **others})

    @property
    def is_hung_up(self) -> bool:
        return self.channel.recv(MAX_MESSAGE) == b""


def at_once(*functions: Callable[[], T]) -> list[T]:
    """What these return that run at the same time."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(DEADLINE) for each in [pool.submit(function) for function in functions]]


def save(memory: AgentMemory, step: int, text: bytes, contents: str = "") -> bool:
    """Save some bytes; returns whether only a share of what is shared was asked for."""
    granted = memory.begin(step, 4096, 2048, contents)
    granted.memory[: len(text)] = text
    memory.end(step, len(text), f"digest of {text.decode()}", own=False)
    return granted.divides


def open_here() -> set[tuple[int, int]]:
    """The sockets and memory files that this process has open."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder itself, which is closed by now
            about = each.stat()
            if server.MEMFD in str(each.readlink()) or stat.S_ISSOCK(about.st_mode):
                found.add((about.st_dev, about.st_ino))
    return found


# What is saved


def test_the_next_round_restores_what_was_saved(host: MemoryHost) -> None:
    memory = host.connect()
    assert memory.restore is None
    assert list(memory.stored()) == []
    save(memory, 7, b"state")
    (held,) = host.holdings()
    assert (held.commit, held.size, held.shared) == (CommitId(1, 7), 1, "")
    assert [part.group_rank for part in held.parts] == [0]
    host.judge(kept=held.commit)
    memory.close()
    host.begin(2, restore=held.commit)
    memory = host.connect()
    assert memory.restore == (1, 7)
    (part,) = memory.stored()
    assert (part.rank, part.memory[:], part.length, part.digest) == (0, b"state", 5, "digest of state")
    memory.close()


def test_what_is_restored_can_be_read_again(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 1, b"state")
    memory.close()
    host.begin(2, restore=CommitId(1, 1))
    memory = host.connect()
    for _ in range(3):
        assert [part.memory[:] for part in memory.stored()] == [b"state"]
    memory.close()


def test_a_state_outlives_its_worker(host: MemoryHost) -> None:
    script = """
import os, signal
from elasticrun.checkpoint.agent_memory import AgentMemory
memory = AgentMemory.connect(os.environ)
granted = memory.begin(3, 4096, 4096, "")
granted.memory[:5] = b"state"
memory.end(3, 5, "aa", own=False)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **host.environment()}, timeout=DEADLINE
    )
    assert ended.returncode == -signal.SIGKILL
    (held,) = host.holdings()
    host.begin(2, restore=held.commit)
    memory = host.connect()
    assert [part.memory[:] for part in memory.stored()] == [b"state"]
    memory.close()


def test_a_save_waits_until_the_one_before_is_judged(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 1, b"first")
    host.holdings()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(save, memory, 2, b"second")
        host.judge(kept=CommitId(1, 1))
        second.result(DEADLINE)
    held = [holding.commit for holding in host.holdings()]
    assert held == [CommitId(1, 1), CommitId(1, 2)], "the first one until the second is as safe"
    host.judge(kept=CommitId(1, 2))
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 2)]
    memory.close()


def test_what_is_void_is_held_no_more(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 1, b"first")
    host.holdings()
    host.judge(void=CommitId(1, 1))
    assert host.holdings() == ()
    save(memory, 2, b"second")
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 2)]
    memory.close()


def test_a_save_never_writes_over_what_is_kept(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 1, b"kept")
    host.judge(kept=CommitId(1, 1))
    for step in (2, 3):
        granted = memory.begin(step, 4096, 4096, "")
        granted.memory[:] = b"x" * 4096
        memory.give_up()
    memory.close()
    host.begin(2, restore=CommitId(1, 1))
    memory = host.connect()
    assert [part.memory[:] for part in memory.stored()] == [b"kept"]
    memory.close()


def test_a_round_that_restores_nothing_gets_nothing(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 1, b"state")
    host.holdings()
    memory.close()
    host.begin(2)
    assert host.holdings() == ()
    memory = host.connect()
    assert memory.restore is None
    assert list(memory.stored()) == []
    memory.close()


def test_a_commit_that_is_not_here_is_restored_without_parts(host: MemoryHost) -> None:
    host.begin(5, restore=CommitId(4, 9))
    memory = host.connect()
    assert memory.restore == (4, 9), "other nodes may have it"
    assert list(memory.stored()) == []
    memory.close()


def test_local_ranks_divide_what_all_have_alike(pair: MemoryHost) -> None:
    ranks = [pair.connect(rank) for rank in (0, 1)]
    divides = at_once(lambda: save(ranks[0], 1, b"left", "same"), lambda: save(ranks[1], 1, b"right", "same"))
    assert divides == [True, True]
    (held,) = pair.holdings()
    assert held.shared
    for memory in ranks:
        memory.close()
    pair.begin(2, restore=held.commit)
    memory = pair.connect(1)
    assert {part.rank: part.memory[:] for part in memory.stored()} == {0: b"left", 1: b"right"}
    memory.close()


def test_local_ranks_that_differ_save_everything(pair: MemoryHost) -> None:
    ranks = [pair.connect(rank) for rank in (0, 1)]
    assert at_once(lambda: save(ranks[0], 1, b"a", "one"), lambda: save(ranks[1], 1, b"b", "two")) == [
        False,
        False,
    ]
    assert [holding.commit for holding in pair.holdings()] == [CommitId(1, 1)]
    for memory in ranks:
        memory.close()


def test_a_commit_is_told_only_when_all_local_ranks_have_stored_it(pair: MemoryHost) -> None:
    ranks = [pair.connect(rank) for rank in (0, 1)]
    at_once(lambda: ranks[0].begin(1, 10, 10, "same"), lambda: ranks[1].begin(1, 10, 10, "same"))
    ranks[0].end(1, 10, "aa", own=False)
    assert pair.has_told_all()
    ranks[1].end(1, 10, "bb", own=False)
    assert [holding.commit for holding in pair.holdings()] == [CommitId(1, 1)]
    for memory in ranks:
        memory.close()


def test_an_empty_part_can_be_saved(host: MemoryHost) -> None:
    memory = host.connect()
    memory.begin(0, 0, 0, "")
    memory.end(0, 0, "aa", own=False)
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 0)]
    memory.close()


def test_a_state_that_grows_gets_more_room(host: MemoryHost) -> None:
    memory = host.connect()
    for step, size in ((1, 4096), (2, 40960)):
        granted = memory.begin(step, size, size, "")
        assert len(granted.memory) == size
        memory.end(step, size, "aa", own=False)
        host.judge(kept=CommitId(1, step))
    memory.close()


# What is refused


def test_a_save_that_is_too_large_for_the_box_is_refused_at_once(host: MemoryHost) -> None:
    memory = host.connect()
    with pytest.raises(SaveRefused, match=f"{2**53} bytes are needed, and {ROOM} bytes"):
        memory.begin(1, 2**53, 2**53, "")
    memory.close()


def test_no_room_is_told_with_both_numbers(host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "free_bytes", lambda: 1000)
    memory = host.connect()
    with pytest.raises(SaveRefused, match=r"2000 bytes are needed, and 1000 bytes of memory can be taken"):
        memory.begin(1, 2000, 2000, "")
    memory.begin(2, 1000, 1000, "")
    memory.close()


def test_a_kernel_without_memory_refuses_the_save(host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int) -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(server, "make_buffer", fail)
    memory = host.connect()
    with pytest.raises(SaveRefused, match="the kernel gives no memory: Cannot allocate memory"):
        memory.begin(1, 2000, 2000, "")
    memory.close()


def test_steps_must_grow(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 5, b"state")
    host.judge(kept=CommitId(1, 5))
    for step in (5, 4):
        with pytest.raises(SaveRefused, match=f"step {step} must come after step 5"):
            memory.begin(step, 10, 10, "")
    memory.close()


def test_what_was_not_begun_cannot_end(host: MemoryHost) -> None:
    memory = host.connect()
    memory.end(1, 10, "aa", own=False)
    memory.begin(2, 10, 10, "")
    memory.end(3, 10, "aa", own=False)
    assert host.has_told_all()
    memory.close()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token": "0" * 32}, "its token is another one"),
        ({"token": ""}, "its token is another one"),
        ({"token": "töken"}, "its token is another one"),
        ({"round": 0}, "no worker 0 of round 0 runs here"),
        ({"round": 2}, "no worker 0 of round 2 runs here"),
        ({"round": -1}, "no worker 0 of round -1 runs here"),
        ({"local_rank": 1}, "no worker 1 of round 1 runs here"),
        ({"local_rank": -1}, "no worker -1 of round 1 runs here"),
        ({"local_rank": "0"}, "it must begin with hello"),
        ({"local_rank": None}, "it must begin with hello"),
        ({"round": 1.0}, "it must begin with hello"),
        ({"token": ["x"]}, "it must begin with hello"),
    ],
)
def test_strangers_are_hung_up_on(host: MemoryHost, fields: dict[str, object], why: str) -> None:
    with Client(host) as client:
        assert client.hello(**fields)["refused"] == f"this message makes no sense: {why}"
        assert client.is_hung_up


@pytest.mark.parametrize("what", ["begin", "end", "give up", "restore"])
def test_nobody_is_heard_before_hello(host: MemoryHost, what: str) -> None:
    with Client(host) as client:
        fields = {"step": 1, "whole": 1, "share": 1, "contents": "", "length": 1, "digest": "", "own": False}
        assert "it must begin with hello" in client.ask(what, **fields)["refused"]
        assert client.is_hung_up


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello", "Expecting value"),
        (b"\xff\xfe\x00", ""),
        (b"[1, 2]", "it is no JSON object"),
        (b"null", "it is no JSON object"),
        (b"{}", "it asks for nothing that is known"),
        (b'{"ask": "everything"}', "it asks for nothing that is known"),
        (b'{"ask": {"ask": "begin"}}', "it asks for nothing that is known"),
        (b"[" * MAX_MESSAGE, "it is nested too deeply"),
        (b'{"a":' * (MAX_MESSAGE // 5), "it is nested too deeply"),
        (b" " * (MAX_MESSAGE + 1), f"it has more than {MAX_MESSAGE} bytes"),
        (b'{"ask": "restore"}' + b" " * (2 * MAX_MESSAGE), f"it has more than {MAX_MESSAGE} bytes"),
        (b'{"ask": ' + b"9" * 50_000 + b"}", ""),
    ],
    ids=["text", "bytes", "list", "null", "empty", "else", "dict", "lists", "dicts", "one", "more", "digits"],
)
def test_nonsense_ends_a_connection(host: MemoryHost, data: bytes, why: str) -> None:
    with Client(host) as client:
        client.hello()
        assert why in client.say(data)["refused"]
        assert client.is_hung_up
    with Client(host) as client:
        assert client.hello() == {"restore": None}, "others are served"


@pytest.mark.parametrize(
    "fields",
    [
        {"step": -1},
        {"whole": -1},
        {"share": -(2**63)},
        {"whole": 2**53 + 1},
        {"step": 1.5},
        {"step": "1"},
        {"share": None},
        {"contents": 1},
        {"contents": "\ud800"},
        {"whole": [1]},
        {"step": True},
        {"whole": True},
    ],
    ids=str,
)
def test_a_save_of_impossible_numbers_ends_a_connection(host: MemoryHost, fields: dict[str, object]) -> None:
    with Client(host) as client:
        client.hello()
        assert "makes no sense" in client.begin(**fields)["refused"]
        assert client.is_hung_up
    memory = host.connect()
    save(memory, 1, b"state")
    memory.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"length": "9"},
        {"length": 0.5},
        {"length": -1},
        {"length": True},
        {"digest": 7},
        {"digest": "\ud800"},
        {"digest": "a" * 65},
        {"step": None},
        {"step": -1},
        {"own": 1},
    ],
    ids=ascii,
)
def test_a_save_that_ends_with_nonsense_is_given_up(host: MemoryHost, fields: dict[str, object]) -> None:
    with Client(host) as client:
        client.hello()
        assert client.begin()["buffer"] == 0
        assert "makes no sense" in client.end(**fields)["refused"]
        assert client.is_hung_up
    assert host.has_told_all()
    memory = host.connect()
    save(memory, 1, b"state")
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 1)]
    memory.close()


def test_a_part_that_is_longer_than_its_buffer_is_not_held(host: MemoryHost) -> None:
    with Client(host) as client:
        client.hello()
        client.begin()
        client.end(length=10**6)
        assert host.has_told_all()
        client.begin()
        client.end()
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 1)]


def test_a_worker_saves_one_step_at_a_time(host: MemoryHost) -> None:
    why = {"refused": "rank 0 has begun a save that has not ended"}
    with Client(host) as client, Client(host) as other:
        for each in (client, other):
            each.hello()
        client.begin(step=1)
        assert other.begin(step=1) == why, "of the same worker"
        assert client.begin(step=2) == why
        client.end(step=1)
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 1)]


# Who comes and goes


def test_who_hangs_up_in_the_middle_of_a_save_loses_that_save_only(host: MemoryHost) -> None:
    memory = host.connect()
    save(memory, 1, b"kept")
    (held,) = host.holdings()
    host.judge(kept=held.commit)
    granted = memory.begin(2, 4096, 4096, "")
    granted.memory[:4] = b"half"
    memory.close()
    host.settle()
    memory = host.connect()
    save(memory, 3, b"whole")
    assert [holding.commit.step for holding in host.holdings()] == [1, 3]
    memory.close()


@pytest.mark.parametrize("say", [Client.begin, Client.end])
def test_who_hangs_up_loses_its_save_whatever_it_said_of_other_steps(
    host: MemoryHost, say: Callable[..., dict[str, Any]]
) -> None:
    with Client(host) as client:
        client.hello()
        client.begin(step=2)
        say(client, step=3)
    host.settle()
    with Client(host) as client:
        client.hello()
        assert "buffer" in client.begin(step=4)
    assert host.has_told_all()


def test_who_hangs_up_while_its_save_waits_is_forgotten(pair: MemoryHost) -> None:
    with Client(pair) as client:
        client.hello()
        message = {"ask": "begin", "step": 1, "whole": 10, "share": 10, "contents": "same"}
        client.channel.sendall(json.dumps(message).encode())
    pair.settle()
    ranks = [pair.connect(rank) for rank in (0, 1)]
    assert at_once(lambda: save(ranks[0], 1, b"a", "same"), lambda: save(ranks[1], 1, b"b", "same")) == [
        True,
        True,
    ]
    for memory in ranks:
        memory.close()


def test_a_save_that_is_given_up_can_be_begun_again(host: MemoryHost) -> None:
    memory = host.connect()
    for _ in range(3):
        memory.begin(1, 10, 10, "")
        memory.give_up()
    save(memory, 1, b"state")
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 1)]
    memory.close()


def test_a_new_round_hangs_up_on_the_workers_of_the_one_before(host: MemoryHost) -> None:
    memory = host.connect()
    memory.begin(1, 10, 10, "")
    host.begin(2)
    with pytest.raises(CheckpointError, match="the agent has"):
        memory.end(1, 10, "aa", own=False)
    memory.close()
    memory = host.connect()
    save(memory, 1, b"state")
    assert [holding.commit for holding in host.holdings()] == [CommitId(2, 1)]
    memory.close()


def test_only_so_many_connections_are_taken(host: MemoryHost) -> None:
    clients = [Client(host) for _ in range(CONNECTIONS)]
    for client in clients:
        assert client.hello() == {"restore": None}
    with Client(host) as beyond:
        assert beyond.is_hung_up
    clients.pop().channel.close()
    host.settle()
    with Client(host) as client:
        assert client.hello() == {"restore": None}
    for client in clients:
        client.channel.close()


@pytest.mark.root
def test_other_users_are_hung_up_on(host: MemoryHost) -> None:
    os.seteuid(NOBODY)
    try:
        client = Client(host)
    finally:
        os.seteuid(0)
    with client:
        assert client.is_hung_up


def test_a_script_outside_of_a_job_has_no_agent() -> None:
    assert AgentMemory.connect({}) is None


@pytest.mark.parametrize("value", ["2:1:name:token:0", "1", "1:2:3", "x"])
def test_an_agent_of_another_version_is_told(value: str) -> None:
    with pytest.raises(CheckpointError, match=f"{VARIABLE} must begin with 1:"):
        AgentMemory.connect({VARIABLE: value})


def test_an_agent_that_has_gone_is_told() -> None:
    with MemoryHost() as host:
        environment, memory = host.environment(), host.connect()
    with pytest.raises(CheckpointError, match="cannot be reached"):
        AgentMemory.connect(environment)
    with pytest.raises(CheckpointError, match=r"has hung up|has gone"):
        memory.begin(1, 10, 10, "")
    memory.close()


# Descriptors and memory


def test_nothing_is_left_open() -> None:
    before = open_here()
    with MemoryHost(2) as host:
        ranks = [host.connect(rank) for rank in (0, 1)]
        at_once(lambda: save(ranks[0], 1, b"a", "same"), lambda: save(ranks[1], 1, b"b", "same"))
        (held,) = host.holdings()
        host.begin(2, restore=held.commit)
        for memory in ranks:
            memory.close()
        memory = host.connect()
        assert len(list(memory.stored())) == 2
        with Client(host) as client:
            client.say(b"nonsense")
        assert open_here() - before
    memory.close()
    assert open_here() - before == set()


def test_who_is_refused_leaves_nothing_open(host: MemoryHost) -> None:
    before = open_here()
    with pytest.raises(CheckpointError) as told:
        AgentMemory.connect({**host.environment(), ROUND: "7"})
    host.settle()
    assert open_here() - before == set(), "while the error still refers to what was made"
    assert "no worker 0 of round 7 runs here" in str(told.value)


def test_a_worker_that_goes_on_saving_takes_no_more_memory(host: MemoryHost) -> None:
    memory = host.connect()
    before = open_here()
    for step in range(1, 9):
        save(memory, step, b"state")
        host.judge(kept=CommitId(1, step))
        assert len(open_here() - before) <= 3, "one is kept, one is written, one was made in advance"
    memory.close()


def test_a_buffer_is_there_and_keeps_its_size() -> None:
    fd = make_buffer(100_000)
    try:
        about = os.fstat(fd)
        assert about.st_size == 100_000
        assert about.st_blocks * 512 >= 100_000, "its pages are there"
        for size in (0, 99_999, 100_001):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_a_worker_cannot_cut_its_buffer(host: MemoryHost) -> None:
    with Client(host) as client:
        client.hello()
        message = {"ask": "begin", "step": 1, "whole": 5000, "share": 5000, "contents": ""}
        client.channel.sendall(json.dumps(message).encode())
        _, (fd,), _, _ = socket.recv_fds(client.channel, MAX_MESSAGE, 1)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        os.close(fd)
