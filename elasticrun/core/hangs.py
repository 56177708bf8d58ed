"""When the silence of a round's nodes is a hang, and when the master acts on it.

Theory. Each node reports that its own workers are silent, and what evidence there is
(``core/protocol/stall.py``, ``core/progress/silence.py``). A round hangs if every node whose workers have to
make steps is silent *and* has evidence: a node without evidence may be computing, and the others wait for it.
A report is true of the time of its look, and the next look comes later: a node may have gone on in between.
So evidence is an interval, from its start to the time of the report, and all intervals have to overlap: then
it held everywhere at the same time. If all nodes are STILL, the overlap has to last ``JOINT`` of the largest
silence allowed, because all nodes also look still for a moment in a collective that is about to end. Both
ends are instants of the master's clock. A status that repeats an older look changes nothing.

The action depends on the restarts, because a replacement for torchrun must not stop a job that torchrun would
let end. Without any restart (``--max-restarts 0``) a hang is only reported, unless the user fixed a timeout.
If all restarts are used, evidence that nothing can move still stops the round; the last bound, which is
patience and no evidence, ends no job.

A lying node can feign only its own silence: the others have to be silent with evidence, too. It can also hide
a hang, for example by reporting nothing.

A report costs O(1) until all nodes have evidence. From then on a scan is made only once the oldest word is
young enough for the youngest evidence.
"""

from __future__ import annotations

from enum import Enum

from elasticrun.core.protocol.messages import Evidence, Stall
from elasticrun.dataclass import dataclass

#: All nodes have to be still at the same time for this fraction of the largest silence allowed.
JOINT = 0.5
MINUTE = 60.0  # seconds


class Restarts(Enum):
    """Whether the budget has a restart for a round that would be stopped now."""

    LEFT = "left"
    SPENT = "spent"
    NEVER = "never"  # none was ever allowed


@dataclass(frozen=True, slots=True)
class Word:
    """A node's last report of its silence, and when it came by the master's clock."""

    stall: Stall
    at: float

    @property
    def since(self) -> float:
        """When the evidence began."""
        return self.at - self.stall.lasting


class Silences:
    """What the nodes of a round say of their silence. ``now`` is the master's monotonic clock in seconds."""

    def __init__(self) -> None:
        self._words: dict[str, Word] = {}  # oldest word first
        self._doubts: dict[str, None] = {}  # nodes that have no evidence
        self._not_before = 0.0  # the oldest word has to be from then or later

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
        """Forget all words: nodes that waited for one that is done go on, and hung ones report again."""
        self._words.clear()
        self._doubts.clear()
        self._not_before = 0.0

    @property
    def doubt(self) -> str:
        """The first node without evidence, and why it is waited for, in words; "" if there is none."""
        name = next(iter(self._doubts), None)
        if name is None:
            return ""
        return f"{name} is waited for ({self._words[name].stall.doubt or 'there is no evidence of a hang'})"

    def lagging(self) -> str | None:
        """The node whose worker lags, if all of these nodes had evidence at the same time; else None."""
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
        """Why a hang is only reported, in words; "" if it is acted upon."""
        found = {word.stall.evidence for word in self._words.values()}
        if restarts is Restarts.NEVER and found != {Evidence.TIMEOUT}:
            return "--max-restarts 0 allows no restart, so the hang is only reported"
        if restarts is Restarts.SPENT and Evidence.LAST_BOUND in found:
            return "all restarts are used, so the round is not stopped without further evidence"
        return ""


def is_hang(stall: Stall | None, max_restarts: int) -> bool:
    """Whether a node may by itself treat its workers as hung."""
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
            return "nothing has moved for longer than the last bound"
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
    limit = f"{bound / MINUTE:g} min of silence (--hang-timeout sets another bound)"
    return f"{text}; it counts as a hang after {limit}"


def _lag(stall: Stall) -> tuple[int, bool, float]:
    """A sort key, smallest for the worker that the others wait for.

    The order: fewest steps; then outside a collective, as a worker waits for others inside; then the longest
    silence.
    """
    return (stall.step, stall.in_collective, -stall.silence)
