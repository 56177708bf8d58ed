"""A real memory server, and workers that speak to it over its socket."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import pytest

from elasticrun.checkpoint import agent_memory
from elasticrun.checkpoint.agent_memory import SaveRefused
from elasticrun.core.protocol.commits import CommitId
from elasticrun.errors import CheckpointError
from tests.support.memory_client import Client, at_once, memory_files_here, save
from tests.support.memory_host import DEADLINE, MemoryHost

# What is saved


def test_the_next_round_restores_what_was_saved(host: MemoryHost) -> None:
    memory = host.connect()
    assert memory.restore is None
    assert list(memory.stored()) == []
    save(memory, 7, b"state")
    (held,) = host.holdings()
    assert (held.commit, held.size) == (CommitId(1, 7), 1)
    assert [(part.group_rank, part.shared) for part in held.parts] == [(0, "")]
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
    assert held.parts[0].shared
    for memory in ranks:
        memory.close()
    pair.begin(2, restore=held.commit)
    memory = pair.connect(1)
    assert {part.rank: part.memory[:] for part in memory.stored()} == {0: b"left", 1: b"right"}
    memory.close()


def test_each_ask_is_answered_with_one_part(pair: MemoryHost) -> None:
    """The kernel holds only so many messages and descriptors for a worker that maps slowly."""
    ranks = [pair.connect(rank) for rank in (0, 1)]
    at_once(lambda: save(ranks[0], 1, b"left", "same"), lambda: save(ranks[1], 1, b"right", "same"))
    for memory in ranks:
        memory.close()
    pair.begin(2, restore=CommitId(1, 1))
    with Client(pair) as client:
        client.hello()
        for first, rank in ((0, 0), (1, 1), (0, 0), (2, None)):
            assert client.ask("restore", **{"from": first})["rank"] == rank
        pair.settle()
        client.channel.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.hear()


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


@pytest.mark.parametrize("kernel", ["new", "before 5.14"])
def test_a_buffer_is_mapped_with_its_pages_before_the_save_that_needs_it(
    host: MemoryHost, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    size = 4 << 20  # a thousand pages
    if kernel != "new":
        monkeypatch.setattr(agent_memory, "_MADV_POPULATE_WRITE", 1 << 20)
    memory = host.connect()
    for step in (1, 2):  # then there are two buffers
        memory.begin(step, size, size, "")
        memory.end(step, 10, "aa", own=False)
        host.judge(kept=CommitId(1, step))
    memory.close()
    host.begin(2, restore=CommitId(1, 2))
    memory = host.connect()
    for _ in range(2):  # the second time there is nothing left to do
        memory.map_ahead(2)
    with monkeypatch.context() as mapped:
        mapped.setattr(mmap, "mmap", lambda *_: pytest.fail("it is mapped already"))
        granted = memory.begin(3, size, size, "")
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for page in range(0, size, mmap.PAGESIZE):
        granted.memory[page] = 1
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 100
    memory.close()


def test_a_map_that_is_too_small_for_a_save_does_not_keep_the_room_that_it_needs(
    host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = host.connect()
    memory.begin(1, 100, 100, "")
    memory.end(1, 10, "aa", own=False)
    memory.close()
    host.begin(2, restore=CommitId(1, 1))
    memory = host.connect()
    unmapped: list[int] = []
    memory.before_unmap = lambda each: unmapped.append(len(each))
    memory.map_ahead(1)
    send, before = memory._send, list[list[int]]()

    def watch(message: dict[str, Any]) -> None:
        before.append([*unmapped])
        send(message)

    monkeypatch.setattr(memory, "_send", watch)
    memory.begin(2, 5000, 5000, "")
    assert before == [[100]], "the agent looks for room when it is asked"
    memory.close()


def test_a_worker_is_shown_no_buffer_of_another_one(pair: MemoryHost) -> None:
    with Client(pair) as client, Client(pair) as other:
        client.hello()
        other.hello(local_rank=1)
        client.begin()
        client.end()
        assert client.ask("buffer", number=0)["size"] == 100
        assert other.ask("buffer", number=0) == {"buffer": None}
        assert "refused" in other.ask("buffer", number=-1)


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
    with pytest.raises(SaveRefused, match="rank 0 does not write step 1 here"):
        memory.end(1, 10, "aa", own=False)
    memory.begin(2, 10, 10, "")
    with pytest.raises(SaveRefused, match="rank 0 does not write step 3 here"):
        memory.end(3, 10, "aa", own=False)
    assert host.has_told_all()
    memory.end(2, 10, "aa", own=False)
    assert [holding.commit for holding in host.holdings()] == [CommitId(1, 2)]
    memory.close()


def test_a_part_that_is_longer_than_its_buffer_is_not_held(host: MemoryHost) -> None:
    with Client(host) as client:
        client.hello()
        client.begin()
        told = client.end(length=10**6)
        assert told == {"refused": "1000000 bytes are more than the 100 of the buffer"}
        assert host.has_told_all()
        client.begin()
        assert client.end() == {"ended": True}
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


def test_a_refusal_goes_to_who_asked(pair: MemoryHost) -> None:
    with Client(pair) as client, Client(pair) as other, Client(pair) as neighbour:
        client.hello()
        other.hello()
        neighbour.hello(local_rank=1)
        client.tell("begin", step=1, whole=100, share=100, contents="same")
        pair.settle()
        assert other.begin(step=1, contents="same") == {
            "refused": "rank 0 has begun a save that has not ended"
        }
        assert "buffer" in neighbour.begin(contents="same")
        assert client.hear()["divides"], "what it waits for, and nothing before"


@pytest.mark.parametrize("hangs_up", [False, True])
def test_nobody_ends_the_save_of_another_process(host: MemoryHost, hangs_up: bool) -> None:
    with Client(host) as client, Client(host) as other:
        client.hello()
        other.hello()
        given = client.begin()["buffer"]
        assert other.end() == {"refused": "rank 0 does not write step 1 here"}
        if hangs_up:
            other.channel.close()
        else:
            other.tell("give up")
        host.settle()
        with Client(host) as third:
            third.hello()
            assert "refused" in third.begin(step=2), f"buffer {given} is still written"
        assert host.has_told_all()
        assert client.end() == {"ended": True}
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
        client.tell("begin", step=1, whole=10, share=10, contents="same")
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


def test_a_buffer_that_cannot_be_mapped_costs_that_save_only(
    host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    before = Counter(memory_files_here())  # what earlier tests mapped is free once the collector comes
    memory = host.connect()
    with monkeypatch.context() as full:
        full.setattr(mmap, "mmap", fail)
        with pytest.raises(SaveRefused, match="the agent's buffer cannot be mapped: Cannot allocate memory"):
            memory.begin(1, 100, 100, "")
    opened = Counter(memory_files_here()) - before
    save(memory, 2, b"two")
    assert host.holdings()[0].commit == CommitId(1, 2)
    memory.close()
    assert {*opened.values()} == {1}, "what was not mapped is closed here: only the agent has it open"


def test_a_descriptor_that_does_not_come_costs_that_save_only(
    host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = socket.recv_fds

    def lose(*args: Any) -> Any:
        data, fds, flags, address = receive(*args)
        for fd in fds:  # as the kernel does if this process can have no more
            os.close(fd)
        return data, [], flags, address

    memory = host.connect()
    with monkeypatch.context() as full:
        full.setattr(socket, "recv_fds", lose)
        with pytest.raises(SaveRefused, match="no descriptor came"):
            memory.begin(1, 100, 100, "")
    save(memory, 2, b"two")
    assert host.holdings()[0].commit == CommitId(1, 2)
    memory.close()


def test_what_cannot_be_mapped_is_not_restored(host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    memory = host.connect()
    save(memory, 1, b"one")
    memory.close()
    host.begin(2, CommitId(1, 1))
    memory = host.connect()
    with monkeypatch.context() as full:
        full.setattr(mmap, "mmap", fail)
        with pytest.raises(CheckpointError, match="what is restored cannot be mapped: Cannot allocate"):
            memory.stored()
    assert [part.length for part in memory.stored()] == [3], "it can be asked again"
    memory.close()
