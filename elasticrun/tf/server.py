"""``python -m elasticrun.tf.server``: a worker or a parameter server that needs only TF_CONFIG.

Theory. With parameter servers only the chief runs a program: the others serve the operations that it sends
them, until a signal ends them. They need one object of tensorflow's, and most of what ``import tensorflow``
takes (seconds, and 300 MB for each server) would be spent on Keras and on an API that nobody here calls. So
tensorflow is imported without the code of its topmost package, where that works. Where it does not, this
program starts again and imports all of it, as a partial import cannot be completed in the same process. All
of it is also imported where a plug-in for another device has to be loaded.

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
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticrun.core.tensorflow.cluster import CONFIG_VARIABLE
from elasticrun.errors import ElasticRunError, NodeFaultError, UsageError
from elasticrun.tf.cluster import ClusterTask, parse_server

PROGRAM = "elasticrun.tf.server"
_LIBRARY = "tensorflow"
_WHOLE = "--whole"
#: A folder beside tensorflow; what lies there is loaded by its topmost package.
_PLUGINS = "tensorflow-plugins"


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
    server_lib = _import_server_lib(environ, whole)
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


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _settings(counts: tuple[int, int]) -> Any:
    config_pb2 = import_module("tensorflow.core.protobuf.config_pb2")
    within, between = counts
    return config_pb2.ConfigProto(
        intra_op_parallelism_threads=within, inter_op_parallelism_threads=between, allow_soft_placement=True
    )


# -- importing as little as possible


def _import_server_lib(environ: Mapping[str, str], whole: bool) -> Any:
    """The module that has tensorflow's Server, and ``errors``; raises UsageError if there is none."""
    spec = PathFinder.find_spec(_LIBRARY)
    if spec is None:
        raise UsageError(
            f"tensorflow is not installed for {sys.executable}; install elasticrun[tensorflow] there, or "
            "start this task with a Python that has it"
        )
    if whole or not _is_plain(spec, environ):
        return _import_all()
    try:
        return _import_bare(spec)
    except (ImportError, AttributeError, TypeError):  # another release, whose parts do not stand alone
        return os.execv(sys.executable, [sys.executable, "-m", PROGRAM, _WHOLE])


def _is_plain(spec: ModuleSpec, environ: Mapping[str, str]) -> bool:
    """Whether no plug-in needs the topmost package."""
    folders = spec.submodule_search_locations or ()
    plugged = any((Path(folder).parent / _PLUGINS).exists() for folder in folders)
    return bool(folders) and not plugged and not environ.get("TF_PLUGGABLE_DEVICE_LIBRARY_PATH")


def _import_bare(spec: ModuleSpec) -> Any:
    """Import the module below an empty stand-in for the topmost package."""
    package = ModuleType(_LIBRARY)
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_LIBRARY] = package
    return import_module("tensorflow.python.training.server_lib")


def _import_all() -> Any:
    try:
        tensorflow: Any = import_module(_LIBRARY)
    except ImportError as error:
        raise UsageError(
            f"tensorflow cannot be imported by {sys.executable} ({error}); install it there again"
        ) from None
    names = ModuleType("server_lib")
    vars(names).update(Server=tensorflow.distribute.Server, errors=tensorflow.errors)
    return names


if __name__ == "__main__":
    sys.exit(main())
