"""The chief's session and the sharded optimizers, with real servers: 2 parameter servers, 3, 2, and 1.

One test, as each process that imports tensorflow takes seconds of both cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_ports
from tests.support.processes import TORCH_DEADLINE

CHIEF = Path(__file__).parent.parent / "support" / "tf_chief.py"
SAVED_EXIT = 42  # the launcher's word for a chief that has saved its state


class Cluster:
    """One worker, and parameter servers of which some are told of more of their kind than others."""

    def __init__(self, cleanup: ExitStack, log: Path) -> None:
        self._cleanup = cleanup
        self._log = cleanup.enter_context(log.open("w"))
        chief, worker, *servers = (f"127.0.0.1:{port}" for port in free_ports(5))
        self._addresses = {"chief": [chief], "worker": [worker], "ps": servers}
        self.servers: list[subprocess.Popen[str]] = []

    def config(self, servers: int, role: str = "chief", index: int = 0) -> dict[str, Any]:
        """TF_CONFIG of a task, if there are so many parameter servers."""
        cluster = {**self._addresses, "ps": self._addresses["ps"][:servers]}
        return {"cluster": cluster, "task": {"type": role, "index": index}}

    def serve(self, servers: int, role: str, index: int) -> None:
        """Start a server."""
        self.servers.append(
            self.start(["-m", "elasticrun.tf.server"], json.dumps(self.config(servers, role, index)))
        )

    def start(self, arguments: list[str], config: str = "", **options: Any) -> subprocess.Popen[str]:
        environ = {**os.environ, "TF_CONFIG": config, "CUDA_VISIBLE_DEVICES": "-1", "LOCAL_WORLD_SIZE": "2"}
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environ, stderr=self._log, text=True, **options
        )
        self._cleanup.callback(process.wait)
        self._cleanup.callback(process.kill)
        return process


class Chief:
    """Lives of a chief, one after another."""

    def __init__(self, cluster: Cluster) -> None:
        self._process = cluster.start([str(CHIEF)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._watch = threading.Timer(TORCH_DEADLINE, self._process.kill)

    def __enter__(self) -> Chief:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self._process.kill()
        self._process.communicate()

    def live(self, what: str, **order: Any) -> list[dict[str, Any]]:
        """Everything that one attempt tells; the last is its status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"what": what, **order}), file=self._process.stdin, flush=True)
        told: list[dict[str, Any]] = []
        while not told or "status" not in told[-1]:
            told.append(json.loads(self._process.stdout.readline()))
        return told


@pytest.mark.tensorflow
@pytest.mark.slow
def test_variables_and_slots_are_the_same_on_any_number_of_parameter_servers(tmp_path: Path) -> None:
    directory = str(tmp_path / "checkpoints")
    with ExitStack() as cleanup:
        cluster = Cluster(cleanup, tmp_path / "log")
        for role, index in (("worker", 0), ("ps", 0), ("ps", 1)):
            cluster.serve(2, role, index)
        chief = cleanup.enter_context(Chief(cluster))

        for told in chief.live("compare")[:-1]:
            assert told["difference"] < 1e-5, told  # of numbers around 1, after steps of 0.1

        # Asked to go, twice, while its tenth step was on its way: which is done, and saved.
        # Then it ends before a teardown, of which a third line would tell.
        begun, ended, end = chief.live(
            "live", config=cluster.config(2), directory=directory, last=100, ask_at=10
        )
        assert (begun["resumed"], begun["source"], begun["parts"]) == (0, "", 2)
        assert end["status"] == SAVED_EXIT
        assert ended["done"] == 10
        assert ended["newest"] > 0
        assert all(ended["digests"][name] != was for name, was in begun["digests"].items())

        cluster.serve(3, "ps", 2)
        for servers, last in ((3, 20), (2, 30), (1, 40)):
            before = ended
            order = {"config": cluster.config(servers), "directory": directory, "last": last}
            begun, ended, end = chief.live("live", **order, through_chief=servers == 2)
            assert begun["digests"] == before["digests"]
            assert begun["resumed"] == before["done"] == last - 10
            assert begun["source"].endswith(f"ckpt-{last - 10}")
            assert begun["parts"] == servers
            assert all(part == slot for part, slot in begun["placed"])
            assert end["status"] == 0
            assert ended["done"] == last
            assert ended["digests"] != begun["digests"]

        refused, end = chief.live("refuse", directory=directory)
        assert "does not hold all that this program has to restore" in refused["refusal"]
        assert end["status"] == 1  # and no teardown either
        assert [server.poll() for server in cluster.servers] == [None] * 4
