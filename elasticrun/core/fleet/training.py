"""What a platform shows of the training, as the job's master tells it: which facts, and when.

Theory. The master is asked again and again, and waits with its answer until something is new. It runs in a
replica, beside code of anybody, so it may be dead, late or lying: each value is brought within bounds here,
and nothing that is shown decides which replicas there are, but for the speed. (That replicas are stranded is
not shown, and does decide: ``decide.py``.) What it said last stays shown while it is away; a condition says
so once that has lasted for ``PATIENCE``, as a master that is started again is back sooner.

Each change that is shown costs the platform a write, and there may be hundreds of jobs. So there are at least
``GAP`` seconds between two changes of what is shown of one job; what happens meanwhile is shown together. So
a job of which nothing is shown yet begins with its first round, which would else come ``GAP`` later. The
goodput changes all the time: alone it is a reason only if it moved by ``STEP``, and not before ``SLOW_GAP``.

How fast a job is decides one thing: how the units that are left are shared among jobs (``cluster/curve.py``,
which bounds what it does). So a speed is taken only from a world that has made steps for ``SETTLED``: the
first ones tell of its start. Of each size the newest one is kept, and another one is news if it is off by
``OTHER``. There are at least ``SPEED_GAP`` seconds between two of them: in that time a change of size has to
pay (``Rules.horizon``), so no job makes the others change more often than that. Each of several operators
counts by itself, and one that is started again knows of no last one.

Invariants. Of each job at most one question is under way. There are never two changes within ``GAP``, so not
two notes of a new round either. A contact with nothing new is never due.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from elasticrun.core.fleet.replicas import Amounts, Condition, Note, Usage
from elasticrun.core.fleet.sizing import coarse_usage
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.protocol.round_progress import MAX_PEAKS, UsagePeak
from elasticrun.core.protocol.status import JobPhase, JobStatus
from elasticrun.dataclass import dataclass

#: Seconds between two changes of what is shown of a job: of facts, and if only its goodput has moved by STEP.
GAP, SLOW_GAP, STEP = 10.0, 60.0, 0.01
#: Seconds that a world has made steps before its speed counts, and by which share another speed is news.
SETTLED, OTHER = 60.0, 0.1
#: Seconds between two speeds of a job.
SPEED_GAP = 300.0
#: Sizes of which the speed is kept; and steps a second, which no job reaches.
MOST_SIZES, FASTEST = 32, 1e9
#: Seconds without an answer after which it is shown that there is none.
PATIENCE = 15.0
#: Seconds between two questions: after an answer that came at once, and after none; that one doubles.
SPACING, FIRST_PAUSE, LONGEST_PAUSE = 2.0, 1.0, 60.0
#: Seconds that a master may wait for news; if more jobs than there are questions at a time take turns, less.
LONG_WAIT, SHORT_WAIT = 25.0, 5.0
_SHOWN = 200  # characters of a sentence
_MOST = 1 << 53  # what every reader of JSON takes for a whole number
_CORES = 1e6
FRESH = "StatusFresh"


@dataclass(frozen=True, slots=True)
class Training:
    """What a master tells of its job."""

    phase: str
    round: int  # -1: there was none
    nodes: int  # of the round
    workers: int
    restarts: int  # that were used
    goodput: float | None  # 0 to 1; None: not known
    cause: str  # why the last round that stopped did
    usage: Usage = Usage()
    rate: float | None = None  # steps per second; None: not known


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a job was with so many nodes."""

    nodes: int
    workers: int
    rate: float  # steps per second


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing is heard of a master."""

    reason: str  # one word
    text: str


@dataclass(frozen=True, slots=True)
class Shown:
    """What people see."""

    training: Training | None = None  # the last that was heard; None: nothing was
    trouble: Trouble | None = None  # why it is old; None: it is fresh
    speed: Speed | None = None  # the last that was measured; None: none was


@dataclass(frozen=True, slots=True)
class Contact:
    """What is known of one job's master. Times are seconds of one monotonic clock."""

    heard: Training | None = None
    trouble: Trouble | None = None  # of the last question
    failures: int = 0  # questions without an answer, in a row
    since: float = 0.0  # the first of these
    steps_since: float = 0.0  # since when it is known that its world makes steps, or makes none yet
    shown: Shown | None = None
    shown_at: float = 0.0
    speed_at: float = -math.inf  # when the speed that is shown was


def training_of(status: JobStatus) -> Training:
    """What is shown of a status, whatever it says."""
    goodput = status.goodput
    return Training(
        phase=status.phase.value,
        round=max(-1, min(status.round, _MOST)),
        nodes=_count(status.world),
        workers=_count(status.workers),
        restarts=_count(status.restarts_used),
        goodput=None if goodput is None else round(max(0.0, min(goodput, 1.0)), 3),
        cause=one_line(status.cause)[:_SHOWN],
        usage=_usages(status),
        rate=_rate(status.steps_rate) if status.phase is JobPhase.RUNNING else None,
    )


def _rate(value: float | None) -> float | None:
    return float(f"{value:.3g}") if value is not None and 0 < value < FASTEST else None


def _usages(status: JobStatus) -> Usage:
    whole = Usage() if status.peak is None else _usage(status.peak)
    peaks = status.role_peaks[:MAX_PEAKS]
    return replace(whole, by_role=tuple((one_line(it.role)[:_SHOWN], _usage(it.peak)) for it in peaks))


def _usage(peak: UsagePeak) -> Usage:
    most = Amounts(_count(peak.memory), _count(math.ceil(min(peak.cpu, _CORES) * 1000)))
    return coarse_usage(Usage(most, Amounts(_count(peak.memory_limit), _count(peak.cpus) * 1000)))


def _count(value: int) -> int:
    return max(0, min(value, _MOST))


def answered(contact: Contact, training: Training, now: float) -> Contact:
    """The master has told this."""
    before = contact.heard
    is_same = before is not None and _pace(before) == _pace(training)
    steps_since = contact.steps_since if is_same else now
    return replace(contact, heard=training, trouble=None, failures=0, steps_since=steps_since)


def _pace(training: Training) -> tuple[str, int, int, int, bool]:
    """What a speed is of, and whether there is one."""
    return training.phase, training.round, training.nodes, training.workers, training.rate is not None


def failed(contact: Contact, trouble: Trouble, now: float) -> Contact:
    """The master has told nothing."""
    since = contact.since if contact.trouble is not None else now
    trouble = replace(trouble, text=one_line(trouble.text)[:_SHOWN])
    return replace(contact, trouble=trouble, failures=contact.failures + 1, since=since)


def pause_after(failures: int) -> float:
    """Seconds until the next question after so many without an answer."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(failures, 1) - 1, 30))


def wait_for(jobs: int, at_a_time: int) -> float:
    """Seconds that a master may wait for news if so many jobs share so many questions at a time."""
    return LONG_WAIT if jobs <= at_a_time else SHORT_WAIT


def due(contact: Contact) -> float | None:
    """When to show something new; None: there is nothing. A time that has passed: now."""
    found: list[float] = []
    shown = contact.shown or Shown()
    first = float("-inf") if contact.shown is None else contact.shown_at
    if (gap := _gap(shown.training, contact.heard)) is not None:
        found.append(first + gap)
    if contact.trouble is None:
        if shown.trouble is not None:
            found.append(first + GAP)
    elif shown.trouble is None or shown.trouble.reason != contact.trouble.reason:
        found.append(max(first + GAP, contact.since + PATIENCE))
    if _new_speed(contact) is not None:
        found.append(max(first + SLOW_GAP, _speed_due(contact)))
    return min(found, default=None)


def _gap(old: Training | None, new: Training | None) -> float | None:
    """Seconds after the last change before this one may be shown; None: it is none."""
    if new is None or new == old or (old is None and new.round < 0):
        return None
    if old is None or replace(old, goodput=new.goodput, rate=new.rate) != new:
        return GAP
    if old.goodput is None or new.goodput is None:
        return None if old.goodput == new.goodput else GAP
    return SLOW_GAP if abs(old.goodput - new.goodput) >= STEP else None


def _speed_due(contact: Contact) -> float:
    return max(contact.steps_since + SETTLED, contact.speed_at + SPEED_GAP)


def _new_speed(contact: Contact) -> Speed | None:
    """What was heard, if it is another speed than the one that is shown."""
    told, shown = contact.heard, None if contact.shown is None else contact.shown.speed
    if told is None or told.rate is None or not told.nodes or contact.trouble is not None:
        return None
    speed = Speed(told.nodes, told.workers, told.rate)
    if shown is None or replace(shown, rate=speed.rate) != speed:
        return speed
    return speed if abs(speed.rate - shown.rate) >= OTHER * shown.rate else None


def show(contact: Contact, now: float) -> Contact:
    """Show what there is now."""
    trouble, before = contact.trouble, contact.shown or Shown()
    if trouble is not None and now < contact.since + PATIENCE:
        trouble = before.trouble  # it may pass
    speed = _new_speed(contact) if now >= _speed_due(contact) else None
    shown = Shown(contact.heard, trouble, speed or before.speed)
    return replace(contact, shown=shown, shown_at=now, speed_at=now if speed else contact.speed_at)


def with_speed(known: Iterable[Speed], speed: Speed) -> tuple[Speed, ...]:
    """The speeds by size, with this one; if there are too many, without those furthest from it."""
    others = sorted(
        (it for it in known if it.nodes != speed.nodes), key=lambda it: abs(it.nodes - speed.nodes)
    )
    return tuple(sorted((*others[: MOST_SIZES - 1], speed), key=lambda it: it.nodes))


def freshness(shown: Shown) -> Condition:
    """Whether what is shown is of now."""
    if shown.trouble is None:
        return Condition(FRESH, True, "Heard", "")
    return Condition(FRESH, False, shown.trouble.reason, shown.trouble.text)


def note_of(training: Training | None, told: int | None) -> Note | None:
    """What to tell of a new round; ``told``: the last one that was told."""
    if training is None or training.round < 0 or training.round == told:
        return None
    lost = f"; the last one ended: {training.cause}" if training.cause and training.round else ""
    text = f"round {training.round} was formed: {training.nodes} nodes, {training.workers} workers{lost}"
    return Note("RoundFormed", text)
