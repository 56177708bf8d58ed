"""``elastic-ctl`` as a test uses it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.cluster import Cluster
from tests.support.launcher import clean_environment, private_folders
from tests.support.processes import DEADLINE

#: The job's token.
TOKEN = "5d0c1f4ae9b27386f1d2c4b8907e6a35"


class Orders:
    """``elastic-ctl`` for the job of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._folder = cluster.folder
        self._target = ("--endpoint", f"127.0.0.1:{cluster.port}", "--rdzv-id", "job")

    def give(self, *argv: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
        command, env = self._line(argv, token)
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)

    def begin(self, *argv: str) -> subprocess.Popen[str]:
        """An order that waits for something, as a process."""
        command, env = self._line(argv, TOKEN)
        env["PYTHONUNBUFFERED"] = "1"
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)

    def _line(self, argv: tuple[str, ...], token: str) -> tuple[list[str], dict[str, str]]:
        nowhere = self._folder / "nowhere"  # there is a session in it, or another one would be looked for
        (nowhere / "session").mkdir(parents=True, exist_ok=True)
        places = {"TMPDIR": str(self._folder), **private_folders(nowhere)}
        env = clean_environment(**places, **({"ELASTICRUN_TOKEN": token} if token else {}))
        return [sys.executable, "-m", "elasticrun.cli.ctl", *argv, *self._target], env

    def done(self, *argv: str) -> str:
        """What ``elastic-ctl`` says to an order that is obeyed."""
        given = self.give(*argv)
        assert (given.returncode, given.stderr) == (0, ""), given
        return given.stdout
