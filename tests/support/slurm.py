"""A Slurm of one test: its controller and three nodes on this host, in the test's own folder.

Nothing of the system's Slurm is read or used. The nodes are called by addresses of this host, as their names
have to be found by everybody. Signals to a step reach all of its processes, as with proctrack/cgroup they do
not: it is the rougher way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launcher import Launcher, clean_environment, private_folders
from tests.support.ports import free_port
from tests.support.processes import TORCH_DEADLINE, marked

NODES = 3
#: Of Slurm: what tests and their batch scripts start.
COMMANDS = ("slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

#: A job that is queued again waits until the credentials of its last run have expired.
_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=10
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/control.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
FirstJobId={first_job}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000,sched_interval=2,bf_interval=1
ReturnToService=2
SlurmdTimeout=6
KillWait=5
JobRequeue=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **private_folders(folder),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": _PATH,
            "LOGLEVEL": "INFO",
        }
        self._started: list[Launcher] = []
        self.nodes: dict[str, Launcher] = {}

    def start(self) -> None:
        names = [f"127.0.0.{number + 1}" for number in range(NODES)]
        (self.folder / "state").mkdir()
        (self.folder / "session").mkdir(mode=0o700)  # for this user's token
        for name in names:
            (self.folder / f"spool-{name}").mkdir()
        host, user = os.uname().nodename, _user()
        rows = (
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4"
            for name in names
        )
        text = _CONFIG.format(
            host=host,
            user=user,
            folder=self.folder,
            control=free_port(),
            first_job=free_port(),  # a job's id decides its master's port: tests at one time have others
            nodes="\n".join(rows),
        )
        (self.folder / "slurm.conf").write_text(text)
        self.control = self.launch("slurmctld", "-D", "-c")
        self.control.wait_line("Running as primary controller")
        for name in names:
            self.nodes[name] = self.launch("slurmd", "-D", "-N", name)
        for node in self.nodes.values():
            node.wait_line("slurmd started")

    def launch(self, command: str, *args: str | Path, **env: str) -> Launcher:
        """Start one of ``COMMANDS``, or any other program; it ends with the test."""
        path = shutil.which(command, path=_PATH) or command
        launcher = Launcher(*args, cwd=self.folder, env={**self.env, **env}, command=(path,), name=command)
        launcher.patience = TORCH_DEADLINE  # Slurm takes its time, the more on a busy machine
        self._started.append(launcher)
        return launcher

    def submit(self, script: str, *options: str) -> Launcher:
        """Submit a batch script; returns what prints its output, of all its runs one after the other."""
        path, output = self.folder / "job.sh", self.folder / "job.out"
        path.write_text(f"#!/bin/bash\n{script}\n")
        output.touch()
        done = self.launch("sbatch", "--open-mode=append", "--requeue", f"--output={output}", *options, path)
        assert done.wait() == 0, done.story()
        self.job = done
        return self.launch("tail", "-n", "+1", "-F", output)

    def lose(self, node: str) -> None:
        """Kill all processes of a node: Slurm's own, and those of the batch job there."""
        self.nodes[node].kill_node()
        for pid in sorted({*marked(self.job.mark)} & {*marked(f"SLURMD_NODENAME={node}")}):
            with contextlib.suppress(ProcessLookupError):  # one took another with it
                os.kill(pid, signal.SIGKILL)

    def ask(self, command: str, *args: str) -> str:
        """What one of ``COMMANDS`` prints."""
        path = shutil.which(command, path=_PATH) or command
        done = subprocess.run(
            [path, *args],
            env=clean_environment(**self.env),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TORCH_DEADLINE,
            check=False,
        )
        assert done.returncode == 0, (command, args, done.stderr)
        return done.stdout

    def close(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.ask("scancel", "--signal=KILL", "--full", "--state=RUNNING", f"--user={_user()}")
        for launcher in reversed(self._started):
            launcher.finish()


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """Slurm with three nodes, or a skip where it is not installed.

    Its folder has a short name: the socket of a batch step lies in it, whose path may have 107 letters.
    """
    missing = [command for command in COMMANDS if shutil.which(command, path=_PATH) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install slurm-wlm")
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        found = Slurm(Path(folder))
        try:
            found.start()
            yield found
        finally:
            found.close()
