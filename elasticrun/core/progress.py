"""When the silence of a node's workers is a hang: a rule that learns, and asks twice.

Theory. A *sign of life* of a worker is a training step, a batch taken from a data loader, or the begin or end
of a checkpoint. Workers of one group wait for one another, so the group hangs only if all of them are silent:
one that waits long for another that works is fine. The silence of a node is therefore that of its *latest*
sign. A worker that is in a checkpoint suspends the judgement, up to a bound.

How long may they be silent? ``MULTIPLE`` times the longest silence that training has shown so far, at least
``FLOOR``. Eight times a step is beyond what jitter, a slow batch or a busy network do to a step, and still in
proportion to it; the floor covers what does not grow with a step (garbage collection, a file system that
pauses). A *pause* is a silence that was far longer than any step and is rare, as an evaluation: one that
comes again is about as long, so twice the longest is enough; eight times it would be an hour for seven
minutes. Start-up is no training: nothing is learnt from the first two steps, nothing judged before the third.

A long silence may still be work without signs, as an evaluation without a data loader. So the rule looks
again. After one allowed silence the workers are suspect and their stacks are taken, and then ``LOOKS`` times
more during another one: a loop is easily found twice in its slowest line, but hardly every time. If no main
thread was ever seen elsewhere, the node is stalled. If one was, it works: twice the silence is allowed from
now on. A hang is thus found after two allowed silences (and the time to take stacks), within three.

A timeout that the user fixed is taken at its word: stalled after that time, whatever the stacks say.

A node that is stalled is looked at again and again, and says so each time: it may only have waited for
another node, and whoever judges all nodes has to know that what was true is true still.

Invariants. The last look comes no sooner than one allowed silence after the first, so that an agent, or a
whole host, that was frozen does not take its own absence for theirs. ``next_deadline`` is never later than
the earliest instant at which some worker could be silent for too long, and nothing is looked at before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from elasticrun.core.bounds import SECONDS
from elasticrun.core.protocol import Stall

MULTIPLE = 8.0
PAUSE_MULTIPLE = 2.0
FLOOR = 10.0  # seconds
STEPS_TO_ARM = 3
LOOKS = 4  # at the stacks of suspects, after the first
CHECKPOINT_LIMIT = 1800.0  # seconds; a checkpoint that takes longer hangs


@dataclass(frozen=True, slots=True)
class HangTerms:
    """What a node goes by; times are in seconds."""

    timeout: float | None = None  # None: learnt; 0: nothing is ever a hang
    multiple: float = MULTIPLE
    floor: float = FLOOR
    checkpoint_limit: float = CHECKPOINT_LIMIT


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """What a worker said of itself; instants are seconds of the host's monotonic clock."""

    local_rank: int
    steps: int  # how many it reported in this round
    step: int  # the number of the last one; -1: none
    sign_at: float  # its latest sign of life
    longest: float  # seconds: the longest silence between two signs, but for pauses
    pause: float = 0.0  # seconds: the longest pause
    busy_since: float | None = None  # it is in a checkpoint since then


@dataclass(frozen=True, slots=True)
class Looked:
    """The page was read; workers that report nothing are left out."""

    workers: tuple[WorkerProgress, ...]


@dataclass(frozen=True, slots=True)
class StacksTaken:
    """The answer to TakeStacks: texts by local rank as far as there are any, and the page read after that."""

    workers: tuple[WorkerProgress, ...]
    texts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker ended, well or not."""

    local_rank: int


@dataclass(frozen=True, slots=True)
class WorkerRestarted:
    """A worker that ended begins anew, alone: what it had reported before says nothing of it."""

    local_rank: int


ProgressEvent = Looked | StacksTaken | WorkerEnded | WorkerRestarted


@dataclass(frozen=True, slots=True)
class TakeStacks:
    """Take the stacks of these workers, then report StacksTaken."""

    local_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stalled:
    """The workers hang; ``stall`` is about the one that lags."""

    stall: Stall
    again: bool = False  # they still do, as was said before


@dataclass(frozen=True, slots=True)
class Resumed:
    """Workers that were stalled go on."""


ProgressEffect = TakeStacks | Stalled | Resumed


class Phase(Enum):
    """How far the suspicion goes."""

    CALM = "calm"
    SUSPECT = "suspect"  # stacks were taken, and have not moved since
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    function: str
    file: str
    line: int

    @property
    def place(self) -> tuple[str, str, int]:
        """The same for the same place, whichever tool wrote it."""
        return self.function.rpartition(".")[2], self.file.rpartition("/")[2], self.line

    def __str__(self) -> str:
        file = self.file.rpartition("site-packages/")[2]
        return f"{self.function} ({'/'.join(file.split('/')[-3:])}:{self.line})"


Stack = tuple[Frame, ...]  # innermost frame first


class HangMachine:
    """Judges the workers of one round on one node. ``now`` is the host's monotonic clock in seconds."""

    def __init__(self, first_rank: int, local_ranks: Iterable[int], terms: HangTerms) -> None:
        self.phase = Phase.CALM
        self._first_rank = first_rank
        self._terms = terms
        self._alive = set(local_ranks)
        self._workers: dict[int, WorkerProgress] = {}
        self._learnt = 0.0  # seconds that were shown to be work, for all their silence
        self._since: float | None = None  # the latest sign of life; None: nothing to judge
        self._stacks: dict[int, Stack] = {}  # of the look before
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
            case StacksTaken(workers, texts):
                self._is_waiting = False
                self._look(workers, now)
                self._compare({rank: main_stack(text) for rank, text in texts.items()}, now)
            case WorkerEnded(local_rank):
                self._alive.discard(local_rank)
                self._look(tuple(self._workers.values()), now)
            case _:  # a worker was restarted, which ended before
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
            return  # no new sign; earlier, if the worker that gave the latest one has ended
        if self.phase is Phase.STALLED:
            self._effects.append(Resumed())
        self.phase = Phase.CALM

    def _silent_since(self, now: float) -> float | None:
        """The latest sign of life; None if nothing can be said of silence now."""
        limit = max(self._terms.checkpoint_limit, self.allowed)
        signs = []
        for worker in self._workers.values():
            if worker.busy_since is not None and now - worker.busy_since < limit:
                return None
            signs.append(worker.sign_at)
        return max(signs) if self._is_armed else None

    @property
    def _is_armed(self) -> bool:
        """Workers of a group make their steps together: one that has made enough speaks for all."""
        enough = STEPS_TO_ARM if self._terms.timeout is None else 1
        return any(worker.steps >= enough for worker in self._workers.values())

    def _compare(self, stacks: dict[int, Stack], now: float) -> None:
        if self._since is None or self._since > self._asked_at:
            return  # there was a sign while the stacks were taken
        before, self._stacks = self._stacks, stacks
        if self.phase is Phase.CALM:
            self.phase = Phase.SUSPECT
            self._looks = self._all_looks
        elif self._terms.timeout is None and have_moved(before, stacks):
            if self.phase is Phase.STALLED:
                self._effects.append(Resumed())
            self.phase = Phase.CALM
            self._learnt = 2 * self.allowed
        elif self._looks > 1:
            self._looks -= 1
        else:
            self._effects.append(Stalled(self._describe(now), again=self.phase is Phase.STALLED))
            self.phase = Phase.STALLED

    def _describe(self, now: float) -> Stall:
        """About the worker that lags: fewest steps, else not waiting for others, else silent for longest."""

        def lag(worker: WorkerProgress) -> tuple[int, bool, float, int]:
            in_collective = is_in_collective(self._stacks.get(worker.local_rank, ()))
            return worker.step, in_collective, worker.sign_at, worker.local_rank

        worker = min((worker for worker in self._workers.values() if worker.steps), key=lag)
        stack = self._stacks.get(worker.local_rank, ())
        return Stall(
            rank=self._first_rank + worker.local_rank,
            local_rank=worker.local_rank,
            step=worker.step,
            silence=SECONDS.clip(now - worker.sign_at),
            allowed=self.allowed,
            in_collective=is_in_collective(stack),
            where=str(stack[0]) if stack else "",
        )

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
            Phase.STALLED: self._asked_at + self._span,
        }[self.phase]
        if now < due:
            self._deadline = due
            return
        self._is_waiting = True
        self._asked_at = now
        self._effects.append(TakeStacks(tuple(sorted(self._alive))))


# -- stacks

_FAULTHANDLER_THREAD = re.compile(r"(Current thread|Thread) 0x")
_FAULTHANDLER_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_PY_SPY_THREAD = re.compile(r'Thread \S+ \([^)]*\)(: "MainThread")?')
_PY_SPY_FRAME = re.compile(r"    (.+) \((.*):(\d+)\)")


def main_stack(text: str) -> Stack:
    """The main thread's stack in what py-spy or faulthandler wrote of a process; () if there is none.

    py-spy names the main thread. faulthandler lists the newest thread first, so the main thread is the last,
    unless the list was cut; the kernel gives a signal to the main thread first, so it is the current one too.
    """
    threads: list[tuple[bool, list[Frame]]] = []  # (whether it may be the main thread, frames)
    cut = False
    for line in text.splitlines():
        if match := _FAULTHANDLER_THREAD.match(line):
            threads.append((match[1] == "Current thread", []))
        elif match := _PY_SPY_THREAD.match(line):
            threads.append((match[1] is not None, []))
        elif threads and (match := _FAULTHANDLER_FRAME.match(line)):
            threads[-1][1].append(Frame(match[3], match[1], int(match[2])))
        elif threads and (match := _PY_SPY_FRAME.match(line)):
            threads[-1][1].append(Frame(match[1], match[2], int(match[3])))
        cut = cut or line == "..."
    if not threads:
        return ()
    candidates = [frames for is_main, frames in threads if is_main]
    is_py_spy = not _FAULTHANDLER_THREAD.search(text)
    if candidates and (is_py_spy or cut):
        return tuple(candidates[0])
    return tuple(threads[0 if is_py_spy else -1][1])


def have_moved(before: Mapping[int, Stack], after: Mapping[int, Stack]) -> bool:
    """Whether a main thread that was seen twice is elsewhere now. No stack, no evidence."""
    return any(
        [frame.place for frame in stack] != [frame.place for frame in after[local_rank]]
        for local_rank, stack in before.items()
        if stack and after.get(local_rank)
    )


#: Functions that wait for other ranks, or for a device that may be waiting for them.
_COLLECTIVE = re.compile(
    r"_?(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|(distributed_)?broadcast|(monitored_)?barrier"
    r"|(batch_)?i?send|(batch_)?i?recv|wait_tensor)(_.*)?|_?(synchronize|_engine_run_backward)"
)
_COMMUNICATION = re.compile(r"(^|/)torch/distributed/(?!checkpoint/|elastic/|launch|run\.py|optim/)")
#: Files whose frames say nothing of what is waited for: what they wrap does.
_PLUMBING = re.compile(r"(^|/)(torch/_ops|torch/_library/.*|torch/utils/_contextlib|contextlib)\.py$")


def is_in_collective(stack: Stack) -> bool:
    """Whether the innermost frame that means anything waits for other ranks.

    Told by names alone, so only a guess: ``work.wait()`` in the script leaves no frame of its own.
    """
    for frame in stack:
        if _COLLECTIVE.fullmatch(frame.function.rpartition(".")[2]) or _COMMUNICATION.search(frame.file):
            return True
        if not _PLUMBING.search(frame.file):
            return False
    return False
