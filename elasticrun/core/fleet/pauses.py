"""When the next replica may be started, after others have failed, were lost, or were told to leave."""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.core.fleet.replicas import Tally

#: Seconds of pause before the second replacement in a row; it doubles up to the longest.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
#: Seconds after which a failure is none "in a row".
CALM = 600.0
#: The same of losses that cost nothing; so many of them in a row, beside each replica twice, are replaced at
#: once. Whoever deletes all that is started would else have it started as fast as the platform can.
LOSS_CALM, FREE_LOSSES = 60.0, 8


def is_within(seconds: float, then: float | None, now: float) -> bool:
    """Whether something was at most so many seconds ago; None: it never was."""
    return then is not None and now - then < seconds


def not_before_of(
    tallies: Iterable[Tally], drained_at: float | None, grace: float, replicas: int
) -> float | None:
    """Until when nothing may be started of what these are the tallies of, so many replicas.

    Of a replica that was told to leave the others may have been told so too, as by elastic-ctl stop; then
    they have left within their grace. ``drained_at``: when that was.
    """
    waits = [] if drained_at is None else [drained_at + grace]
    for tally in tallies:
        if tally.streak > 1 and tally.failed_at is not None:
            pause = FIRST_PAUSE * 2.0 ** min(tally.streak - 2, 30)
            waits.append(tally.failed_at + min(pause, LONGEST_PAUSE))
        if tally.losses > 2 * replicas + FREE_LOSSES and tally.lost_at is not None:
            waits.append(tally.lost_at + FIRST_PAUSE)
    return max(waits, default=None)
