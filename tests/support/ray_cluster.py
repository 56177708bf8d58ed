"""A Ray cluster of a test: ``ray_hosts.py`` as a process, and what it is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.launcher import ROOT, clean_environment


class RayHosts:
    """A running cluster, at first without a host that runs anything."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tests/support/ray_hosts.py"],
            env=clean_environment(
                RAY_USAGE_STATS_ENABLED="0",
                RAY_TMPDIR=str(folder),
                PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        told = self._heard()
        self.address, self.url = str(told["address"]), str(told["url"])

    def _heard(self) -> dict[str, object]:
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline() or "{}")
        assert isinstance(found, dict) and found, "the cluster has ended"
        return found

    def _order(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        self._heard()

    def add(self) -> None:
        """One more host, with room for one node."""
        self._order("add")

    def lose(self, raylet: str) -> None:
        """SIGKILL all that runs on the host with this raylet."""
        self._order(f"lose {raylet}")

    def close(self) -> None:
        """End it, and wait for that."""
        self._process.communicate()


@contextmanager
def ray_hosts(count: int) -> Iterator[RayHosts]:
    """A cluster of so many hosts. Of its folder nothing is left: sockets there need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))
    found = RayHosts(folder)
    try:
        for _ in range(count):
            found.add()
        yield found
    finally:
        found.close()
        shutil.rmtree(folder, ignore_errors=True)
