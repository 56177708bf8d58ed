"""Copies with several threads: all of it is done, by as many as there may be, and none of them is left."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'elasticrun[torch]'")

import torch

from elasticrun.checkpoint.parallel import MOST, batches, run_all, threads_for
from tests.support.processes import DEADLINE

pytestmark = pytest.mark.torch
REPEAT = 0.2  # seconds until a signal is sent again


@pytest.mark.parametrize("threads", [1, 2, 4, 50])
@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_each_job_is_done_once(count: int, threads: int) -> None:
    done: list[int] = []
    run_all([lambda number=number: done.append(number) for number in range(count)], threads)  # type: ignore[misc]
    assert sorted(done) == list(range(count))


def test_so_many_threads_work_together() -> None:
    meeting = threading.Barrier(3, timeout=DEADLINE)
    run_all(3 * [meeting.wait], 3)


def test_a_failure_is_raised_once_all_have_ended() -> None:
    begun, failed, done = threading.Event(), threading.Event(), list[str]()

    def fail() -> None:
        assert begun.wait(DEADLINE)
        failed.set()
        raise ValueError("first")

    def slow() -> None:
        begun.set()
        assert failed.wait(DEADLINE)
        done.append("slow")

    with pytest.raises(ValueError, match="first"):
        run_all([slow, fail], 2)
    assert done == ["slow"]


def test_after_a_failure_the_rest_is_left_out() -> None:
    done: list[str] = []

    def fail() -> None:
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        run_all([fail, lambda: done.append("left out")], 1)
    assert done == []


def test_a_handler_that_raises_does_not_leave_threads_that_write() -> None:
    caller, released = threading.get_ident(), threading.Event()
    done: list[str] = []

    def interrupted(signum: int, frame: object) -> None:
        released.set()
        raise KeyboardInterrupt

    def job() -> None:
        if threading.get_ident() == caller:
            os.kill(os.getpid(), signal.SIGUSR1)
        else:
            assert released.wait(DEADLINE)
            done.append("written")

    meeting = threading.Barrier(2, timeout=DEADLINE)

    def both() -> None:
        meeting.wait()
        job()

    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_all([both, both], 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["written"]


class Preempted(RuntimeError):
    """What the handler of a script may raise."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Preempted])
@pytest.mark.parametrize("where", ["start", "join"])
def test_a_handler_that_raises_while_threads_start_or_end(kind: type[BaseException], where: str) -> None:
    done: list[str] = []
    caller, sent, taken = threading.get_ident(), threading.Event(), threading.Event()
    meeting, first = threading.Barrier(2, timeout=DEADLINE), threading.Lock()
    end = time.monotonic() + DEADLINE

    def interrupted(signum: int, frame: object) -> None:
        if not taken.is_set():
            taken.set()
            raise kind

    def job() -> None:
        if where == "join":
            meeting.wait()  # the caller's job is over then, or nearly so
        if threading.get_ident() != caller and first.acquire(blocking=False):
            sent.set()
            signal.pthread_kill(caller, signal.SIGUSR1)
            # Python calls no handler if the signal came just before the caller began to wait for a lock.
            while not taken.wait(REPEAT) and time.monotonic() < end:
                signal.pthread_kill(caller, signal.SIGUSR1)
            assert taken.is_set()
            done.append("written")
        elif where == "start":
            assert sent.wait(DEADLINE)

    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        with pytest.raises(kind):
            run_all(100 * [job] if where == "start" else [job, job], 4 if where == "start" else 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["written"]


def test_where_no_thread_can_be_made_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    run_all(3 * [lambda: done.append(threading.get_ident())], 3)
    assert done == 3 * [threading.get_ident()]


@pytest.mark.parametrize(
    ("cores", "workers", "torchs", "expected"),
    [(2, "1", 1, 2), (2, "2", 1, 1), (2, "8", 1, 1), (64, "8", 1, MOST), (64, "32", 1, 2), (64, "8", 2, 1)],
)
def test_a_worker_has_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: str, torchs: int, expected: int
) -> None:
    """Unless torch copies with several threads by itself."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: torchs)
    assert threads_for({"LOCAL_WORLD_SIZE": workers}) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((), []), ((5,), [[0]]), ((5, 5, 1, 12, 0), [[0, 1], [2, 3], [4]])],
)
def test_batches(sizes: tuple[int, ...], expected: list[list[int]]) -> None:
    given = ((size, number) for number, size in enumerate(sizes))
    assert [*batches(given, 10)] == expected
