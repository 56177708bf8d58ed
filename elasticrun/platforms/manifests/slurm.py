"""A batch script for Slurm, in which ``srun`` starts one ``elastic-run`` on each node."""

from __future__ import annotations

import math
import shlex

from elasticrun.platforms.allocation import FIRST_PORT, PORTS
from elasticrun.platforms.manifests.quantities import cores, mebibytes
from elasticrun.platforms.manifests.workload import Workload

#: Stand for words of the shell; no argument of a program can hold them.
_NODES, _ENDPOINT, _ID = "\0nodes", "\0endpoint", "\0id"
#: A node may have several jobs, each of which has its own port, also when it is queued again. The names are
#: none that a job would have for variables of its own.
_PORT = f"_elasticrun_port=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"
_HOSTS = 'mapfile -t _elasticrun_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'


def sbatch(workload: Workload) -> str:
    """The script. Slurm grants MIN to MAX nodes; how many these are is known when it runs."""
    low, high = workload.nodes
    cpus = str(math.ceil(cores(workload.cpu))) if workload.cpu else ""
    asked = {
        "job-name": workload.name,
        "nodes": str(low) if low == high else f"{low}-{high}",
        "ntasks-per-node": "1",
        "cpus-per-task": cpus,
        "mem": f"{mebibytes(workload.memory)}M" if workload.memory else "",
        "gpus-per-node": str(workload.gpu[1]) if workload.gpu[1] else "",
        "partition": workload.queue,
        "time": _time(workload.time_limit) if workload.time_limit else "",
        # Before the limit: launchers stop their workers in good order.
        "signal": f"TERM@{workload.grace}",
        "output": "%x-%j.out",
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in asked.items() if value)]
    keep = ["--no-kill"] if low < high else []  # the job goes on when Slurm has lost a node
    lines += [f"#SBATCH {word}" for word in ("--requeue", "--open-mode=append", *keep)]
    lines += ["", "set -euo pipefail", _HOSTS, _PORT]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in workload.env]
    step = [f"--cpus-per-task={cpus}"] if cpus else []  # srun has not taken it from the job since 22.05
    srun = ["exec srun --kill-on-bad-exit=0", *keep, *step, _command(workload)]
    return "\n".join([*lines, "", " ".join(srun), ""])


def _command(workload: Workload) -> str:
    """The words for each node; those of the allocation are filled in by the shell."""
    low, high = workload.nodes
    nodes = str(low) if low == high else f"{low}:$SLURM_JOB_NUM_NODES"
    filled = {
        _NODES: f'"{nodes}"' if "$" in nodes else nodes,
        _ENDPOINT: ",".join(_address(at) for at in range(workload.endpoint("{}").count(",") + 1)),
        _ID: f'{shlex.quote(workload.name)}-"$SLURM_JOB_ID"',
    }
    argv = workload.argv(_ENDPOINT, nodes=_NODES)
    at = argv.index("--rdzv-id") + 1
    argv[at] = _ID
    return " ".join(filled.get(word) or shlex.quote(word) for word in argv)


def _address(at: int) -> str:
    """Of a node of the allocation, in words of the shell."""
    return f'"${{_elasticrun_hosts[{at}]}}:$_elasticrun_port"'


def _time(seconds: int) -> str:
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}"
