"""What Slurm, PBS, LSF and an MPI's mpirun tell their tasks. The environments of Slurm are those of 22.05."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from elasticrun.errors import UsageError
from elasticrun.platforms.allocation import (
    FIRST_PORT,
    PORTS,
    Allocation,
    Task,
    find_task,
    read_allocation,
)


def no_file(path: str) -> str:
    raise FileNotFoundError(2, "No such file or directory", path)


def read(environ: Mapping[str, str], files: Mapping[str, str] | None = None) -> Allocation | None:
    found = files or {}
    return read_allocation(environ, lambda path: found[path] if path in found else no_file(path))


def variables(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


#: A batch script on two nodes: it runs on the first of them, and is no task.
BATCH = variables(
    "SLURMD_NODENAME=n1 SLURM_CPUS_ON_NODE=1 SLURM_GTIDS=0 SLURM_JOBID=12 SLURM_JOB_ID=12 "
    "SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NNODES=2 SLURM_NODEID=0 "
    "SLURM_NODELIST=n[1-2] SLURM_NODE_ALIASES=(null) SLURM_PROCID=0 SLURM_TASKS_PER_NODE=1(x2)"
)
#: What srun adds for the second of its tasks.
STEP = BATCH | variables(
    "SLURMD_NODENAME=n2 SLURM_GTIDS=1 SLURM_NODEID=1 SLURM_NPROCS=2 SLURM_NTASKS=2 SLURM_PROCID=1 "
    "SLURM_STEPID=0 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 "
    "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)"
)
SALLOC = variables(
    "SLURM_JOBID=6 SLURM_JOB_CPUS_PER_NODE=1(x2) SLURM_JOB_ID=6 SLURM_JOB_NODELIST=n[1-2] "
    "SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=1(x2)"
)
ARRAY = variables("SLURM_ARRAY_JOB_ID=3 SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=1")
#: The third task of a step on both components of a heterogeneous job.
HET = variables(
    "SLURM_HET_SIZE=2 SLURM_JOB_ID=4 SLURM_JOB_ID_HET_GROUP_0=4 SLURM_JOB_ID_HET_GROUP_1=5 "
    "SLURM_JOB_NODELIST=n[1-3] SLURM_JOB_NODELIST_HET_GROUP_0=n3 SLURM_JOB_NODELIST_HET_GROUP_1=n[1-2] "
    "SLURM_JOB_NUM_NODES=3 SLURM_NNODES=3 SLURM_NODEID=2 SLURM_NTASKS=3 SLURM_PROCID=2 SLURM_STEP_ID=0 "
    "SLURM_STEP_NODELIST=n[1-3] SLURM_STEP_NUM_NODES=3 SLURM_STEP_NUM_TASKS=3"
)


def test_a_step_of_slurm() -> None:
    assert read(STEP) == Allocation(
        "Slurm", ("n1", "n2"), 1, FIRST_PORT + 12, "slurm-12.0", 0, "SLURM_STEP_NODELIST"
    )


@pytest.mark.parametrize("special", ["4294967290", "4294967291", "4294967292", "", "x"])
def test_what_srun_has_not_started_is_no_task(special: str) -> None:
    assert read(BATCH) is None
    assert read(SALLOC) is None
    assert read({**STEP, "SLURM_STEP_ID": special}) is None


def test_all_nodes_find_the_same_place() -> None:
    one, other = read({**STEP, "SLURM_PROCID": "0"}), read(STEP)
    assert one is not None and other is not None
    assert (one.nodes, one.port, one.job_id) == (other.nodes, other.port, other.job_id)
    assert (one.node_rank, other.node_rank) == (0, 1)


def test_a_step_on_a_part_of_the_job() -> None:
    part = {"SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "n2", "SLURM_STEP_NUM_NODES": "1"}
    found = read({**STEP, **part, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})
    assert found is not None
    assert (found.nodes, found.job_id) == (("n2",), "slurm-12.1")


def ports(environ: Mapping[str, str], name: str, numbers: range) -> list[int]:
    found = [read({**environ, name: str(number)}) for number in numbers]
    return [each.port for each in found if each is not None]


def test_steps_and_neighbouring_jobs_have_ports_of_their_own() -> None:
    steps = ports(STEP, "SLURM_STEP_ID", range(8))
    jobs = ports(STEP, "SLURM_JOB_ID", range(1000, 1000 + PORTS))
    assert len(set(steps)) == 8
    assert len(set(jobs)) == PORTS
    assert {FIRST_PORT <= port < FIRST_PORT + PORTS for port in [*steps, *jobs]} == {True}


@pytest.mark.parametrize(
    ("reserved", "port"),
    [
        ("18001", 18001),
        ("18001-18002", 18001),
        ("18003,18007-18009", 18003),
        *((text, FIRST_PORT + 12) for text in ("x", "0", "70000", "")),
    ],
)
def test_reserved_ports_come_first(reserved: str, port: int) -> None:
    found = read({**STEP, "SLURM_STEP_RESV_PORTS": reserved})
    assert found is not None and found.port == port


def test_a_task_of_an_array_is_called_as_people_call_it() -> None:
    found = read({**STEP, **ARRAY})
    assert found is not None
    assert (found.job_id, found.port) == ("slurm-3_7.0", FIRST_PORT + 12)


def test_a_job_that_was_queued_again_is_the_same_job() -> None:
    again = read({**STEP, "SLURM_RESTART_COUNT": "2"})
    first = read(STEP)
    assert again is not None and first is not None
    assert (again.restarts, again.job_id, again.port) == (2, first.job_id, first.port)


def test_components_of_a_heterogeneous_job_come_in_their_order() -> None:
    found = read(HET)
    assert found is not None
    assert (found.nodes, found.node_rank, found.job_id) == (("n3", "n1", "n2"), 2, "slurm-4.0")
    part = {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    found = read({**HET, **part, "SLURM_PROCID": "1", "SLURM_STEP_ID": "1"})
    assert found is not None
    assert (found.nodes, found.job_id) == (("n1", "n2"), "slurm-4.1")


# -- MPI, PBS, LSF

OPEN_MPI = variables("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 PMIX_RANK=1")
MPICH = variables("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1")
PBS = {"PBS_JOBID": "17.server", "PBS_NODEFILE": "/aux/17"}
LSF = variables("LSB_JOBID=9 LSB_JOBINDEX=0")


def test_tasks_of_an_mpi() -> None:
    assert find_task(OPEN_MPI) == Task("mpirun", 1, 2)
    assert find_task(MPICH) == Task("mpiexec", 1, 2)
    assert find_task({"PMIX_RANK": "3"}) == Task("prun", 3, 0)
    assert find_task({**STEP, "PMI_RANK": "1", "PMI_SIZE": "2", "PMIX_RANK": "1"}) == Task("srun", 1, 2)
    assert find_task({}) is None


@pytest.mark.parametrize("mpi", [OPEN_MPI, MPICH, {"PMIX_RANK": "1"}])
def test_mpi_in_a_job_of_slurm(mpi: dict[str, str]) -> None:
    found = read({**BATCH, **mpi})
    assert found is not None
    assert (found.nodes, found.node_rank, found.source) == (("n1", "n2"), 1, "SLURM_JOB_NODELIST")


def test_daemons_of_mpirun_are_steps_with_other_ranks() -> None:
    """Open MPI starts its daemons by srun: their tasks inherit the rank of a daemon, which is not theirs."""
    found = read({**STEP, **OPEN_MPI, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    first = read({**BATCH, **OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    assert found is not None and first is not None
    assert (found.node_rank, found.nodes, found.port) == (1, ("n1", "n2"), first.port)


def test_mpi_without_a_batch_system_names_no_nodes() -> None:
    assert read(OPEN_MPI) is None


def test_pbs_names_a_host_once_for_each_of_its_slots() -> None:
    found = read({**PBS, **MPICH}, {"/aux/17": "n1\nn1\nn2\nn2\n"})
    assert found == Allocation("PBS", ("n1", "n2"), 1, FIRST_PORT + 17, "pbs-17", 0, "PBS_NODEFILE")
    found = read({**PBS, **MPICH, "PBS_JOBID": "17[3].server"}, {"/aux/17": "n1\nn2\n"})
    assert found is not None
    assert (found.job_id, found.port) == ("pbs-17[3]", FIRST_PORT + 17 + 3 * 1021)


@pytest.mark.parametrize(
    ("hosts", "source"),
    [
        ({"LSB_MCPU_HOSTS": "n1 4 n2 4", "LSB_HOSTS": "n9"}, "LSB_MCPU_HOSTS"),
        ({"LSB_HOSTS": "n1 n1 n2 n2"}, "LSB_HOSTS"),
        ({"LSB_DJOB_HOSTFILE": "/spool/9", "LSB_HOSTS": "n9"}, "LSB_DJOB_HOSTFILE"),
    ],
)
def test_lsf_has_three_ways_to_name_hosts(hosts: dict[str, str], source: str) -> None:
    found = read({**LSF, **OPEN_MPI, **hosts}, {"/spool/9": "n1\nn1\nn2\n"})
    assert found == Allocation("LSF", ("n1", "n2"), 1, FIRST_PORT + 9, "lsf-9", 0, source)


def test_lsf_without_hosts_or_with_an_array() -> None:
    assert read({**LSF, **OPEN_MPI}) is None
    found = read({**LSF, **OPEN_MPI, "LSB_JOBINDEX": "5", "LSB_HOSTS": "n1 n2"})
    assert found is not None and found.job_id == "lsf-9_5"


# -- what cannot be


ADVICE = "give --rdzv-endpoint and --nnodes yourself, or --standalone to run on this node alone"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"SLURM_STEP_NUM_TASKS": "8"},
            "srun started 8 tasks on 2 nodes, and elastic-run has to be started once on each: "
            "use srun --ntasks-per-node=1, and --nproc-per-node for the workers",
        ),
        (
            {"SLURM_PROCID": "2"},
            f"this is task 2, counted from 0, but SLURM_STEP_NODELIST names only 2 nodes: {ADVICE}",
        ),
        (
            {"SLURM_STEP_NODELIST": "n[1-"},
            f"SLURM_STEP_NODELIST='n[1-' is no list of nodes, its brackets do not match: {ADVICE}",
        ),
        (
            {"SLURM_STEP_NODELIST": "n[1-3]"},
            f"SLURM_STEP_NODELIST names 3 nodes, but SLURM_STEP_NUM_NODES is 2: {ADVICE}",
        ),
        ({"SLURM_PROCID": "-1"}, f"SLURM_PROCID='-1' is no number from 0 to 4294967295: {ADVICE}"),
        (
            {"SLURM_JOB_ID": "1" * 99},
            f"SLURM_JOB_ID='{'1' * 40}' is no number from 0 to 4294967295: {ADVICE}",
        ),
        ({"SLURM_HET_SIZE": "9999999"}, f"SLURM_HET_SIZE='9999999' is no number from 0 to 128: {ADVICE}"),
        (
            {"SLURM_RESTART_COUNT": "x"},
            f"SLURM_RESTART_COUNT='x' is no number from 0 to 4294967295: {ADVICE}",
        ),
    ],
)
def test_steps_that_contradict_themselves(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        read({**STEP, **changes})
    assert str(caught.value) == sentence


def test_several_tasks_on_one_node() -> None:
    one = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"}
    with pytest.raises(
        UsageError, match="srun started 4 tasks on 1 node, and elastic-run has to be started once"
    ):
        read({**STEP, **one})


def test_files_and_hosts_that_do_not_fit() -> None:
    with pytest.raises(
        UsageError, match="PBS_NODEFILE '/aux/17' cannot be read, No such file or directory: give"
    ):
        read({**PBS, **MPICH})
    with pytest.raises(UsageError, match="PBS_NODEFILE names no nodes: give"):
        read({**PBS, **MPICH}, {"/aux/17": "\n"})
    with pytest.raises(UsageError, match="PBS_NODEFILE names the node 'n1,evil:1', which is no host: give"):
        read({**PBS, **MPICH}, {"/aux/17": "n1,evil:1\nn2\n"})
    with pytest.raises(
        UsageError, match="mpiexec started 2 tasks, but PBS_NODEFILE names 3 nodes, and nothing says"
    ):
        read({**PBS, **MPICH}, {"/aux/17": "n1\nn2\nn3\n"})
