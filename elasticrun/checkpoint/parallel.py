"""Copies with more than one core while the training waits for a copy.

Theory. One core does not fill the bandwidth of a host's memory, and while ``save`` or ``load`` holds up a
rank, the other cores of that rank's share have nothing of it to do. Torch would use them only if it may have
threads, and with several workers on a node it may have one each (OMP_NUM_THREADS=1, as torchrun sets it).

Threads are made for one call and are through when it returns, however it does. So none of them writes into a
buffer that was given up, and none is there when a script forks, as torch's own would be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import TypeVar

import torch

T = TypeVar("T")

#: Threads of one rank at most: more would find no bandwidth that is left, and cost a start each.
MOST = 4
#: Bytes below which a second thread costs more than it saves.
LEAST = 32 << 20
#: Bytes of one job: large beside what it costs to take one, small beside what a thread copies in all.
JOB = 16 << 20


def threads_for(environ: Mapping[str, str]) -> int:
    """How many threads a worker with this environment may copy with, the calling one included."""
    if torch.get_num_threads() > 1:  # each copy uses them already
        return 1
    share = len(os.sched_getaffinity(0)) // int(environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST, share))


def run_all(jobs: Sequence[Callable[[], object]], threads: int) -> None:
    """Run all jobs, each in one of so many threads, the caller's among them. If it is the only one: in order.

    Raises what the first that failed has raised, or what a signal's handler raises meanwhile. Then the jobs
    that nobody has begun are left out. No thread does anything any more when it returns or raises.
    """
    left = iter(jobs)
    lock = threading.Lock()
    errors: list[BaseException] = []
    begun: list[None] = []
    ended: list[None] = []
    news = SimpleQueue[None]()

    def work() -> None:
        while not errors:
            with lock:
                job = next(left, None)
            if job is None:
                return
            try:
                job()
            except BaseException as error:  # noqa: BLE001 it is raised below, once all have ended
                errors.append(error)

    def help_() -> None:
        begun.append(None)  # before it looks whether there are errors
        try:
            work()
        finally:
            ended.append(None)
            news.put(None)

    # Daemons: a handler that raises within ``start`` may leave one that waits for ever, before its first job.
    helpers = [threading.Thread(target=help_, name="elasticrun-copy", daemon=True) for _ in jobs[1:threads]]
    try:
        _start(helpers)
        work()
    except BaseException as error:  # noqa: BLE001 of a handler
        errors.append(error)  # before it looks who has begun: one that begins after that takes no job
    # Not ``join``: before Python 3.13 a thread whose ``join`` was interrupted is said to have ended.
    while len(ended) < len(begun):
        try:
            news.get()
        except BaseException as error:  # noqa: BLE001 of a handler; what it took was in ``ended`` before
            errors.append(error)
    if errors:
        raise next((each for each in errors if not isinstance(each, Exception)), errors[0])


def _start(helpers: Sequence[threading.Thread]) -> None:
    """Start as many of them as there may be."""
    for helper in helpers:
        try:
            helper.start()
        except RuntimeError as error:
            if type(error) is RuntimeError and "new thread" in str(error):  # and not that of a handler
                return
            raise


def batches(given: Iterable[tuple[int, T]], most: int) -> Iterable[list[T]]:
    """These, each with its size, in lists of about so much size together, in the same order."""
    batch: list[T] = []
    size = 0
    for length, each in given:
        batch.append(each)
        size += length
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
