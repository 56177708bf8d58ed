"""What workers print, and where they are, asked of real jobs from another node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticrun.cli.documents import FOLDER
from elasticrun.errors import ExitCode
from tests.e2e.test_ask_nearby import ask, done, token
from tests.support.cluster import Cluster
from tests.support.director import Worker
from tests.support.launcher import MARK, ROOT, clean_environment, private_folders
from tests.support.orders import TOKEN, Orders
from tests.support.processes import DEADLINE
from tests.support.schema import misfits

#: Says that it is there, and hangs in a function of this name.
STUCK = """\
import os, signal, elasticrun
def stuck_here():
    print("stuck", flush=True)
    while True:
        signal.pause()
elasticrun.report_step(1)
stuck_here()
"""


def two_nodes(cluster: Cluster, *options: str | Path) -> list[Worker]:
    """A job with a token on two nodes; its workers by rank."""
    for _ in range(2):
        cluster.node("2", "--token-file", token(cluster), "--max-restarts", "2", *options)
    return sorted(cluster.director.round(0, 2), key=lambda worker: worker.rank)


def here(cluster: Cluster) -> tuple[str, str]:
    """The options that name the job on the master's host."""
    return "--pid", str(cluster.host().pid)


def end(cluster: Cluster, number: int = 0) -> None:
    for worker in cluster.director.round(number, 2):
        worker.tell("exit 0")
    cluster.wait_all()


class Follower:
    """``elastic-ctl logs --follow``, and what it has printed."""

    def __init__(self, cluster: Cluster, *argv: str) -> None:
        nowhere = cluster.folder / "nowhere"
        (nowhere / "session").mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "elasticrun.cli.ctl", "logs", *argv, "--follow", *here(cluster)]
        env = clean_environment(TMPDIR=str(nowhere), **private_folders(nowhere))
        self.process = subprocess.Popen(
            command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._lines: list[str] = []
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._lines.append(line.rstrip("\n"))
                self._more.notify_all()

    def wait(self, line: str) -> None:
        """Until it has printed a line."""
        with self._more:
            assert self._more.wait_for(lambda: line in self._lines, DEADLINE), (line, self._lines)

    def finish(self) -> tuple[list[str], str]:
        """All that it printed, once it has ended well, and what it noted."""
        assert self.process.wait(DEADLINE) == 0
        self._thread.join(DEADLINE)
        assert self.process.stderr is not None
        return self._lines, self.process.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def followers() -> Iterator[list[Follower]]:
    made: list[Follower] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize("options", [("--rank-prefix",), ("--tee", "3"), ("-r", "3")])
def test_logs_come_from_the_other_node(cluster: Cluster, options: tuple[str, ...]) -> None:
    workers = two_nodes(cluster, *options)
    for worker in workers:
        worker.ask(f"out I am {worker.rank}\x1b")
        worker.ask(f"err error of {worker.rank}")
    for rank in ("0", "1"):
        assert done(cluster.folder, "logs", rank, "--stdout", *here(cluster)) == f"I am {rank}\x1b\n"
        assert done(cluster.folder, "logs", rank, "--stderr", *here(cluster)) == f"error of {rank}\n"
        assert Orders(cluster).done("logs", rank, "--stderr") == f"error of {rank}\n"
    shown = done(cluster.folder, "logs", *here(cluster)).splitlines()
    assert sorted(shown) == sorted(
        line for rank in (0, 1) for line in (f"[rank{rank}] I am {rank}\x1b", f"[rank{rank}] error of {rank}")
    )
    schema = json.loads((FOLDER / "logs.json").read_text())
    told = [json.loads(line) for line in done(cluster.folder, "logs", "--json", *here(cluster)).splitlines()]
    assert [misfits(each, schema) for each in told] == [[]] * 4
    end(cluster)


def test_a_node_that_is_alone_is_asked_too(cluster: Cluster) -> None:
    launcher = cluster.alone("--rank-prefix")
    (worker,) = cluster.director.round(0, 1)
    worker.ask("out hello")
    assert done(cluster.folder, "logs", "0", "--pid", str(launcher.pid)) == "hello\n"
    worker.tell("exit 0")
    assert launcher.wait() == 0


@pytest.mark.parametrize("options", [("--rank-prefix",), ("-r", "3")])
def test_following_survives_a_kill_and_a_restart(
    cluster: Cluster, options: tuple[str, ...], followers: list[Follower]
) -> None:
    workers = two_nodes(cluster, *options)
    workers[1].ask("out before")
    one, both = Follower(cluster, "1", "--stdout"), Follower(cluster, "--stdout")
    followers += [one, both]
    one.wait("before")
    both.wait("[rank1] before")
    workers[1].ask("out last words")
    workers[1].kill()
    again = sorted(cluster.director.round(1, 2), key=lambda worker: worker.rank)
    again[1].ask("out after")
    again[0].ask("out of rank 0")
    one.wait("after")
    both.wait("[rank1] after")
    both.wait("[rank0] of rank 0")
    end(cluster, 1)
    lines, notes = one.finish()
    assert lines == ["before", "last words", "after"]
    assert "rank 1: started again: from here on this is round 1" in notes
    assert "the job has ended: all workers of round 1 ended with 0" in notes
    lines, _ = both.finish()
    assert [line for line in lines if "rank1" in line] == [
        f"[rank1] {line}" for line in ("before", "last words", "after")
    ]


def test_following_survives_the_master(cluster: Cluster, followers: list[Follower]) -> None:
    workers = two_nodes(cluster, "--rank-prefix")
    workers[1].ask("out before")
    followers.append(one := Follower(cluster, "1", "--stdout"))
    one.wait("before")
    os.kill(cluster.master_of(cluster.host()), signal.SIGKILL)
    workers[1].ask("out after")
    one.wait("after")
    end(cluster)
    lines, notes = one.finish()
    assert lines == ["before", "after"]
    assert "the job has ended: all workers of round 0 ended with 0" in notes


def test_stacks_of_a_rank_that_hangs(cluster: Cluster) -> None:
    script = cluster.folder / "stuck.py"
    script.write_text(STUCK)
    options = (*cluster.options("2"), "--token-file", str(token(cluster)), "--rank-prefix", str(script))
    launchers = [cluster.launch(*options) for _ in range(2)]
    for launcher in launchers:
        launcher.wait_line("stuck", "out")
    for rank in ("0", "1"):
        assert "in stuck_here" in done(cluster.folder, "stacks", rank, *here(cluster))
    printed = done(cluster.folder, "stacks", "--print", *here(cluster))
    assert printed.startswith("2 nodes save the stacks") and printed.count("in stuck_here") == 2
    document = json.loads(Orders(cluster).done("stacks", "--json"))
    assert misfits(document, json.loads((FOLDER / "stacks.json").read_text())) == []
    assert [("in stuck_here" in each["stacks"], each["problem"]) for each in document["ranks"]] == [
        (True, ""),
        (True, ""),
    ]
    for launcher in launchers:
        launcher.signal(signal.SIGTERM)
    for launcher in launchers:
        launcher.wait()


def test_what_cannot_be_shown_is_said_in_a_sentence(cluster: Cluster) -> None:
    workers = two_nodes(cluster)
    workers[1].ask("err only this is kept")

    def refused(*argv: str, code: int = 1) -> str:
        given = ask(cluster.folder, *argv, *here(cluster))
        assert (given.returncode, given.stdout, given.stderr.count("\n")) == (code, "", 1), given
        return given.stderr

    assert refused("logs", "2") == "there is no rank 2 now; there are ranks 0 to 1\n"
    assert refused("stacks", "9").startswith("there is no rank 9 now")
    if not shutil.which("py-spy"):
        assert "the worker does not answer a signal" in refused("stacks", "1")
    told = ask(cluster.folder, "logs", "1", *here(cluster))
    assert (told.returncode, told.stdout) == (0, "only this is kept\n")
    assert "rank 1: its stdout goes past its agent" in told.stderr and "--rank-prefix" in told.stderr
    host = cluster.host()
    others: list[Any] = [launcher for launcher in cluster.launchers if launcher is not host]
    others[0].kill_node()
    host.wait_line("round 0 stops", "err")
    gone = refused("logs", str(_rank_of(workers, others[0])))
    assert "there is no rank" in gone or "is not connected to the master now" in gone
    host.kill_node()
    host.wait()
    ended = Orders(cluster).give("logs", "0", "--timeout", "1")
    assert ended.returncode == ExitCode.MASTER_UNREACHABLE and "look at --endpoint" in ended.stderr, ended


def _rank_of(workers: list[Worker], launcher: Any) -> int:
    """The rank of a launcher's worker: by the launcher that the worker was marked with."""
    (rank,) = (it.rank for it in workers if f"{MARK}={it.env.get(MARK)}" == launcher.mark)
    return rank


def test_without_the_token_nothing_is_shown(cluster: Cluster) -> None:
    two_nodes(cluster, "--rank-prefix")
    for verb in ("logs", "stacks"):
        assert "no token found" in Orders(cluster).give(verb, "1", token="").stderr
        wrong = Orders(cluster).give(verb, "1", token=TOKEN[::-1])
        assert (wrong.returncode, wrong.stdout) == (ExitCode.UNAUTHENTICATED, "")
    end(cluster)
