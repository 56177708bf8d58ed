"""When the next replica may be started, after others have failed, were lost, or were told to leave."""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.fleet.replicas import Amounts, Record

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


def forgiven(record: Record) -> Record:
    """The record of a job that is suspended: it is resumed as if nothing had failed."""
    return replace(
        record,
        failures=0,
        streak=0,
        failed_at=None,
        losses=0,
        lost_at=None,
        drained_at=None,
        halted="",
        requests=Amounts(),
        peak=Amounts(),
        unsized="",
    )


def not_before_of(record: Record, grace: float, replicas: int) -> float | None:
    """Until when nothing may be started.

    Of a replica that was told to leave the others may have been told so too, as by elastic-ctl stop; then
    they have left within their grace.
    """
    waits = []
    if record.drained_at is not None:
        waits.append(record.drained_at + grace)
    if record.streak > 1 and record.failed_at is not None:
        pause = FIRST_PAUSE * 2.0 ** min(record.streak - 2, 30)
        waits.append(record.failed_at + min(pause, LONGEST_PAUSE))
    if record.losses > 2 * replicas + FREE_LOSSES and record.lost_at is not None:
        waits.append(record.lost_at + FIRST_PAUSE)
    return max(waits, default=None)
