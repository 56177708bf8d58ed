"""A worker's environment and command line, and that they are torchrun's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elasticrun.agent.workers.env import signal_names, worker_argv, worker_environment
from elasticrun.config import Entrypoint, EntrypointKind, WorkerConfig
from elasticrun.core.protocol.messages import Assignment
from elasticrun.errors import UsageError
from tests.support.processes import TORCH_DEADLINE

SCRIPT = Entrypoint(EntrypointKind.SCRIPT, "train.py", ("--out=${local_rank}", "$HOME", "${x}"), python="py")
CONFIG = WorkerConfig(
    SCRIPT, local_world_size=4, role="trainer", env=(("HOME", "/home/a"), ("RANK", "old")), signals=(15, 2)
)
ASSIGNMENT = Assignment(
    round=7,
    group_rank=1,
    group_world_size=3,
    first_rank=4,
    world_size=12,
    role_first_rank=2,
    role_world_size=10,
    store_address="10.0.0.1",
    store_port=4567,
    restart_count=2,
    max_restarts=5,
)


def test_a_worker_is_told_everything() -> None:
    assert worker_environment(CONFIG, "job", ASSIGNMENT, 3, "/logs/error.json") == {
        "HOME": "/home/a",
        "RANK": "7",
        "LOCAL_RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_RANK": "5",
        "ROLE_NAME": "trainer",
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "10",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4567",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "5",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/logs/error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "ELASTICRUN_ROUND": "7",
    }


def environment(config: WorkerConfig, local_rank: int = 0) -> dict[str, str]:
    return worker_environment(config, "job", ASSIGNMENT, local_rank, "")


def test_what_the_user_set_is_kept() -> None:
    config = replace(CONFIG, env=(("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"), ("CUDA_VISIBLE_DEVICES", "5,6")))
    values = environment(config)
    assert values["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
    assert values["CUDA_VISIBLE_DEVICES"] == "5,6"


def test_the_timer_file_only_if_there_is_one() -> None:
    assert "TORCHELASTIC_TIMER_FILE" not in environment(CONFIG)
    assert environment(replace(CONFIG, file_timer="/tmp/t"))["TORCHELASTIC_TIMER_FILE"] == "/tmp/t"


@pytest.mark.parametrize(("visible", "device"), [(None, "1"), ("5, 6", "6"), ("GPU-a,GPU-b", "GPU-b")])
def test_a_virtual_local_rank_sees_one_device(visible: str | None, device: str) -> None:
    env = () if visible is None else (("CUDA_VISIBLE_DEVICES", visible),)
    values = environment(replace(CONFIG, virtual_local_rank=True, env=env), local_rank=1)
    assert (values["LOCAL_RANK"], values["CUDA_VISIBLE_DEVICES"], values["RANK"]) == ("0", device, "5")


def test_a_virtual_local_rank_without_a_device() -> None:
    config = replace(CONFIG, virtual_local_rank=True, env=(("CUDA_VISIBLE_DEVICES", "0,1"),))
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=0,1 lists only 2, too few for local rank 2"):
        environment(config, local_rank=2)


def test_signal_names() -> None:
    assert signal_names([signal.SIGUSR1, 40]) == "SIGUSR1,40"


def test_command_lines() -> None:
    args = ["--out=3", "$HOME", "${x}"]
    assert worker_argv(SCRIPT, 3) == ["py", "-u", "train.py", *args]
    assert worker_argv(replace(SCRIPT, kind=EntrypointKind.MODULE), 3) == [
        "py",
        "-u",
        "-m",
        "train.py",
        *args,
    ]
    binary = replace(SCRIPT, kind=EntrypointKind.BINARY, target="/bin/${local_rank}")
    assert worker_argv(binary, 3) == ["/bin/${local_rank}", *args]
    without_python = replace(SCRIPT, target="${local_rank}.py", python="")
    assert worker_argv(without_python, 3) == [sys.executable, "-u", "3.py", *args]


REPORT = """
import json, multiprocessing, os, sys
def child(queue): queue.put(__name__)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    main = sys.modules["__main__"]
    report = dict(
        argv=sys.argv, name=__name__, file=__file__, main=main.__file__, same=main.__dict__ is globals(),
        child=queue.get(), environ=dict(os.environ),
    )
    process.join()
    with open(os.path.join(os.environ["REPORT_DIR"], os.environ["RANK"]), "w") as file:
        json.dump(report, file)
    sys.exit(int(sys.argv[1]))
"""


def start(entrypoint: Entrypoint, env: dict[str, str]) -> int:
    return subprocess.run(worker_argv(entrypoint, 0), env=env, check=False, timeout=60).returncode


def run_path(tmp_path: Path, code: str, *args: str) -> tuple[Entrypoint, dict[str, str]]:
    script = tmp_path / "script.py"
    script.write_text(code)
    env = {"RANK": "0", "REPORT_DIR": str(tmp_path), "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    return Entrypoint(EntrypointKind.RUN_PATH, str(script), args), env


def test_run_path(tmp_path: Path) -> None:
    entrypoint, env = run_path(tmp_path, REPORT, "3", "a b", "--x")
    assert start(entrypoint, env) == 3
    report = json.loads((tmp_path / "0").read_text())
    script = str(tmp_path / "script.py")
    assert report["argv"] == [script, "3", "a b", "--x"]
    assert (report["name"], report["file"], report["main"]) == ("__main__", script, script)
    assert report["same"]
    assert report["child"] == "__mp_main__"
    assert not (tmp_path / "error.json").exists()


def test_run_path_records_the_error(tmp_path: Path) -> None:
    entrypoint, env = run_path(tmp_path, "def f(): raise ValueError('bad')\nf()")
    assert start(entrypoint, env) == 1
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "ValueError: bad"
    assert "in f" in message["extraInfo"]["py_callstack"]
    assert message["extraInfo"]["timestamp"].isdigit()


# What differs by design: who picks the port and hosts the store, and what only one of the two sets.
BY_DESIGN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
BY_DESIGN |= {"TORCHELASTIC_USE_AGENT_STORE", "ELASTICRUN_ROUND"}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("kind", [EntrypointKind.SCRIPT, EntrypointKind.RUN_PATH])
def test_as_torchrun(tmp_path: Path, kind: EntrypointKind) -> None:
    script = tmp_path / "script.py"
    script.write_text(REPORT)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    base = {**os.environ, "OMP_NUM_THREADS": "1", "REPORT_DIR": str(theirs), "PYTHONWARNINGS": "ignore"}
    flags = ["--run-path"] if kind is EntrypointKind.RUN_PATH else []
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *flags]
    subprocess.run(
        [*command, str(script), "0", "${local_rank}"], env=base, check=True, timeout=TORCH_DEADLINE
    )
    entrypoint = Entrypoint(kind, str(script), ("0", "${local_rank}"))
    base["REPORT_DIR"] = str(ours)
    config = WorkerConfig(
        entrypoint,
        local_world_size=2,
        env=tuple(base.items()),
        signals=(15, 2, signal.SIGHUP, signal.SIGQUIT),
    )
    assignment = Assignment(0, 0, 1, 0, 2, 0, 2, "localhost", 1, 0, 0)
    for local_rank in range(2):
        env = worker_environment(config, "job", assignment, local_rank, "")
        subprocess.run(worker_argv(entrypoint, local_rank), env=env, check=True, timeout=60)
        expected = json.loads((theirs / str(local_rank)).read_text())
        got = json.loads((ours / str(local_rank)).read_text())
        given = without_design(expected.pop("environ"))
        assert without_design(got.pop("environ")) == given
        assert got == expected


def without_design(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in {*BY_DESIGN, "REPORT_DIR"}}
