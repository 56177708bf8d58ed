"""The cases of the what-if, in the words and with the precision of a report.

A difference is given with two digits, as the models are not better than that, and where figures were not
measured in this job, with the least and the most that they make of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import floor, log10

from elasticrun.core.protocol.amounts import time_text
from elasticrun.core.review.document import Case
from elasticrun.core.whatif.measured import Measured
from elasticrun.core.whatif.replay import (
    FIGURES,
    MEANINGS,
    Outcome,
    as_measured,
    intervals,
    replayed,
    torchrun,
    with_spare,
)

HOUR = 3600.0
ABOUT_TORCHRUN = (
    "Each incident costs a cold restart of all workers: meeting again, imports, the steps that this log shows"
    " from there on. A lost node is noticed after missed signs of life; a node that joins restarts all."
    " The state is gone back to the last save in the storage."
)
ABOUT_INTERVALS = (
    "Saves further apart hold up the training less often, in proportion; and after an incident more is done"
    " again, in proportion, up to one interval. Both scale what was measured."
)
ABOUT_SPARE = (
    "Waiting for nodes goes away after those incidents in which one node was gone; the spare is paid for all"
    " the time."
)
ABOUT_ALL = (
    "The same incidents at the same moments of training, and no others in the time that is added. Differences"
    " have two digits."
)


def rounded(value: float) -> float:
    """With two digits."""
    if value == 0:
        return 0.0
    return round(value, 1 - floor(log10(abs(value))))


def cases(measured: Measured, assumed: Mapping[str, float], hourly: float | None) -> Iterator[Case]:
    """All that this log has the figures for."""
    if measured.seconds <= 0:
        return
    if measured.all.count:
        outcomes = [replayed(measured, torchrun(measured, assumed, end)) for end in (-1, 0, 1)]
        yield _case(measured, hourly, "torchrun's restarts", outcomes, ABOUT_TORCHRUN)
    for row in intervals(measured):
        if not row.is_measured:
            name = f"a save each {time_text(row.every)} of training"
            best = ", the best by Young and Daly" if row.is_best else ""
            yield _case(measured, hourly, name + best, [row.outcome] * 3, ABOUT_INTERVALS)
    if measured.all.waiting > 0:
        yield _case(measured, hourly, "one spare more", [with_spare(measured)] * 3, ABOUT_SPARE)


def _case(measured: Measured, hourly: float | None, name: str, outcomes: list[Outcome], about: str) -> Case:
    before = as_measured(measured)
    least, more, most = (rounded(outcome.seconds - before.seconds) for outcome in outcomes)
    usual = outcomes[1]
    nodes = usual.node_seconds - before.node_seconds
    return Case(
        name,
        more,
        min(least, more),
        max(most, more),
        rounded(nodes),
        None if hourly is None else rounded(nodes / HOUR * hourly),
        min(1.0, measured.productive / usual.seconds) if measured.productive and usual.seconds > 0 else None,
        about,
    )


def assumptions(measured: Measured, assumed: Mapping[str, float]) -> Iterator[str]:
    """What the what-if goes by, in words."""
    yield ABOUT_ALL
    if not measured.sees_steps:
        yield (
            "Nobody reported steps: what was done again is not known, and what saves cost is not either."
            " So losses are underestimated."
        )
    for name, guess in FIGURES.items():
        if name in assumed:
            yield f"{name} = {assumed[name]:g}, as given: {MEANINGS[name]}"
        else:
            yield f"{name} = {guess.usual:g} ({guess.least:g} to {guess.most:g}): {MEANINGS[name]}"
    if "every" in assumed:
        yield f"every = {assumed['every']:g}, as given: {MEANINGS['every']}"
    elif measured.stored:
        yield "torchrun's saves are those that the log has in the storage"
    elif measured.saves:
        yield "torchrun's saves are at the best interval by Young and Daly, as none is in the storage"
    else:
        yield "the log has no saves: torchrun's script does as much work again as this one did"
    yield f"from the imports to the first step of a round the log has {time_text(measured.setup)}"
