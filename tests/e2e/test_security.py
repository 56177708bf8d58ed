"""Launchers with tokens and certificates: who is let in, what is said, and where the token is not."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from elasticrun.cli.ctl import group
from elasticrun.errors import ExitCode
from tests.rpc.pki import Authority
from tests.support.cluster import Cluster
from tests.support.launcher import ROOT, clean_environment, private_folders
from tests.support.orders import TOKEN
from tests.support.processes import marked, title

OPEN_JOB = "the job has no token"
#: 127.0.0.1, the same in IPv6's clothes, and ::1, as the kernel writes them.
LOOPBACKS = ("0100007F:", "0000000000000000FFFF00000100007F:", f"{1 << 24:032X}:")


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return f"--token-file={path}"


def end(cluster: Cluster, number: int, size: int) -> None:
    """The workers of a round finish, and with them the launchers that are part of the job."""
    for worker in cluster.director.round(number, size):
        assert not {name for name in worker.env if "TOKEN" in name}, "workers have no use for it"
        worker.tell("exit 0")
    cluster.wait_all()


def traces(cluster: Cluster) -> str:
    """What every user of the host can see of the processes, and what they printed."""
    seen = [launcher.output() for launcher in cluster.launchers]
    for launcher in cluster.launchers:
        seen += [title(pid) for pid in marked(launcher.mark)]
    return "\n".join(seen)


def test_nodes_with_one_token_form_a_job_and_others_are_kept_out(
    cluster: Cluster, token: str, tmp_path: Path
) -> None:
    cluster.node("2", token)
    cluster.node("2", env={"ELASTICRUN_TOKEN": TOKEN})
    cluster.director.round(0, 2)
    (tmp_path / "other").write_text(TOKEN[::-1])
    for options, words in (
        (("--no-token",), "this node has none"),
        ((f"--token-file={tmp_path / 'other'}",), "another one"),
    ):
        stranger = cluster.node("2", *options)
        assert stranger.wait() == ExitCode.UNAUTHENTICATED
        assert words in stranger.err and "give every node the same --token-file" in stranger.err
        cluster.launchers.remove(stranger)
    assert TOKEN not in traces(cluster)
    assert OPEN_JOB not in traces(cluster)
    end(cluster, 0, 2)
    leaked = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert [path.name for path in leaked] == ["token"]


def test_on_one_box_nothing_has_to_be_typed(cluster: Cluster) -> None:
    """The first agent makes a token, the other reads it, and elastic-ctl finds it."""
    for _ in range(2):
        cluster.node("2", env={"LOGLEVEL": "INFO"})
    cluster.director.round(0, 2)
    (path,) = (cluster.folder / "session").rglob("token")
    for launcher in cluster.launchers:
        assert f"the job's token was read from {path}" in launcher.err
    assert OPEN_JOB not in traces(cluster) and path.read_text().strip() not in traces(cluster)
    endpoint = ("--endpoint", f"127.0.0.1:{cluster.port}")
    done = subprocess.run(
        [sys.executable, "-m", "elasticrun.cli.ctl", "status", "--rdzv-id=job", *endpoint],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=clean_environment(**private_folders(cluster.folder)),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 nodes of 2:2" in done.stdout
    print(done.stdout)
    end(cluster, 0, 2)


def test_a_job_without_a_token_says_so_once(cluster: Cluster, token: str) -> None:
    for _ in range(2):
        cluster.node("2", "--no-token")
    cluster.director.round(0, 2)
    stranger = cluster.node("2", token)
    assert stranger.wait() == ExitCode.UNAUTHENTICATED
    assert "has no token, but this node has one" in stranger.err
    cluster.launchers.remove(stranger)
    end(cluster, 0, 2)
    assert traces(cluster).count(OPEN_JOB) == 1


def test_a_node_alone_says_nothing_and_listens_nowhere(cluster: Cluster) -> None:
    launcher = cluster.alone()
    cluster.director.round(0, 1)
    assert OPEN_JOB not in launcher.err
    assert listeners(set(marked(launcher.mark))) == set()
    end(cluster, 0, 1)


def test_a_node_alone_with_a_token_listens_on_the_loopback(cluster: Cluster, token: str) -> None:
    launcher = cluster.alone(token)
    cluster.director.round(0, 1)
    listening = listeners(set(marked(launcher.mark)))
    assert listening and all(address.startswith(LOOPBACKS) for address in listening)
    end(cluster, 0, 1)


def listeners(pids: set[int]) -> set[str]:
    """The addresses, as the kernel writes them, on which these processes listen."""
    inodes = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed by now
                if found := re.match(r"socket:\[(\d+)\]", str(entry.readlink())):
                    inodes.add(found[1])
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def test_nodes_with_certificates_and_an_operator(cluster: Cluster, token: str, tmp_path: Path) -> None:
    made = CliRunner().invoke(group, ["certs", str(tmp_path / "tls"), "--hosts", "node=localhost=127.0.0.1"])
    assert made.exit_code == 0, made.output
    theirs = Authority(tmp_path, "theirs").issue("node")
    ours = {"ca": "ca.pem", "cert": "node.pem", "key": "node.key"}
    tls = [f"--tls-{option}={tmp_path / 'tls' / name}" for option, name in ours.items()]
    for _ in range(2):
        cluster.node("2", token, *tls)
    cluster.director.round(0, 2)
    mixed = [tls[0], f"--tls-cert={theirs.cert}", f"--tls-key={theirs.key}"]
    stranger = cluster.node("2", token, *mixed)
    assert stranger.wait() == ExitCode.UNAUTHENTICATED
    assert "may not accept the certificate of this node" in stranger.err
    cluster.launchers.remove(stranger)
    command = [sys.executable, "-m", "elasticrun.cli.ctl", "status", token, *tls]
    endpoint = f"--endpoint=127.0.0.1:{cluster.port}"
    done = subprocess.run(
        [*command, endpoint, "--rdzv-id=job"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=clean_environment(),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 nodes" in done.stdout
    end(cluster, 0, 2)
