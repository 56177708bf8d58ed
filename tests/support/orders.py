"""``elastic-ctl`` as a test uses it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.cluster import Cluster
from tests.support.launcher import clean_environment
from tests.support.processes import DEADLINE

#: The job's token.
TOKEN = "0123456789abcdef0123456789abcdef"


class Orders:
    """``elastic-ctl`` for the job of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._target = ("--endpoint", f"127.0.0.1:{cluster.port}", "--rdzv-id", "job")

    def give(self, *argv: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        env = clean_environment(**({"ELASTICRUN_TOKEN": token} if token else {}))
        command = [sys.executable, "-m", "elasticrun.cli.ctl", argv[0], *self._target, *argv[1:]]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)

    def done(self, *argv: str) -> str:
        """What ``elastic-ctl`` says to an order that is obeyed."""
        given = self.give(*argv)
        assert (given.returncode, given.stderr) == (0, ""), given
        return given.stdout
