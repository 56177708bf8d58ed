"""Every way to say it that torchrun's users know, and what each worker is given."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ENV_REPORT, Cluster
from tests.support.launcher import Launcher

CONSOLE_SCRIPT = (sys.executable, "-c", "import sys; from elasticrun.cli.main import main; sys.exit(main())")


def reports(launcher: Launcher) -> list[dict[str, Any]]:
    """What env_report.py printed, by rank."""
    found = [json.loads(line) for line in launcher.out.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda report: int(report["env"]["RANK"]))


def finished(launcher: Launcher) -> list[dict[str, Any]]:
    """The reports of a launcher that has to end well."""
    assert launcher.wait() == 0, launcher.story()
    return reports(launcher)


def ranks(cluster: Cluster) -> list[list[str]]:
    """(rank, world size, group rank, local rank) of every worker of a cluster of env reports."""
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")
    return sorted(
        [report["env"][name] for name in names]
        for launcher in cluster.launchers
        for report in finished(launcher)
    )


def test_the_environment_of_one_node(cluster: Cluster) -> None:
    launcher = cluster.launch(
        "--standalone", "--nproc-per-node=2", "--max-restarts=3", "--role=trainer", ENV_REPORT, "--lr", "-1"
    )
    first, second = finished(launcher)
    store_port = first["env"].pop("MASTER_PORT")
    run_id = first["env"].pop("TORCHELASTIC_RUN_ID")
    error_file = first["env"].pop("TORCHELASTIC_ERROR_FILE")
    assert first["env"] == {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "ROLE_RANK": "0",
        "ROLE_NAME": "trainer",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert [second["env"][name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")] == ["1", "1", "1"]
    assert second["env"]["MASTER_PORT"] == store_port
    assert second["env"]["TORCHELASTIC_RUN_ID"] == run_id
    assert second["env"]["TORCHELASTIC_ERROR_FILE"] != error_file
    assert first["argv"] == [str(ENV_REPORT), "--lr", "-1"]
    assert first["directory"] == str(cluster.folder)
    assert launcher.err == ""


def test_two_nodes_with_different_numbers_of_workers(cluster: Cluster) -> None:
    options = cluster.options("2")
    cluster.launch(*options, "--node-rank=1", "--nproc-per-node=3", "--role=trainer", ENV_REPORT)
    cluster.launch(*options, "--node-rank=0", "--nproc-per-node=2", "--role=reader", ENV_REPORT)
    trainers, readers = (finished(launcher) for launcher in cluster.launchers)

    def of(found: list[dict[str, Any]], name: str) -> list[str]:
        return [report["env"][name] for report in found]

    assert of(readers, "RANK") == ["0", "1"]
    assert of(trainers, "RANK") == ["2", "3", "4"]
    assert of(trainers, "LOCAL_RANK") == of(trainers, "ROLE_RANK") == ["0", "1", "2"]
    assert of(readers, "LOCAL_WORLD_SIZE") == of(readers, "ROLE_WORLD_SIZE") == ["2", "2"]
    assert of(trainers, "LOCAL_WORLD_SIZE") == of(trainers, "ROLE_WORLD_SIZE") == ["3", "3", "3"]
    for name, value in (("WORLD_SIZE", "5"), ("GROUP_WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "job")):
        assert set(of(readers + trainers, name)) == {value}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        assert len(set(of(readers + trainers, name))) == 1


def test_static_nodes_find_one_another_by_the_masters_address(cluster: Cluster) -> None:
    for rank in ("1", "0"):
        cluster.launch(
            "--nnodes=2",
            f"--node_rank={rank}",
            "--master_addr=127.0.0.1",
            f"--master_port={cluster.port}",
            "--nproc_per_node=2",
            ENV_REPORT,
        )
    assert ranks(cluster) == [
        ["0", "4", "0", "0"],
        ["1", "4", "0", "1"],
        ["2", "4", "1", "0"],
        ["3", "4", "1", "1"],
    ]


def test_one_static_node_keeps_its_job_id(cluster: Cluster) -> None:
    (report,) = finished(cluster.launch("--rdzv-id=mine", ENV_REPORT))
    assert report["env"]["TORCHELASTIC_RUN_ID"] == "mine"
    assert report["env"]["WORLD_SIZE"] == "1"


@pytest.mark.parametrize("backend", ["c10d", "etcd", "etcd-v2", "static"])
def test_any_backend_is_served(cluster: Cluster, backend: str) -> None:
    endpoint = f"--rdzv-endpoint=localhost:{cluster.port}"
    for _ in range(2):
        cluster.launch("--nnodes=2", "--rdzv-id=9", f"--rdzv-backend={backend}", endpoint, ENV_REPORT)
    assert [found[:2] for found in ranks(cluster)] == [["0", "2"], ["1", "2"]]


def test_variables_alone(cluster: Cluster) -> None:
    environment = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"127.0.0.1:{cluster.port}",
        "PET_RDZV_ID": "by-variables",
        "PET_MAX_RESTARTS": "5",
    }
    for _ in range(2):
        cluster.launch(ENV_REPORT, env=environment)
    found = [report["env"] for launcher in cluster.launchers for report in finished(launcher)]
    assert sorted(env["RANK"] for env in found) == ["0", "1", "2", "3"]
    assert {(env["TORCHELASTIC_RUN_ID"], env["TORCHELASTIC_MAX_RESTARTS"]) for env in found} == {
        ("by-variables", "5")
    }


def test_the_command_line_wins_over_variables(cluster: Cluster) -> None:
    found = finished(cluster.launch("--nproc-per-node", "2", ENV_REPORT, env={"PET_NPROC_PER_NODE": "3"}))
    assert len(found) == 2


def test_the_console_script_is_the_module(cluster: Cluster) -> None:
    (report,) = finished(cluster.launch("--standalone", ENV_REPORT, "x", command=CONSOLE_SCRIPT))
    assert report["argv"] == [str(ENV_REPORT), "x"]


def test_a_module_is_found_in_the_working_directory(cluster: Cluster) -> None:
    package = cluster.folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nprint(__name__, __spec__.name, sys.argv[1:])\n")
    launcher = cluster.launch("--standalone", "-m", "package.train", "-m", "--module")
    assert launcher.wait() == 0
    assert launcher.out == "__main__ package.train ['-m', '--module']"


def test_no_python_in_front_of_a_program(cluster: Cluster) -> None:
    program = cluster.folder / "train.sh"
    program.write_text('#!/bin/sh\necho "$RANK/$WORLD_SIZE $@"\n')
    program.chmod(0o755)
    launcher = cluster.launch(
        "--standalone", "--nproc-per-node=2", "--no-python", program, "-x", "${local_rank}"
    )
    assert launcher.wait() == 0
    assert sorted(launcher.out.splitlines()) == ["0/2 -x 0", "1/2 -x 1"]


def test_run_path(cluster: Cluster) -> None:
    script = cluster.folder / "train.py"
    script.write_text("import sys\nprint(__name__, __file__, sys.argv)\n")
    launcher = cluster.launch("--standalone", "--run-path", script, "--run-path", "-h")
    assert launcher.wait() == 0
    assert launcher.out == f"__main__ {script} {[str(script), '--run-path', '-h']}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--standalone", "--nnodes", "7", "-m", "--", "-x"],
        ["--help"],
        ["--", "--version"],
        ["", " ", "a b", "'", "é", "-"],
    ],
)
def test_what_follows_the_script_is_the_scripts(cluster: Cluster, arguments: list[str]) -> None:
    (report,) = finished(cluster.launch("--standalone", ENV_REPORT, *arguments))
    assert report["argv"][1:] == arguments


def test_a_script_before_the_separator(cluster: Cluster) -> None:
    (report,) = finished(cluster.launch("--standalone", "--", ENV_REPORT, "--flag"))
    assert report["argv"] == [str(ENV_REPORT), "--flag"]


def test_the_workers_inherit_stdin(cluster: Cluster) -> None:
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as pipe:  # noqa: PTH123 a descriptor
        launcher = cluster.alone(stdin=pipe)
    os.write(write_end, b"from outside\n")
    os.close(write_end)
    (worker,) = cluster.director.round(0, 1)
    assert worker.ask("stdin") == "from outside\n"
    worker.tell("exit 0")
    assert launcher.wait() == 0


def test_another_interpreter(cluster: Cluster, tmp_path: Path) -> None:
    python = tmp_path / "mypython"
    python.write_text(f'#!/bin/sh\necho "mine $1"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    launcher = cluster.launch("--standalone", ENV_REPORT, env={"PYTHON_EXEC": str(python)})
    assert launcher.wait() == 0
    assert launcher.out.splitlines()[0] == "mine -u"


def test_the_old_launchers_line(cluster: Cluster) -> None:
    launcher = cluster.launch(
        "--use-env", "--nproc_per_node=2", "--master_port", str(cluster.port), ENV_REPORT
    )
    assert [report["env"]["RANK"] for report in finished(launcher)] == ["0", "1"]


def test_threads_are_set_only_where_nobody_did(cluster: Cluster) -> None:
    for count, given, wanted, warned in (
        ("2", {"OMP_NUM_THREADS": "7"}, "7", False),
        ("2", {}, "1", True),
        ("1", {}, None, False),
    ):
        command = (sys.executable, "-c", UNSET_OMP) if not given else (sys.executable, "-m", "elasticrun")
        launcher = cluster.launch(
            "--standalone", "--nproc-per-node", count, ENV_REPORT, env=given, command=command
        )
        for report in finished(launcher):
            assert report["env"].get("OMP_NUM_THREADS") == wanted
        assert ("OMP_NUM_THREADS" in launcher.err) is warned, launcher.story()


UNSET_OMP = """
import os, sys
del os.environ["OMP_NUM_THREADS"]
from elasticrun.cli.main import main
sys.exit(main())
"""


def test_an_address_given_for_this_node_is_where_the_store_is(cluster: Cluster) -> None:
    cluster.launch(*cluster.options("2"), "--node-rank=0", "--local-addr=127.0.0.2", ENV_REPORT)
    cluster.launch(*cluster.options("2"), "--node-rank=1", ENV_REPORT)
    found = [report["env"]["MASTER_ADDR"] for launcher in cluster.launchers for report in finished(launcher)]
    assert found == ["127.0.0.2", "127.0.0.2"]


def test_workers_run_unbuffered_and_in_groups_of_their_own(cluster: Cluster) -> None:
    launcher = cluster.alone("--nproc-per-node=2")
    workers = cluster.director.round(0, 2)
    assert [os.getpgid(worker.pid) for worker in workers] == [worker.pid for worker in workers]
    assert [os.getsid(worker.pid) for worker in workers] == [worker.pid for worker in workers]
    for worker in workers:
        worker.tell("exit 0")
    assert launcher.wait() == 0
