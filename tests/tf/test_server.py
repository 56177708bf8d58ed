"""The ready-made server: what it decides by itself, what it refuses, and that a signal ends it at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elasticrun.errors import ExitCode
from elasticrun.tf.cluster import ClusterTask
from elasticrun.tf.server import prepare, threads
from tests.support.processes import TORCH_DEADLINE

SERVER = [sys.executable, "-m", "elasticrun.tf.server"]


def config(port: int, role: str = "ps") -> str:
    address = f"127.0.0.1:{port}"
    cluster = {"chief": ["127.0.0.1:1"], "worker": [address], "ps": [address]}
    return json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})


def test_a_parameter_server_takes_no_gpu_and_a_worker_not_all_of_its_memory() -> None:
    cluster = {"ps": ("a:1",), "worker": ("a:2",)}
    environ = {"CUDA_VISIBLE_DEVICES": "3"}
    prepare(ClusterTask("ps", 0, cluster), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "-1"}

    environ = {"CUDA_VISIBLE_DEVICES": "3"}
    prepare(ClusterTask("worker", 0, cluster), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}

    environ = {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    prepare(ClusterTask("worker", 0, cluster), environ)
    assert environ == {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}


@pytest.mark.parametrize(
    ("cores", "environ", "counts"),
    [
        (64, {}, (64, 64)),
        (64, {"LOCAL_WORLD_SIZE": "8"}, (8, 8)),
        (2, {"LOCAL_WORLD_SIZE": "5"}, (1, 2)),
        (64, {"LOCAL_WORLD_SIZE": "8", "TF_NUM_INTRAOP_THREADS": "3"}, (3, 8)),
        (64, {"LOCAL_WORLD_SIZE": "8", "TF_NUM_INTEROP_THREADS": "1"}, (8, 1)),
        (4, {"LOCAL_WORLD_SIZE": "many", "TF_NUM_INTRAOP_THREADS": "-1"}, (4, 4)),
    ],
)
def test_the_cores_are_shared_with_the_other_tasks_of_the_host(
    cores: int, environ: dict[str, str], counts: tuple[int, int]
) -> None:
    assert threads(cores, environ) == counts


def refusal(command: list[str], value: str, **environ: str) -> tuple[int, str]:
    """(exit status, last line) of a server that does not come to serve."""
    done = subprocess.run(
        command,
        env={**os.environ, "TF_CONFIG": value, **environ},
        capture_output=True,
        text=True,
        timeout=TORCH_DEADLINE,
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()[-1]


def test_what_is_no_server_is_refused() -> None:
    status, line = refusal(SERVER, config(1, role="chief"))
    assert status == ExitCode.USAGE
    assert line.startswith("elasticrun.tf.server: error: TF_CONFIG names this task chief:0")


def test_a_missing_tensorflow_is_said(tmp_path: Path) -> None:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-S", "-m", "elasticrun.tf.server"]  # without any installed package
    status, line = refusal(command, config(1), PYTHONPATH=str(root))
    assert status == ExitCode.USAGE
    assert "tensorflow is not installed for" in line


def test_a_release_whose_parts_do_not_stand_alone_is_imported_as_a_whole(tmp_path: Path) -> None:
    release = tmp_path / "tensorflow"
    (release / "core" / "protobuf").mkdir(parents=True)
    (release / "core" / "protobuf" / "config_pb2.py").write_text("ConfigProto = dict")
    (release / "__init__.py").write_text(
        "class errors: OpError = OSError\n"
        "class distribute:\n"
        "    class Server:\n"
        "        def __init__(self, cluster, job_name, task_index, **_):\n"
        "            raise SystemExit(f'{job_name} {task_index} of {cluster}')\n"
    )
    root = Path(__file__).parent.parent.parent
    status, line = refusal(SERVER, config(1), PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert status == 1
    assert line.startswith("ps 0 of {'chief'")


@pytest.mark.tensorflow
def test_a_server_serves_until_it_is_told_to_end() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        status, line = refusal(SERVER, config(port))
        assert status == ExitCode.NODE_FAULT
        assert f"ps:0 cannot serve at 127.0.0.1:{port}" in line

    environ = {**os.environ, "TF_CONFIG": config(port)}
    with subprocess.Popen(SERVER, env=environ, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == f"ps 0: pid {server.pid}, serves at 127.0.0.1:{port}\n"
            maps = Path(f"/proc/{server.pid}/maps").read_text()
            assert "libtensorflow_cc" in maps
            assert "h5py" not in maps, "Keras was imported"
            with socket.create_connection(("127.0.0.1", port)):
                server.send_signal(signal.SIGTERM)
                assert server.wait(TORCH_DEADLINE) == -signal.SIGTERM
        finally:
            server.kill()
