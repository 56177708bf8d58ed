"""What starts again if a worker of a round is lost: the whole world, or single tasks.

That is a strategy, chosen for each round by its assignment. In a world of torch every worker needs every
other one, so the loss of one is the end of the round, and nothing is left to decide here. A cluster of
TensorFlow may go on without one of its tasks, which is started again alone: see ``core/agent/tasks.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from elasticrun.core.agent.events import AgentEffect, SignalTask
from elasticrun.core.protocol.messages import Failure, StartRound
from elasticrun.core.protocol.tasks import TaskReport


class RestartScope(Protocol):
    """How a round's workers depend on one another. ``now`` is the agent's monotonic clock in seconds."""

    @property
    def reports(self) -> tuple[TaskReport, ...]:
        """How each single task fares, for the status."""

    @property
    def servers(self) -> frozenset[int]:
        """The local ranks of workers that only serve others, and are stopped last."""

    @property
    def is_served(self) -> bool:
        """Whether there are such servers, here or elsewhere: then the nodes stop one after the other."""

    @property
    def leads(self) -> bool:
        """Whether whoever saves what these servers hold belongs here, and not on another node."""

    def runs(self, local_rank: int, attempt: int) -> bool:
        """Whether this attempt at a worker was started in the round, and has not ended as far as we know."""

    def is_alone(self, local_rank: int) -> bool:
        """Whether the round goes on without this worker."""

    def ended(self, local_rank: int, failure: Failure | None) -> bool:
        """A worker has ended. Returns whether it is a single task that ended by itself."""

    def want(self, start: StartRound) -> bool:
        """Take in the newest directive for the running round, if it may change. Returns whether it may."""

    def follow(self, now: float) -> list[AgentEffect]:
        """The next step for each single task from what runs to what is wanted."""

    def stop(self) -> None:
        """The round stops as a whole: nothing is decided for single tasks any more."""

    def expire(self, timer: str, now: float) -> SignalTask | None:
        """Kill a task that has not ended in time; None if it was killed before, in vain."""

    def check(self, alive: Collection[int]) -> None:
        """Raise AssertionError if the round cannot be running with just these workers alive."""


class WholeWorld:
    """The loss of any worker is the end of its round."""

    reports: tuple[TaskReport, ...] = ()
    servers: frozenset[int] = frozenset()
    is_served = False
    leads = True

    def runs(self, local_rank: int, attempt: int) -> bool:
        """Each worker is started once in a round."""
        return attempt == 0

    def is_alone(self, local_rank: int) -> bool:
        """No worker can be lost alone."""
        return False

    def ended(self, local_rank: int, failure: Failure | None) -> bool:
        """There are no tasks to tell of."""
        return False

    def want(self, start: StartRound) -> bool:
        """A world that runs stays as it is."""
        return False

    def follow(self, now: float) -> list[AgentEffect]:
        """Nothing is done for single workers."""
        return []

    def stop(self) -> None:
        """Nothing was decided for single workers."""

    def expire(self, timer: str, now: float) -> SignalTask | None:
        """Never called: no worker has a timer of its own."""
        raise AssertionError(f"nobody set {timer}")

    def check(self, alive: Collection[int]) -> None:
        """Raise AssertionError if nobody is left: then the round is over."""
        assert alive, "a world runs here without a worker"
