"""Calls in the shape of torch's, for code that has them: change the import, and nothing else.

::

    from elasticrun.compat import elastic_launch, spawn

    spawn(print, ("hello",), nprocs=2)  # print(rank, "hello") in each process

What fails raises elasticrun's errors (``WorkerFailed`` and others), not torch's. The functions need no import
guard, and may be closures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from elasticrun.errors import UsageError
from elasticrun.launching.api import launch, start
from elasticrun.launching.job import Job

__all__ = ["SpawnContext", "elastic_launch", "spawn"]

#: Fields of torch's configuration that are options of ``elastic-run``.
_OPTIONS = ("role", "virtual_local_rank", "shutdown_timeout", "event_log_handler", "signals_to_handle")


class Configuration(Protocol):
    """What is used of ``torch.distributed.launcher.api.LaunchConfig``, which fits."""

    max_nodes: int
    nproc_per_node: int
    max_restarts: int


class elastic_launch:
    """``torch.distributed.launcher.api.elastic_launch``, for one node.

    How nodes of several hosts meet is the command line's affair.
    """

    def __init__(self, config: Configuration, entrypoint: Callable[..., object] | str) -> None:
        """Nothing runs before the object is called.

        Args:
            config: A ``LaunchConfig`` of torch, or what has its fields.
            entrypoint: A function, or the path of a program that is not Python's.

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

    def __call__(self, *args: object) -> dict[int, Any]:
        """Run the job with ``args``; returns what each rank returned, by rank.

        Raises as ``elasticrun.launch``.
        """
        config = self._config
        given = {name: getattr(config, name, None) for name in _OPTIONS}
        options = {name: value for name, value in given.items() if value is not None}
        if isinstance(self._entrypoint, str):
            options["no_python"] = True
        results = launch(
            self._entrypoint, *args, nproc=config.nproc_per_node, max_restarts=config.max_restarts, **options
        )
        return {each.rank: each.value for each in results}


class SpawnContext:
    """What ``spawn`` returns with ``join=False``. Made by ``spawn``."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds (None: without end); whether all have ended.

        Raises as ``Job.wait``.
        """
        try:
            self._job.wait(timeout)
        except TimeoutError:
            return False
        return True


def spawn(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> SpawnContext | None:
    """``torch.multiprocessing.spawn``: call ``fn(rank, *args)`` in several processes.

    Raises as ``elasticrun.launch``.

    Args:
        fn: The function.
        args: What it gets after its rank.
        nprocs: How many processes.
        join: Wait for them; else return at once what can wait.
        daemon, start_method: Accepted, and change nothing: the processes never outlive this one.
    """
    job = start(_called, fn, tuple(args), nproc=nprocs)
    context = SpawnContext(job)
    if not join:
        return context
    with job:
        context.join()
    return None


def _called(fn: Callable[..., object], args: tuple[object, ...]) -> None:
    fn(int(os.environ["RANK"]), *args)
