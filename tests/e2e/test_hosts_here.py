"""``elastic-ctl launch`` on addresses of this box, without ssh: what a job of many hosts goes through."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from elasticrun.errors import ExitCode
from tests.support.cluster import WORKER, Cluster
from tests.support.director import Worker
from tests.support.launcher import Launcher, run
from tests.support.orders import TOKEN
from tests.support.ports import free_port
from tests.support.processes import nobody_left, only, title, titled

FIRST, SECOND, THIRD = HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
CTL = (sys.executable, "-m", "elasticrun.cli.ctl")
QUICK = ("--discovery-interval", "0.1", "--discovery-grace", "0", "--cooldown", "0.5:4")


#: A user without a name, a home or a login: an image may have no better one.
NOBODY = 54321


class Here:
    """A cluster whose hosts are addresses of this box."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._file = cluster.folder / "hosts"

    def name(self, *hosts: str) -> None:
        """What the hostfile has from now on."""
        draft = self._file.with_suffix(".new")
        draft.write_text("".join(f"{host}\n" for host in hosts))
        draft.rename(self._file)

    def launch(self, *words: str, job: tuple[str, ...] = (), **rest: Any) -> Launcher:
        where = ("--local-without-ssh", "--rdzv-endpoint", f"{FIRST}:{self.cluster.port}")
        logs = str(self.cluster.folder / "logs")
        return self.cluster.launch(
            *(*where, *words, "--", "--rdzv-id", "job", "--log-dir", logs, *job, str(WORKER)),
            **{"command": (*CTL, "launch"), "env": {"ELASTICRUN_TOKEN": TOKEN}, **rest},
        )

    def follow(self, *words: str, **rest: Any) -> Launcher:
        """A launch that follows the hostfile."""
        return self.launch("--hostfile", str(self._file), *QUICK, *words, **rest)

    def order(self, *words: str, tls: tuple[str, ...] = ()) -> Launcher:
        """``elastic-ctl`` to its end."""
        endpoint = ("--endpoint", f"{FIRST}:{self.cluster.port}", "--rdzv-id", "job")
        env = {"ELASTICRUN_TOKEN": TOKEN}
        return self.cluster.launch(*words, *endpoint, *tls, command=CTL, env=env, name="order")

    def world(self, size: int, after: int = -1) -> list[Worker]:
        return self.cluster.director.world(size, after)

    def end(self, launcher: Launcher, workers: list[Worker]) -> None:
        for worker in workers:
            worker.tell("exit 0")
        assert launcher.wait() == 0, launcher.story()
        nobody_left(launcher.mark)


@pytest.fixture
def here(cluster: Cluster) -> Here:
    return Here(cluster)


def test_a_job_that_is_stopped_ends_its_launch(here: Here) -> None:
    launcher = here.launch("-H", f"{FIRST},{SECOND}")
    here.world(2)
    assert here.order("stop").wait() == 0
    assert launcher.wait() == ExitCode.DRAINED, launcher.story()
    assert launcher.err.splitlines()[-1].startswith(
        f"elastic-ctl: error: {FIRST}, which has the job's master"
    )
    nobody_left(launcher.mark)


def test_a_host_that_was_drained_comes_back_as_a_new_node(here: Here) -> None:
    """Even if more nodes have come and gone than the job may have at once."""
    here.name(FIRST, SECOND)
    launcher = here.follow("--min-nodes", "1", "--max-nodes", "2")
    workers = here.world(2)
    for left, came in ((SECOND, THIRD), (THIRD, SECOND)):
        here.name(FIRST)
        launcher.wait_line(f"{left} has left", "err")
        alone = here.world(1, workers[0].round)
        here.name(FIRST, came)
        workers = here.world(2, alone[0].round)
    here.end(launcher, workers)


def test_a_host_is_drained_from_a_job_with_tls(here: Here, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    folder = tmp_path / "tls"
    made = CliRunner().invoke(group, ["certs", str(folder), "--hosts", "job=" + "=".join(HOSTS)])
    assert made.exit_code == 0, made.output
    files = {"ca": "ca.pem", "cert": "job.pem", "key": "job.key"}
    tls = tuple(f"--tls-{option}={folder / name}" for option, name in files.items())
    here.name(FIRST, SECOND)
    launcher = here.follow("--min-nodes", "1", *tls, job=tls)
    here.world(2)
    here.name(FIRST)
    launcher.wait_line("drained: no longer in the list of hosts", "err")
    launcher.wait_line(f"{SECOND} has left", "err")
    assert "cannot be drained" not in launcher.err and "TLS" not in launcher.err
    here.end(launcher, here.world(1, after=0))


def test_the_first_host_comes_back_while_its_last_launcher_still_stops(here: Here) -> None:
    """The connection broke, and workers there take their time to end."""
    here.name(FIRST, SECOND)
    launcher = here.follow("--min-nodes", "1", job=("--shutdown-timeout", "3"))
    workers = here.world(2)
    for worker in workers:
        assert worker.ask("ignore 15") == "ignored"
    agent = only([pid for pid in titled(launcher.mark, "elastic-run: agent") if "is_host=true" in title(pid)])
    found = re.search(r"^PPid:\s+(\d+)$", Path(f"/proc/{agent}/status").read_text(), re.MULTILINE)
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    launcher.wait_line(f"{FIRST} is lost: the connection has ended; it is tried again in 0.5 s", "err")
    here.end(launcher, here.world(2, after=workers[0].round))


@pytest.mark.root
def test_a_user_who_is_not_root_launches() -> None:
    become = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv")
    code = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import elasticrun']))"
    if subprocess.run([*become, sys.executable, "-c", code], capture_output=True, check=False).returncode:
        pytest.skip(f"needs {sys.executable} and elasticrun to be readable by everybody")
    with tempfile.TemporaryDirectory() as folder:  # that of pytest is root's alone
        os.chown(folder, NOBODY, NOBODY)
        env = {"TMPDIR": folder, "HOME": "/nonexistent", "PET_HEALTH_CHECK": "off"}
        hosts = ("-H", f"{FIRST},{SECOND}", "--local-without-ssh")
        where = ("--rdzv-endpoint", f"{FIRST}:{free_port()}")
        program = ("--", "--no-python", "sh", "-c", "id -u")
        launcher = run(*hosts, *where, *program, cwd=Path(folder), env=env, command=(*become, *CTL, "launch"))
    assert launcher.process.returncode == 0, launcher.story()
    printed = [f"[{host}] {NOBODY}" for host in (FIRST, SECOND)]
    assert sorted(line.replace("[default0]:", "") for line in launcher.out.splitlines()) == printed


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_of_a_launch_that_is_told_to_end(here: Here, signum: signal.Signals) -> None:
    launcher = here.launch("-H", f"{FIRST},{SECOND}")
    here.world(2)
    launcher.signal(signum)
    assert launcher.wait() == (128 + signum if signum != signal.SIGKILL else -signum), launcher.story()
    nobody_left(launcher.mark)
