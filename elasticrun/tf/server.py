"""``python -m elasticrun.tf.server``: a worker or a parameter server that needs only TF_CONFIG.

Theory. With parameter servers only the chief runs a program: the others serve the operations that it sends
them, until a signal ends them. They need one object of tensorflow's, which ``imports.py`` gets for them. If a
part of tensorflow does not stand alone, this program starts again and imports all of it.

A server that comes back is waited for by the whole job. So where it can, the launcher forks it from a process
that has imported tensorflow (``preload.py``): then the import takes no time.

Invariant. What this program sets about threads, and a worker's GPUs, yields to the environment; a
parameter server never sees a GPU. The exit status is 2 if TF_CONFIG or the installation is wrong, 10 if the
address cannot be served, else that of the signal: this program never ends by itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Any

from elasticrun.core.tensorflow.cluster import CONFIG_VARIABLE
from elasticrun.errors import ElasticRunError, NodeFaultError
from elasticrun.tf.cluster import ClusterTask, parse_server
from elasticrun.tf.imports import PartsNeedWhole, import_server_lib

PROGRAM = "elasticrun.tf.server"
_WHOLE = "--whole"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal ends this process; returns only if that cannot be done."""
    whole = _parser().parse_args(arguments).whole
    try:
        serve(parse_server(os.environ.get(CONFIG_VARIABLE)), os.environ, whole)
    except ElasticRunError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description="A worker or parameter server of a TensorFlow job: serves at the address that TF_CONFIG "
        "names, until it is ended by a signal.",
    )
    parser.add_argument(
        _WHOLE, action="store_true", help="import all of tensorflow, which takes seconds more"
    )
    return parser


def serve(task: ClusterTask, environ: MutableMapping[str, str], whole: bool = False) -> None:
    """Serve until a signal, with all of tensorflow or as little as possible.

    Raises UsageError if tensorflow is missing, and NodeFaultError if the task's address cannot be served.
    """
    # A server waits in native code, where a handler in Python would never run.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare(task, environ)
    server_lib = _import(environ, whole)
    cores = len(os.sched_getaffinity(0))
    try:
        server = server_lib.Server(
            dict(task.cluster),
            job_name=task.role,
            task_index=task.index,
            protocol=task.protocol,
            config=_settings(threads(cores, environ)),
        )
    except server_lib.errors.OpError as error:
        raise NodeFaultError(
            f"{task.role}:{task.index} cannot serve at {task.address} ({error.message}): address already in "
            "use, or not of this host; start it with another TF_CONFIG"
        ) from None
    # Only this line tells the servers of a host apart: their command lines are alike. It is one write:
    # print makes two where output is not buffered, and the lines of several servers would be mixed.
    sys.stdout.write(f"{task.role} {task.index}: pid {os.getpid()}, serves at {task.address}\n")
    sys.stdout.flush()
    server.join()


def prepare(task: ClusterTask, environ: MutableMapping[str, str]) -> None:
    """Set what tensorflow reads from the environment when it is imported."""
    if task.role == "ps":
        # Variables lie in main memory: a GPU would be held for nothing.
        environ["CUDA_VISIBLE_DEVICES"] = "-1"
    else:
        # Workers of one host may share a GPU; by default the first one would take all of its memory.
        environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def threads(cores: int, environ: Mapping[str, str]) -> tuple[int, int]:
    """How many threads run one operation, and how many operations run at once, at most.

    The cores are shared with the other processes that the launcher runs on this host. Variables for
    tensorflow itself come first. Two operations at least: one of them may wait for another.
    """
    share = max(1, cores // max(1, _number(environ.get("LOCAL_WORLD_SIZE")) or 1))
    within = _number(environ.get("TF_NUM_INTRAOP_THREADS")) or share
    between = _number(environ.get("TF_NUM_INTEROP_THREADS")) or max(2, share)
    return within, between


def _import(environ: Mapping[str, str], whole: bool) -> Any:
    try:
        return import_server_lib(environ, whole)
    except PartsNeedWhole:
        return os.execv(sys.executable, [sys.executable, "-m", PROGRAM, _WHOLE])


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _settings(counts: tuple[int, int]) -> Any:
    config_pb2 = import_module("tensorflow.core.protobuf.config_pb2")
    within, between = counts
    return config_pb2.ConfigProto(
        intra_op_parallelism_threads=within, inter_op_parallelism_threads=between, allow_soft_placement=True
    )


if __name__ == "__main__":
    sys.exit(main())
