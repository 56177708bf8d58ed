"""What this node's workers use, read when a heartbeat is due anyway: CPU, memory, network, GPUs.

psutil is imported when the first figures are due, so a start does not wait for it. A worker is the session of
its process: processes that it starts count with it. Limits are those of the control group where that has less
than the host. GPUs are asked through NVIDIA's library (``pynvml``) if it is installed; nothing is started.

Whatever cannot be read is left out, or no figures are told: a heartbeat needs none.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elasticrun.core.protocol.bounds import BYTES, COUNTS, MAX_NAME, RATES
from elasticrun.core.protocol.round_progress import MAX_GPUS, GpuFigures, NodeFigures
from elasticrun.dataclass import dataclass

logger = logging.getLogger(__name__)

#: Where a process sees the limits of its own control group, for version 2 and version 1.
_CPU_MAX = "cpu.max"
_MEMORY = ("memory.max", "memory/memory.limit_in_bytes")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters that only grow, at one time."""

    at: float
    cpu: Mapping[int, float]  # seconds, by process
    received: int
    sent: int


class NodeSampler:
    """Samples the workers of one node; rates are over the time since the last sample."""

    def __init__(
        self, pids: Callable[[], Mapping[int, int]], now: Callable[[], float], cgroup: Path = _CGROUP
    ) -> None:
        """``pids`` gives the workers that run, by local rank; ``cgroup`` is an argument for tests."""
        self._pids = pids
        self._now = now
        self._cgroup = cgroup
        self._last: Sample | None = None
        self._gpus: Callable[[], tuple[GpuFigures, ...]] | None = None
        self._is_broken = False

    def sample(self) -> NodeFigures | None:
        """The figures now; None: nothing can be said, as before the second sample."""
        if self._is_broken:
            return None
        try:
            return self._sample()
        except Exception as error:  # noqa: BLE001 figures are for people to look at; a heartbeat goes on
            logger.warning("this node's CPU, memory and network are not shown: %r", error)
            self._is_broken = True
            return None

    def _sample(self) -> NodeFigures | None:
        import psutil

        if self._gpus is None:
            self._gpus = _gpu_reader()
        now, counters = self._now(), psutil.net_io_counters(nowrap=False)
        cpu, memory = self._of_workers(psutil)
        received, sent = counters.bytes_recv, counters.bytes_sent
        last, self._last = self._last, Sample(now, cpu, received, sent)
        if last is None or now <= last.at:
            return None
        seconds = now - last.at
        used = sum(max(0.0, spent - last.cpu.get(pid, 0.0)) for pid, spent in cpu.items())
        return NodeFigures(
            cpu=RATES.clip(used / seconds),
            cpus=COUNTS.clip(self._cpus()),
            memory=BYTES.clip(memory),
            memory_limit=BYTES.clip(self._memory_limit(psutil.virtual_memory().total)),
            received=RATES.clip((received - last.received) / seconds),
            sent=RATES.clip((sent - last.sent) / seconds),
            gpus=self._gpus(),
        )

    def _of_workers(self, psutil: Any) -> tuple[dict[int, float], int]:
        """Seconds of CPU by process, and bytes of memory of all of them."""
        sessions = set(self._pids().values())
        cpu: dict[int, float] = {}
        memory = 0
        for pid in psutil.pids() if sessions else ():
            with contextlib.suppress(OSError, psutil.Error):
                if os.getsid(pid) in sessions:
                    process = psutil.Process(pid)
                    with process.oneshot():
                        times = process.cpu_times()
                        cpu[pid] = times.user + times.system
                        memory += process.memory_info().rss
        return cpu, memory

    def _cpus(self) -> int:
        """How many cores workers may use."""
        allowed = len(os.sched_getaffinity(0))
        quota, _, period = self._read(_CPU_MAX).partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            return max(1, min(allowed, -(-int(quota) // int(period))))
        return allowed

    def _memory_limit(self, total: int) -> int:
        limits = [int(text) for name in _MEMORY if (text := self._read(name)).isdigit()]
        return min([total, *limits])

    def _read(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self._cgroup / name).read_text().strip()
        return ""


def _gpu_reader() -> Callable[[], tuple[GpuFigures, ...]]:
    """What reads the GPUs of this host; without the library, or a GPU, there are none."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(min(MAX_GPUS, pynvml.nvmlDeviceGetCount()))
        ]
    except Exception:  # noqa: BLE001 it is not installed, or has no driver
        return tuple

    def read() -> tuple[GpuFigures, ...]:
        with contextlib.suppress(Exception):
            return tuple(_gpu(pynvml, handle) for handle in handles)
        return ()

    return read


def _gpu(pynvml: Any, handle: Any) -> GpuFigures:
    name, memory = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetMemoryInfo(handle)
    busy = None
    with contextlib.suppress(Exception):
        busy = RATES.clip(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return GpuFigures(text[:MAX_NAME] or "GPU", busy, BYTES.clip(memory.used), BYTES.clip(memory.total))
