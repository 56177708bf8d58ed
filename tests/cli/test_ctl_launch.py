"""The command line of ``elastic-ctl launch``, without a host."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from elasticrun.cli.launch_words import read_words
from elasticrun.config import Endpoint
from elasticrun.core.hosts.names import Host
from elasticrun.errors import ExitCode, UsageError
from tests.support.launcher import MODULE, Launcher, run

CTL = (*MODULE[:2], "elasticrun.cli.ctl", "launch")
HOME = Endpoint("a", 29400)


def argv(*words: str, host: Host, rank: int = 0) -> list[str]:
    return read_words(words, "new").argv("py", host, rank, (1, 4), HOME)


def test_a_host_gets_the_users_options_then_ours_then_the_script() -> None:
    assert argv("elastic-run", "--max-restarts", "3", "x.py", "--lr", "1", host=Host("a", "2"), rank=1) == [
        *("py", "-m", "elasticrun", "--max-restarts", "3", "--nnodes", "1:4", "--rdzv-backend", "static"),
        *("--rdzv-endpoint", "a:29400", "--rdzv-id", "new", "--rdzv-conf", "is_host=false"),
        *("--node-rank", "1", "--nproc-per-node", "2", "--", "x.py", "--lr", "1"),
    ]


def value(words: Sequence[str], option: str) -> str:
    """The last value of an option, which is the one that counts."""
    return words[len(words) - 1 - words[::-1].index(option) + 1]


def test_slots_of_the_line_count_before_those_of_the_options() -> None:
    words = ("--nproc-per-node", "3", "--", "x.py")
    assert value(argv(*words, host=Host("a", "auto")), "--nproc-per-node") == "auto"
    assert value(argv(*words, host=Host("a")), "--nproc-per-node") == "3"
    assert value(argv("x.py", host=Host("a")), "--nproc-per-node") == "1"


def test_the_users_id_and_rendezvous_settings_stay() -> None:
    words = argv("--rdzv-id", "mine", "--rdzv-conf", "join_timeout=5", "x.py", host=Host("a"))
    assert value(words, "--rdzv-id") == "mine"
    assert value(words, "--rdzv-conf") == "join_timeout=5,is_host=true"


def test_the_grace_is_that_of_workers_and_more() -> None:
    assert read_words(("x.py",), "new").grace == 60.0
    assert read_words(("--shutdown-timeout", "100", "x.py"), "new").grace == 130.0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--nnodes", "2", "x.py"), "--nnodes is given to each host by the launch"),
        (("--standalone", "x.py"), "--standalone is given"),
        (("--token-file", "f", "x.py"), "give --token-file before the --"),
        (("--rdzv-conf", "is_host=1", "x.py"), "is_host of --rdzv-conf"),
        (("--max-restarts", "x", "x.py"), "--max-restarts 'x' is not valid"),
        (("--no-such", "x.py"), "there is no option --no-such"),
        (("--help",), "print nothing"),
        (("--max-restarts", "3"), "no training script given"),
        (("elastic-run",), "no training script given"),
    ],
)
def test_words_that_the_launch_cannot_use(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_words(words, "new")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "none of -H, --hostfile and --host-discovery-script given"),
        (("-H", "a", "--hostfile", "f"), "several of -H"),
        (("-H", "a", "-H", "b c"), "-H, host 2: 'b c' is not valid"),
        (("-H", "a b"), "-H, host 1: 'a b' is not valid"),
        (("--hostfile", "/nowhere"), "/nowhere cannot be read: No such file"),
        (("-H", "a", "--min-nodes", "2"), "more than the 1 hosts of -H"),
        (("-H", "a,b", "--min-nodes", "2", "--max-nodes", "1"), "more than --max-nodes 1"),
        (("-H", "localhost,b"), "the first host is localhost, which b cannot reach"),
        (("-H", "a", "--rdzv-endpoint", "a:0"), "give a port that all hosts can reach"),
        (("-H", "a", "--rdzv-endpoint", "a,b"), "the first host alone has the master"),
        (("-H", "a", "--export", "NOT_SET_HERE"), "this variable is not set here"),
        (("-H", "a", "--export", "a b=1"), "give NAME or NAME=VALUE"),
        (("-H", "a", "--export", "ELASTICRUN_TOKEN"), "is not needed"),
        (("-H", "a", "--cooldown", "9:1"), "give FIRST:LONGEST"),
        (("-H", "a", "--cooldown", "x"), "give FIRST:LONGEST"),
        (("-H", "a", "--token-file", "/nowhere"), "cannot be read"),
        (("-H", "a", "--tls-ca", "/nowhere"), "TLS needs"),
    ],
)
def test_wrong_use_is_one_sentence(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    done = run(*words, "--", "x.py", cwd=tmp_path, command=CTL)
    assert done.process.returncode == ExitCode.USAGE, done.story()
    (line,) = done.err.splitlines()
    assert line.startswith("elastic-ctl: error: ") and reason in line


def test_tls_is_for_the_job_and_for_this_launch(tmp_path: Path) -> None:
    """Each of the two has a certificate of its own, and one alone is hardly meant."""
    pem = tmp_path / "pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")
    pem.chmod(0o600)
    tls = [f"--tls-{part}={pem}" for part in ("ca", "cert", "key")]
    (tmp_path / "hosts").write_text("a\n")
    here = ("--hostfile", "hosts", "--cooldown", "0.1", "--ssh", tmp_path / "none")
    for words, told in (
        ((*tls, "--", "x.py"), "stand only before the --"),
        (("--", *tls, "x.py"), "so hosts are stopped, not drained"),
        ((f"--export=PET_TLS_CERT={pem}", "--", "x.py"), "so hosts are stopped, not drained"),
        ((*tls, "--", *tls, "x.py"), ""),
    ):
        done = run(*here, *words, cwd=tmp_path, command=CTL)
        assert done.process.returncode == ExitCode.MASTER_UNREACHABLE, done.story()
        assert told in done.err and ("--tls" in done.err) == bool(told), done.story()


def test_a_working_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    command = ("sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *CTL)
    done = run("-H", "a", "--", "x.py", cwd=tmp_path, command=command)
    assert done.process.returncode == ExitCode.USAGE, done.story()
    assert "there is no working directory here" in done.err and "give --directory" in done.err


def test_a_weak_token_is_refused(tmp_path: Path) -> None:
    env = {"ELASTICRUN_TOKEN": "secret"}
    done = run("-H", "a", "--", "x.py", cwd=tmp_path, command=CTL, env=env)
    assert done.process.returncode == ExitCode.USAGE and "can be guessed" in done.err


def test_ssh_that_is_not_there_is_said(tmp_path: Path) -> None:
    nowhere = tmp_path / "ssh"
    done = run("-H", "a", "--cooldown", "0.1", "--ssh", nowhere, "--", "x.py", cwd=tmp_path, command=CTL)
    assert done.process.returncode == ExitCode.MASTER_UNREACHABLE, done.story()
    assert f"{nowhere} cannot be executed: {os.strerror(2)}" in done.err.splitlines()[-1]


STAND_IN = """\
#!/bin/sh
printf '\\036elastic-run is up 1\\n' >&2
echo here
while read word rest; do [ "$word" = signal ] && exit 143; done
"""


def test_many_hosts_need_no_higher_limit_of_descriptors(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(STAND_IN)
    ssh.chmod(0o755)
    hosts = ",".join(f"n{number}" for number in range(30))
    command = ("sh", "-c", 'ulimit -S -n 64 && exec "$@"', "sh", *CTL)
    launcher = Launcher("-H", hosts, "--ssh", ssh, "--", "x.py", cwd=tmp_path, command=command)
    try:
        launcher.wait_lines("^\\[n[0-9]+\\] here$", 30, "out")
        launcher.signal(signal.SIGTERM)
        assert launcher.wait() == 128 + signal.SIGTERM, launcher.story()
        assert len(launcher.err.splitlines()) == 1, launcher.story()
    finally:
        launcher.finish()


def test_ctrl_c_ends_the_wait_for_a_first_answer(tmp_path: Path) -> None:
    script, pipe = tmp_path / "discover", tmp_path / "pipe"
    os.mkfifo(pipe)
    script.write_text(f"#!/bin/sh\necho here > {pipe}\nexec tail -f /dev/null\n")
    script.chmod(0o755)
    launcher = Launcher("--host-discovery-script", script, "--", "x.py", cwd=tmp_path, command=CTL)
    try:
        assert pipe.read_text() == "here\n"  # it runs
        launcher.signal(signal.SIGINT)
        assert launcher.wait() == 128 + signal.SIGINT, launcher.story()
        assert not launcher.processes and not launcher.err
    finally:
        launcher.finish()
