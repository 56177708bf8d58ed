"""``elasticrun.launch`` and ``elasticrun.start``: from a function, or a script, to a job."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError
from elasticrun.launching.call import PROGRAM, Call, import_path
from elasticrun.launching.faults import Fault, Partition, checked, count_joins
from elasticrun.launching.job import Job, Result
from elasticrun.launching.node_faults import Plan
from elasticrun.launching.relay import Relay
from elasticrun.launching.server import Server

#: Bytes of what a function may return.
MAX_RESULT_BYTES = 64 << 20
#: Workers for each core that may be started without ``oversubscribe``; and as many at any rate.
WORKERS_PER_CORE, FEW = 4, 16
#: Seconds within which all nodes are there: none of them begins with fewer.
FORMATION = 60.0
#: What workers of any job have in their environment, and what settles their threads.
_WORKER, _THREADS = "ELASTICRUN_ROUND", "OMP_NUM_THREADS"
_COROUTINE = 0x80  # inspect.CO_COROUTINE; inspect takes milliseconds to import
_LOOPBACK = "127.0.0.1"
#: What takes seconds to import and can be forked afterwards: workers find it imported if this process has it.
_SLOW_TO_IMPORT = (
    "torch",
    "torch.distributed",
    "accelerate",
    "lightning.fabric",
    "lightning.pytorch",
    "pytorch_lightning",
    "transformers",
)

Target = Callable[..., object] | str | os.PathLike[str]


class _Shared:
    """The fork server of this process, once there is one."""

    server: Server | None = None
    lock = threading.Lock()  # held while it is looked for, so that threads start one only

    @classmethod
    def unlock(cls) -> None:
        """In a fork of this process the thread that held the lock is gone."""
        cls.lock = threading.Lock()


os.register_at_fork(after_in_child=_Shared.unlock)


def launch(
    target: Target, *args: object, nproc: int = 2, nodes: int = 1, max_restarts: int = 0, **options: Any
) -> list[Result]:
    """Run ``target`` as a distributed job on this host; return what each rank returned, by rank.

    Args:
        target: A function, which each rank calls with ``args``: it may be a lambda, a closure, or one of a
            notebook. Or the path of a script, which gets ``args`` as its arguments.
        nproc: Workers of each node.
        nodes: Nodes, each with a launcher of its own, as on so many hosts.
        max_restarts: How many times the workers may be started again after a failure.
        options: Those of ``start``, and each option of ``elastic-run`` by its name: ``hang_timeout=60`` is
            ``--hang-timeout=60``, and ``kill_leftovers=True`` is ``--kill-leftovers``.

    Raises:
        WorkerFailed: a worker failed for good; what its function raised is the ``__cause__``.
        JobFailedError: the job ended in another way.
        UsageError: an option is wrong, or the function cannot be sent to the workers.
    """
    with start(target, *args, nproc=nproc, nodes=nodes, max_restarts=max_restarts, **options) as job:
        return job.wait()


def start(
    target: Target,
    *args: object,
    nproc: int = 2,
    nodes: int = 1,
    max_restarts: int = 0,
    min_nodes: int | None = None,
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] | None = None,
    oversubscribe: bool = False,
    max_result_bytes: int = MAX_RESULT_BYTES,
    faults: Sequence[Fault] = (),
    stream: bool = False,
    server: Server | None = None,
    **options: Any,
) -> Job:
    """As ``launch``, but return at once, with a handle of the job; use it in a ``with`` block.

    Args:
        min_nodes: The fewest nodes with which the job goes on; None: it needs all.
        env: Variables of the workers, in addition to those of this process.
        preload: Modules that workers find imported; by default torch, Accelerate, Lightning and transformers,
            as far as this process has them. They are imported once, in another process, and what they read
            from the environment then stays.
        oversubscribe: Allow more than four workers for each core.
        max_result_bytes: How many bytes a rank may return at most, pickled.
        faults: What befalls the ranks of a function, at which steps.
        stream: Print nothing: ``Job.stream`` reads what ranks print.
        server: What forks the launchers; by default one for all jobs of this process.
        target, args, nproc, nodes, max_restarts, options: As for ``launch``.

    Raises:
        UsageError: as for ``launch``. What the launchers refuse is raised by ``Job.wait``.
        NodeFaultError: this host can start no more processes.
    """
    fewest = nodes if min_nodes is None else min_nodes
    _check(target, nproc=nproc, nodes=nodes, min_nodes=fewest, max_result_bytes=max_result_bytes)
    if fewest > nodes:
        raise UsageError(f"min_nodes={fewest} was given, but nodes={nodes}: give at most as many")
    terms = _Terms(nproc, nodes, fewest, checked(faults, nproc, nodes, fewest), bool(stream))
    _check_room(nproc, terms.most, oversubscribe)
    directory = _directory()
    told = {"max_restarts": max_restarts, **({"rank_prefix": True} if stream else {}), **options}
    common = {
        "env": _environment(env or {}, nproc),
        "cwd": directory,
        "path": [each or directory for each in import_path()],
        "preload": _preloaded(preload) if callable(target) else (),
        "learns": callable(target) and (preload is None or server is not None),
        "options": {name: _said(name, it) for name, it in told.items()},
    }
    if callable(target):
        call = Call(target, args, nproc * terms.most, max_result_bytes, terms.faults)
        request = {**common, "preloaded": True, "command": [PROGRAM, call.place]}
        return _start(request, terms, call, server)
    if faults:
        raise UsageError("faults were given for a script: they befall functions only")
    command = [os.fspath(target), *map(str, args)]
    return _start({**common, "preloaded": False, "command": command}, terms, None, server)


@dataclass(frozen=True, slots=True)
class _Terms:
    nproc: int
    nodes: int  # at first
    fewest: int  # nodes
    faults: Sequence[Fault]
    is_streamed: bool

    @property
    def most(self) -> int:
        """Nodes, once all have joined."""
        return self.nodes + count_joins(self.faults)


def _start(request: Mapping[str, Any], terms: _Terms, call: Call | None, server: Server | None) -> Job:
    """Start the launchers, which differ in their places only; ``call`` is closed if that fails."""
    relays: dict[int, Relay] = {}
    try:
        port = _free_port()
        if any(isinstance(it, Partition) for it in terms.faults):
            relays.update((number, Relay(port)) for number in range(1, terms.most))
        places = _places(terms, port, relays, request["options"])
        requests = [{**request, "place": place, "is_alone": terms.most == 1} for place in places]
        plan = Plan(
            requests[: terms.nodes],
            terms.nproc,
            requests[terms.nodes :],
            (terms.fewest, terms.nodes),
            terms.faults,
            relays,
            terms.is_streamed,
        )
        return Job(server or _server(), plan, call)
    except BaseException:
        if call is not None:
            call.close()
        for relay in relays.values():
            relay.close()
        raise


def _check(target: object, **numbers: object) -> None:
    """Raises UsageError if the target is none, a number is none or too small, or this is a worker."""
    if _WORKER in os.environ:
        raise UsageError(
            "launch was called in a worker of elastic-run: call it in one process only; if a worker imports "
            'the module that calls it, write `if __name__ == "__main__":` above the call'
        )
    if not callable(target) and not isinstance(target, str | os.PathLike):
        raise UsageError(f"launch was given {target!r} to run: give a function, or the path of a script")
    if getattr(getattr(target, "__code__", None), "co_flags", 0) & _COROUTINE:
        name = getattr(target, "__name__", target)
        raise UsageError(
            f"launch was given the coroutine function {name}: give lambda: asyncio.run({name}())"
        )
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UsageError(f"{name}={number!r} was given: give a whole number of 1 or more")


def _check_room(nproc: int, nodes: int, oversubscribe: bool) -> None:
    bound = max(FEW, WORKERS_PER_CORE * len(os.sched_getaffinity(0)))
    if nproc * nodes > bound and not oversubscribe:
        raise UsageError(
            f"nproc={nproc} and nodes={nodes} make {nproc * nodes} workers, more than {bound}: give fewer, "
            "or oversubscribe=True if this host can take them"
        )


def _environment(added: object, nproc: int) -> dict[str, str]:
    """What the launchers get; with one thread for each of several workers, as torchrun gives them."""
    if not isinstance(added, Mapping):
        raise UsageError(f"env={added!r} was given: give a dict of names and their values")
    for name, value in added.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UsageError(f"env has {name!r}: {value!r}: give names and values as text")
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"env has {name!r}: {value!r}, which no environment can hold")
    threads = {_THREADS: "1"} if nproc > 1 else {}
    return {**threads, **os.environ, **added}


def _preloaded(names: Sequence[str] | None) -> Sequence[str]:
    if isinstance(names, str):
        raise UsageError(f"preload={names!r} was given: give a list of names, as [{names!r}]")
    if names is not None:
        if not all(isinstance(name, str) for name in names):
            raise UsageError(f"preload={names!r} was given: give the names of modules, as ['torch']")
        return tuple(names)
    return [name for name in _SLOW_TO_IMPORT if name in sys.modules]


def _directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UsageError(
            "the working directory has been removed: change to one that is there, as workers start in it"
        ) from None


def _said(name: str, value: object) -> object:
    """The value of an option as the fork server takes it; a path is text. Raises UsageError for others."""
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise UsageError(f"{name}={value!r} was given: give text, a path, a number, True or False")


def _places(
    terms: _Terms, port: int, relays: Mapping[int, Relay], options: dict[str, object]
) -> list[list[str]]:
    """The options of each node's launcher that say how many there are, and where the master is.

    What is said of these in ``options`` is taken out of it.
    """
    own = f"--nproc-per-node={terms.nproc}"
    if terms.most == 1:
        return [["--standalone", own]]
    # A job of one node would not listen to others, so one that grows has room for them from the start.
    first, wait = (terms.most, 0.0) if terms.nodes == 1 else (terms.nodes, FORMATION)
    shared = [
        own,
        "--rdzv-backend=c10d",
        f"--rdzv-id=launch-{os.getpid()}-{port}",
        *([] if "health_check" in options else ["--health-check=off"]),  # they are one host
        *([] if "last_call_timeout" in options else [f"--last-call-timeout={wait:g}"]),
    ]
    conf = f"{given}," if (given := options.pop("rdzv_conf", None)) else ""
    return [
        [
            *shared,
            f"--nnodes={terms.fewest}:{max(first, number + 1)}",  # of nodes that join later: as it is by then
            f"--node-rank={number}",
            f"--rdzv-conf={conf}is_host={number == 0}",  # node 0 has the master, whoever is quicker
            f"--rdzv-endpoint={_LOOPBACK}:{relays[number].port if number in relays else port}",
        ]
        for number in range(terms.most)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _server() -> Server:
    with _Shared.lock:
        server = _Shared.server
        if server is None or server.pid != os.getpid() or not server.is_alive:
            server = _Shared.server = Server()
            atexit.register(server.close)
        return server
