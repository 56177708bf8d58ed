"""What a worker is started with: its environment and its command line.

Both are pure functions of the configuration and the round's assignment, so that what a worker sees can
be compared with what torchrun gives it, name by name.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Mapping
from string import Template

from elasticrun.agent.tasks import task_environment
from elasticrun.config import Entrypoint, EntrypointKind, WorkerConfig
from elasticrun.core.protocol.messages import Assignment
from elasticrun.errors import UsageError

#: Ours: the number of the round, which unlike TORCHELASTIC_RESTART_COUNT never repeats.
ROUND_VARIABLE = "ELASTICRUN_ROUND"

_NO_ASSIGNMENT = Assignment(0, 0, 1, 0, 1, 0, 1, "", 0, 0, 0)

# Under --run-path torchrun calls runpy inside `record`: the script gets the error file without asking for
# it. This does the same with the standard library alone, so that it costs no import of torch. With -c the
# interpreter puts "-c" before the arguments and the working directory in front of sys.path.
_RUN_PATH_CODE = """\
import sys
sys.argv[:] = sys.argv[1:]
def record(error):
    import json, os, time, traceback
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
        with open(path, "w") as file:
            json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}, file)
def run():
    import faulthandler, runpy
    try:
        faulthandler.enable(all_threads=True)
    except Exception:
        pass  # stderr is not a file: only crash reports are lost
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception as error:
        record(error)
        raise
run()
"""


def worker_environment(
    config: WorkerConfig, job_id: str, assignment: Assignment, local_rank: int, error_file: str
) -> dict[str, str]:
    """The whole environment of one worker; ``error_file`` may be "" where none is wanted.

    UsageError if a virtual local rank has no entry in CUDA_VISIBLE_DEVICES.
    """
    inherited = dict(config.env)
    return {
        **inherited,
        **_ranks(config, assignment, local_rank),
        **task_environment(config, assignment, local_rank),
        **_elastic(config, job_id, assignment, error_file),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **_local_rank(config, inherited, local_rank),
    }


def common_environment(config: WorkerConfig, local_rank: int) -> dict[str, str]:
    """The part of a local rank's environment that is the same in every round: all but what names the round,
    the rank and the job. A library that is imported before these are known sees the rest.

    UsageError as for ``worker_environment``.
    """
    whole = worker_environment(config, "", _NO_ASSIGNMENT, local_rank, "")
    own = {**_ranks(config, _NO_ASSIGNMENT, 0), **_elastic(config, "", _NO_ASSIGNMENT, ""), "LOCAL_RANK": ""}
    return {name: value for name, value in whole.items() if name not in own}


def _ranks(config: WorkerConfig, assignment: Assignment, local_rank: int) -> dict[str, str]:
    return {
        "RANK": str(assignment.first_rank + local_rank),
        "GROUP_RANK": str(assignment.group_rank),
        "ROLE_RANK": str(assignment.role_first_rank + local_rank),
        "ROLE_NAME": config.role,
        "WORLD_SIZE": str(assignment.world_size),
        "LOCAL_WORLD_SIZE": str(config.local_world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.role_world_size),
        "MASTER_ADDR": assignment.store_address,
        "MASTER_PORT": str(assignment.store_port),
    }


def _elastic(config: WorkerConfig, job_id: str, assignment: Assignment, error_file: str) -> dict[str, str]:
    values = {
        "TORCHELASTIC_RESTART_COUNT": str(assignment.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(assignment.max_restarts),
        "TORCHELASTIC_RUN_ID": job_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(assignment.store_hosted),  # else rank 0's worker serves the store
        "TORCHELASTIC_ERROR_FILE": error_file,
        ROUND_VARIABLE: str(assignment.round),
    }
    if config.signals:
        values["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signal_names(config.signals)
    if config.file_timer is not None:
        values["TORCHELASTIC_TIMER_FILE"] = config.file_timer
    return values


def signal_names(signums: Iterable[int]) -> str:
    """``SIGTERM,SIGINT``; a real-time signal without a name of its own appears as its number."""
    named = {int(known): known.name for known in signal.Signals}
    return ",".join(named.get(signum, str(signum)) for signum in signums)


def _local_rank(config: WorkerConfig, inherited: Mapping[str, str], local_rank: int) -> dict[str, str]:
    if not config.virtual_local_rank:
        return {"LOCAL_RANK": str(local_rank)}
    device = _nth_device(inherited.get("CUDA_VISIBLE_DEVICES"), local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}


def _nth_device(visible: str | None, local_rank: int) -> str:
    if visible is None:
        return str(local_rank)
    devices = visible.split(",")
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank gives each worker a device of its own, but CUDA_VISIBLE_DEVICES={visible} "
            f"lists only {len(devices)}, too few for local rank {local_rank}; "
            "list more devices or lower --nproc-per-node"
        )
    return devices[local_rank].strip()


def worker_argv(entrypoint: Entrypoint, local_rank: int) -> list[str]:
    """The command line of one worker, ``${local_rank}`` expanded; other ``$`` signs stay as they are."""
    args = [_expand(argument, local_rank) for argument in entrypoint.args]
    if entrypoint.kind is EntrypointKind.BINARY:
        return [entrypoint.target, *args]  # torchrun expands no macro in the name of a binary
    return [*_interpreter(entrypoint), _expand(entrypoint.target, local_rank), *args]


def _interpreter(entrypoint: Entrypoint) -> list[str]:
    python = entrypoint.python or sys.executable
    flags = {
        EntrypointKind.SCRIPT: [],
        EntrypointKind.MODULE: ["-m"],
        EntrypointKind.RUN_PATH: ["-c", _RUN_PATH_CODE],
    }
    return [python, "-u", *flags[entrypoint.kind]]


def _expand(argument: str, local_rank: int) -> str:
    return Template(argument).safe_substitute(local_rank=str(local_rank))
