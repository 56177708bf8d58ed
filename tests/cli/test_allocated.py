"""Which options an allocation fills in, and which it leaves as the user gave them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticrun.config import Endpoint, LaunchConfig
from elasticrun.errors import UsageError
from tests.platforms.test_allocation import BATCH, HET, MPICH, OPEN_MPI, SALLOC, STEP

Parse = Callable[..., LaunchConfig]

PLACE = Endpoint("n1", 20_492)
ONE = {
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_PROCID": "0",
}
BROKEN = {**STEP, "SLURM_STEP_NODELIST": "n[1-"}


def told(config: LaunchConfig, level: str) -> list[str]:
    return [sentence for noted, sentence in config.notes if noted == level]


def test_srun_fills_in_what_nobody_gave(parse: Parse) -> None:
    config = parse(environ=STEP)
    assert config.rendezvous.endpoint == PLACE and not config.rendezvous.standalone
    assert (config.job.min_nodes, config.job.max_nodes) == (2, 2)
    assert (config.job.job_id, config.rendezvous.node_rank) == ("slurm-12.0", 1)
    assert config.workers.local_world_size == 1, "as torchrun has it"
    assert "Slurm: job slurm-12.0, node 1 of 2, the first is n1 (from SLURM_STEP_NODELIST)" in told(
        config, "info"
    )


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--nnodes=1:4", "--node-rank=3", "--rdzv-id=mine", "--rdzv-backend=c10d"], {}),
        (["--rdzv-backend=c10d"], {"PET_NNODES": "1:4", "PET_NODE_RANK": "3", "PET_RDZV_ID": "mine"}),
    ],
)
def test_what_is_given_wins(argv: list[str], environ: dict[str, str], parse: Parse) -> None:
    config = parse(*argv, environ={**STEP, **environ})
    assert (config.job.min_nodes, config.job.max_nodes) == (1, 4)
    assert (config.job.job_id, config.rendezvous.node_rank) == ("mine", 3)
    assert config.rendezvous.endpoint == PLACE


@pytest.mark.parametrize(
    ("argv", "environ"),
    [
        (["--standalone"], {}),
        ([], {"PET_STANDALONE": "1"}),
        (["--nnodes=1"], {}),
        (["--nnodes=2", "--rdzv-endpoint=h:7"], {}),
        ([], {"PET_RDZV_ENDPOINT": "h:7"}),
        (["--nnodes=2", "--master-addr=h"], {}),
        (["--nnodes=2", "--master-port=7"], {}),
        ([], {"TORCHELASTIC_RUN_ID": "outer"}),
    ],
)
@pytest.mark.parametrize("allocation", [STEP, BROKEN, {**STEP, "SLURM_STEP_NUM_TASKS": "9"}, OPEN_MPI])
def test_who_says_where_the_nodes_are_gets_no_more_than_its_notice(
    argv: list[str], environ: dict[str, str], allocation: dict[str, str], parse: Parse
) -> None:
    with_it, without = parse(*argv, environ={**allocation, **environ}), parse(*argv, environ=environ)
    assert with_it.rendezvous == without.rendezvous
    assert with_it.job.min_nodes == without.job.min_nodes
    is_task = allocation is not OPEN_MPI and "TORCHELASTIC_RUN_ID" not in environ
    assert with_it.workers.notice_signal == (signal.SIGUSR1 if is_task else 0)
    assert with_it.notes == without.notes


@pytest.mark.parametrize("left", [BATCH, SALLOC, {**BROKEN, "SLURM_STEP_ID": ""}])
def test_a_batch_script_and_a_shell_of_salloc_stay_alone(left: dict[str, str], parse: Parse) -> None:
    config = parse(environ=left)
    assert config.rendezvous == parse().rendezvous
    assert not config.job.job_id.startswith("slurm") and not told(config, "info")
    assert not config.workers.notice_signal


def test_one_node_has_the_name_of_its_job_and_no_endpoint(parse: Parse) -> None:
    config = parse(environ={**STEP, **ONE})
    assert config.rendezvous.standalone and config.rendezvous.node_rank is None
    assert config.job.job_id == "slurm-12.0"


def test_all_components_are_nodes(parse: Parse) -> None:
    config = parse(environ=HET)
    assert (config.rendezvous.endpoint.host, config.job.max_nodes) == ("n3", 3)


def test_a_job_that_is_queued_again_says_so(parse: Parse) -> None:
    for count, text in (("1", "once"), ("3", "3 times")):
        config = parse(environ={**STEP, "SLURM_RESTART_COUNT": count})
        assert f"Slurm has queued this job again {text}: it goes on as the same job" in told(config, "info")


def test_slurm_gives_notice_by_sigusr1(parse: Parse) -> None:
    assert parse(environ=STEP).workers.notice_signal == signal.SIGUSR1
    assert parse(environ={**STEP, **ONE}).workers.notice_signal == signal.SIGUSR1
    assert parse(environ={**BATCH, **OPEN_MPI}).workers.notice_signal == signal.SIGUSR1
    config = parse("--signals-to-handle=SIGTERM,SIGUSR1", environ=STEP)
    assert config.workers.notice_signal == 0, "it stops the workers, as was asked for"


def test_an_address_of_ipv6_is_an_endpoint(parse: Parse) -> None:
    config = parse(environ={**STEP, "SLURM_STEP_NODELIST": "fd00::1,n2"})
    assert config.rendezvous.endpoint == Endpoint("fd00::1", 20_492)


def test_mpirun_without_nodes_is_told_of(parse: Parse) -> None:
    config = parse(environ=MPICH)
    assert config.rendezvous == parse().rendezvous
    assert told(config, "warning")[0] == (
        "mpiexec started 2 of these, and nothing says on which nodes: each is a job of its own; "
        "give --rdzv-endpoint, --nnodes and --node-rank to make them one"
    )
    assert parse(environ={"PMI_RANK": "0", "PMI_SIZE": "1"}).notes == parse().notes


def test_a_file_of_pbs_is_read(parse: Parse, tmp_path: Path) -> None:
    pbs = {**OPEN_MPI, "PBS_JOBID": "17.server", "PBS_NODEFILE": str(tmp_path / "nodes")}
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    config = parse(environ=pbs)
    assert (config.rendezvous.endpoint.host, config.job.job_id) == ("n1", "pbs-17")
    assert not config.workers.notice_signal
    (tmp_path / "nodes").unlink()
    os.mkfifo(tmp_path / "nodes")
    with pytest.raises(UsageError, match="cannot be read, it is no regular file: give"):
        parse(environ=pbs)
    (tmp_path / "nodes").unlink()
    (tmp_path / "nodes").write_bytes(b"n\n" * (3 << 20))
    with pytest.raises(UsageError, match="cannot be read, it is larger than"):
        parse(environ=pbs)


def test_a_broken_list_is_one_sentence(parse: Parse) -> None:
    with pytest.raises(UsageError) as caught:
        parse(environ=BROKEN)
    assert str(caught.value) == (
        "SLURM_STEP_NODELIST='n[1-' is no list of nodes, its brackets do not match: give --rdzv-endpoint "
        "and --nnodes yourself, or --standalone to run on this node alone"
    )
