"""The verbs of ``elastic-ctl`` against a real master, and their exit codes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticrun import __version__
from elasticrun.config import SecurityConfig, TaskRole
from elasticrun.core.protocol.messages import (
    AgentPhase,
    AgentStatus,
    Assignment,
    Hello,
    NodeInfo,
    Report,
    StartRound,
)
from elasticrun.core.protocol.tasks import Task, TaskReport
from elasticrun.errors import ExitCode
from elasticrun.rpc.client import MasterStream
from tests.rpc.harness import DEADLINE, run
from tests.rpc.process import ROOT, Master, master_process
from tests.support.launcher import private_folders
from tests.support.orders import TOKEN


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    with master_process(tmp_path_factory.mktemp("master"), SecurityConfig(TOKEN)) as process:
        yield process


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return str(path)


def ctl(
    *argv: str, variable: str | None = None, folder: Path = Path("/nowhere")
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "ELASTICRUN_TOKEN"}
    env |= {**private_folders(folder), "TMPDIR": str(folder)}
    if variable is not None:
        env["ELASTICRUN_TOKEN"] = variable
    done = subprocess.run(
        [sys.executable, "-m", "elasticrun.cli.ctl", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=env,
        check=False,
    )
    assert "Traceback" not in done.stderr and TOKEN not in done.stdout + done.stderr
    return done


def target(master: Master, token: str, job_id: str = "job") -> list[str]:
    return ["--endpoint", str(master.endpoint), "--token-file", token, "--rdzv-id", job_id]


def test_status_is_shown(master: Master, token: str) -> None:
    done = ctl("status", *target(master, token))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("job 'job'")


def test_the_token_may_come_from_the_environment(master: Master) -> None:
    done = ctl("status", "--endpoint", str(master.endpoint), "--rdzv-id", "job", variable=TOKEN)
    assert (done.returncode, done.stderr) == (0, "")


def test_stacks_and_scale_are_done(master: Master, token: str) -> None:
    for verb in (["stacks"], ["scale", "1:2"]):
        done = ctl(*verb, *target(master, token))
        assert (done.returncode, done.stderr) == (0, ""), verb
        assert done.stdout


def test_what_the_master_declines_ends_with_1(master: Master, token: str) -> None:
    done = ctl("drain", "nobody", *target(master, token))
    assert (done.returncode, done.stdout) == (1, "")
    assert "nobody" in done.stderr
    done = ctl("scale", "--role", "ps=3", *target(master, token))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("the job is gathering, so there is nothing to change")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--rdzv-id", "other"], ExitCode.WRONG_JOB, "serves the job 'job', not 'other'"),
        (["--token-file", "wrong"], ExitCode.UNAUTHENTICATED, "use the token that the job's nodes use"),
        (["--token-file", "missing"], ExitCode.USAGE, "--token-file 'missing' cannot be read"),
        (["--token-file", "empty"], ExitCode.USAGE, "is empty: give a token"),
        (["--tls-ca", "wrong"], ExitCode.USAGE, "--tls-cert and --tls-key not given"),
        (
            ["--timeout", "nan"],
            ExitCode.USAGE,
            "'nan' is not valid: give a number of seconds above 0",
        ),
        (["--timeout", "0"], ExitCode.USAGE, "--timeout '0' is not valid"),
        (["--endpoint", "127.0.0.1:x"], ExitCode.USAGE, "--endpoint '127.0.0.1:x' is not valid"),
        (
            ["--endpoint", "127.0.0.1:1"],
            ExitCode.MASTER_UNREACHABLE,
            "refused; look at --endpoint",
        ),
    ],
)
def test_errors_are_one_sentence_with_a_code(
    master: Master,
    token: str,
    argv: list[str],
    code: ExitCode,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong").write_text(TOKEN[::-1])
    (tmp_path / "empty").write_text("\n")
    given = [str(tmp_path / each) if each in ("wrong", "empty") else each for each in argv]
    done = ctl("status", *target(master, token), *given)
    assert (done.returncode, done.stdout) == (code, "")
    lines = [line for line in done.stderr.splitlines() if "can be read by every user" not in line]
    assert len(lines) == 1 and words in lines[0]


def test_without_a_token_nothing_is_asked(master: Master, tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    done = ctl("status", "--endpoint", str(master.endpoint), folder=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "no token found" in done.stderr and "--token-file" in done.stderr


def test_of_several_hosts_the_one_that_answers_is_asked(master: Master, token: str) -> None:
    done = ctl("status", *target(master, token), "--endpoint", f"127.0.0.1:1,{master.endpoint}")
    assert done.returncode == 0 and done.stdout.startswith("job 'job'")
    assert "trying the next one" in done.stderr


def test_a_job_without_a_token_takes_no_orders(tmp_path: Path, token: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with master_process(state, SecurityConfig()) as master:
        for verb in (["status"], ["drain", "n"], ["scale", "2"], ["stacks"]):
            done = ctl(*verb, *target(master, token))
            assert done.returncode == ExitCode.UNAUTHENTICATED, verb
            assert "this job has no token, so it takes no orders here" in done.stderr
    log = (state / "log").read_text()
    assert log.count("the job has no token") == 1, "said once, when it began"


@pytest.mark.parametrize("nodes", ["0", "3:2", "many", ""])
def test_a_number_of_nodes_that_is_none(master: Master, token: str, nodes: str) -> None:
    done = ctl("scale", *target(master, token), "--", nodes)
    assert done.returncode == ExitCode.USAGE
    assert "is no number of nodes" in done.stderr


def test_a_role_is_scaled_and_the_tasks_are_shown(tmp_path: Path, token: str) -> None:
    security = SecurityConfig(TOKEN)
    ports = (7001, 7002, 7003, 7004)
    roles = (TaskRole.CHIEF, TaskRole.WORKER, TaskRole.PS)
    info = NodeInfo("n0", "i0", "host", "10.0.0.5", len(roles), roles=roles)
    ready = AgentStatus(0, AgentPhase.READY, store_port=7000, ports=ports)
    reports = tuple(TaskReport(rank, 0) for rank in range(len(roles)))
    running = AgentStatus(1, AgentPhase.RUNNING, 0, ports=ports, tasks=reports)

    async def told(stream: MasterStream) -> Assignment:
        async for message in stream:
            if isinstance(message, StartRound):
                return message.assignment
        raise AssertionError("the stream ended")

    async def main(master: Master) -> None:
        hello = Hello("job", __version__, info, ready)
        async with await MasterStream.open(master.endpoint, hello, DEADLINE, security) as stream:
            before = await told(stream)
            stream.send(Report("i0", running))
            done = await asyncio.to_thread(ctl, "scale", "--role", "ps=2", *target(master, token))
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("ps: 1 -> 2: ps 1 starts now")
            after = await told(stream)
            assert after.tasks[1:3] == before.tasks[1:3] and after.tasks[0].attempt == 1
            assert after.tasks[3:] == (Task(3, TaskRole.PS, 1, port=7004),)
            assert dict(after.cluster)[TaskRole.PS] == ("10.0.0.5:7003", "10.0.0.5:7004")
            done = await asyncio.to_thread(ctl, "status", *target(master, token))
            assert done.stdout.splitlines()[2:] == [
                "    chief 0 at 10.0.0.5:7001: attempt 1, starts when attempt 0 has ended",
                "    worker 0 at 10.0.0.5:7002: attempt 0, running",
                "    ps 0 at 10.0.0.5:7003: attempt 0, running",
                "    ps 1 at 10.0.0.5:7004: attempt 0, starting",
            ]

    with master_process(tmp_path, security) as master:
        run(main(master))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "nothing to scale: give a number of nodes"),
        (["2", "--role", "ps=3"], "a number of nodes ('2') and --role ps=3 cannot be given together"),
        (["--role", "ps=3", "--role", "worker=4"], "--role is given 2 times: order one change"),
        (["--role", "pss=3"], "there is no role 'pss'; give worker=N or ps=N"),
        (["--role", ""], "there is no role ''"),
        (["--role", "chief=2"], "a job has at most one chief; give worker=N or ps=N"),
        (["--role", "evaluator=1"], "a job has at most one evaluator"),
        (["--role", "ps"], "give a number from 1 to 4096, such as ps=3"),
        (["--role", "ps=many"], "--role 'ps=many' is not valid: give a number"),
        (["--role", "worker=0"], "give a number from 1 to 4096, such as worker=3"),
        (["--role", "ps=-1"], "give a number"),
        (["--role", "ps=4097"], "give a number"),
        (["--role", "ps=" + "9" * 5000], "give a number"),
    ],
)
def test_a_number_of_tasks_that_is_none(master: Master, token: str, argv: list[str], words: str) -> None:
    done = ctl("scale", *target(master, token), *argv)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["scale", "in"], "give either --count K or --name NODE"),
        (["scale", "in", "--count", "1", "--name", "n"], "give either --count K or --name NODE"),
        (["scale", "in", "--name", ""], "give the names of at most 64 nodes"),
        (["scale", "out", "--count", "1", "--timeout", "nan"], "--timeout 'nan' is not valid"),
        (["scale", "out", "--count", "1", "--timeout", "1e9"], "above 0, at most 604800"),
    ],
)
def test_what_is_no_order_for_fewer_or_more(master: Master, token: str, argv: list[str], words: str) -> None:
    done = ctl(*argv, *target(master, token))
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr


def test_options_stand_after_the_subcommand(master: Master, token: str) -> None:
    done = ctl("scale", *target(master, token), "in")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "options stand before 'in': give them after it" in done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["scale", "in", "--count", "1"], "no round runs: the job is gathering"),
        (["scale", "out", "--count", "1"], "no round runs: the job is gathering"),
        (["scale", "cancel"], "no scale out waits for nodes"),
        (["cordon", "nobody"], "there is no node 'nobody'"),
        (["uncordon", "nobody"], "there is no node 'nobody'"),
    ],
)
def test_what_the_master_declines_is_a_sentence(
    master: Master, token: str, argv: list[str], words: str
) -> None:
    for more in ([], ["--json"]):
        done = ctl(*argv, *target(master, token), *more)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith(words)


@pytest.mark.parametrize(
    "verb",
    [
        "status",
        "drain",
        "scale",
        "scale in",
        "scale out",
        "scale cancel",
        "stacks",
        "cordon",
        "uncordon",
        "check",
        "stop",
    ],
)
def test_every_verb_tells_its_exit_codes(verb: str) -> None:
    done = ctl(*verb.split(), "--help")
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    for code in ("1 the master declines", "4 nothing answers", "6 it serves another job", "15 token or cert"):
        assert code in words
    assert max(map(len, done.stdout.splitlines())) <= 100
