"""``elastic-ctl launch`` over real sshd, with real agents and workers."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from elasticrun.errors import ExitCode
from tests.support.cluster import WORKER, Cluster
from tests.support.director import Worker
from tests.support.launcher import Launcher
from tests.support.orders import TOKEN
from tests.support.ports import free_port
from tests.support.processes import marked, nobody_left, only, title
from tests.support.sshd import HOSTS, Sshd, make_key, sshd

__all__ = ["sshd"]

FIRST, SECOND, THIRD = HOSTS
CTL = (sys.executable, "-m", "elasticrun.cli.ctl", "launch")
QUICK = ("--discovery-interval", "0.1", "--discovery-grace", "0", "--cooldown", "1:4")


class Site:
    """A cluster whose hosts are reached by ssh."""

    def __init__(self, cluster: Cluster, sshd: Sshd) -> None:
        self.cluster, self.sshd = cluster, sshd
        self.list = cluster.folder / "hosts"
        self._script = cluster.folder / "discover"
        self.script(f"cat {self.list}")

    def launch(
        self, *words: str, ssh: dict[str, str] | None = None, env: dict[str, str] | None = None
    ) -> Launcher:
        """A launch with these words of its own, of remote-controlled workers."""
        exported = {**self.cluster.director.env, "PET_HEALTH_CHECK": "off"}
        return self.cluster.launch(
            *self.sshd.options(**(ssh or {})),
            *(f"--export={name}={value}" for name, value in exported.items()),
            *("--rdzv-endpoint", f"{FIRST}:{self.cluster.port}"),
            *words,
            *("--", "--log-dir", str(self.cluster.folder / "logs"), str(WORKER)),
            env=env,
            command=CTL,
        )

    def script(self, text: str) -> None:
        """What the discovery script does from now on. One that runs is never changed."""
        draft = self._script.with_suffix(".new")
        draft.write_text(f"#!/bin/sh\n{text}\n")
        draft.chmod(0o755)
        draft.rename(self._script)

    def discovering(self, *words: str) -> tuple[str, ...]:
        return ("--host-discovery-script", str(self._script), *QUICK, *words)

    def name(self, *hosts: str) -> None:
        """What the discovery script prints from now on."""
        draft = self.list.with_suffix(".new")
        draft.write_text("".join(f"{host}\n" for host in hosts))
        draft.rename(self.list)

    def ssh_of(self, launcher: Launcher, host: str) -> int:
        """The pid of the ssh that stands for a host."""
        return only([pid for pid in marked(launcher.mark) if re.match(f"ssh .* {host} ", title(pid))])

    def world(self, size: int, after: int = -1) -> list[Worker]:
        return self.cluster.director.world(size, after)

    def end(self, launcher: Launcher, workers: list[Worker]) -> None:
        """Let the job succeed; nothing may be left."""
        for worker in workers:
            worker.tell("exit 0")
        assert launcher.wait() == 0, launcher.story()
        self.nothing_left(launcher)

    def nothing_left(self, launcher: Launcher) -> None:
        nobody_left(launcher.mark)
        self.sshd.nobody_left()


@pytest.fixture
def site(cluster: Cluster, sshd: Sshd) -> Site:
    return Site(cluster, sshd)


def test_two_hosts_run_a_job_and_the_token_is_on_no_command_line(site: Site) -> None:
    launcher = site.launch("-H", f"{FIRST}:2,{SECOND}:1", env={"ELASTICRUN_TOKEN": TOKEN})
    workers = site.world(3)
    for worker in workers:
        assert "ELASTICRUN_TOKEN" not in worker.env
        assert worker.cwd == str(site.cluster.folder)
    lines = [title(pid) for pid in (*marked(launcher.mark), *site.sshd.sessions())]
    assert len(lines) > 6 and not [line for line in lines if TOKEN in line]
    for pid in marked(launcher.mark):
        assert pid == launcher.pid or TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
    site.end(launcher, workers)


def test_each_line_has_its_host_in_front_and_is_whole(site: Site) -> None:
    """Workers of one host share its stream, and each writes the end of a line by itself."""
    launcher = site.launch("-H", f"{FIRST},{SECOND}")
    workers = site.world(2)
    for number in range(20):
        for worker in workers:
            worker.tell(f"out {worker.rank} {number} {'x' * 200}")
            worker.tell(f"err {worker.rank} {number}")
    for worker in workers:
        for _ in range(40):
            worker.answer()
    site.end(launcher, workers)
    printed = [re.fullmatch(r"\[([\d.]+)\] (\d) (\d+) x{200}", line) for line in launcher.out.splitlines()]
    assert len(printed) == 40 and all(printed)
    assert {(found[1], found[2]) for found in printed if found} == {
        (FIRST, "0"),
        (SECOND, "1"),
    }
    assert len(re.findall(r"^\[[\d.]+\] \d \d+$", launcher.err, re.M)) == 40


def test_a_discovered_host_joins_and_one_that_is_missing_is_drained(site: Site) -> None:
    site.name("# the first two", FIRST, f"{SECOND} slots=1")
    launcher = site.launch(*site.discovering("--min-nodes", "1"))
    site.world(2)
    site.name(FIRST, SECOND, THIRD)
    three = site.world(3)
    site.name(FIRST, THIRD)
    launcher.wait_line(f"{SECOND} is no longer listed: it is drained", "err")
    two = site.world(2, after=three[0].round)
    launcher.wait_line(f"{SECOND} has left", "err")
    assert "drained: no longer in the list of hosts" in launcher.err
    site.end(launcher, two)


def test_a_script_that_fails_hangs_or_babbles_drains_nobody(site: Site) -> None:
    site.name(FIRST, SECOND)
    launcher = site.launch(*site.discovering("--discovery-timeout", "4"))
    workers = site.world(2)
    for script, told in (
        ("echo it broke >&2; exit 3", "ended with 3: it broke; the last good list of 2 hosts"),
        ("echo 'a b c'", "line 1: 'a b c' is not valid: give .*; the last good list of 2 hosts"),
        ("true", "names no host: give at least one; the last good list of 2 hosts"),
        ("exec cat /dev/tty /dev/full 2>&1; read nothing", "the last good list of 2 hosts stays"),
        ("trap '' 15; cat < /dev/zero", "did not end within 4 s; the last good list of 2 hosts"),
    ):
        site.script(script)
        launcher.wait_line(told, "err")
    site.script(f"cat {site.list}")
    launcher.wait_line("the list of hosts can be read again", "err")
    assert [worker.gone for worker in workers] == [False, False]
    site.end(launcher, workers)


def test_a_host_that_fails_is_left_out_and_tried_again(site: Site) -> None:
    site.name(FIRST, SECOND, "127.0.0.5")  # where no sshd listens
    launcher = site.launch(*site.discovering("--min-nodes", "2"))
    workers = site.world(2)
    for pause in ("1", "2", "4", "4"):
        words = rf"127.0.0.5 cannot be started: .*Connection refused.*; it is tried again in {pause} s"
        launcher.wait_line(words, "err")
    assert [worker.gone for worker in workers] == [False, False]
    site.end(launcher, workers)


@pytest.mark.parametrize("host", [SECOND, FIRST])
def test_a_lost_connection_ends_the_workers_there_and_the_job_recovers(site: Site, host: str) -> None:
    site.name(FIRST, SECOND)
    launcher = site.launch(*site.discovering("--min-nodes", "1"))
    workers = site.world(2)
    os.kill(site.ssh_of(launcher, host), signal.SIGKILL)
    launcher.wait_line(rf"{host} is lost: the connection has ended; it is tried again in 1 s", "err")
    workers[HOSTS.index(host)].wait_end()
    site.end(launcher, site.world(2, after=0))


def test_ctrl_c_stops_all_hosts(site: Site) -> None:
    launcher = site.launch("-H", f"{FIRST},{SECOND}")
    site.world(2)
    launcher.signal(signal.SIGINT)
    assert launcher.wait() == 128 + signal.SIGINT, launcher.story()
    assert "stopping the launchers of 2 hosts (up to 60 s; Ctrl-C again kills them)" in launcher.err
    site.nothing_left(launcher)


def test_a_second_ctrl_c_kills(site: Site) -> None:
    launcher = site.launch("-H", f"{FIRST},{SECOND}")
    for worker in site.world(2):
        assert worker.ask("ignore 2 15") == "ignored"
    launcher.signal(signal.SIGINT)
    launcher.wait_line("stopping the launchers of 2 hosts", "err")
    launcher.signal(signal.SIGINT)
    launcher.wait_line("asked to stop again: killing the launchers of 2 hosts now", "err")
    assert launcher.wait() == 128 + signal.SIGINT, launcher.story()
    site.nothing_left(launcher)


def test_nothing_is_left_of_a_launch_that_is_killed(site: Site) -> None:
    launcher = site.launch("-H", f"{FIRST},{SECOND}")
    site.world(2)
    launcher.kill()
    launcher.wait()
    site.nothing_left(launcher)


def test_a_host_that_hears_nothing_stops_its_workers(site: Site) -> None:
    """As if the network dropped every packet: the launch is stopped, and its connections stay."""
    launcher = site.launch("-H", f"{FIRST},{SECOND}", "--silence", "5")
    workers = site.world(2)
    launcher.signal(signal.SIGSTOP)
    for worker in workers:
        worker.wait_end()
    launcher.signal(signal.SIGCONT)
    launcher.wait_line("tried again in", "err")
    launcher.signal(signal.SIGTERM)
    assert launcher.wait() == 128 + signal.SIGTERM, launcher.story()
    site.nothing_left(launcher)


def test_the_exit_status_is_the_jobs(site: Site) -> None:
    launcher = site.launch("-H", f"{FIRST},{SECOND}")
    for worker in site.world(2):
        worker.tell("exit 7")
    assert launcher.wait() == ExitCode.JOB_FAILED, launcher.story()
    site.nothing_left(launcher)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("IdentityFile", r"Permission denied \(publickey.*\)"),
        ("UserKnownHostsFile", "Host key verification failed"),
        ("Port", "Connection refused"),
    ],
)
def test_hosts_that_cannot_be_entered_are_said_in_one_sentence(site: Site, option: str, said: str) -> None:
    other = site.cluster.folder / "other"
    make_key(other)
    wrong = {"Port": str(free_port())}.get(option, str(other))
    launcher = site.launch("-H", FIRST, "--cooldown", "0.1", ssh={option: wrong})
    assert launcher.wait() == ExitCode.MASTER_UNREACHABLE, launcher.story()
    last = launcher.err.splitlines()[-1]
    start = rf"elastic-ctl: error: {FIRST}, which has the job's master, cannot be started: "
    assert re.fullmatch(rf"{start}.*{said}.*\(ssh ended with 255\) \(3 times\)", last), launcher.story()
    assert len(launcher.err.splitlines()) == 3, launcher.story()


def test_python_that_is_not_there_is_said(site: Site) -> None:
    launcher = site.launch("-H", FIRST, "--cooldown", "0.1", "--python", "/nowhere/py thon")
    assert launcher.wait() == ExitCode.MASTER_UNREACHABLE, launcher.story()
    assert re.search("cannot be started: .*/nowhere/py thon: .*(not found|No such file)", launcher.err), (
        launcher.story()
    )


def test_this_host_needs_no_ssh(site: Site) -> None:
    words = ("-H", f"localhost:1,{SECOND}:1", "--local-without-ssh", "--ssh", "/nowhere")
    launcher = site.launch(*words)
    workers = site.world(2)
    assert not site.sshd.sessions()
    site.end(launcher, workers)
