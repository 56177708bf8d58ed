"""elasticrun: a launcher for training jobs that outlive the crash of a worker, a node or the master.

``elastic-run`` takes torchrun's command line. This package is for what Python programs do with it:

- training scripts: ``report_step``, ``checkpointing``, ``on_drain`` and ``drain_requested`` may be called
  anywhere, and do nothing outside of ``elastic-run``; ``Checkpointer`` and ``RandomState`` need torch
- programs that run jobs: ``launch`` and ``start``, with ``Job``, ``Result``, ``WorkerFailed`` and
  ``JobFailedError``
- modules of their own: ``elasticrun.data``, ``elasticrun.tf``, ``elasticrun.testing``, ``elasticrun.compat``,
  ``elasticrun.control`` and ``elasticrun.errors``

::

    import elasticrun

    results = elasticrun.launch(lambda: 7, nproc=2)
    assert [result.value for result in results] == [7, 7]

Each name is loaded when it is first used: to import the package imports neither grpc nor torch.
"""

TYPE_CHECKING = False  # importing typing would cost more than all the rest
if TYPE_CHECKING:
    from elasticrun import data as data
    from elasticrun.checkpoint.checkpointer import Checkpointer
    from elasticrun.checkpoint.random_state import RandomState
    from elasticrun.errors import JobFailedError, WorkerFailed
    from elasticrun.launching.api import launch, start
    from elasticrun.launching.job import Job, Result
    from elasticrun.launching.lines import Line
    from elasticrun.worker import checkpointing, drain_requested, on_drain, report_step

__version__ = "0.1.0"
__all__ = [
    "Checkpointer",
    "Job",
    "JobFailedError",
    "Line",
    "RandomState",
    "Result",
    "WorkerFailed",
    "checkpointing",
    "drain_requested",
    "launch",
    "on_drain",
    "report_step",
    "start",
]


def __dir__() -> list[str]:
    """All names; those that import torch only once that is there, as ``help`` loads what is named here."""
    import sys

    heavy = () if sys.modules.get("torch") else ("Checkpointer", "RandomState")
    return sorted(name for name in {*globals(), *__all__} if name not in heavy)


def __getattr__(name: str) -> object:
    """The names of this package, imported when one is first used."""
    if name == "data":
        import elasticrun.data

        return elasticrun.data
    if name not in __all__:
        raise AttributeError(f"module 'elasticrun' has no attribute {name!r}")
    if name == "Checkpointer":
        from elasticrun.checkpoint.checkpointer import Checkpointer

        return Checkpointer
    if name == "RandomState":
        from elasticrun.checkpoint.random_state import RandomState

        return RandomState
    if name in ("launch", "start"):
        from elasticrun.launching import api

        return getattr(api, name)
    if name in ("Job", "Result"):
        from elasticrun.launching import job

        return getattr(job, name)
    if name == "Line":
        from elasticrun.launching.lines import Line

        return Line
    if name in ("JobFailedError", "WorkerFailed"):
        from elasticrun import errors

        return getattr(errors, name)
    from elasticrun import worker

    return getattr(worker, name)
