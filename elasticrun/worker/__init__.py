"""The library for training scripts: tell the agent of progress, and hear that it is time to go.

Everything here may be called anywhere, at any time. Outside ``elastic-run`` nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from elasticrun.worker import reporter as _reporter

__all__ = ["checkpointing", "drain_requested", "on_drain", "report_step"]

_Callback = TypeVar("_Callback", bound=Callable[[], object])


def report_step(step: int | None = None, *, seconds: float | None = None) -> None:
    """Report that a training step is done.

    Not needed where an optimizer of torch makes the steps. A script that calls it numbers its steps itself:
    those of optimizers then count as signs of life only. A report is a few stores to memory that the agent
    shares: it waits for nobody, and raises nothing.

    Args:
        step: Its number; None: one more than the last.
        seconds: How long this rank took for it by itself, without waiting for other ranks: nodes are compared
            by it. None: it is not known.
    """
    _reporter.report(step, seconds)


def checkpointing() -> AbstractContextManager[None]:
    """A context in which the script saves its state: for 30 minutes no silence in it is taken for a hang.

    Not needed around ``torch.save``, ``torch.distributed.checkpoint.save`` and safetensors.
    """
    return _reporter.Checkpointing()


def on_drain(callback: _Callback) -> _Callback:
    """Have ``callback`` called once, without arguments, after the step during which workers are asked to go.

    Meant for saving a checkpoint because a node leaves. It runs in the thread that makes or reports the
    step, and what it raises surfaces there. May be used as a decorator.
    """
    reporter = _reporter.current()
    if reporter is not None:
        reporter.listen(callback)
    return callback


def drain_requested() -> bool:
    """Whether the workers are asked to save their state and to go: the script then has to end by itself."""
    reporter = _reporter.current()
    if reporter is None:
        return False
    reporter.listen(None)
    return reporter.drain_deadline() != 0
