"""Which of a round's failures caused the others.

The failures of a round are judged once all of its workers have ended, with everything known that each of
them left behind. The order in which they were *heard of* decides little: a rank that raises an exception may
take a second to end, and its peers, who lose their connection to it, end first. These decide, in this order:

1. *Kind.* A device that is proven broken explains whatever its programs say. An *echo* (a connection lost, a
   collective that timed out) is the cause only if there is nothing else. The words of a worker that the
   launcher had to stop come before an echo, but after a worker that ended by itself: it was likely failing,
   but that is certain only if it recorded when.
2. *Time*, among those of one host, whose clock is the same: when the exception was recorded, else when the
   process ended.
3. Between hosts, whose clocks are not compared: the class that looks least like an error of a peer (its
   ``order``), then the host that was heard of first.

So the cause is never an echo if there is another failure, and the order in which one host's failures arrive
does not change it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from elasticrun.config import FailureClass
from elasticrun.core.protocol.messages import Failure, FailureKind
from elasticrun.core.recovery.diagnosis import Diagnosis, diagnose
from elasticrun.core.recovery.symptoms import TOLD_TO_STOP
from elasticrun.core.recovery.traceback_text import last_raised

_Diagnosed = tuple[Failure, Diagnosis]


def root_cause(failures: Sequence[Failure]) -> _Diagnosed:
    """The failure of a round that caused the others, with its diagnosis.

    ``failures`` are in the order in which they were heard of, and must not be empty.
    """
    found = [(failure, diagnose(failure)) for failure in failures]
    best = min(map(_tier, found))
    firsts: dict[str, _Diagnosed] = {}  # of each host, in the order in which the hosts were heard of
    for pair in found:
        if _tier(pair) == best:
            host = pair[0].host
            firsts[host] = min(firsts.get(host, pair), pair, key=_moment)
    return min(firsts.values(), key=_rank)


def was_failing(stopped: Failure) -> bool:
    """Whether the words of a worker that the launcher stopped show that it was about to fail anyway."""
    if not stopped.error_file and not _is_uncaught(stopped.stderr_tail):
        return False
    found = diagnose(stopped)
    if found.echo or found.failure_class is FailureClass.PREEMPTION:
        return False
    recorded = f"{stopped.message}\n{stopped.traceback}" if stopped.error_file else ""
    return not _told_to_stop().search(recorded or stopped.stderr_tail)


def _is_uncaught(stderr: str) -> bool:
    """Whether the last exception on stderr went all the way up; a program may print those it catches."""
    raised = last_raised(stderr)
    return raised is not None and raised.frames[0].function == "<module>"


@cache
def _told_to_stop() -> re.Pattern[str]:
    return re.compile("|".join(TOLD_TO_STOP))


def _tier(pair: _Diagnosed) -> int:
    failure, found = pair
    if found.failure_class is FailureClass.HARDWARE and found.sure:
        return 0
    if found.echo and failure.kind not in (FailureKind.PORT_TAKEN, FailureKind.SPAWN, FailureKind.HANG):
        return 3
    return 2 if failure.stopped and not failure.raised else 1


def _moment(pair: _Diagnosed) -> tuple[float, int]:
    failure, _ = pair
    return failure.raised or failure.timestamp, _rank(pair)


def _rank(pair: _Diagnosed) -> int:
    return pair[1].failure_class.order
