"""Copies with more than one core while the training waits for a copy.

Theory. One core does not fill the bandwidth of a host's memory, and while ``save`` or ``load`` holds up a
rank, the other cores of that rank's share have nothing of it to do. Torch would use them only if it may have
threads, and with several workers on a node it may have one each (OMP_NUM_THREADS=1, as torchrun sets it).

Threads are made for one call and have ended when it returns, however it does. So none of them writes into a
buffer that was given up, and none is there when a script forks, as torch's own would be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Run all jobs, each in one of so many threads, the caller's among them.

    Raises what the first that failed has raised.
    After a failure the jobs that nobody has begun are left out. All threads have ended when it returns or
    raises, also if a signal's handler raises in between.
    """
    left = iter(jobs)
    lock = threading.Lock()
    errors: list[BaseException] = []

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

    helpers = [threading.Thread(target=work, name="elasticrun-copy") for _ in jobs[1:threads]]
    for number, helper in enumerate(helpers):
        try:
            helper.start()
        except RuntimeError:  # there are too many threads
            del helpers[number:]
            break
    _finish(work, errors)
    for helper in helpers:
        while helper.is_alive():
            _finish(helper.join, errors)
    if errors:
        raise errors[0]


def _finish(step: Callable[[], None], errors: list[BaseException]) -> None:
    """Do this; what it raises is kept."""
    try:
        step()
    except BaseException as error:  # noqa: BLE001 as above
        errors.append(error)


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
