"""The cost of failures, and the nodes that have to leave: the only place where a settlement is applied.

``core/recovery/settlement.py`` judges; here its answer changes the facts. So a lost task, whose round goes
on, costs the same as a failed round.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.core.health.verdicts import NodeFinding
from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.messages import Failure
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.recovery.settlement import Recovery, Settlement, settle


class Settling:
    """Judges failures and applies the verdict."""

    def __init__(self, state: JobState, outbox: Outbox, attendance: Attendance) -> None:
        self._state = state
        self._outbox = outbox
        self._attendance = attendance

    def judge(
        self, before: Recovery, cause: StopCause, failures: Sequence[Failure], lasted: float
    ) -> Settlement:
        """What follows, for a job that remembers ``before``; see ``settle``."""
        return settle(before, self._state.config.policy, cause, failures, lasted)

    def remember(self, settled: Settlement) -> None:
        """Keep what is known of failures from now on."""
        self._state.recovery = settled.recovery

    def apply(self, settled: Settlement, wait: str, text: str) -> bool:
        """Carry out a settlement by which the job goes on; ``text`` goes to the log.

        Returns whether the restart can begin at once; if not, a node was excluded or the timer ``wait`` runs.
        """
        state = self._state
        self.remember(settled)
        self._outbox.decide(text)
        for name in state.current.assignments if settled.suspects_all else filter(None, [settled.suspect]):
            state.candidates.suspect(name)
        if settled.excluded in state.members.nodes:
            self._attendance.exclude(NodeFinding(settled.excluded, settled.reason))
            return False
        if settled.delay:
            state.timers.set((wait, ""), state.now + settled.delay)
        return not settled.delay

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        budget = self._state.budget
        rules = {
            "no more restarts are spent than allowed": 0 <= budget.spent <= budget.max_restarts,
            "no restart is given back that was not used": 0 <= budget.refunded <= budget.used,
        }
        return [rule for rule, holds in rules.items() if not holds]
