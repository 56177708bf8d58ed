"""A worker of ``scripts/bench data``: leases.py WHAT [WAY]. Prints what it has measured as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from elasticrun.core.data.leases import Progress
from elasticrun.data import Plan, Shard, ShardedDataset
from elasticrun.data.lease_source import LocalLeases
from elasticrun.data.shared_leases import SharedLeases

#: Where groups of processes may have a bound on their CPU time: of version 2, and of version 1.
GROUPS = (("/sys/fs/cgroup", "cpu.max"), ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"))
PERIOD, QUOTA = 100_000, 25_000  # microseconds
#: Where there is none: lets a process run for a quarter of the time, and goes with it.
BRAKE = """
import os, signal, sys, threading
pause = threading.Event().wait
pid = int(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (os.kill(pid, signal.SIGCONT), os._exit(0)))
while os.getppid() == pid:
    os.kill(pid, signal.SIGSTOP)
    pause(0.075)
    os.kill(pid, signal.SIGCONT)
    pause(0.025)
"""
RECORDS = 480  # of the epoch of a slow node, each of which takes 5 ms of CPU time


def leases(rank: int, way: str) -> dict[str, Any]:
    """Leases of one record, acknowledged by a state for each 5000."""
    source = SharedLeases(Plan.of_samples(1 << 40, 1), "bench", 2)
    source.take(0)
    dist.barrier()
    count, began = 0, time.perf_counter()
    for _ in range(10):
        told = {}
        for _ in range(5000):
            (lease,) = source.take(0)
            told[lease.id] = Progress(lease.shard.stop)
        source.consume(told)
        source.state()
        count += len(told)
    took = time.perf_counter() - began
    return {"rate": count / took}


def stall(rank: int, way: str) -> dict[str, Any]:
    """How long a loop of 2 ms steps waits for its next batch."""
    plan = Plan.of_samples(1 << 30, 32 * 8)
    source = LocalLeases(plan) if way == "own" else SharedLeases(plan, "bench", 2)
    data = ShardedDataset(
        lambda shard: range(shard.start, shard.stop), plan, 32, source=source, in_step=False
    )
    waits, batches = list[float](), iter(data)
    for _ in range(2000):
        began = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - began)
        _work(0.002)
    cuts = statistics.quantiles(waits, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def save(rank: int, way: str) -> dict[str, Any]:
    """How long a state of both ranks takes, which come to it together."""
    plan = Plan.of_samples(1 << 30, 32)
    data, waits = ShardedDataset(_read, plan, 32), list[float]()
    for _, _ in zip(range(500), data, strict=False):
        dist.barrier()
        began = time.perf_counter()
        data.state_dict()
        waits.append(time.perf_counter() - began)
    cuts = statistics.quantiles(waits, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def slow(rank: int, way: str) -> dict[str, Any]:
    """An epoch of records that take CPU time, on a rank that may be slow."""
    if way == "shared":
        source: Any = SharedLeases(plan := Plan.of_samples(RECORDS, 4), "bench", 2)
    else:
        source = LocalLeases(plan := Plan.of_samples(RECORDS // 2, 4))
    dist.barrier()
    with held_back() if rank == 1 else contextlib.nullcontext(""):
        began = time.perf_counter()
        for batch in ShardedDataset(_read, plan, 2, source=source, in_step=False):
            _work(0.005 * len(batch))
        took = time.perf_counter() - began
    return {"seconds": took}


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Give this process a quarter of a core: by a group of its own if this user may make one."""
    for parent, quota in GROUPS:
        group = Path(parent, f"elasticrun-bench-{os.getpid()}")
        if (Path(parent) / "cgroup.procs").exists() and os.access(parent, os.W_OK):
            group.mkdir()
            try:
                if not (group / quota).exists():  # the controller is elsewhere
                    continue
                (group / quota).write_text(f"{QUOTA} {PERIOD}" if quota == "cpu.max" else str(QUOTA))
                (group / "cgroup.procs").write_text(str(os.getpid()))
                yield
                Path(parent, "cgroup.procs").write_text(str(os.getpid()))
                return
            finally:
                with contextlib.suppress(OSError):  # an error has left us in it
                    group.rmdir()
    brake = subprocess.Popen([sys.executable, "-c", BRAKE, str(os.getpid())])
    try:
        yield
    finally:
        brake.terminate()


def _read(shard: Shard) -> range:
    return range(shard.start, shard.stop)


def _work(seconds: float) -> None:
    """Use so much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


dist.init_process_group("gloo")
measured = {"leases": leases, "stall": stall, "save": save, "slow": slow}[sys.argv[1]]
print(json.dumps(measured(dist.get_rank(), (sys.argv[2:] or [""])[0])), flush=True)
dist.barrier()
dist.destroy_process_group()
