"""The health check of nodes before they work: its probes, its end and what follows.

The phase is CHECKING exactly while a checkup (``core/health/checkup.py``) runs, and then a timer bounds its
probe; or one has ended the job, and the end waits for the storage.
"""

from __future__ import annotations

from elasticrun.core.health.checkup import Checkup
from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.events import Trigger
from elasticrun.core.job.formation import terms_of
from elasticrun.core.job.moves import Move
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import CHECK, JobState
from elasticrun.core.job.world import is_enough, unchecked
from elasticrun.core.membership.roster import name_some
from elasticrun.core.protocol.status import JobPhase

#: Seconds that nodes have after a probe's timeout to kill it and report.
CHECK_GRACE = 40.0


class Checking:
    """Runs health checks."""

    def __init__(self, state: JobState, outbox: Outbox, attendance: Attendance) -> None:
        self._state = state
        self._outbox = outbox
        self._attendance = attendance

    def order(self, reason: str) -> None:
        """Have all nodes checked before the next world, however the job was started."""
        self._state.check_ordered = reason
        self._state.candidates.distrust_all()

    def begin(self, move: Move) -> None:
        """Check these nodes, with the help of those that passed a check before."""
        state, suspects = self._state, list(move.nodes)
        state.checkup = checkup = Checkup(state.probes + 1, suspects, state.candidates.trusted())
        self._outbox.decide(f"checking {name_some(suspects)}")
        self._probe(checkup)

    def _probe(self, checkup: Checkup) -> None:
        state = self._state
        self._attendance.note_probe(checkup.number)
        checkup.meet(state.members.nodes, state.now, state.config.health.timeout)
        state.timers.set((CHECK, ""), state.now + state.config.health.timeout + CHECK_GRACE)
        self._outbox.direct_all(sorted(checkup.pending))

    def advance(self) -> Move | None:
        """Probe again, or judge, once all nodes have answered."""
        state, checkup = self._state, self._state.checkup
        assert checkup is not None
        if state.stop_ordered:
            state.checkup = None
            state.timers.cancel((CHECK, ""))
            return Move(Trigger.STOP_ORDERED, state.stop_ordered)
        while not checkup.pending:
            ratio, trusted = state.config.health.straggler_ratio, state.candidates.trusted()
            if not checkup.go_on(state.probes + 1, ratio, trusted):
                return self._judge(checkup)
            why = "to tell suspects and links apart" if checkup.step.slots else "to confirm slow nodes"
            self._outbox.decide(f"probing again, {why}: {name_some(checkup.step.nodes)}")
            self._probe(checkup)
        return None

    def expire(self, _: str) -> None:
        """End the probe without the nodes that have not answered."""
        checkup = self._state.checkup
        assert checkup is not None  # the timer ends with it
        checkup.give_up()

    def _judge(self, checkup: Checkup) -> Move:
        state = self._state
        state.checkup, state.check_ordered = None, ""
        state.timers.cancel((CHECK, ""))
        found = state.candidates.conclude(checkup, state.config.health)
        self._outbox.decide(found.summary)
        for line in found.lines:
            self._outbox.decide(line)
        self._outbox.tell_all([f"health check: {line}" for line in found.lines])
        if state.config.health.only:
            state.table = found.table
            return Move(Trigger.CHECK_PASSED if found.passed else Trigger.CHECK_FAILED, found.summary)
        self._attendance.exclude(*found.excluded)
        if found.open_question and self._is_stuck():
            return Move(Trigger.CHECK_FAILED, f"{found.summary}; {found.open_question}")
        return Move(Trigger.CHECKED)

    def _is_stuck(self) -> bool:
        """Whether no world can be formed, and no check would change that."""
        state = self._state
        if state.held or is_enough(state.candidates, state.limits):
            return False
        return not unchecked(state.candidates, terms_of(state))

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state = self._state
        checks, runs = state.phase is JobPhase.CHECKING, state.checkup is not None
        rules = {
            "a checkup runs while nodes are checked": checks
            == (runs or (checks and state.ending is not None)),
            "a probe has a bound": runs == ((CHECK, "") in state.timers),
            "a probe is the newest": state.checkup is None or state.checkup.number <= state.probes,
        }
        return [rule for rule, holds in rules.items() if not holds]
