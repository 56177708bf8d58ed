"""A worker of ``scripts/bench data``: leases.py WHAT [WAY]. Prints what it has measured as JSON."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch.distributed as dist

from elasticrun.core.data.leases import Progress
from elasticrun.data import Plan, Shard, ShardedDataset
from elasticrun.data.lease_source import LocalLeases
from elasticrun.data.shared_leases import SharedLeases

#: Lets a process run for a quarter of the time, and goes with it.
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
    brake = subprocess.Popen([sys.executable, "-c", BRAKE, str(os.getpid())]) if rank == 1 else None
    began = time.perf_counter()
    for batch in ShardedDataset(_read, plan, 2, source=source, in_step=False):
        _work(0.005 * len(batch))
    took = time.perf_counter() - began
    if brake is not None:
        brake.terminate()
    return {"seconds": took}


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
