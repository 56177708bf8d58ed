"""How long a job on a Ray cluster stands still when one of its hosts is lost, beside Ray Train.

A cluster of three hosts on this box; a job of one to two ranks, which make a step of gloo each 20 ms. All
that runs on the host of rank 1 is killed at once. Shown is the time from then to the first step of the ranks
that go on, and to the first step of two ranks again; a host is free all the time. ``ours``: elastic-run
--platform ray. ``train``: Ray Train's TorchTrainer with ``num_workers=(1, 2)`` and no other settings; it
needs pip install 'ray[train]', and is left out without it. The cluster has Ray's own settings: it takes a
host for dead after some 15 s.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support.launcher import MODULE, Launcher
from tests.support.ray_cluster import RayHosts, ray_hosts

WORKERS = Path(__file__).parent / "workers"
WORLD = 2
#: Steps before a fault; and seconds that each thing may take.
STEADY, DEADLINE = 100, 180.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, as it says itself."""

    at: float  # of the monotonic clock
    pid: int
    rank: int
    world: int
    step: int
    raylet: str


class Steps:
    """What the ranks write into a FIFO."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._rest = b""

    def until(self, holds: Callable[[Step], object], job: Launcher) -> Step:
        """The first step from now on for which this holds."""
        over = time.monotonic() + DEADLINE
        while time.monotonic() < over and select.select([self._fd], [], [], 5.0)[0] is not None:
            for step in self._read():
                if holds(step):
                    return step
        raise SystemExit(f"no such step within {DEADLINE:g} s:\n{job.story()[-4000:]}")

    def _read(self) -> list[Step]:
        try:
            data = self._rest + os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return []
        *lines, self._rest = data.split(b"\n")
        return [Step(**json.loads(line)) for line in lines]

    def close(self) -> None:
        os.close(self._fd)


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(prog="scripts/bench ray", description=__doc__)
    parser.add_argument("--faults", type=int, default=5, help="of each way (default 5)")
    faults = parser.parse_args(arguments).faults
    if find_spec("ray") is None:
        parser.error("this needs ray: pip install 'elasticrun[ray]'")
    print(f"{'way':6}  {'start, s':>8}  {'steps again, s':>22}  {'two ranks again, s':>22}  faults")
    for way in ("ours", *(["train"] if find_spec("tensorboardX") and find_spec("pyarrow") else [])):
        start, again, whole = measured(way, faults)
        print(f"{way:6}  {start:8.1f}  {_text(again):>22}  {_text(whole):>22}  {faults:6}", flush=True)
    return 0


def measured(way: str, faults: int) -> tuple[float, list[float], list[float]]:
    """Seconds to the first step; and, of each fault, to the first step after it, and to that of two ranks."""
    with tempfile.TemporaryDirectory() as folder, ray_hosts(WORLD + 1) as hosts:
        fifo = Path(folder) / "steps"
        steps = Steps(fifo)
        begun = time.monotonic()
        words = [str(WORKERS / "ray_steps.py"), str(fifo)]
        env = {"RAY_ADDRESS": hosts.address, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
        ways = {
            "ours": (*MODULE, "--platform", "ray", "--nnodes", f"1:{WORLD}"),
            "train": (sys.executable, str(WORKERS / "ray_train.py"), f"{folder}/store"),
        }
        job = Launcher(*words, cwd=Path(folder), env=env, command=ways[way])
        try:
            start = steps.until(lambda _: True, job).at - begun
            found = [fault(hosts, steps, job) for _ in range(faults)]
        finally:
            job.finish()
            steps.close()
        return start, [again for again, _ in found], [whole for _, whole in found]


def fault(hosts: RayHosts, steps: Steps, job: Launcher) -> tuple[float, float]:
    """Lose the host of rank 1, once the job has been steady for a while, and start another one."""
    victim = steps.until(lambda step: (step.rank, step.world) == (1, WORLD) and step.step > STEADY, job)
    other = steps.until(lambda step: step.rank == 0 and step.step > STEADY, job)
    old = {victim.pid, other.pid}
    lost = time.monotonic()
    hosts.lose(victim.raylet)
    again = steps.until(lambda step: step.pid not in old and step.at > lost, job)
    whole = again
    if again.world != WORLD:
        whole = steps.until(lambda step: step.world == WORLD and step.pid not in old, job)
    hosts.add()
    return again.at - lost, whole.at - lost


def _text(found: list[float]) -> str:
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
