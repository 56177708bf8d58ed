"""The example that trains on a stream counts each record once, also where a worker is killed."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from tests.data.streams import brokers
from tests.support import launcher as launcher_module
from tests.support.cluster import EXAMPLES, Cluster, cluster
from tests.support.processes import TORCH_DEADLINE

__all__ = ["cluster"]

LACKS = [name for name in ("redis", "sklearn") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(bool(LACKS), reason=f"needs {LACKS}"),
]

SCRIPT = EXAMPLES / "digits_stream.py"
PASSES, RECORDS = 4, 4 * 1797


def test_digits_come_as_a_stream(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "DEADLINE", TORCH_DEADLINE)
    with brokers.redis() as redis:
        given = (SCRIPT, "--url", redis.url, f"--passes={PASSES}")
        assert cluster.launch("--standalone", *given, f"--fill={PASSES}").wait() == 0
        launcher = cluster.launch("--standalone", "--nproc-per-node=2", "--max-restarts=3", *given)
        worker = launcher.wait_line(r"rank 1: pid (\d+), 0 digits seen before")
        launcher.wait_line(r"\d+ digits, ")
        os.kill(int(worker.group(1)), signal.SIGKILL)
        launcher.wait_line(r"rank 1: pid \d+, [1-9]\d* digits seen before")
        end = launcher.wait_line(r"(\d+) digits seen, (\S+) % recognised")
        assert launcher.wait() == 0, launcher.story()
        assert int(end.group(1)) == RECORDS
        assert float(end.group(2)) > 90
