"""A real memory server, and the memory that it takes: how much, when, and for how long."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticrun.agent.memory import buffers
from elasticrun.agent.memory.buffers import make_buffer
from elasticrun.checkpoint.agent_memory import ROUND, AgentMemory, SaveRefused
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.state import vault
from elasticrun.errors import CheckpointError
from elasticrun.rpc.packing import MAX_MESSAGE
from tests.support.memory_client import Client, at_once, open_here, save
from tests.support.memory_host import DEADLINE, MemoryHost


def test_a_save_that_is_too_large_for_the_box_is_refused_at_once(host: MemoryHost, room: int) -> None:
    memory = host.connect()
    with pytest.raises(SaveRefused, match=f"{2**53} bytes are needed, and {room} bytes"):
        memory.begin(1, 2**53, 2**53, "")
    memory.close()


def test_no_room_is_told_with_both_numbers(host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "free_bytes", lambda: 1000)
    memory = host.connect()
    with pytest.raises(SaveRefused, match=r"2000 bytes are needed, and 1000 bytes of memory can be taken"):
        memory.begin(1, 2000, 2000, "")
    memory.begin(2, 1000, 1000, "")
    memory.close()


def test_a_kernel_without_memory_refuses_the_save(host: MemoryHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int, is_wanted: Callable[[], bool]) -> int:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(buffers, "make_buffer", fail)
    memory = host.connect()
    with pytest.raises(SaveRefused, match="the kernel gives no memory: Cannot allocate memory"):
        memory.begin(1, 2000, 2000, "")
    memory.close()


def test_without_a_word_from_the_kernel_about_its_memory_nothing_is_saved(
    host: MemoryHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "free_bytes", lambda: None)
    memory = host.connect()
    with pytest.raises(SaveRefused, match="10 bytes are needed, and the kernel does not say how many can be"):
        memory.begin(1, 10, 10, "")
    memory.close()


def test_a_buffer_that_comes_too_late_is_there_for_the_next_save(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear = threading.Event()

    def make_late(size: int, is_wanted: Callable[[], bool]) -> int:
        assert clear.wait(DEADLINE)
        return make_buffer(size)

    monkeypatch.setattr(buffers, "make_buffer", make_late)
    before = open_here()
    with MemoryHost() as host, Client(host) as client:
        client.hello()
        with monkeypatch.context() as hasty:
            hasty.setattr(vault, "BUFFER_PATIENCE", 0.0)
            assert client.begin(step=1) == {"refused": "no buffer of 100 bytes was ready within 0 s"}
        client.tell("begin", step=2, whole=100, share=100, contents="")
        clear.set()
        assert client.hear()["buffer"] == 0
    assert open_here() <= before


def test_a_buffer_that_is_there_after_all_was_closed_is_closed_too(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_making, clear = threading.Event(), threading.Event()

    def make_late(size: int, is_wanted: Callable[[], bool]) -> int:
        is_making.set()
        assert clear.wait(DEADLINE)
        return make_buffer(size)

    def clear_at_the_end(client: Client) -> None:
        assert client.is_hung_up
        clear.set()

    monkeypatch.setattr(buffers, "make_buffer", make_late)
    before = open_here()
    with ThreadPoolExecutor(1) as pool:
        with MemoryHost() as host:
            client = Client(host)
            client.hello()
            client.tell("begin", step=1, whole=100, share=100, contents="")
            assert is_making.wait(DEADLINE)
            done = pool.submit(clear_at_the_end, client)
        done.result(DEADLINE)
    client.channel.close()
    assert open_here() <= before


def test_the_end_does_not_wait_for_the_rest_of_a_large_buffer(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    strides: list[int] = []
    is_making, clear = threading.Event(), threading.Event()

    def make_slowly(fd: int, data: memoryview, start: int) -> int:
        strides.append(start)
        is_making.set()
        assert clear.wait(DEADLINE)
        return len(data)

    close = buffers.Buffers.close

    def close_and_clear(made: buffers.Buffers) -> None:
        close(made)
        clear.set()

    monkeypatch.setattr(buffers, "_STRIDE", 10)
    monkeypatch.setattr(buffers.Buffers, "close", close_and_clear)
    monkeypatch.setattr(os, "pwrite", make_slowly)
    before = open_here()
    with MemoryHost() as host:
        client = Client(host)
        client.hello()
        client.tell("begin", step=1, whole=100, share=100, contents="")
        assert is_making.wait(DEADLINE)
    assert client.is_hung_up
    client.channel.close()
    assert strides == [0]
    assert open_here() <= before


def test_a_box_without_threads_refuses_the_save_and_loses_no_memory(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    made: list[tuple[int, int]] = []

    def make(size: int, is_wanted: Callable[[], bool]) -> int:
        fd = make_buffer(size)
        about = os.fstat(fd)
        made.append((about.st_dev, about.st_ino))
        return fd

    monkeypatch.setattr(buffers, "make_buffer", make)
    with MemoryHost() as host, Client(host) as client:
        client.hello()
        with monkeypatch.context() as exhausted:
            exhausted.setattr(threading.Thread, "start", fail)
            told = client.begin(step=1)
        assert told == {"refused": "the buffer cannot be made: can't start new thread"}
        assert client.begin(step=2)["buffer"] == 1
        assert made[0] not in open_here(), "the executor has made it after all, and nobody wants it"
        assert made[1] in open_here()


def test_nothing_is_left_open(room: int) -> None:
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
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 100_000, "and the kernel need not clear them any more"
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
