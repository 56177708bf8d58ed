"""How many steps to train between two saves: ``Checkpointer(every="auto")``.

Theory. A save costs a stall, and a failure costs the work since the last save. J. W. Young ("A first order
approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974) found that the time
between two saves that loses the least is ``sqrt(2 C M)``, for a stall of C and a mean time between failures
of M. J. T. Daly ("A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006) made it exact enough for stalls that are not small::

    sqrt(2 C M) * (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C    if C < 2M
    M                                                          else

The time of a restart is not in it: it is lost however often one saves.

M is measured as ``(A + P) / (k + 1)``, after k failures in A seconds. So a job is taken to have failed once
in P seconds before it began. With no failure yet, M is a finite time that grows as the job runs; and P soon
counts for little.

Invariants. Whatever was measured, the answer is at least 1 step and at most ``LONGEST`` seconds of steps, or
1 step if that takes longer. It is at most ``GROWTH`` times what it was before, so a measurement that is wrong
makes one interval too long by that factor only.

Why ranks agree. ``Rhythm`` is a function of the steps that it is asked about, and of the answers that it gets
to ``Measured``. Ranks of a round begin with the same one, and are asked about the same steps: it is new, or
follows from the commit that all of them restored. So they need answers at the same steps: after each save, or
after fewer and fewer of them, down to one in ``SELDOM``, while the answers change little. For an answer costs
about as much time as a small save. And an answer is the largest of each number that any rank has measured.
The largest of some numbers is one of them, bit by bit, in whatever order they are compared: so all ranks get
the same answer, decide the same, and go on with the same ``Rhythm``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from elasticrun.dataclass import dataclass

#: Seconds in which a job is taken to have failed once before it began. Short, as a save too many costs a
#: stall, and a save too few costs the work since the one before.
PRIOR = 60.0
#: Seconds between two saves at most.
LONGEST = 3600.0
#: How many times longer the next interval may be.
GROWTH = 2
#: Saves from one answer to the next at most.
SELDOM = 8
#: Measured stalls of which the median counts: the first save of a round is slower than the others.
STALLS = 5
#: No measurement counts as less or more, in seconds. A step of less than a microsecond was not measured.
_SHORTEST_STEP = 1e-6
_AGES = 1e10
_FAILURES = 10**6
_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class History:
    """What a job went through until now. Each commit has it, so it outlives the workers."""

    age: float = 0.0  # seconds of training
    failures: int = 0  # how often workers had to start again

    @property
    def between_failures(self) -> float:
        """The mean time between failures, in seconds."""
        return (_within(self.age, 0.0, _AGES) + PRIOR) / (self.failures + 1)

    @property
    def facts(self) -> dict[str, object]:
        """What a commit says of it."""
        return {"age": round(_within(self.age, 0.0, _AGES), 3), "failures": self.failures}

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> History:
        """What a commit says of it. One that says nothing, or nonsense, counts as young."""
        match facts:
            case {"age": int() | float() as age, "failures": int(failures)} if failures >= 0:
                return cls(_within(age, 0.0, _AGES), min(failures, _FAILURES))
        return cls()

    def after(self, seconds: float) -> History:
        """The same, so many seconds of training later."""
        return History(self.age + _within(seconds, 0.0, _AGES), self.failures)

    def failed(self, times: int) -> History:
        """The same after so many failures."""
        return History(self.age, min(_FAILURES, self.failures + max(0, times)))


def oldest(histories: Iterable[History]) -> History:
    """The history to go on with, where parts of a commit have different ones."""
    return max(histories, key=lambda each: (each.age, each.failures), default=History())


class Measured(NamedTuple):
    """What one rank has measured; or the largest of each number of all ranks, as the slowest holds up all."""

    stall: float  # seconds of a save
    step: float  # seconds of a step, without saves
    failure_rate: float  # per second

    @classmethod
    def of(cls, stalls: Iterable[float], step: float, history: History) -> Measured:
        """Of one rank."""
        seconds = sorted(_within(each, 0.0, _AGES) for each in stalls)
        return cls(
            seconds[len(seconds) // 2] if seconds else 0.0,
            _within(step, _SHORTEST_STEP, _AGES),
            1.0 / history.between_failures,
        )


def best_interval(stall: float, between_failures: float) -> float:
    """Daly's estimate: the seconds to train between two saves."""
    if stall >= 2 * between_failures:
        return between_failures
    ratio = stall / (2 * between_failures)
    young = math.sqrt(2 * stall * between_failures)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall


def steps_between_saves(measured: Measured, before: int) -> int:
    """How many steps to train until the next save. ``before``: how many it were until the last one."""
    step = _within(measured.step, _SHORTEST_STEP, _AGES)
    rate = _within(measured.failure_rate, 1 / _AGES, 1 / _SHORTEST_STEP)
    seconds = min(LONGEST, best_interval(_within(measured.stall, 0.0, _AGES), 1 / rate))
    return max(1, min(int(seconds / step), GROWTH * max(1, before)))


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a job saved when a commit was made, so that the next round need not find out again."""

    steps: int  # between two saves; all ranks of a commit say the same
    stall: float  # seconds of a save

    @property
    def facts(self) -> dict[str, object]:
        """What a commit says of it."""
        return {"every": self.steps, "stall": self.stall}

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> Pace | None:
        """What a commit says of it; None if that is nothing, or nonsense."""
        match facts:
            case {"every": int(steps), "stall": int() | float() as stall} if 0 < steps <= _MOST_STEPS:
                return cls(steps, _within(stall, 0.0, _AGES))
        return None

    def after(self, rounds: int) -> int:
        """The steps to the first save after a restart.

        ``rounds``: how many began since the commit was made, this one included. Each of them but this one
        ended before it saved anything, so each halves the interval: whatever was measured before, a job that
        fails more often than that makes progress again.
        """
        return max(1, self.steps >> min(64, max(1, rounds)))


class Rhythm:
    """Which steps one rank saves, in one round."""

    def __init__(self, last: int | None = None, steps: int = 1) -> None:
        """``last``: the step that was restored, if any, and the ``steps`` to the next one to save."""
        self._last = last  # the step that was due last
        self._steps = steps  # from it to the next one
        self._is_open = False  # the next one is still to be decided
        self._apart = 1  # saves from the last answer to the next one
        self._left = 0  # saves that still need none

    @property
    def steps(self) -> int:
        """The steps between two saves, as they were last."""
        return self._steps

    def needs_answer(self, step: int) -> bool:
        """Whether ``hear`` has to be called before ``is_due`` of this step."""
        return self._is_open and step != self._last

    def hear(self, measured: Measured) -> None:
        """Decide the next step to save, from what all ranks have measured."""
        before = self._steps
        self._steps, self._is_open = steps_between_saves(measured, before), False
        is_alike = abs(self._steps - before) <= max(1, before // SELDOM) and self._steps < GROWTH * before
        self._apart = min(SELDOM, 2 * self._apart) if is_alike else 1
        self._left = self._apart - 1

    def is_due(self, step: int) -> bool:
        """Whether to save this step. It may be asked again about the last one. Without one, this is due."""
        if self._last is None or (step != self._last and step >= self._last + self._steps):
            self._last, self._is_open = step, not self._left
            self._left = max(0, self._left - 1)
        return step == self._last


def _within(value: float, least: float, most: float) -> float:
    """The nearest value between these. What is no number counts as the least, as ``max`` takes the first."""
    return min(most, max(least, value))
