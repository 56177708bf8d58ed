"""When a round that runs makes way for a larger world; see ``core/job/growth.py``."""

from __future__ import annotations

from elasticrun.core.job.clusters import Clusters
from elasticrun.core.job.growth import SETTLE, Growth, growth
from elasticrun.core.job.state import GROWTH, JobState
from elasticrun.core.membership.roster import name_some
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause


class Growing:
    """Finds out when a larger world could be formed."""

    def __init__(self, state: JobState, clusters: Clusters) -> None:
        self._state = state
        self._clusters = clusters

    def watch(self) -> None:
        """Stop the round that runs once a larger world could start, or wait for others that are about to."""
        timers = self._state.timers
        found = self._judge()
        if found is Growth.NOW:
            self.grow()
        elif found is Growth.SOON:
            timers.set_default((GROWTH, ""), self._state.now + SETTLE)
        else:
            timers.cancel((GROWTH, ""))

    def grow(self, _: str = "") -> None:
        """Stop the round that runs, so that the ready nodes can join."""
        joiners = f"{name_some(list(self._state.ready))} can join"
        self._state.current.must_stop(StopCause.NODE_JOINED, joiners)

    def _judge(self) -> Growth:
        """Whether a larger world could start; NONE once a member has finished its work."""
        state, current = self._state, self._state.current
        if not state.ready or current.finished or state.members.detached:
            return Growth.NONE
        found = growth(len(current.assignments), state.candidates.available, len(state.held), state.limits)
        fits = found is Growth.NONE or current.tasks is None or self._clusters.could_join()
        return found if fits else Growth.NONE

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        waits = (GROWTH, "") in self._state.timers
        is_running = self._state.phase is JobPhase.RUNNING
        return ["a larger world is awaited only while one runs"] * (waits and not is_running)
