"""What the end of a replica means: for the job, for its replacement, and for its host.

Theory. Agents restart their workers themselves. So a replica that has ended has lost its agent, or its agent
has said with its exit code what is to be done: nothing, as the job is over; start a node elsewhere, as this
host is faulty; or give up, as the next one would only end likewise. What the platform did to a replica, such
as an eviction, is no failure of the job and spends nothing (``notices.py``).
"""

from __future__ import annotations

from enum import Enum

from elasticrun.core.fleet.notices import FREE_CAUSES, LEAVING_CODES
from elasticrun.core.fleet.replicas import Cause, Role, Seen
from elasticrun.dataclass import dataclass
from elasticrun.errors import EXIT_CODE_MEANING, ExitCode

#: Codes with which an agent says that the whole job has failed.
_JOB_FAILED = frozenset({ExitCode.JOB_FAILED, ExitCode.REPEATED_ERROR, ExitCode.UNHEALTHY})
#: Codes that a next try would only repeat.
_HOPELESS = frozenset({ExitCode.USAGE, ExitCode.WRONG_JOB, ExitCode.WRONG_VERSION, ExitCode.UNAUTHENTICATED})
#: Codes that speak against the host.
_BAD_HOST = frozenset({ExitCode.EXCLUDED, ExitCode.NODE_FAULT, ExitCode.ENDPOINT_TAKEN})
_SIGNAL = 128
#: How much more memory a replica gets, and how much more than at first if no other bound is given.
MORE, MOST_TIMES = 2, 8


class Fate(Enum):
    """What follows."""

    SUCCEEDED = "succeeded"
    JOB_FAILED = "job failed"
    AGAIN = "again"  # if the others end as well, the job begins again; else it is replaced
    DRAINED = "drained"  # it was told to leave; perhaps all were
    HOPELESS = "hopeless"  # no replacement
    FREE = "free"  # replaced, at no cost
    FAILED = "failed"  # replaced, and counted
    MORE_MEMORY = "more memory"  # the same, and with more memory


#: What one replica alone proves of the whole job.
OF_JOB = frozenset({Fate.SUCCEEDED, Fate.JOB_FAILED})


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one replica."""

    fate: Fate
    text: str  # what happened, after "replica 3"
    avoid: bool = False  # no replica should run on its host


def judge(seen: Seen) -> Judgement:
    """Judge a replica that has ended, or that is being deleted."""
    code = seen.exit_code
    if code == ExitCode.OK:
        return Judgement(Fate.SUCCEEDED, _text(seen))
    if code in _JOB_FAILED and seen.cause is Cause.EXITED:
        return Judgement(Fate.JOB_FAILED, _text(seen))
    if seen.cause in FREE_CAUSES or seen.is_leaving:
        return Judgement(Fate.FREE, _text(seen))
    if seen.cause is Cause.OUT_OF_MEMORY:
        # Without a limit of its own it was the host that had too little.
        bounded = seen.memory > 0
        return Judgement(Fate.MORE_MEMORY if bounded else Fate.FAILED, _text(seen), avoid=not bounded)
    if code == ExitCode.RENDEZVOUS_TIMEOUT:
        return Judgement(Fate.AGAIN, _text(seen))
    if code in LEAVING_CODES:
        return Judgement(Fate.DRAINED, _text(seen))
    if code in _HOPELESS:
        return Judgement(Fate.HOPELESS, _text(seen))
    if code == ExitCode.EXCLUDED:
        return Judgement(Fate.FREE, _text(seen), avoid=True)
    return Judgement(Fate.FAILED, _text(seen), avoid=code in _BAD_HOST)


def more_memory(role: Role, given: int, seen: Seen) -> tuple[int, int]:
    """What replicas get, if they are given so much and one had too little; and the most that there may be."""
    cap = role.max_memory or (role.memory or seen.memory) * MOST_TIMES
    return max(given, min(cap, seen.memory * MORE)), cap


def _text(seen: Seen) -> str:
    """What happened, for people."""
    where = f" on {seen.host}" if seen.host else ""
    said = f" ({seen.words})" if seen.words else ""
    match seen.cause:
        case Cause.OUT_OF_MEMORY:
            limit = (
                f" of {in_words(seen.memory)}"
                if seen.memory
                else ", which is not set: the host had none left"
            )
            return f"was killed{where}: it reached its memory limit{limit}{said}"
        case Cause.EVICTED:
            return f"was evicted{where}: the host ran low on something{said}"
        case Cause.HOST_LOST:
            return f"is lost with its host{where}{said}"
        case Cause.PREEMPTED:
            return f"was preempted{where}{said}"
        case Cause.NOT_STARTED:
            return f"was refused{where}{said}"
    if seen.exit_code is not None:
        return f"ended{where} with {_meaning(seen.exit_code)}{said}"
    if seen.cause is Cause.DELETED or seen.is_leaving:
        return f"was deleted{where}{said}"
    return f"ended{where} without an exit code{said}"


def _meaning(code: int) -> str:
    known = {each.value: each for each in ExitCode}
    if code in known:
        return f"{code}: {EXIT_CODE_MEANING[known[code]]}"
    return f"{code}: signal {code - _SIGNAL}" if code > _SIGNAL else str(code)


def in_words(memory: int) -> str:
    """An amount of memory for people."""
    for unit, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if memory >= size:
            return f"{memory / size:.4g} {unit}B"
    return f"{memory} bytes"
