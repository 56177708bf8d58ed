"""What the figures were measured on: figures of two machines, or of two commits, are never put together."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def machine() -> dict[str, str]:
    """The machine and its software, in words."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "gpu": _gpus(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "tensorflow": _version("tensorflow", "tensorflow-cpu"),
        "grpcio": _version("grpcio"),
    }


def commit() -> str:
    """The commit that is measured, "-dirty" behind it if tracked files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _field(path: str, name: str) -> str:
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _version(*packages: str) -> str:
    """The version of the first of these packages that is installed, or "none"."""
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "none"


def _gpus() -> str:
    """The names of the GPUs; "none" where the driver's own tool finds none."""
    ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    names = done.stdout.split("\n")[:-1]
    return f"{len(names)} x {names[0]}" if names else "none"
