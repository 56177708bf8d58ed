"""What a node's workers use: real processes, limits of containers, and GPUs of a fake library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from elasticrun.agent.monitors.node_figures import NodeSampler
from elasticrun.core.protocol.round_progress import GpuFigures, NodeFigures

BUSY = """
import time
data = bytearray(64 << 20)
while time.process_time() < 0.5:
    pass
print(flush=True)
input()
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 10.0
        return self.now


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        yield process
        process.kill()


def sampled(pids: dict[int, int], cgroup: Path) -> NodeFigures:
    sampler = NodeSampler(lambda: pids, Clock(), cgroup)
    assert sampler.sample() is None, "rates need two samples"
    figures = sampler.sample()
    assert figures is not None
    return figures


def test_a_worker_is_measured(worker: subprocess.Popen[str], tmp_path: Path) -> None:
    pids: dict[int, int] = {}
    sampler = NodeSampler(lambda: pids, Clock(), tmp_path)
    assert sampler.sample() is None
    assert worker.stdout is not None
    worker.stdout.readline()
    pids[0] = worker.pid
    figures = sampler.sample()
    assert figures is not None
    assert 0.04 <= figures.cpu <= 1.0, "half a second or so, in ten"
    assert figures.memory >= 64 << 20
    assert figures.cpus == len(os.sched_getaffinity(0))
    assert figures.memory_limit > figures.memory
    assert figures.received >= 0
    assert figures.sent >= 0


@pytest.mark.parametrize(("quota", "cpus"), [("150000 100000", 2), ("10000 100000", 1), ("max 100000", None)])
def test_limits_of_a_container_count(quota: str, cpus: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    (tmp_path / "memory.max").write_text("1048576\n")
    figures = sampled({}, tmp_path)
    allowed = len(os.sched_getaffinity(0))
    assert figures.cpus == (allowed if cpus is None else min(cpus, allowed))
    assert figures.memory_limit == 1 << 20


def test_gpus_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("pynvml")
    fake.__dict__.update(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda handle: b"H100" if handle else "",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=3, total=9),
        nvmlDeviceGetUtilizationRates=lambda handle: [SimpleNamespace(gpu=50)][handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    expected = (GpuFigures("GPU", 0.5, 3, 9), GpuFigures("H100", None, 3, 9))
    assert sampled({}, tmp_path).gpus == expected
    monkeypatch.setattr(fake, "nvmlDeviceGetMemoryInfo", None)
    assert sampled({}, tmp_path).gpus == ()
    monkeypatch.delattr(fake, "nvmlInit")
    assert sampled({}, tmp_path).gpus == ()


def test_a_fault_costs_the_figures_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[int, int]:
        raise RuntimeError("no figures today")

    sampler = NodeSampler(broken, Clock(), tmp_path)
    assert sampler.sample() is None
    assert sampler.sample() is None
    assert caplog.text.count("no figures today") == 1


def test_nothing_of_it_is_imported_at_the_start() -> None:
    code = "import sys, elasticrun.agent.runtime; assert 'psutil' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
