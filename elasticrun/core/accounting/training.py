"""The meter of one round, which all its members share.

Theory. Ranks step together: what a step took, it took for each member. So the time of a round since its first
step is metered once, and a member's share is the difference of two readings. No fact about a round costs
anything for its members.

Time is open until the next sample says what it was good for: it is work for so many steps. Of these the ones
up to the high-water mark (the highest step that earlier rounds had reached) are redone, and the interval is
split in proportion. A stall takes its part of the open time, and so does a hang, which also takes what
follows. A saved state proves the steps up to it, which may be newer than the newest sample; it is known to be
whole a while after the last of them, so they count for as long as those before took. What is open beyond it
when a round stops was work on a step that was lost; it will be redone, and is counted as that, so that each
step is productive once.

Invariant. All that was metered, plus what is open, is exactly the time since the first step. What was
metered is never taken back.
"""

from __future__ import annotations

from typing import NamedTuple

from elasticrun.core.accounting.activities import Activity, Spent

#: Slowness is kept in thousandths, at most a million of them.
SAME_PACE = 1000
_SLOWEST = 1000.0


class Reading(NamedTuple):
    """Microseconds since the first step of a round."""

    productive: int = 0
    redone: int = 0
    productive_slow: int = 0  # what members other than the straggler have waited in these
    redone_slow: int = 0
    checkpoint: int = 0
    hung: int = 0

    def since(self, earlier: Reading) -> Reading:
        """What was added after an earlier reading."""
        return Reading(*(now - before for now, before in zip(self, earlier, strict=True)))

    def spent(self, waits: bool) -> Spent:
        """The same by activity. ``waits``: for stragglers, as all but the slowest do."""
        slow = self.productive_slow + self.redone_slow
        return {
            Activity.PRODUCTIVE: self.productive + (0 if waits else self.productive_slow),
            Activity.REDONE: self.redone + (0 if waits else self.redone_slow),
            Activity.SLOW: slow if waits else 0,
            Activity.CHECKPOINT: self.checkpoint,
            Activity.HUNG: self.hung,
        }


ZERO = Reading()


class Training:
    """One round. ``high``: the highest step that earlier rounds had reached."""

    def __init__(self, number: int, restores: int | None, high: int) -> None:
        self.number = number
        self.restores = restores
        self.begun: int | None = None  # when its first step was done
        self.over: int | None = None  # when it stopped
        self.metered = ZERO
        self.step = max(0, restores or 0)  # the newest that is known
        self.slowest = ""  # the member that the others wait for
        self.pace = SAME_PACE
        self._high = 0 if restores is None else high
        self._upto = 0  # until then time is metered or open
        self._open = 0
        self._saved = self.step  # the newest step of which the state is saved
        self._safe = 0  # what of the open time these took: it cannot be lost
        self._closed = 0, 0  # steps, and the time they took
        self._is_hung = False

    @property
    def is_open(self) -> bool:
        """Whether it has not stopped."""
        return self.over is None

    def begin(self, now: int) -> None:
        """The first member has done its first step. Called once at most, and before any sample."""
        self.begun = self._upto = now
        self.step += 1

    def sample(self, now: int, step: int) -> None:
        """All steps up to this one are done. Steps that fall, or stand still, say nothing."""
        if self.begun is None:
            self.begun = self._upto = now
            self.step = max(self.step, step)
        if step > self.step:
            self._pass(now)
            self._closed = self._closed[0] + step - self.step, self._closed[1] + self._open
            self._close(self._again(self._open, step))
            self.step, self._is_hung = step, False

    def save(self, now: int, step: int) -> None:
        """The state after this step is saved. It is no sample: the stall of this save is told later."""
        if self.begun is not None and step > max(self.step, self._saved):
            self._pass(now)
            steps, work = self._closed
            lasted = work * (step - self.step) // steps if steps else self._open
            self._saved, self._safe = step, min(self._open, lasted)

    def stall(self, now: int, micros: int) -> None:
        """A save has taken so long."""
        self._pass(now)
        taken = min(max(0, micros), self._open)
        self._open -= taken
        self._safe = min(self._safe, self._open)
        self.metered = self.metered._replace(checkpoint=self.metered.checkpoint + taken)

    def hang(self, now: int, since: int) -> None:
        """It hangs, until there are steps again. One that never made a step hangs from now on."""
        if self.begun is None:
            self.begun = self._upto = now
        self._pass(now)
        taken = min(max(0, now - since), self._open)
        self._open -= taken
        self._safe = min(self._safe, self._open)
        self.metered = self.metered._replace(hung=self.metered.hung + taken)
        self._is_hung = True

    def slow_down(self, node: str, factor: float) -> None:
        """A member is the slowest, if it is slower than the one before; or it is not slow any more."""
        pace = int(min(_SLOWEST, factor) * SAME_PACE) if factor > 1.0 else SAME_PACE  # NaN is not slow
        if node == self.slowest or pace > self.pace:
            self.slowest, self.pace = (node, pace) if pace > SAME_PACE else ("", SAME_PACE)

    def stop(self, now: int, is_lost: bool) -> None:
        """It ends. ``is_lost``: what is open was for no step that counts, but for what is saved."""
        if self.begun is not None:
            self.metered = self.reading(now, is_lost)
            self._open, self._upto = 0, now
            self.step = max(self.step, self._saved)
        self.over = now

    def reading(self, now: int, is_lost: bool = False) -> Reading:
        """The meter with what is open: as if that were steps, or lost."""
        if self.begun is None or not self.is_open:
            return self.metered
        passed = now - self._upto
        work = self._open + (0 if self._is_hung else passed)
        redone = self._again(self._safe, self._saved)
        if is_lost or max(self.step, self._saved) < self._high:
            redone += work - self._safe
        metered = self._with(redone, work)
        return metered._replace(hung=metered.hung + passed) if self._is_hung else metered

    def _pass(self, now: int) -> None:
        """Time passes until now."""
        passed = now - self._upto if self.begun is not None else 0
        if self._is_hung:
            self.metered = self.metered._replace(hung=self.metered.hung + passed)
        else:
            self._open += passed
        self._upto = now

    def _close(self, redone: int) -> None:
        """What is open was work, and so much of it was redone."""
        self.metered = self._with(redone, self._open)
        self._open = self._safe = 0

    def _again(self, work: int, step: int) -> int:
        """How much of the work on the steps up to this one was done before."""
        again = min(max(0, self._high - self.step), step - self.step)
        return work * again // (step - self.step) if again > 0 else 0

    def _with(self, redone: int, work: int) -> Reading:
        """The meter after so much more work."""
        productive = work - redone
        lonely, again = productive * SAME_PACE // self.pace, redone * SAME_PACE // self.pace
        old = self.metered
        return old._replace(
            productive=old.productive + lonely,
            redone=old.redone + again,
            productive_slow=old.productive_slow + productive - lonely,
            redone_slow=old.redone_slow + redone - again,
        )
