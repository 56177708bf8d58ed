"""Failures from what workers leave behind, and what the launcher passes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticrun.agent.workers import error_file
from elasticrun.agent.workers.error_file import (
    ErrorRecord,
    WorkerExit,
    copy_root_cause,
    exit_sentence,
    make_failure,
    make_spawn_failure,
    read_error_file,
    signal_name,
)
from elasticrun.core.protocol.bounds import MAX_FAILURE_TEXT
from elasticrun.core.protocol.messages import Failure, FailureKind, NodeInfo
from tests.support.processes import TORCH_DEADLINE

NODE = NodeInfo("n1", "i1", "host1", "10.0.0.1", 2, role="trainer")
RECORDED = {
    "message": {
        "message": "ValueError: bad",
        "extraInfo": {"py_callstack": "Traceback...", "timestamp": "1234"},
    }
}
IN_USE = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
IN_USE_OLD = (
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket "
    "has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n"
)
IN_USE_2_4 = (
    "RuntimeError: The server socket has failed to listen on any local network address. useIpv6: 0, "
    "code: -98, name: EADDRINUSE, message: address already in use\n"
)


def ended(exit_code: int = 1, rank: int = 0, error_file: str = "", stderr_tail: str = "") -> WorkerExit:
    return WorkerExit(rank, rank, 99, exit_code, 5555.5, error_file, stderr_tail)


def made(ended: WorkerExit, store_port: int) -> Failure:
    """As the agent makes it, with what the error file says."""
    return make_failure(
        NODE, ended, store_port, read_error_file(ended.error_file) if ended.error_file else None
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "error.json"


def test_both_forms(path: Path) -> None:
    path.write_text(json.dumps(RECORDED))
    os.utime(path, (1234.75, 1234.75))
    found = read_error_file(str(path))
    assert found == ErrorRecord("ValueError: bad", "Traceback...", 1234.0, written=1234.75)
    assert found.raised == 1234.75, "torch writes whole seconds"
    path.write_text(json.dumps({"message": "bad", "timestamp": 77}))
    os.utime(path, (99.5, 99.5))
    found = read_error_file(str(path))
    assert found == ErrorRecord("bad", "", 77.0, written=99.5)
    assert found.raised == 77.0, "it was written again later"
    assert ErrorRecord("bad", written=99.5).raised == 99.5


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not JSON"),
        (b"\xff\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "has no field `message`"),
        (b'{"message": 3}', "has no field `message`"),
        (b" " + b"x" * error_file.SIZE_LIMIT, "has over 4 MiB and was not read"),
    ],
)
def test_a_file_that_makes_no_sense(path: Path, content: bytes, problem: str) -> None:
    path.write_bytes(content)
    record = read_error_file(str(path))
    assert record == ErrorRecord(problem=f"its error file {path} {problem}")
    failure = made(ended(exit_code=3, error_file=str(path)), 29500)
    assert failure.message == f"ended with exit code 3; its error file {path} {problem}"
    assert failure.error_file == str(path)


@pytest.mark.parametrize("timestamp", [1e11, "1700000000000", "inf", "nan", 0, -1])
def test_a_number_that_is_no_date_is_no_time(path: Path, timestamp: float | str) -> None:
    path.write_text(json.dumps({"message": "bad", "timestamp": timestamp}))
    failure = made(ended(error_file=str(path)), 29500)
    assert (failure.message, failure.timestamp) == ("bad", 5555.5), "the worker's end is known"


@pytest.mark.parametrize("content", [None, b"", b" \n"])
def test_nothing_recorded(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    assert read_error_file(str(path)) is None
    failure = made(ended(error_file=str(path)), 29500)
    assert (failure.message, failure.error_file) == ("ended with exit code 1", "")


def test_a_directory_or_a_locked_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_error_file(str(tmp_path)) is None
    record = read_error_file(str(tmp_path / ("x" * 300)))
    assert record is not None
    assert "cannot be read (File name too long)" in record.problem


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "extraInfo", "py_callstack", "timestamp", "other"]), inner, max_size=5
        )
    ),
)


@settings(deadline=None)  # it writes files
@given(JSON_VALUES)
def test_any_json_is_taken(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(value))
    failure = made(ended(error_file=str(path)), 29500)
    assert isinstance(failure.message, str)
    assert 0 < failure.timestamp < 1e11
    assert copy_root_cause(failure, str(path.with_name("target.json"))) == ""


def test_a_failure_with_a_traceback(path: Path) -> None:
    path.write_text(json.dumps(RECORDED))
    assert made(ended(error_file=str(path), rank=1, stderr_tail="tail"), 29500) == Failure(
        node="n1",
        host="host1",
        rank=1,
        local_rank=1,
        role="trainer",
        pid=99,
        kind=FailureKind.EXIT,
        exit_code=1,
        message="ValueError: bad",
        traceback="Traceback...",
        stderr_tail="tail",
        error_file=str(path),
        timestamp=1234.0,
        raised=1234.0,
    )


def test_long_texts_are_cut_at_the_front(path: Path) -> None:
    failure = made(ended(stderr_tail="x" * MAX_FAILURE_TEXT + "the end"), 29500)
    assert len(failure.stderr_tail) == MAX_FAILURE_TEXT
    assert failure.stderr_tail.startswith("...x")
    assert failure.stderr_tail.endswith("the end")


@pytest.mark.parametrize(
    ("exit_code", "sentence"),
    [
        (3, "ended with exit code 3"),
        (-9, "killed by SIGKILL (9): often by the kernel or a job scheduler, because memory ran out"),
        (-10, "killed by SIGUSR1 (10)"),
        (-40, "killed by signal 40 (40)"),
        (
            139,
            "ended with exit code 139, which from a shell means: killed by SIGSEGV (11): a crash "
            "in native code",
        ),
        (255, "ended with exit code 255"),
    ],
)
def test_exit_sentence(exit_code: int, sentence: str) -> None:
    assert exit_sentence(exit_code) == sentence


def test_every_signal_has_a_name() -> None:
    assert signal_name(signal.SIGTERM) == "SIGTERM"
    assert signal_name(0) == "signal 0"


@pytest.mark.parametrize("text", [IN_USE, IN_USE_OLD])
@pytest.mark.parametrize(
    ("rank", "port", "kind"),
    [
        (0, 29500, FailureKind.PORT_TAKEN),
        (1, 29500, FailureKind.EXIT),
        (0, 2950, FailureKind.EXIT),  # some other store of the script's own
    ],
)
def test_a_taken_port_by_its_number(path: Path, text: str, rank: int, port: int, kind: FailureKind) -> None:
    assert made(ended(rank=rank, stderr_tail="x\n" + text), port).kind is kind
    extra = {"py_callstack": "Traceback\n" + text, "timestamp": "1"}
    path.write_text(json.dumps({"message": {"message": text, "extraInfo": extra}}))
    assert made(ended(rank=rank, error_file=str(path)), port).kind is kind


@pytest.mark.parametrize(
    ("rank", "port", "kind"),
    [
        (0, 29500, FailureKind.PORT_TAKEN),
        (1, 29500, FailureKind.EXIT),
        (0, 0, FailureKind.EXIT),  # nobody can have taken it
    ],
)
def test_a_taken_port_without_a_number(rank: int, port: int, kind: FailureKind) -> None:
    assert made(ended(rank=rank, stderr_tail=IN_USE_2_4), port).kind is kind


def test_another_programs_port_is_not_the_stores() -> None:
    tail = "OSError: [Errno 98] Address already in use: port 29500"
    assert made(ended(stderr_tail=tail), 29500).kind is FailureKind.EXIT


def test_kinds() -> None:
    assert made(ended(exit_code=-11), 1).kind is FailureKind.SIGNAL
    failure = make_spawn_failure(NODE, 4, 0, "no such file", 12.0)
    assert (failure.kind, failure.message) == (FailureKind.SPAWN, "could not be started: no such file")


def failed(path: Path, exit_code: int = -11) -> Failure:
    return made(ended(exit_code=exit_code, error_file=str(path)), 29500)


def test_the_root_cause_is_passed_on(path: Path, tmp_path: Path) -> None:
    path.write_text(json.dumps(RECORDED))
    target = tmp_path / "target.json"
    target.write_text("older and longer" * 1000)
    target.chmod(0o644)
    assert copy_root_cause(failed(path), str(target)) == ""
    assert json.loads(target.read_text()) == {"message": {**RECORDED["message"], "errorCode": -11}}
    assert target.stat().st_mode & 0o777 == 0o600


def test_no_path_that_came_with_a_failure_is_opened(path: Path, tmp_path: Path) -> None:
    """Another node says where its error file lies, and may lie: about our user's secrets, or a FIFO."""
    path.write_text(json.dumps(RECORDED))
    secret, fifo, target = tmp_path / "credentials", tmp_path / "fifo", tmp_path / "t"
    secret.write_text(json.dumps({"message": {"aws_secret_access_key": "hunter2"}}))
    secret.chmod(0o600)
    os.mkfifo(fifo)
    for forged in (secret, fifo):
        failure = replace(failed(path), node="far", host="far", error_file=str(forged))
        assert copy_root_cause(failure, str(target)) == ""
        assert "hunter2" not in target.read_text()
        assert "ValueError: bad" in target.read_text()


@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_only_a_regular_file_is_read(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.with_name("real").write_text(json.dumps(RECORDED))
        path.symlink_to("real")
    place = "/dev/zero" if kind == "device" else str(path)
    said = "is a link" if kind == "link" else "is not a regular file"
    assert read_error_file(place) == ErrorRecord(problem=f"its error file {place} {said} and was not read")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_another_users_file_is_not_read(path: Path) -> None:
    path.write_text(json.dumps(RECORDED))
    os.chown(path, 12345, -1)
    assert read_error_file(str(path)) == ErrorRecord(
        problem=f"its error file {path} belongs to another user (12345) and was not read"
    )


@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_target_that_is_no_file_is_left_alone(path: Path, tmp_path: Path, kind: str) -> None:
    path.write_text(json.dumps(RECORDED))
    target, real = tmp_path / "target", tmp_path / "real"
    real.write_text("mine")
    os.mkfifo(target) if kind == "fifo" else target.symlink_to(real)
    assert "cannot be written" in copy_root_cause(failed(path), str(target))
    assert real.read_text() == "mine"


def test_a_failure_without_an_error_file_leaves_none(path: Path, tmp_path: Path) -> None:
    assert copy_root_cause(failed(path), str(tmp_path / "t")) == ""
    assert not (tmp_path / "t").exists()


def test_a_target_that_cannot_be_written(path: Path, tmp_path: Path) -> None:
    path.write_text(json.dumps(RECORDED))
    problem = copy_root_cause(failed(path), str(tmp_path / "missing" / "t"))
    assert problem.endswith("cannot be written (No such file or directory)")


RAISES = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main(): raise ValueError("bad")
main()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_copy_is_torchruns(tmp_path: Path) -> None:
    script, theirs, ours = tmp_path / "s.py", tmp_path / "theirs.json", tmp_path / "ours.json"
    script.write_text(RAISES)
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(theirs)}
    command = [sys.executable, "-m", "torch.distributed.run", f"--log-dir={tmp_path / 'logs'}", str(script)]
    done = subprocess.run(command, env=env, check=False, capture_output=True, timeout=TORCH_DEADLINE)
    assert done.returncode == 1
    (recorded,) = (tmp_path / "logs").rglob("error.json")
    failure = made(ended(error_file=str(recorded)), 29500)
    assert failure.message == "ValueError: bad"
    assert copy_root_cause(failure, str(ours)) == ""
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_torch_on_a_taken_port(family: socket.AddressFamily) -> None:
    with socket.socket(family) as held:
        held.bind(("", 0))
        held.listen()
        port = held.getsockname()[1]
        env = {
            **os.environ,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        code = "import torch.distributed as d; d.init_process_group('gloo')"
        worker = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            check=False,
            capture_output=True,
            text=True,
            timeout=TORCH_DEADLINE,
        )
    failure = made(ended(worker.returncode, stderr_tail=worker.stderr), port)
    assert failure.kind is FailureKind.PORT_TAKEN
