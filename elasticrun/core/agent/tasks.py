"""The tasks of a TensorFlow job on one node, each with the attempt that runs and the one that is wanted.

Level-triggered like everything else: ``follow`` compares what the newest assignment wants with what runs,
and takes the next step for each task. Invariant: at most one attempt of a task runs. The next one starts
only when the one before is known to have ended, and its process group with it. A task that is not wanted any
more, or is wanted in a later attempt, is told to end, and killed if it does not end in time: with state to
save it has the whole grace, else a few seconds. However it ends, that is no failure.

Tasks that cannot be lost alone (see ``core/tensorflow/role_recovery.py``) are only recorded here: their group
starts and stops as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from elasticrun.config import TaskRole
from elasticrun.core.agent.departure import SIGTERM
from elasticrun.core.agent.events import AgentEffect, AgentTerms, Level, Say, SignalTask, StartTask
from elasticrun.core.agent.group import HUNG_GRACE
from elasticrun.core.protocol.messages import MAX_FAILURES, Assignment, Failure, StartRound
from elasticrun.core.protocol.tasks import Task, TaskReport
from elasticrun.core.tensorflow.cluster import SERVERS, is_served
from elasticrun.core.tensorflow.role_recovery import is_alone
from elasticrun.core.timers import Deadlines
from elasticrun.dataclass import dataclass

TASK = "task "  # and the local rank: the timer of a task that was told to end
SIGKILL = 9
#: Longest message of a failure, in characters, beyond the first few that are reported in full.
SHORT_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The newest attempt of a task that was started."""

    number: int
    ended: bool = False
    failure: Failure | None = None
    leaving: bool = False  # it was told to end
    saves: bool = False  # it has the time to save its state
    killed: bool = False  # it did not end in time, so SIGKILL was sent


class SingleTasks:
    """The tasks of one round on this node; a ``RestartScope``."""

    def __init__(self, start: StartRound, terms: AgentTerms, timers: Deadlines[str]) -> None:
        self._terms = terms
        self._timers = timers
        self._reason = ""  # of the newest directive
        self._assignment: Assignment = start.assignment
        self._wanted: dict[int, Task] = {}  # by local rank
        self.want(start)
        self._attempts = {task.local_rank: _Attempt(task.attempt) for task in start.assignment.tasks}

    def want(self, start: StartRound) -> bool:
        """Take in what the newest directive wants of the tasks. Returns True."""
        self._reason = start.reason
        self._assignment = start.assignment
        self._wanted = {task.local_rank: task for task in start.assignment.tasks}
        return True

    def stop(self) -> None:
        """The round stops as a whole: nothing is decided for single tasks any more."""
        for local_rank in self._attempts:
            self._timers.cancel(f"{TASK}{local_rank}")

    @property
    def reports(self) -> tuple[TaskReport, ...]:
        """How each task fares; the first few failures are told in full."""
        found: list[TaskReport] = []
        told = 0
        for local_rank, attempt in sorted(self._attempts.items()):
            failure = attempt.failure
            if failure is not None:
                told += 1
                failure = failure if told <= MAX_FAILURES else _shortened(failure)
            found.append(TaskReport(local_rank, attempt.number, attempt.ended, failure))
        return tuple(found)

    def runs(self, local_rank: int, attempt: int) -> bool:
        """Whether this is the newest attempt at a task, and has not ended yet."""
        newest = self._attempts.get(local_rank)
        return newest is not None and newest.number == attempt and not newest.ended

    def is_alone(self, local_rank: int) -> bool:
        """Whether this is a task that can be lost without a new round."""
        task = self._wanted.get(local_rank)
        return task is None or is_alone(self._assignment.cluster, task.role)

    @property
    def is_served(self) -> bool:
        """Whether parameter servers hold the variables."""
        return is_served(self._assignment.cluster)

    @property
    def leads(self) -> bool:
        """Whether the chief, which saves for all, belongs here."""
        return any(task.role is TaskRole.CHIEF for task in self._wanted.values())

    @property
    def servers(self) -> frozenset[int]:
        """The local ranks of tasks that only serve the chief."""
        if not self.is_served:
            return frozenset()
        return frozenset(local_rank for local_rank, task in self._wanted.items() if task.role in SERVERS)

    def ended(self, local_rank: int, failure: Failure | None) -> bool:
        """The attempt that ran has ended. Returns whether it did so by itself."""
        self._timers.cancel(f"{TASK}{local_rank}")
        attempt = self._attempts[local_rank]
        kept = None if attempt.leaving else failure
        self._attempts[local_rank] = replace(attempt, ended=True, failure=kept)
        return not attempt.leaving

    def follow(self, now: float) -> list[AgentEffect]:
        """The next step for each task from what runs to what is wanted."""
        effects: list[StartTask | SignalTask] = []
        for local_rank in sorted({*self._wanted, *self._attempts}):
            wanted, attempt = self._wanted.get(local_rank), self._attempts.get(local_rank)
            is_current = wanted is not None and attempt is not None and wanted.attempt <= attempt.number
            if is_current:
                continue
            if attempt is not None and not attempt.ended:
                effects += self._tell_to_end(local_rank, attempt, wanted, now)
            elif wanted is not None:
                self._attempts[local_rank] = _Attempt(wanted.attempt)
                effects.append(StartTask(self._assignment, local_rank))
            else:
                del self._attempts[local_rank]
        starts = [effect for effect in effects if isinstance(effect, StartTask)]
        if starts:
            return [Say(Level.WARNING, describe_starts(starts, self._reason)), *effects]
        return [*effects]

    def expire(self, timer: str, now: float) -> SignalTask | None:
        """Kill a task that has not ended in time; None if it was killed before, in vain."""
        local_rank = int(timer.removeprefix(TASK))
        attempt = self._attempts[local_rank]
        if attempt.killed:
            return None
        self._attempts[local_rank] = replace(attempt, killed=True)
        self._timers.set(timer, now + self._terms.kill_timeout)
        return SignalTask(local_rank, SIGKILL)

    def _tell_to_end(
        self, local_rank: int, attempt: _Attempt, wanted: Task | None, now: float
    ) -> list[SignalTask]:
        """Send SIGTERM once; a later order may shorten the grace period."""
        saves = wanted is not None and wanted.saves
        if attempt.killed or (attempt.leaving and (saves or not attempt.saves)):
            return []
        self._attempts[local_rank] = replace(attempt, leaving=True, saves=saves)
        longest = self._terms.shutdown_timeout
        self._timers.set(f"{TASK}{local_rank}", now + (longest if saves else min(longest, HUNG_GRACE)))
        return [] if attempt.leaving else [SignalTask(local_rank, SIGTERM)]

    def check(self, alive: Collection[int]) -> None:
        """Raise AssertionError unless these are the tasks that have not ended, each of them bounded."""
        running = {local_rank for local_rank, attempt in self._attempts.items() if not attempt.ended}
        assert set(alive) == running, f"{set(alive)} are alive, but {running} have not ended"
        for local_rank, attempt in self._attempts.items():
            is_bounded = f"{TASK}{local_rank}" in self._timers
            assert is_bounded is (attempt.leaving and not attempt.ended), f"task {local_rank}: {attempt}"


def describe_starts(starts: Sequence[StartTask], reason: str) -> str:
    """One line about tasks that start while their round runs."""
    tasks = [start.assignment.task(start.local_rank) for start in starts]
    names = [f"{task.role.value} {task.index} (attempt {task.attempt})" for task in tasks if task is not None]
    return f"{', '.join(names)} {'starts' if len(names) == 1 else 'start'}: {reason}"


def _shortened(failure: Failure) -> Failure:
    message = failure.message[:SHORT_MESSAGE]
    return replace(failure, message=message, traceback="", stderr_tail="", kernel_log="")
