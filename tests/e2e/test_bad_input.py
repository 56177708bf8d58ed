"""What is wrong is said in one sentence, with the exit code of the manual's table and without a traceback."""

from __future__ import annotations

import http.server
import os
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elasticrun.errors import ExitCode
from tests.support.cluster import ENV_REPORT, WORKER, Cluster
from tests.support.launcher import MODULE, Launcher
from tests.support.orders import TOKEN

OTHER_VERSION = """
import sys
import elasticrun
elasticrun.__version__ = "0.0.0-other"
from elasticrun.cli.main import main
sys.exit(main())
"""


def refused(launcher: Launcher, status: int, *words: str) -> None:
    """The launcher ended with ``status``, and its last line has all of ``words``."""
    assert launcher.wait() == status, launcher.story()
    assert "Traceback" not in launcher.err
    assert launcher.out == ""
    last = launcher.err.splitlines()[-1]
    assert last.startswith("elastic-run"), launcher.story()
    for word in words:
        assert word in last, launcher.story()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["script"]),
        (["--nnodes=0", "x.py"], ["--nnodes", "'0'"]),
        (["--nnodes=3:2", "x.py"], ["--nnodes", "'3:2'"]),
        (["--nproc-per-node=many", "x.py"], ["--nproc-per-node", "'many'"]),
        (["--nproc-per-node=0", "x.py"], ["--nproc-per-node", "0"]),
        (["--max-restarts=-1", "x.py"], ["--max-restarts", "-1"]),
        (["--shutdown-timeout=-1", "x.py"], ["--shutdown-timeout", "-1"]),
        (["--no-such-option", "x.py"], ["--no-such-option"]),
        (["--rdzv-backend=zeus", "x.py"], ["--rdzv-backend", "zeus"]),
        (["--redirects=7", "x.py"], ["--redirects", "7"]),
        (["--signals-to-handle=SIGFOO", "x.py"], ["SIGFOO"]),
        (["--rdzv-conf=join_timeout=soon", "x.py"], ["join_timeout", "soon"]),
        (["--logs-specs=no-such", "x.py"], ["no-such"]),
        (["-m", "--no-python", "x"], ["--module", "--no-python"]),
        (["no_such_script.py"], ["no_such_script.py", "no such file"]),
        (["--no-python", "./no_such_program"], ["./no_such_program"]),
        (["-m", "no.such.module"], ["no.such.module"]),
        (["--role-counts=ps=2", "x.py"], ["'ps=2'", "lacks the chief"]),
        (["--role-counts=chief=2,worker=1", "x.py"], ["'chief=2,worker=1'", "one chief at most"]),
        (["--role-counts=worker=1,worker=2", "x.py"], ["'worker=1,worker=2'", "twice"]),
        (["--tf-role=ps", "--framework=torch", "x.py"], ["'ps'", "'torch'"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_usage(cluster: Cluster, arguments: list[str], words: list[str]) -> None:
    (cluster.folder / "x.py").touch()
    launcher = cluster.launch(*arguments)
    refused(launcher, ExitCode.USAGE, "elastic-run: error:", *words)
    assert launcher.err.count("\n") == 0, "one sentence"


def test_a_python_without_tensorflow(cluster: Cluster) -> None:
    (cluster.folder / "x.py").touch()
    bare = cluster.folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S "$@"\n')
    bare.chmod(0o755)
    launcher = cluster.launch("--framework=tensorflow", "x.py", env={"PYTHON_EXEC": str(bare)})
    refused(launcher, ExitCode.USAGE, "--framework 'tensorflow'", f"{bare} finds no tensorflow", "install")


def test_a_program_that_is_not_executable(cluster: Cluster) -> None:
    program = cluster.folder / "train.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    refused(
        cluster.launch("--standalone", "--no-python", program), ExitCode.USAGE, "not executable", str(program)
    )


def test_a_log_directory_that_is_a_file(cluster: Cluster) -> None:
    (cluster.folder / "logs").touch()
    launcher = cluster.launch("--standalone", "--log-dir", "logs", ENV_REPORT)
    refused(launcher, ExitCode.USAGE, "--log-dir", "'logs'", "not a directory")


def test_a_state_directory_that_is_a_file(cluster: Cluster) -> None:
    (cluster.folder / "state").touch()
    launcher = cluster.launch("--standalone", "--state-dir", "state", ENV_REPORT)
    refused(launcher, ExitCode.USAGE, "--state-dir", "'state'", "not a directory")


def test_an_endpoint_that_refuses(cluster: Cluster) -> None:
    launcher = cluster.node("2", "--rdzv-conf=read_timeout=0.5,is_host=false")
    refused(
        launcher, ExitCode.MASTER_UNREACHABLE, f"127.0.0.1:{cluster.port}", "tried for", "--rdzv-endpoint"
    )


def test_an_endpoint_whose_name_is_unknown(cluster: Cluster) -> None:
    options = ("--rdzv-endpoint=no-such-host.invalid:29411", "--rdzv-conf=read_timeout=0.5")
    launcher = cluster.node("2", *options)
    refused(launcher, ExitCode.MASTER_UNREACHABLE, "no-such-host.invalid:29411", "resolved", "tried for")


@pytest.mark.root
def test_an_endpoint_without_a_route(cluster: Cluster) -> None:
    """In a network namespace of its own, where nothing but the loopback could answer."""
    launcher = cluster.node(
        "2", "--rdzv-endpoint=192.0.2.1:29411", "--rdzv-conf=read_timeout=0.5",
        command=("unshare", "--net", *MODULE),
    )  # fmt: skip
    refused(launcher, ExitCode.MASTER_UNREACHABLE, "192.0.2.1:29411", "unreachable", "tried for")


def test_a_second_job_at_the_same_endpoint(cluster: Cluster) -> None:
    first = cluster.node("1:2", "--last-call-timeout=0")
    (worker,) = cluster.director.round(0, 1)
    second = cluster.node("1:2", "--rdzv-id=another")
    refused(second, ExitCode.WRONG_JOB, "'job'", "'another'", "--rdzv-id")
    assert worker.ask("out undisturbed") == "printed"
    worker.tell("exit 0")
    assert first.wait() == 0


@pytest.mark.parametrize(
    "options",
    [
        ("--nnodes=1", "--master-port={port}"),
        ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}"),
        ("--rdzv-endpoint=127.0.0.1:{port}", "--token-file={token}"),
    ],
)
def test_one_node_and_the_same_line_twice(cluster: Cluster, options: tuple[str, ...]) -> None:
    """The second is no spare that ends with 0 without having run its script."""
    token = cluster.folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    argv = [option.format(port=cluster.port, token=token) for option in options]
    first = cluster.launch(*argv, WORKER)
    (worker,) = cluster.director.round(0, 1)
    has_token = "--token-file" in options[-1]
    assert (worker.env["MASTER_PORT"] == str(cluster.port)) is not has_token
    second = cluster.launch(*argv, ENV_REPORT)
    refused(second, ExitCode.ENDPOINT_TAKEN, str(cluster.port), "address already in use")
    assert worker.ask("out undisturbed") == "printed"
    worker.tell("exit 0")
    assert first.wait() == 0


def test_a_master_port_that_another_program_has(cluster: Cluster) -> None:
    with serving(socketserver.ThreadingTCPServer(("0.0.0.0", 0), HangsUp)) as port:
        launcher = cluster.launch(f"--master-port={port}", ENV_REPORT)
        refused(launcher, ExitCode.ENDPOINT_TAKEN, str(port), "address already in use", "--master-port")


def test_an_agent_of_another_version(cluster: Cluster) -> None:
    first = cluster.node("1:2", "--last-call-timeout=0")
    (worker,) = cluster.director.round(0, 1)
    second = cluster.node("1:2", command=(MODULE[0], "-c", OTHER_VERSION))
    refused(second, ExitCode.WRONG_VERSION, "0.0.0-other", "install one version")
    assert worker.ask("out undisturbed") == "printed"
    worker.tell("exit 0")
    assert first.wait() == 0


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    """A foreign program, and its port."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert isinstance(server.server_address, tuple)
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


class HangsUp(socketserver.BaseRequestHandler):
    """Listens, then closes without a word."""

    def handle(self) -> None:
        self.request.recv(4096)


def test_a_web_server_at_the_endpoint(cluster: Cluster) -> None:
    handler = http.server.SimpleHTTPRequestHandler
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)) as port:
        launcher = cluster.node("2", f"--rdzv-endpoint=127.0.0.1:{port}")
        refused(launcher, ExitCode.ENDPOINT_TAKEN, str(port), "not an elasticrun master", "another port")


def test_a_foreign_program_on_every_address(cluster: Cluster) -> None:
    with serving(socketserver.ThreadingTCPServer(("0.0.0.0", 0), HangsUp)) as port:
        launcher = cluster.node("2", f"--rdzv-endpoint=localhost:{port}")
        refused(launcher, ExitCode.ENDPOINT_TAKEN, str(port), "not an elasticrun master")


def test_a_port_of_the_endpoint_that_is_bound_but_silent(cluster: Cluster) -> None:
    """Nobody will ever listen there: as unreachable as a host that is down."""
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        port = foreign.getsockname()[1]
        options = (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=read_timeout=0.5")
        refused(cluster.node("2", *options), ExitCode.MASTER_UNREACHABLE, str(port), "tried for")


def test_the_same_static_node_twice(cluster: Cluster) -> None:
    """The later agent waits for the name, then says so and ends; the one before does not notice."""
    options = ("--rdzv-backend=static", "--node-rank=0")
    first = cluster.node("1:2", "--last-call-timeout=0", *options)
    (worker,) = cluster.director.round(0, 1)
    second = cluster.node("1:2", *options, "--rdzv-conf=read_timeout=3")
    assert second.wait_status() == ExitCode.SUPERSEDED
    assert re.search(r"another agent has the name \S+/0; .*--node-rank", second.err), second.story()
    worker.tell("exit 0")
    assert first.wait() == 0


def test_a_static_node_that_is_killed_and_started_again_at_once_has_its_name(cluster: Cluster) -> None:
    options = ("--rdzv-backend=static", "--node-rank=1", "--rdzv-conf=is_host=false")
    host = cluster.node("2", "--rdzv-backend=static", "--node-rank=0")
    guest = cluster.node("2", *options)
    cluster.director.round(0, 2)
    guest.kill_node()
    again = cluster.node("2", *options)
    for worker in cluster.director.round(1, 2):
        worker.tell("exit 0")
    assert (host.wait(), again.wait()) == (0, 0)


def test_a_master_that_never_comes_back_ends_an_idle_agent_with_8(cluster: Cluster) -> None:
    host = cluster.node("3", "--waiting-notice-interval=0.1")
    host.wait_line("1 of at least 3")
    guest = cluster.node(
        "3", "--waiting-notice-interval=0.1", "--master-timeout=0.5", "--rdzv-conf=is_host=false"
    )
    guest.wait_line("2 of at least 3")
    host.kill_node()
    assert guest.wait() == ExitCode.MASTER_LOST
    assert "did not come back within 0.5 s" in guest.err
    assert "Traceback" not in guest.err


def test_a_port_for_root_only(cluster: Cluster) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may bind every port")
    refused(cluster.node("1", "--rdzv-endpoint=127.0.0.1:80"), ExitCode.USAGE, "port 80", "root")


def test_help_and_version_need_nothing(cluster: Cluster, tmp_path: Path) -> None:
    for option in ("--help", "--version"):
        launcher = cluster.launch(option)
        assert launcher.wait() == 0
        assert launcher.out
        assert launcher.err == ""
