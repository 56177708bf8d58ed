"""When the silence of a node's workers is a hang: a rule that learns, and looks more than once.

Theory. A *sign of life* of a worker is a training step, a batch taken from a data loader, or the begin or end
of a checkpoint. Workers of one group wait for one another, so the group hangs only if all of them are silent:
a worker may wait long for one that works. So a node is silent since its *latest* sign. While a worker is in a
checkpoint, nothing is judged, up to a bound.

The allowed silence is ``MULTIPLE`` times the longest silence in training so far, at least ``FLOOR``. Eight
times a step is beyond what jitter, a slow batch or a busy network do to a step, and still in proportion to
it; the floor covers what does not grow with a step (garbage collection, a file system that pauses). A *pause*
is a rare silence that is far longer than any step, such as an evaluation. The next one is about as long, so
twice the longest is enough; eight times would turn seven minutes into an hour. Start-up is no training:
nothing is learnt from the first two steps, nothing judged before the third.

A long silence may still be work without signs, such as an evaluation without a data loader. So the rule looks
again. After one allowed silence the workers are suspect: their stacks are taken then, and ``LOOKS`` times
more during another one. A loop is easily found twice in its slowest line, but hardly every time. If any main
thread has moved, the node works: twice the silence is allowed from now on. If none has, the node is
*stalled*, after two allowed silences (and the time to take stacks).

A stall is *reported*. It has no consequence by itself: a long call of a library, or a wait for a program, a
queue or a person, looks the same and comes back. The consequence depends on the evidence:

- STILL: at every look for an allowed silence, every rank's main thread waited in a collective or for the
  store (``awaits_peers``), and in between no process below any of them used CPU time, moved bytes, started or
  ended (``core/progress/stillness.py``). Such a node cannot go on by itself. If that is so on every node at
  the same time, nothing can move any more, and the round starts again; the master decides that
  (``core/hangs.py``).
- LAST_BOUND: the node has been silent, and its stacks have not moved, for ``last_bound``. So a rank that
  waits in a collective and burns CPU time there, as NCCL does, is found by this bound, or by the user's
  timeout: CPU time inside a collective shows neither progress nor its absence.
- TIMEOUT: the silence is longer than the user's timeout, whatever the stacks say.

While a debugger is attached or a worker reads a line from a prompt, there is no evidence but TIMEOUT: a
person who thinks for an hour is no hang.

A stalled node is looked at repeatedly, and reports each time: it may only have waited for another node, and
the master has to know that the stall lasts. The looks grow rarer with the silence, up to ``MAX_SPAN``.

Invariants. The last look comes no sooner than one allowed silence (half of a user's timeout) after the first,
so that an agent or host that was frozen does not mistake its own absence for a silence. ``next_deadline`` is
never later than the earliest instant at which some worker could be silent for too long, and no look comes
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum

from elasticrun.core.progress.activity import Footprint
from elasticrun.core.progress.stacks import Stack, have_moved, is_in_collective, main_stack
from elasticrun.core.progress.stillness import Sight, Stillness
from elasticrun.core.protocol.bounds import SECONDS
from elasticrun.core.protocol.messages import Evidence, Stall
from elasticrun.dataclass import dataclass

MULTIPLE = 8.0
PAUSE_MULTIPLE = 2.0
FLOOR = 10.0  # seconds
STEPS_TO_ARM = 3
LOOKS = 4  # at the stacks of suspects, after the first
CHECKPOINT_LIMIT = 1800.0  # seconds; a checkpoint that takes longer is silence like any other
LAST_BOUND = 1800.0  # seconds of silence that are a hang without further evidence
MAX_SPAN = 60.0  # seconds between two looks at workers that are stalled, unless more silence is allowed
RARER = 0.25  # the time to the next look at them, as a fraction of the silence so far
MEASURED = 0.5  # fraction of the allowed silence in which activity has to be measured; stacks take their time
ROUNDING = 1e-6  # seconds


@dataclass(frozen=True, slots=True)
class HangTerms:
    """A node's limits; times are in seconds."""

    timeout: float | None = None  # None: learnt; 0: nothing is ever a hang
    multiple: float = MULTIPLE
    floor: float = FLOOR
    checkpoint_limit: float = CHECKPOINT_LIMIT
    last_bound: float = LAST_BOUND


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """What a worker said of itself; instants are seconds of the host's monotonic clock."""

    local_rank: int
    steps: int  # how many it reported in this round
    step: int  # the number of the last one; -1: none
    sign_at: float  # its latest sign of life
    longest: float  # seconds: the longest silence between two signs, without pauses
    pause: float = 0.0  # seconds: the longest pause
    busy_since: float | None = None  # it is in a checkpoint since then


@dataclass(frozen=True, slots=True)
class Looked:
    """The page was read; workers that report nothing are left out."""

    workers: tuple[WorkerProgress, ...]


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """The answer to TakeStacks, by local rank where there is one, and the page as read after that."""

    workers: tuple[WorkerProgress, ...]
    texts: Mapping[int, str]
    before: Mapping[int, Footprint] = field(default_factory=dict)
    after: Mapping[int, Footprint] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker ended, well or not."""

    local_rank: int


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """A single worker that ended begins anew: its earlier reports do not count."""

    local_rank: int


ProgressEvent = Looked | StacksTaken | WorkerEnded | WorkerRestarted


@dataclass(frozen=True, slots=True)
class TakeStacks:
    """Take the stacks of these workers, then report StacksTaken."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stalled:
    """The workers are silent; ``stall`` is about the one that lags."""

    stall: Stall
    again: bool = False  # a stall with the same evidence was reported before


@dataclass(frozen=True, slots=True)
class Resumed:
    """Workers that were stalled make steps again, or were seen at work."""


ProgressEffect = TakeStacks | Stalled | Resumed


class Phase(Enum):
    """How far the suspicion goes."""

    CALM = "calm"
    SUSPECT = "suspect"  # stacks were taken, and have not moved since
    STALLED = "stalled"


class HangMachine:
    """Judges the workers of one round on one node. ``now`` is the host's monotonic clock in seconds."""

    def __init__(self, first_rank: int, local_ranks: Iterable[int], terms: HangTerms) -> None:
        self.phase = Phase.CALM
        self._first_rank = first_rank
        self._terms = terms
        self._alive = set(local_ranks)
        self._workers: dict[int, WorkerProgress] = {}
        self._learnt = 0.0  # seconds of silence that are allowed since silent workers were seen at work
        self._since: float | None = None  # the latest sign of life; None: nothing to judge
        self._moved_at = 0.0  # when stacks were last seen to move
        self._stacks: Mapping[int, Stack] = {}  # of the look before
        self._stillness = Stillness()
        self._told = Evidence.NONE  # with the last Stalled
        self._looks = 0  # that are still to come
        self._asked_at = 0.0  # when stacks were asked for
        self._is_waiting = False  # for StacksTaken
        self._deadline: float | None = None
        self._effects: list[ProgressEffect] = []

    def handle(self, event: ProgressEvent, now: float) -> list[ProgressEffect]:
        """Take in one event and return what to do, in order."""
        self._effects = []
        match event:
            case Looked(workers):
                self._look(workers, now)
            case StacksTaken(workers, texts, before, after):
                self._is_waiting = False
                self._look(workers, now)
                sight = Sight({rank: main_stack(text) for rank, text in texts.items()}, before, after)
                self._compare(sight, now)
            case WorkerEnded(local_rank):
                self._alive.discard(local_rank)
                self._look(tuple(self._workers.values()), now)
            case _:  # a worker that had ended was restarted
                self._alive.add(event.local_rank)
        self._plan(now)
        return self._effects

    def next_deadline(self) -> float | None:
        """When to look at the page again, or None."""
        return self._deadline

    @property
    def allowed(self) -> float:
        """Seconds of silence that are no hang by themselves."""
        if self._terms.timeout is not None:
            return self._terms.timeout
        shown = max(map(self._shown, self._workers.values()), default=0.0)
        return max(self._terms.floor, shown, self._learnt)

    def _shown(self, worker: WorkerProgress) -> float:
        return max(self._terms.multiple * worker.longest, PAUSE_MULTIPLE * worker.pause)

    @property
    def _span(self) -> float:
        """Seconds until the first look, and from there to the last."""
        return self.allowed if self._terms.timeout is None else self.allowed / 2

    @property
    def _all_looks(self) -> int:
        return LOOKS if self._terms.timeout is None else 1

    def _look(self, workers: tuple[WorkerProgress, ...], now: float) -> None:
        self._workers = {worker.local_rank: worker for worker in workers if worker.local_rank in self._alive}
        before, self._since = self._since, self._silent_since(now)
        if self._since is not None and before is not None and self._since <= before:
            return  # no new sign; the latest one is earlier if its worker has ended
        if self.phase is Phase.STALLED:
            self._effects.append(Resumed())
        self.phase = Phase.CALM
        self._stillness = Stillness()

    def _silent_since(self, now: float) -> float | None:
        """The latest sign of life; None if silence cannot be judged now."""
        limit = max(self._terms.checkpoint_limit, self.allowed)
        signs = []
        for worker in self._workers.values():
            if worker.busy_since is not None and now - worker.busy_since < limit:
                return None
            signs.append(worker.sign_at)
        return max(signs) if self._is_armed else None

    @property
    def _is_armed(self) -> bool:
        """Whether one worker has made enough steps; workers of a group make them together."""
        enough = STEPS_TO_ARM if self._terms.timeout is None else 1
        return any(worker.steps >= enough for worker in self._workers.values())

    def _compare(self, sight: Sight, now: float) -> None:
        if self._since is None or self._since > self._asked_at:
            return  # there was a sign while the stacks were taken
        self._stillness.weigh(sorted(self._alive), sight, self._asked_at)
        before, self._stacks = self._stacks, sight.stacks
        if self.phase is Phase.CALM:
            self.phase = Phase.SUSPECT
            self._looks = self._all_looks
        elif self._terms.timeout is None and have_moved(before, self._stacks):
            if self.phase is Phase.STALLED:
                self._effects.append(Resumed())
            self.phase = Phase.CALM
            self._stillness = Stillness()
            self._moved_at = now
            self._learnt = 2 * self.allowed
        elif self._looks > 1:
            self._looks -= 1
        else:
            stall = self._describe(now)
            again = self.phase is Phase.STALLED and stall.evidence is self._told
            self._effects.append(Stalled(stall, again))
            self.phase, self._told = Phase.STALLED, stall.evidence

    def _describe(self, now: float) -> Stall:
        """Describe the lagging worker: fewest steps, else not waiting for others, else silent for longest."""

        def lag(worker: WorkerProgress) -> tuple[int, bool, float, int]:
            in_collective = is_in_collective(self._stacks.get(worker.local_rank, ()))
            return worker.step, in_collective, worker.sign_at, worker.local_rank

        worker = min((worker for worker in self._workers.values() if worker.steps), key=lag)
        stack = self._stacks.get(worker.local_rank, ())
        evidence, lasting = self._evidence(now)
        return Stall(
            rank=self._first_rank + worker.local_rank,
            local_rank=worker.local_rank,
            step=worker.step,
            silence=SECONDS.clip(now - worker.sign_at),
            allowed=self.allowed,
            in_collective=is_in_collective(stack),
            where=str(stack[0]) if stack else "",
            evidence=evidence,
            lasting=lasting,
            doubt="" if evidence is not Evidence.NONE else self._stillness.doubt(self._first_rank),
        )

    def _evidence(self, now: float) -> tuple[Evidence, float]:
        """The evidence of a hang, and for how many seconds it has held."""
        assert self._since is not None
        if self._terms.timeout is not None:
            return Evidence.TIMEOUT, now - self._since
        if self._stillness.is_held:
            return Evidence.NONE, 0.0
        still, measured = self._stillness.since, self._stillness.quiet >= MEASURED * self.allowed
        if still is not None and measured and self._asked_at - still >= self.allowed - ROUNDING:
            return Evidence.STILL, now - still
        over = now - self._last_instant
        return (Evidence.LAST_BOUND, over) if over >= 0 else (Evidence.NONE, 0.0)

    @property
    def _last_instant(self) -> float:
        """When the last bound is over."""
        assert self._since is not None
        return max(self._since, self._moved_at) + max(self._terms.last_bound, 2 * self.allowed)

    def _plan(self, now: float) -> None:
        """Set the next deadline, or ask for stacks if it has passed."""
        self._deadline = None
        if self._is_waiting or not self._alive or self._terms.timeout == 0:
            return
        if self._since is None:
            self._deadline = now + self._span
            return
        due = {
            Phase.CALM: self._since + self._span,
            Phase.SUSPECT: self._asked_at + self._span / self._all_looks,
            Phase.STALLED: self._next_look,
        }[self.phase]
        if now < due:
            self._deadline = due
            return
        self._is_waiting = True
        self._asked_at = now
        self._effects.append(TakeStacks(tuple(sorted(self._alive))))

    @property
    def _next_look(self) -> float:
        """When to look again at workers that are stalled: on time for the last bound."""
        assert self._since is not None
        if self._terms.timeout is not None:
            return self._asked_at + self._span
        rarer = min(MAX_SPAN, RARER * (self._asked_at - self._since))
        due = self._asked_at + max(self._span, rarer)
        return min(due, self._last_instant) if self._asked_at < self._last_instant else due
