"""The TensorFlow options: the roles of this node's tasks, what they run, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticrun.cli import main
from elasticrun.cli.parse import parse_command_line
from elasticrun.config import Entrypoint, EntrypointKind, LaunchConfig, TaskRole
from elasticrun.core.protocol.tasks import MAX_TASKS
from elasticrun.errors import UsageError

Parse = Callable[..., LaunchConfig]

CHIEF, WORKER, PS, EVALUATOR = TaskRole
SERVER = Entrypoint(EntrypointKind.MODULE, "elasticrun.tf.server", python=sys.executable)
SEVERAL = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h")
TF = "--framework=tensorflow"


@pytest.fixture
def script(script: str) -> str:
    """``train.py`` beside a tensorflow that nobody may import: not the launcher, whatever it looks for."""
    Path("tensorflow.py").write_text("raise SystemExit('imported')\n")
    return script


def warnings(config: LaunchConfig) -> list[str]:
    return [sentence for level, sentence in config.notes if level == "warning"]


# --- what comes out


@pytest.mark.parametrize(
    ("argv", "roles"),
    [
        ([], ()),
        (["--framework=auto", "--nproc-per-node=2"], ()),
        (["--framework=torch"], ()),
        ([TF], (WORKER,)),
        ([TF, "--nproc-per-node=3"], (WORKER,) * 3),
        ([TF, "--standalone", "--nproc-per-node=2"], (WORKER,) * 2),
        ([TF, *SEVERAL, "--nproc-per-node=2"], (WORKER,) * 2),
        (["--role-counts=evaluator=1,ps=2,worker=3,chief=1"],
         (CHIEF, WORKER, WORKER, WORKER, PS, PS, EVALUATOR)),
        ([TF, "--role-counts", "worker=2"], (WORKER, WORKER)),
        (["--role-counts= chief = 1 , evaluator = 1 "], (CHIEF, EVALUATOR)),
        (["--standalone", "--nnodes=1:4", "--role-counts=worker=2"], (WORKER, WORKER)),
        (["--role-counts=chief=1,worker=2", "--nproc-per-node=3"], (CHIEF, WORKER, WORKER)),
        ([f"--role-counts=worker={MAX_TASKS}"], (WORKER,) * MAX_TASKS),
        (["--tf-role=worker", "--nproc-per-node=2"], (WORKER, WORKER)),
        (["--tf-role=chief"], (CHIEF,)),
        ([TF, *SEVERAL, "--tf-role=chief"], (CHIEF,)),
        ([*SEVERAL, "--tf-role=ps", "--nproc-per-node=2"], (PS, PS)),
        ([*SEVERAL, "--tf-role=evaluator"], (EVALUATOR,)),
    ],
)  # fmt: skip
def test_roles(argv: list[str], roles: tuple[TaskRole, ...], parse: Parse) -> None:
    workers = parse(*argv).workers
    assert workers.roles == roles
    assert workers.local_world_size == len(roles) if roles else workers.local_world_size >= 1
    assert workers.servers == (SERVER if roles else None)


def test_a_variable_gives_roles_as_well(parse: Parse) -> None:
    assert parse(environ={"PET_TF_ROLE": "chief"}).workers.roles == (CHIEF,)
    assert parse(environ={"PET_ROLE_COUNTS": ""}).workers.roles == ()


def test_servers_may_be_the_script(parse: Parse) -> None:
    config = parse("--role-counts=chief=1,worker=1,ps=1", "--tf-servers=script")
    assert (config.workers.servers, len(config.workers.roles), warnings(config)) == (None, 3, [])


def test_servers_of_a_program_are_python_all_the_same(script: str) -> None:
    """Neither is TensorFlow looked for: what such a program needs is its own affair."""
    argv = ["--no-python", *SEVERAL, "--tf-role=ps", "true"]
    assert parse_command_line(argv, {"PATH": "/usr/bin:/bin"}).workers.servers == SERVER
    python = {"PATH": "/usr/bin:/bin", "PYTHON_EXEC": "/opt/python"}
    servers = parse_command_line(argv, python).workers.servers
    assert servers is not None
    assert servers.python == "/opt/python"


def test_servers_of_no_tensorflow_job_are_a_warning(parse: Parse) -> None:
    config = parse("--tf-servers=script")
    assert warnings(config) == ["--tf-servers without effect: this is no TensorFlow job"]
    assert (config.workers.servers, config.workers.roles) == (None, ())


@pytest.mark.parametrize(
    ("argv", "is_warm"),
    [
        ([TF], True),
        (["--role-counts=chief=1,worker=2,ps=2"], True),  # the chief
        ([*SEVERAL, "--tf-role=worker"], True),  # what its cluster is has yet to be seen
        ([*SEVERAL, "--tf-role=ps"], False),
        ([*SEVERAL, "--tf-role=ps", "--tf-servers=script"], True),
        ([TF, "--warm=off"], False),
        ([TF, "--health-check-only"], False),
    ],
)
def test_tensorflow_jobs_are_forked_once_tensorflow_is_imported(
    argv: list[str], is_warm: bool, parse: Parse
) -> None:
    Path("train.py").write_text("import torch, tensorflow\n")
    config = parse(*argv)
    assert config.workers.warm_imports == (("tensorflow",) if is_warm else None)
    assert not [sentence for _, sentence in config.notes if "cold" in sentence]


@pytest.mark.parametrize(
    ("argv", "is_warm"),
    [
        (["--role-counts=chief=1,worker=2,ps=2"], True),
        (["--role-counts=chief=1,worker=2,ps=2", "--warm=off"], False),
        (["--role-counts=chief=1,worker=2,ps=2", "--tf-servers=script"], False),
        (["--role-counts=chief=1,worker=2"], False),
        ([*SEVERAL, "--tf-role=ps"], True),
        ([*SEVERAL, "--tf-role=worker"], False),  # the job does without a lost worker
        ([TF], False),
    ],
)
def test_where_a_ps_may_be_lost_servers_are_forked(argv: list[str], is_warm: bool, parse: Parse) -> None:
    imports = ("elasticrun.tf.preload",) if is_warm else None
    assert parse(*argv).workers.server_imports == imports


def test_servers_of_what_may_be_no_python_start_cold(script: str) -> None:
    argv = ["--no-python", *SEVERAL, "--tf-role=ps", "true"]
    environ = {"PATH": "/usr/bin:/bin", "PYTHON_EXEC": "/opt/python"}
    assert parse_command_line(argv, environ).workers.server_imports is None


def test_tensorflow_jobs_are_not_told_how_many_openmp_threads(parse: Parse) -> None:
    config = parse("--role-counts=worker=3")
    assert ("OMP_NUM_THREADS" in dict(config.workers.env), warnings(config)) == (False, [])
    assert dict(parse(TF, environ={"OMP_NUM_THREADS": "2"}).workers.env)["OMP_NUM_THREADS"] == "2"


def test_tasks_try_soon_again_to_reach_one_another_unless_the_user_says_how(parse: Parse) -> None:
    name = "TF_GRPC_DEFAULT_OPTIONS"
    assert dict(parse(TF).workers.env)[name] == "grpc.initial_reconnect_backoff_ms=100"
    own = "grpc.keepalive_time_ms=60000"
    assert dict(parse(TF, environ={name: own}).workers.env)[name] == own
    assert name not in dict(parse().workers.env)


def test_a_mere_check_has_no_tasks(parse: Parse) -> None:
    Path("tensorflow.py").unlink()
    workers = parse("--health-check-only", *SEVERAL, "--tf-role=ps", environ={"PATH": ""}).workers
    assert (workers.roles, workers.servers, workers.local_world_size) == ((), None, 1)


def test_the_master_hears_of_the_roles(parse: Parse) -> None:
    host: Any = SimpleNamespace(endpoints=SimpleNamespace(are_several=False), incarnation="0123456789abcdef")
    config = parse("--role-counts=chief=1,worker=1,ps=1", "--local-addr=here")
    assert main._describe_node(config, host).roles == (CHIEF, WORKER, PS)
    assert main._describe_node(parse("--local-addr=here"), host).roles == ()


# --- what is refused


def refusal(argv: list[str], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(argv, environ or {})
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["--role-counts=ps=2"],
            "--role-counts 'ps=2' is not valid: ps=2 lacks the chief and the worker that a ps serves; "
            "give for example chief=1,worker=1,ps=2",
        ),
        (
            ["--role-counts=worker=2,ps=1"],
            "--role-counts 'worker=2,ps=1' is not valid: worker=2,ps=1 lacks the chief that a ps serves; "
            "give for example chief=1,worker=2,ps=1",
        ),
        (
            ["--role-counts=chief=2"],
            "--role-counts 'chief=2' is not valid: chief=2, but a cluster has one chief at most; "
            "give chief=1",
        ),
        (
            ["--role-counts=evaluator=1"],
            "--role-counts 'evaluator=1' is not valid: evaluator=1 trains nothing; "
            "give for example worker=1,evaluator=1",
        ),
        (
            [f"--role-counts=worker={MAX_TASKS + 1}"],
            f"--role-counts 'worker={MAX_TASKS + 1}' is not valid: one node runs {MAX_TASKS} tasks at most; "
            "give fewer",
        ),
        (
            ["--role-counts=chief=1,worker=2", "--nproc-per-node=4"],
            "--role-counts 'chief=1,worker=2' is not valid: that makes 3 tasks, but --nproc-per-node '4' "
            "asks for 4; leave --nproc-per-node out",
        ),
        (
            ["--role-counts=worker=2", *SEVERAL],
            "--role-counts 'worker=2' is not valid: it is for jobs of one node, but --nnodes allows 2; "
            "give --tf-role on each node, or --nnodes 1",
        ),
        (
            ["--role-counts=worker=2", "--nnodes=1:3"],
            "--role-counts 'worker=2' is not valid: it is for jobs of one node, but --nnodes allows 3; "
            "give --tf-role on each node, or --nnodes 1",
        ),
        (
            ["--role-counts=worker=2", "--tf-role=worker"],
            "--tf-role 'worker' is not valid: --role-counts says every task's role; leave one of them out",
        ),
        (
            ["--role-counts=worker=2", "--framework=torch"],
            "--role-counts 'worker=2' is not valid: it is for TensorFlow jobs, but --framework 'torch' was "
            "given; leave one of them out",
        ),
        (
            ["--tf-role=ps", "--framework=torch"],
            "--tf-role 'ps' is not valid: it is for TensorFlow jobs, but --framework 'torch' was given; "
            "leave one of them out",
        ),
        (
            ["--tf-role=chief", "--nproc-per-node=2", *SEVERAL],
            "--tf-role 'chief' is not valid: a cluster has one chief at most, but this node has 2 workers; "
            "give --nproc-per-node 1",
        ),
        (
            ["--tf-role=evaluator", "--nproc-per-node=2", *SEVERAL],
            "--tf-role 'evaluator' is not valid: a cluster has one evaluator at most, but this node has 2 "
            "workers; give --nproc-per-node 1",
        ),
        (
            ["--tf-role=ps"],
            "--tf-role 'ps' is not valid: this job has one node, where ps=1 lacks the chief and the worker "
            "that a ps serves; give for example chief=1,worker=1,ps=1 to --role-counts",
        ),
        (
            [TF, f"--nproc-per-node={MAX_TASKS + 1}"],
            f"--framework 'tensorflow' is not valid: one node runs {MAX_TASKS} tasks at most, but this one "
            f"has {MAX_TASKS + 1} workers; give --nproc-per-node {MAX_TASKS} or less",
        ),
    ],
)
def test_roles_that_cannot_be(argv: list[str], sentence: str, script: str) -> None:
    assert refusal([*argv, script]) == sentence


def test_a_variable_that_contradicts_is_named(script: str) -> None:
    sentence = refusal(["--role-counts=worker=2", script], {"PET_NPROC_PER_NODE": "8"})
    assert "PET_NPROC_PER_NODE='8' asks for 8" in sentence


def test_roles_are_judged_before_files() -> None:
    assert "ps=2 lacks" in refusal(["--role-counts=ps=2", "missing.py"])


# --- where tensorflow has to be


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A Python that has nothing installed, not even elasticrun."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_python_without_tensorflow(script: str, bare: str) -> None:
    Path("tensorflow.py").unlink()
    Path("tensorflow").mkdir()  # a directory of examples, say
    for argv in ([TF, script], [TF, "--run-path", script], [TF, "-m", "train"]):
        sentence = refusal(argv, {"PYTHON_EXEC": bare, "PATH": "/bin"})
        assert sentence == (
            f"--framework 'tensorflow': {bare} finds no tensorflow; "
            "install it there, or name a Python that has it in PYTHON_EXEC"
        )


def test_our_own_python_without_tensorflow(script: str, bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("tensorflow.py").unlink()
    Path("tensorflow").mkdir()
    monkeypatch.setattr(sys, "executable", bare)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    assert "--tf-role 'worker': " in refusal(["--tf-role=worker", script], {"PATH": "/bin"})


@pytest.mark.parametrize("module", [False, True])
def test_tensorflow_may_lie_beside_the_program(
    module: bool, tmp_path: Path, script: str, bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"PYTHON_EXEC": bare, "PATH": "/bin"}
    if module:
        argv = [TF, "-m", "train"]
    else:
        argv = [TF, str(tmp_path / script)]
        (tmp_path / "bin").joinpath("elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "bin" / "elsewhere")
    assert parse_command_line(argv, environ).workers.roles == (WORKER,)


def test_a_python_without_elasticrun_cannot_serve(script: str, bare: str) -> None:
    environ = {"PYTHON_EXEC": bare, "PATH": "/bin"}
    counts = "--role-counts=chief=1,worker=1,ps=1"
    assert refusal([counts, script], environ) == (
        f"--role-counts 'chief=1,worker=1,ps=1': {bare} finds no elasticrun, whose server is what parameter "
        "servers run; install it there, or give --tf-servers script"
    )
    assert parse_command_line([counts, "--tf-servers=script", script], environ).workers.servers is None
    assert len(parse_command_line(["--role-counts=chief=1,worker=1", script], environ).workers.roles) == 2


def test_a_python_that_does_not_answer_gets_the_benefit_of_the_doubt(script: str, tmp_path: Path) -> None:
    mute = tmp_path / "mute"
    mute.write_text("#!/nowhere/sh\n")
    mute.chmod(0o755)
    environ = {"PYTHON_EXEC": str(mute), "PATH": "/bin"}
    assert parse_command_line([TF, script], environ).workers.roles == (WORKER,)
