"""Real jobs, and ``elastic-ctl`` beside them without a token and without an endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elasticrun.cli.documents import FOLDER
from elasticrun.errors import ExitCode
from elasticrun.rpc import nearby
from tests.support.cluster import WORKER, Cluster
from tests.support.launcher import MODULE, ROOT, Launcher, clean_environment, private_folders
from tests.support.orders import TOKEN
from tests.support.processes import DEADLINE
from tests.support.schema import misfits

#: What another user finds, and what the master answers to an order of theirs. Imports while it may.
AS_NOBODY = """\
import asyncio, os, socket, sys
from elasticrun.core.protocol.orders import RestartRound
from elasticrun.rpc import nearby
os.setgid(65534)
os.setuid(65534)
print(nearby.names())
print(asyncio.run(nearby.jobs(60.0)))
channel = socket.socket(socket.AF_UNIX)
channel.connect("\\0" + sys.argv[1])
try:
    channel.sendall(nearby.encode_order(RestartRound("why not")))
    channel.shutdown(socket.SHUT_WR)
    print(channel.recv(100))
except OSError:
    print(b"")
"""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users or on two networks")


def ask(
    folder: Path, *argv: str, beginning: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """``elastic-ctl`` without a token that it could find."""
    nowhere = folder / "nowhere"
    (nowhere / "session").mkdir(parents=True, exist_ok=True)
    env = clean_environment(TMPDIR=str(nowhere), **private_folders(nowhere), **environ)
    command = [*beginning, sys.executable, "-m", "elasticrun.cli.ctl", *argv]
    return subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False
    )


def done(folder: Path, *argv: str, beginning: tuple[str, ...] = ()) -> str:
    """What it says to an order that is obeyed."""
    given = ask(folder, *argv, beginning=beginning)
    assert (given.returncode, given.stderr) == (0, ""), given
    return given.stdout


def listed(folder: Path, launcher: Launcher) -> dict[str, Any]:
    """What ``ps`` says of a launcher's job; this box may have others."""
    given = ask(folder, "ps", "--json")
    troubles = "did not answer within|ended before it answered"  # other jobs of this box, which tests disturb
    assert all(re.search(troubles, line) for line in given.stderr.splitlines()), given
    document = json.loads(given.stdout)
    assert misfits(document, json.loads((FOLDER / "ps.json").read_text())) == []
    found: list[dict[str, Any]] = [each for each in document["jobs"] if each["pid"] == launcher.pid]
    return found[0] if found else {}


def end(cluster: Cluster, number: int, size: int) -> None:
    for worker in cluster.director.round(number, size):
        worker.tell("exit 0")
    cluster.wait_all()


def test_a_job_without_a_port_is_found_asked_and_steered(cluster: Cluster) -> None:
    launcher = cluster.alone("--max-restarts", "1")
    cluster.director.round(0, 1)
    job = listed(cluster.folder, launcher)
    assert (job["phase"], job["round"], job["nodes"], job["endpoint"]) == ("running", 0, 1, None)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", job["since"])
    assert job["job_id"] in ask(cluster.folder, "ps").stdout
    named = ("--pid", str(launcher.pid))
    assert "running, round 0, 1 nodes of 1:1" in done(cluster.folder, "status", *named)
    status = json.loads(done(cluster.folder, "status", "--json", "--rdzv-id", job["job_id"]))
    assert misfits(status, json.loads((FOLDER / "status.json").read_text())) == []
    assert status["job"]["job_id"] == job["job_id"]
    lonely = ask(cluster.folder, "scale", "2", *named)
    assert lonely.returncode == 1 and "no other node can reach this job" in lonely.stderr
    lonely = ask(cluster.folder, "scale", "out", "--count", "1", *named)
    assert lonely.returncode == 1 and "no other node can reach this job" in lonely.stderr
    assert "stopped and start again" in done(cluster.folder, "restart", *named)
    end(cluster, 1, 1)
    assert listed(cluster.folder, launcher) == {}
    gone = ask(cluster.folder, "status", *named)
    assert gone.returncode == ExitCode.MASTER_UNREACHABLE and "no job of" in gone.stderr


def test_a_node_is_drained_by_the_beginning_of_its_name(cluster: Cluster) -> None:
    cluster.node("1:2", "--last-call-timeout", "60", "--token-file", str(token(cluster)))
    cluster.node("1:2", "--last-call-timeout", "60", "--token-file", str(token(cluster)))
    cluster.director.round(0, 2)
    named = ("--pid", str(cluster.host().pid))
    job = listed(cluster.folder, cluster.host())
    assert (job["endpoint"], job["nodes"]) == (f"127.0.0.1:{cluster.port}", 2)
    nodes = json.loads(done(cluster.folder, "status", "--json", *named))["job"]["nodes"]
    names = sorted(node["name"] for node in nodes)
    host = names[0].partition("/")[0]
    both = ask(cluster.folder, "drain", host, *named)
    assert both.returncode == ExitCode.JOB_FAILED
    assert all(name in both.stderr for name in names), both.stderr
    first, second = names
    unique = next(first[:size] for size in range(len(first)) if not second.startswith(first[:size]))
    assert done(cluster.folder, "drain", unique, *named) == f"{first} is asked to leave\n"
    for worker in cluster.director.round(1, 1):
        worker.tell("exit 0")
    assert {launcher.wait() for launcher in cluster.launchers} == {0, ExitCode.DRAINED}


def token(cluster: Cluster) -> Path:
    path = cluster.folder / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


def test_a_killed_job_leaves_no_name(cluster: Cluster) -> None:
    launcher = cluster.alone()
    cluster.director.round(0, 1)
    assert listed(cluster.folder, launcher)
    launcher.kill_node()
    launcher.wait()
    assert listed(cluster.folder, launcher) == {}


def test_a_master_that_was_killed_is_found_again(cluster: Cluster) -> None:
    launcher = cluster.alone(env={"LOGLEVEL": "INFO"})
    cluster.director.round(0, 1)
    os.kill(cluster.master_of(launcher), 9)
    launcher.wait_line("the master is back", "err")
    job = listed(cluster.folder, launcher)
    assert (job["phase"], job["since"]) == ("running", None)
    end(cluster, 0, 1)


@ROOT_ONLY
def test_alone_on_a_network_nothing_has_to_be_named(cluster: Cluster) -> None:
    """In a network namespace of its own, as other jobs of this user may be on this box."""
    launcher = cluster.launch("--standalone", WORKER, command=("unshare", "--net", *MODULE))
    cluster.director.round(0, 1)
    inside = ("nsenter", f"--net=/proc/{launcher.pid}/ns/net")
    assert "running, round 0" in done(cluster.folder, "status", beginning=inside)
    assert listed(cluster.folder, launcher) == {}, "it is on another network"
    end(cluster, 0, 1)


@ROOT_ONLY
def test_another_user_finds_no_job_and_gives_no_order(cluster: Cluster) -> None:
    launcher = cluster.alone(env={"LOGLEVEL": "INFO"})
    cluster.director.round(0, 1)
    found, _ = asyncio.run(nearby.jobs(DEADLINE))
    (name,) = (job.name for job in found if job.about.launcher == launcher.pid)
    env, command = clean_environment(), [sys.executable, "-c", AS_NOBODY, name]
    stranger = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert stranger.stdout.splitlines() == ["[]", "([], [])", "b''"], stranger
    assert listed(cluster.folder, launcher)["phase"] == "running"
    end(cluster, 0, 1)
    assert "orders RestartRound" not in launcher.err


def test_the_launcher_says_how_to_ask_about_its_job(cluster: Cluster) -> None:
    launcher = cluster.alone(env={"LOGLEVEL": "INFO"})
    cluster.director.round(0, 1)
    (line,) = launcher.wait_lines("ask about this job with: elastic-ctl (.*)", 1, "err")
    assert line[1] == f"status --pid {launcher.pid}"
    assert "running, round 0" in done(cluster.folder, *line[1].split())
    end(cluster, 0, 1)


def test_the_line_of_a_job_with_a_token_finds_it_too(cluster: Cluster) -> None:
    launcher = cluster.node("1:2", "--token-file", str(token(cluster)), env={"LOGLEVEL": "INFO"})
    cluster.director.round(0, 1)
    (line,) = launcher.wait_lines("ask about this job with: elastic-ctl (.*)", 1, "err")
    assert (
        line[1] == f"status --endpoint 127.0.0.1:{cluster.port} --rdzv-id job --token-file {token(cluster)}"
    )
    assert "job 'job': running" in done(cluster.folder, *line[1].split())
    end(cluster, 0, 1)


def test_nothing_of_it_is_said_on_a_pipe(cluster: Cluster) -> None:
    launcher = cluster.alone()
    end(cluster, 0, 1)
    assert "ask about" not in launcher.output()
