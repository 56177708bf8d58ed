"""Calls in the shape of torch's, for code that has them: change the import, and nothing else.

::

    from elasticrun.compat import elastic_launch, spawn

    spawn(print, ("hello",), nprocs=2)  # print(rank, "hello") in each process

What fails raises elasticrun's errors (``WorkerFailed`` and others), not torch's. The functions need no import
guard, and may be closures. Queues, locks and the like of multiprocessing may be among the arguments.

``in_place_of_torch`` does the same for calls of torch's functions that others make, such as Accelerate and
Lightning.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any, Protocol

from elasticrun.errors import UsageError
from elasticrun.launching.api import launch, start
from elasticrun.launching.job import Job

__all__ = ["SpawnContext", "elastic_launch", "in_place_of_torch", "spawn", "start_processes"]

#: Fields of torch's configuration that are options of ``elastic-run``.
_OPTIONS = ("role", "virtual_local_rank", "shutdown_timeout", "event_log_handler", "signals_to_handle")
#: What the calls themselves say.
_SAID = ("nproc", "nodes")


class Configuration(Protocol):
    """What is used of ``torch.distributed.launcher.api.LaunchConfig``, which fits."""

    max_nodes: int
    nproc_per_node: int
    max_restarts: int


class elastic_launch:
    """``torch.distributed.launcher.api.elastic_launch``, for one node.

    How nodes of several hosts meet is the command line's affair.
    """

    def __init__(
        self, config: Configuration, entrypoint: Callable[..., object] | str, **options: Any
    ) -> None:
        """Nothing runs before the object is called.

        Args:
            config: A ``LaunchConfig`` of torch, or what has its fields.
            entrypoint: A function, or the path of a program that is not Python's.
            options: Of ``elasticrun.start``.

        Raises:
            UsageError: the configuration is for several nodes.
        """
        if config.max_nodes > 1:
            raise UsageError(
                f"a configuration for {config.max_nodes} nodes was given: elastic_launch starts one node; "
                "start elastic-run on each host instead"
            )
        self._config = config
        self._entrypoint = entrypoint
        self._own = _checked(options)

    def __call__(self, *args: object) -> dict[int, Any]:
        """Run the job with ``args``; returns what each rank returned, by rank.

        Raises as ``elasticrun.launch``.
        """
        config = self._config
        given = {name: getattr(config, name, None) for name in _OPTIONS}
        options = {name: value for name, value in given.items() if value is not None}
        options["max_restarts"] = config.max_restarts
        if isinstance(self._entrypoint, str):
            options["no_python"] = True
        results = launch(self._entrypoint, *args, nproc=config.nproc_per_node, **{**options, **self._own})
        return {each.rank: each.value for each in results}


class SpawnContext:
    """What ``spawn`` returns with ``join=False``. Made by ``spawn``."""

    def __init__(self, job: Job) -> None:
        self._job = job
        #: No process of the job is a child of this one.
        self.processes: list[Any] = []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds (None: without end); whether all have ended.

        ``grace_period`` is accepted, and changes nothing: what else runs when one fails is stopped at once.
        Raises as ``Job.wait``.
        """
        try:
            self._job.wait(timeout)
        except TimeoutError:
            return False
        return True


def start_processes(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
    **options: Any,
) -> SpawnContext | None:
    """``torch.multiprocessing.start_processes``: call ``fn(rank, *args)`` in several processes.

    Raises as ``elasticrun.launch``.

    Args:
        fn: The function.
        args: What it gets after its rank.
        nprocs: How many processes.
        join: Wait for them; else return at once what can wait.
        daemon, start_method: Accepted, and change nothing: the processes never outlive this one, and are none
            of its forks.
        options: Of ``elasticrun.start``.
    """
    job = start(_called, fn, tuple(args), nproc=nprocs, **_checked(options))
    context = SpawnContext(job)
    if not join:
        return context
    with job:
        context.join()
    return None


#: ``torch.multiprocessing.spawn``, which takes the same.
spawn = start_processes


def _called(fn: Callable[..., object], args: tuple[object, ...]) -> None:
    fn(int(os.environ["RANK"]), *args)


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _SAID:
        if name in options:
            raise UsageError(f"{name} was given: the call itself says how many processes there are")
    return options


# -- for calls that others make

#: The options of the block that the running code is in.
_in_force: ContextVar[Mapping[str, Any] | None] = ContextVar("elasticrun_in_place_of_torch", default=None)


@contextlib.contextmanager
def in_place_of_torch(**options: Any) -> Iterator[None]:
    """Within the block, calls of torch's ``elastic_launch``, ``spawn`` and ``start_processes`` come here.

    So whoever makes them starts a job of elasticrun: Accelerate's ``notebook_launcher``, Lightning's Trainer
    and Fabric with the strategies ``ddp_notebook``, ``ddp_spawn`` and their kin, or a library that uses
    these. It holds for this thread only, and outside of all blocks torch is as it was.

    Args:
        options: Those of ``elasticrun.start``, such as ``max_restarts=3``; they go before what the calls say.

    Raises:
        UsageError: ``nproc`` or ``nodes`` is among the options.
        ImportError: there is no torch.
    """
    _checked(options)
    with _Stand.taken():
        token = _in_force.set(options)
        try:
            yield
        finally:
            _in_force.reset(token)


class _Stand:
    """Our functions in the place of torch's, as long as any thread is in a block."""

    lock = threading.Lock()
    blocks = 0
    theirs = contextlib.ExitStack()  # puts torch's own back

    @classmethod
    @contextlib.contextmanager
    def taken(cls) -> Iterator[None]:
        """Whoever is in no block gets torch's own all the same."""
        with cls.lock:
            if cls.blocks == 0:
                _replace(cls.theirs)
            cls.blocks += 1
        try:
            yield
        finally:
            with cls.lock:
                cls.blocks -= 1
                if cls.blocks == 0:
                    cls.theirs.close()


def _replace(theirs: contextlib.ExitStack) -> None:
    launcher: Any = import_module("torch.distributed.launcher.api").elastic_launch
    package: Any = import_module("torch.multiprocessing")
    spawning = sys.modules["torch.multiprocessing.spawn"]  # the package has a function of that name
    call, begin = launcher.__call__, package.start_processes

    def our_call(self: Any, *args: object) -> Any:
        options = _in_force.get()
        if options is None:
            return call(self, *args)
        return elastic_launch(self._config, self._entrypoint, **options)(*args)

    def our_begin(*args: Any, **kwargs: Any) -> Any:
        options = _in_force.get()
        return begin(*args, **kwargs) if options is None else start_processes(*args, **{**kwargs, **options})

    for owner, name, ours in (
        (launcher, "__call__", our_call),
        (package, "start_processes", our_begin),
        (spawning, "start_processes", our_begin),
    ):
        theirs.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, ours)
