"""What a batch system tells the processes that it starts: which nodes there are, and which one this is.

Two questions have to be answered, and different programs answer them. *Where* the job runs is known to the
batch system: Slurm, PBS or LSF. *Which of its tasks* this process is, is known to what started it: ``srun``
or an MPI's ``mpirun``. Both have a table below, in the order in which they are asked.

A process that no such program started is no task: a batch script, the shell of ``salloc``, a shell in which
old variables are left. It has no allocation here, whatever else its environment says.

All of it is a pure function of the environment, and of the one file that PBS and LSF name. Every task gets
the same answers, but for its rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.platforms.hostlist import MOST_HOSTS, expand

Environ = Mapping[str, str]
#: Reads a small text file; raises OSError.
Read = Callable[[str], str]

#: Ports of the master, if the batch system reserved none: below those that Linux gives away by itself.
FIRST_PORT, PORTS = 20_480, 8_192
#: Two steps of one job have ports that lie so far apart, so they differ, and neighbours in the queue do too.
_APART = 1_021
#: Slurm's numbers for steps that are no ``srun``: the batch script, an interactive shell and the like.
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_ADVICE = "give --rdzv-endpoint and --nnodes yourself, or --standalone to run on this node alone"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of one job, as this node's batch system tells it."""

    platform: str  # as people write it: "Slurm"
    nodes: tuple[str, ...]  # each host once; the first is where the master listens
    node_rank: int
    port: int  # of the master, the same for all nodes
    job_id: str  # the same when the job is queued again
    restarts: int = 0  # how often it was queued again
    source: str = ""  # the variable that names the nodes


@dataclass(frozen=True, slots=True)
class Task:
    """This process among those that were started together."""

    launcher: str  # "srun"
    rank: int
    size: int  # 0: not told


def read_allocation(environ: Environ, read: Read) -> Allocation | None:
    """The allocation that this process is a task of; None if it is not one, or nothing names the nodes.

    Raises UsageError if the variables contradict one another, or if a node has several tasks.
    """
    task = find_task(environ)
    if task is None:
        return None
    allocation = next((found for reader in _READERS if (found := reader(environ, task, read))), None)
    if allocation is not None:
        _check(task, allocation)
    return allocation


def find_task(environ: Environ) -> Task | None:
    """Which task of how many this process is; None if nothing started several."""
    started = _started(environ)
    if started is None:
        return None
    launcher, rank, size = started
    return Task(launcher, _number(environ, rank), _number(environ, size) if environ.get(size) else 0)


def notice_signal(environ: Environ) -> str:
    """The signal by which the batch system tells a task that it takes its node away; "": SIGTERM alone.

    It does not matter what else the variables say.
    """
    return "SIGUSR1" if environ.get("SLURM_JOB_ID") and _started(environ) else ""


#: What starts tasks, its variable with a task's rank, and that with their number.
_TASKS = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # also with --mpi=pmi2 and --mpi=pmix
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, PALS
    ("prun", "PMIX_RANK", ""),
)


def _started(environ: Environ) -> tuple[str, str, str] | None:
    """The row of what started this process as a task."""
    rows = (row for row in _TASKS if environ.get(row[1]))
    return next((row for row in rows if row[0] != "srun" or _is_step(environ)), None)


def _is_step(environ: Environ) -> bool:
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step[:20]) < _FIRST_SPECIAL_STEP


def _check(task: Task, allocation: Allocation) -> None:
    nodes, source = len(allocation.nodes), allocation.source
    them = f"{nodes} node{'s' * (nodes > 1)}"
    if task.size > nodes:
        one_each = "srun --ntasks-per-node=1" if task.launcher == "srun" else "one task per node"
        raise UsageError(
            f"{task.launcher} started {task.size} tasks on {them}, and elastic-run has to be started once on "
            f"each: use {one_each}, and --nproc-per-node for the workers"
        )
    if 0 < task.size < nodes:
        raise UsageError(
            f"{task.launcher} started {task.size} tasks, but {source} names {them}, and nothing says "
            f"which of them take part: start one task on each, or {_ADVICE}"
        )
    if task.rank >= nodes:
        raise UsageError(
            f"this is task {task.rank}, counted from 0, but {source} names only {them}: {_ADVICE}"
        )


# -- batch systems


def _slurm(environ: Environ, task: Task, read: Read) -> Allocation | None:
    if not environ.get("SLURM_JOB_ID"):
        return None
    source, nodes = _slurm_nodes(environ, task)
    job = _number(environ, "SLURM_JOB_ID_HET_GROUP_0" if _components(environ) else "SLURM_JOB_ID")
    step = _number(environ, "SLURM_STEP_ID") if task.launcher == "srun" else 0
    return Allocation(
        *("Slurm", nodes, task.rank, _reserved(environ) or _port(job, step)),
        f"slurm-{_array_name(environ) or job}.{step}",
        _number(environ, "SLURM_RESTART_COUNT") if environ.get("SLURM_RESTART_COUNT") else 0,
        source,
    )


def _slurm_nodes(environ: Environ, task: Task) -> tuple[str, tuple[str, ...]]:
    """The nodes of this step, or all of the job if something else started the task."""
    is_step = task.launcher == "srun"
    total = _number(environ, "SLURM_STEP_NUM_NODES") if is_step and environ.get("SLURM_STEP_NUM_NODES") else 0
    if components := _components(environ):
        nodes = tuple(node for name in components for node in _list(environ, name))
        if not is_step or len(nodes) == total:  # else the step runs on some of the components
            return f"{components[0]} and those of the other components", nodes
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")[0 if is_step else 1 :]
    name = next((name for name in names if environ.get(name)), names[0])
    nodes = _list(environ, name)
    if total and len(nodes) != total:
        raise UsageError(f"{name} names {len(nodes)} nodes, but SLURM_STEP_NUM_NODES is {total}: {_ADVICE}")
    return name, nodes


def _components(environ: Environ) -> list[str]:
    """The variables with the nodes of each component of a heterogeneous job; [] if it is none."""
    if not environ.get("SLURM_HET_SIZE"):
        return []
    size = _number(environ, "SLURM_HET_SIZE", most=128)  # as Slurm's MAX_HET_JOB_COMPS
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{number}" for number in range(size)]
    return names if size > 1 and all(environ.get(name) for name in names) else []


def _array_name(environ: Environ) -> str:
    """What people call a task of a job array: 17_3."""
    if not (environ.get("SLURM_ARRAY_JOB_ID") and environ.get("SLURM_ARRAY_TASK_ID")):
        return ""
    return f"{_number(environ, 'SLURM_ARRAY_JOB_ID')}_{_number(environ, 'SLURM_ARRAY_TASK_ID')}"


def _reserved(environ: Environ) -> int:
    """The first port that ``srun --resv-ports`` reserved on all nodes of the step; 0: none."""
    text = environ.get("SLURM_STEP_RESV_PORTS", "")
    first = text.split(",")[0].split("-")[0].strip()
    return int(first) if first.isdecimal() and len(first) < 6 and 0 < int(first) < 65_536 else 0


def _pbs(environ: Environ, task: Task, read: Read) -> Allocation | None:
    path, job = environ.get("PBS_NODEFILE"), environ.get("PBS_JOBID")
    if not (path and job):
        return None
    number, index = _numbers(job)
    nodes = _of_file("PBS_NODEFILE", path, read)
    name = f"pbs-{job.split('.')[0][:64]}"
    return Allocation("PBS", nodes, task.rank, _port(number, index), name, source="PBS_NODEFILE")


def _lsf(environ: Environ, task: Task, read: Read) -> Allocation | None:
    job = environ.get("LSB_JOBID")
    if not job:
        return None
    if pairs := environ.get("LSB_MCPU_HOSTS"):  # n1 4 n2 4
        source, nodes = "LSB_MCPU_HOSTS", _once("LSB_MCPU_HOSTS", pairs.split()[::2])
    elif path := environ.get("LSB_DJOB_HOSTFILE"):
        source, nodes = "LSB_DJOB_HOSTFILE", _of_file("LSB_DJOB_HOSTFILE", path, read)
    elif hosts := environ.get("LSB_HOSTS"):
        source, nodes = "LSB_HOSTS", _once("LSB_HOSTS", hosts.split())
    else:
        return None
    number = _number(environ, "LSB_JOBID")
    index = _number(environ, "LSB_JOBINDEX") if environ.get("LSB_JOBINDEX") else 0  # 0: no array
    name = f"lsf-{number}_{index}" if index else f"lsf-{number}"
    return Allocation("LSF", nodes, task.rank, _port(number, index), name, source=source)


_READERS: tuple[Callable[[Environ, Task, Read], Allocation | None], ...] = (_slurm, _pbs, _lsf)


# -- texts


def _port(job: int, part: int) -> int:
    return FIRST_PORT + (job + _APART * part) % PORTS


def _number(environ: Environ, name: str, most: int = 0xFFFF_FFFF) -> int:
    text = environ.get(name, "")
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most:
        return int(text)
    raise UsageError(f"{name}={text[:40]!r} is no number from 0 to {most}: {_ADVICE}")


def _numbers(job: str) -> tuple[int, int]:
    """The number of a PBS job, and its index in a job array: ``17[3].server``; what is missing is 0."""
    first, _, rest = job.split(".")[0].partition("[")
    found = [
        int(text[:18]) if text.isascii() and text.isdecimal() else 0 for text in (first, rest.rstrip("]"))
    ]
    return found[0], found[1]


def _list(environ: Environ, name: str) -> tuple[str, ...]:
    text = environ.get(name, "")
    try:
        return _once(name, expand(text))
    except ValueError as error:
        raise UsageError(f"{name}={_short(text)!r} is no list of nodes, {error}: {_ADVICE}") from None


def _of_file(name: str, path: str, read: Read) -> tuple[str, ...]:
    try:
        text = read(path)
    except OSError as error:
        raise UsageError(f"{name} {path[:200]!r} cannot be read, {error.strerror}: {_ADVICE}") from None
    return _once(name, text.split())


def _once(name: str, hosts: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Each host once, in the order of the list, which names it once for each of its slots."""
    nodes = tuple(dict.fromkeys(hosts))
    if not nodes or len(nodes) > MOST_HOSTS:
        raise UsageError(f"{name} names {'no' if not nodes else 'too many'} nodes: {_ADVICE}")
    if odd := next((node for node in nodes if not _HOST.fullmatch(node)), ""):
        raise UsageError(f"{name} names the node {_short(odd)!r}, which is no host: {_ADVICE}")
    return nodes


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
