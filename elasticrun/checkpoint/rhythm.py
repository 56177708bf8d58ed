"""When ``Checkpointer`` saves: at each so many steps, or as often as it pays (``core/state/interval.py``).

Ranks agree on the steps without talking, or, with ``"auto"``, by one small reduction after each save: at the
first step after it, as the time of that save is known only then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from elasticrun.checkpoint import exchange
from elasticrun.core.state.interval import STALLS, History, Measured, Pace, Rhythm
from elasticrun.errors import CheckpointError

Clock = Callable[[], float]
Facts = Mapping[str, object]


class Timing(Protocol):
    """Decides which steps are saved."""

    def is_due(self, step: int) -> bool:
        """Whether to save this step. All ranks have to ask about the same steps, in order."""

    def stalled(self, seconds: float) -> None:
        """Hear how long a save took."""

    def held_up(self, seconds: float) -> None:
        """Hear how long a step waited for the save before it."""

    def restored(self, step: int, rounds: int, facts: Iterable[Facts]) -> None:
        """Go on from a commit with these facts, made so many rounds ago. All ranks do, or none."""

    @property
    def facts(self) -> Facts:
        """What the next commit is to say, for ``restored``."""


class Fixed:
    """Saves the steps whose number is a multiple of ``every``."""

    def __init__(self, every: int) -> None:
        self._every = every

    def is_due(self, step: int) -> bool:
        """Whether to save this step."""
        return step % self._every == 0

    def stalled(self, seconds: float) -> None:
        """It does not matter here."""

    def held_up(self, seconds: float) -> None:
        """Nor does this."""

    def restored(self, step: int, rounds: int, facts: Iterable[Facts]) -> None:
        """Nor this."""

    @property
    def facts(self) -> Facts:
        """There is nothing to say."""
        return {}


class Auto:
    """Saves as often as it pays."""

    def __init__(self, history: Callable[[], History], world_size: int, clock: Clock) -> None:
        """``history``: of the job until now."""
        self._history = history
        self._world_size = world_size
        self._clock = clock
        self._rhythm = Rhythm()
        self._stalls: deque[float] = deque(maxlen=STALLS)
        self._since: tuple[int, float] | None = None  # a step, and when it was done
        self._stalled = 0.0  # seconds since then

    def is_due(self, step: int) -> bool:
        """Whether to save this step. CheckpointError if the ranks are not connected."""
        if self._since is None:
            self._since = step, self._clock()
        if self._rhythm.needs_answer(step):
            self._rhythm.hear(self._agree(self._measure(step)))
        return self._rhythm.is_due(step)

    def stalled(self, seconds: float) -> None:
        """Hear how long a save took."""
        self._stalls.append(seconds)
        self._stalled += seconds

    def held_up(self, seconds: float) -> None:
        """Hear how long a step waited for the save before it: the save has taken so much longer."""
        if self._stalls:
            self._stalls[-1] += seconds
            self._stalled += seconds

    def restored(self, step: int, rounds: int, facts: Iterable[Facts]) -> None:
        """Save as often as before, from a step on."""
        paces = [pace for each in facts if (pace := Pace.of(each)) is not None]
        if paces:
            self._rhythm = Rhythm(step, paces[0].after(rounds))
            # the first save of a round is slower than the others, and must not count alone
            self._stalls = deque([max(pace.stall for pace in paces)] * (STALLS - 1), maxlen=STALLS)

    @property
    def facts(self) -> Facts:
        """How often this job saves."""
        return Pace(self._rhythm.steps, Measured.of(self._stalls, 0.0, History()).stall).facts

    def _measure(self, step: int) -> Measured:
        """What was measured since the last time."""
        assert self._since is not None
        (before, then), now = self._since, self._clock()
        seconds = (now - then - self._stalled) / max(1, step - before)
        self._since, self._stalled = (step, now), 0.0
        return Measured.of(self._stalls, seconds, self._history())

    def _agree(self, mine: Measured) -> Measured:
        if exchange.is_possible():
            return Measured(*exchange.largest(mine))
        if self._world_size > 1:
            raise CheckpointError(
                f'every="auto" has the {self._world_size} ranks agree on the steps to save, and they are not'
                " connected: call torch.distributed.init_process_group before, or give a number of steps"
            )
        return mine


def timing_of(
    every: object, history: Callable[[], History], environment: Mapping[str, str], clock: Clock
) -> Timing:
    """What ``every`` stands for. CheckpointError unless it is "auto" or a number of steps."""
    if every == "auto":
        return Auto(history, int(environment.get("WORLD_SIZE", "1")), clock)
    if isinstance(every, int) and not isinstance(every, bool) and every > 0:
        return Fixed(every)
    raise CheckpointError(f'every must be "auto" or a number of steps of 1 or more, got {every!r}')
