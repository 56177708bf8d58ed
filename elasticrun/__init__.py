"""elasticrun: a launcher for training jobs that outlive the crash of a worker, a node or the master.

``elastic-run`` takes torchrun's command line. This package stays light on purpose: importing it
imports neither grpc nor torch, nor the worker library, whose names it offers to training scripts.
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


def __getattr__(name: str) -> object:
    """The worker library's functions, imported when one is first used."""
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
