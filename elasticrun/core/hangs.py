"""When the silence of all nodes of a round is a hang that is acted upon.

Theory. Each node says of its own workers that they are silent, and what evidence there is
(``core/protocol/stall.py``, ``core/progress/silence.py``). A round hangs if every node whose workers have to
make steps is silent *and* has evidence: one without is computing, or may be, and the others wait for it. What
a node says was true when it looked, and it looks again only now and then. So that it still waited when the
last one began to wait is not known from what is told, and it may have gone on since. Therefore evidence is an
interval, from the time for which it has held up to the time at which it was said, and all intervals have to
overlap: there was then a time at which it held everywhere. For those that are STILL the overlap lasts
``JOINT`` of the largest silence allowed, because a collective that is about to end is seen on all nodes for a
moment, too. Both ends are instants of the master's clock. A status that repeats an older look moves nothing.

What is acted upon depends on the restarts, as a launcher in the place of torchrun must not stop what torchrun
would let end. Without any restart (``--max-restarts 0``) a hang is only told, unless the user fixed a
timeout. If all are used, the round is stopped on evidence that nothing can move; the last bound, which is
patience and no evidence, ends no job.

A node that lies speaks for itself only: it can feign its own silence, but others have to be silent with
evidence, too; and it can prevent that a hang is found, as by saying nothing.

Per report this costs O(1) until all nodes have evidence. From then on a scan is made only once the oldest
word is young enough for the youngest evidence.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.core.protocol.messages import Evidence, Stall
from elasticrun.dataclass import dataclass

#: Of the largest silence allowed: for how long all nodes have to be still at the same time.
JOINT = 0.5
MINUTE = 60.0  # seconds


class Restarts(Enum):
    """What the budget has for a round that would be stopped now."""

    LEFT = "left"
    SPENT = "spent"
    NEVER = "never"  # none was ever allowed


@dataclass(frozen=True, slots=True)
class Word:
    """What a node said last of its silence, and when, by the master's clock."""

    stall: Stall
    at: float

    @property
    def since(self) -> float:
        """Since when there is evidence."""
        return self.at - self.stall.lasting


class Silences:
    """What the nodes of a round say of their silence. ``now`` is the master's monotonic clock in seconds."""

    def __init__(self) -> None:
        self._words: dict[str, Word] = {}  # oldest word first
        self._doubts: dict[str, None] = {}  # nodes that have no evidence
        self._not_before = 0.0  # the oldest word has to be at least so young

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, name: str) -> Stall:
        return self._words[name].stall

    def hear(self, name: str, stall: Stall | None, now: float) -> None:
        """Take in what a node says; None: its workers make steps."""
        before = self._words.get(name)
        if before is not None and before.stall == stall:
            return
        self._words.pop(name, None)
        self._doubts.pop(name, None)
        if stall is not None:
            self._words[name] = Word(stall, now)
            if stall.evidence is Evidence.NONE:
                self._doubts[name] = None

    def clear(self) -> None:
        """Who only waited for somebody that is gone now goes on; who hangs will say so again."""
        self._words.clear()
        self._doubts.clear()
        self._not_before = 0.0

    @property
    def doubt(self) -> str:
        """Who is waited for though nobody makes steps, in words; "" if nobody is."""
        name = next(iter(self._doubts), None)
        if name is None:
            return ""
        return f"{name} is waited for ({self._words[name].stall.doubt or 'there is no evidence of a hang'})"

    def lagging(self) -> str | None:
        """If there is evidence on all of these nodes at the same time: the one whose worker lags."""
        if not self._words or self._doubts:
            return None
        oldest = next(iter(self._words.values()))
        if oldest.at < self._not_before:
            return None
        words = self._words.values()
        self._not_before = max(word.since for word in words) + self._joint()
        if oldest.at < self._not_before:
            return None
        return min(self._words.items(), key=lambda item: _lag(item[1].stall))[0]

    def _joint(self) -> float:
        stalls = [word.stall for word in self._words.values()]
        if any(stall.evidence is not Evidence.STILL for stall in stalls):
            return 0.0
        return JOINT * max(stall.allowed for stall in stalls)

    def objection(self, restarts: Restarts) -> str:
        """Why a hang is told but not acted upon, in words; "" if it is acted upon."""
        found = {word.stall.evidence for word in self._words.values()}
        if restarts is Restarts.NEVER and found != {Evidence.TIMEOUT}:
            return "no restart is allowed (--max-restarts 0), so the round is not stopped for that"
        if restarts is Restarts.SPENT and Evidence.LAST_BOUND in found:
            return "all restarts are used, so the round is not stopped without further evidence"
        return ""


def is_hang(stall: Stall | None, max_restarts: int) -> bool:
    """Whether a node, of itself, need not wait any more for workers of whom this was said."""
    if stall is None or stall.evidence is Evidence.NONE:
        return False
    return max_restarts > 0 or stall.evidence is Evidence.TIMEOUT


def evidence_text(stall: Stall) -> str:
    """The evidence in words, as part of a sentence."""
    match stall.evidence:
        case Evidence.STILL:
            return (
                "every rank waits for others, and no process below one has used CPU time or I/O for "
                f"{stall.lasting:.0f} s"
            )
        case Evidence.LAST_BOUND:
            return f"the last bound of {stall.silence - stall.lasting:.0f} s is over"
        case Evidence.TIMEOUT:
            return "that is longer than --hang-timeout allows"
        case _:
            return stall.doubt


def consequence(stall: Stall, last_bound: float, max_restarts: int) -> str:
    """What follows from the silence of a node, for the user."""
    text = evidence_text(stall)
    if stall.evidence is Evidence.NONE:
        text += ", so it is waited for" if text else "it is waited for"
    if stall.evidence is Evidence.TIMEOUT:
        return text
    if max_restarts == 0:
        return f"{text}; nothing is stopped for that, as no restart is allowed (--max-restarts 0)"
    if stall.evidence is not Evidence.NONE:
        return f"{text}; once that is so on every node, the round starts again"
    bound = max(last_bound, 2 * stall.allowed)
    return f"{text}, for {bound / MINUTE:g} min in all (the last bound; --hang-timeout sets another)"


def _lag(stall: Stall) -> tuple[int, bool, float]:
    """Smallest for the worker that the others wait for.

    It made the fewest steps; of those with as few, it is not inside a collective, where one waits for
    others; of those, it has been silent for the longest time.
    """
    return (stall.step, stall.in_collective, -stall.silence)
