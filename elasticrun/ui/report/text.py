"""The report in a few lines, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elasticrun.core.advice.rules import Advice
from elasticrun.core.protocol.amounts import count, percent, time_text
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.review.document import Report, Spent
from elasticrun.ui.report.words import difference, hours, money, money_difference

#: The most lines of a part.
_MOST = 8


def lines(report: Report) -> Iterator[str]:
    """What matters most."""
    yield from map(one_line, _lines(report))


def _lines(report: Report) -> Iterator[str]:
    ending = f"{report.outcome}: {report.reason}" if report.outcome else "not over"
    cost = "" if report.cost is None else f", {money(report.cost, report.currency)}"
    yield f"{time_text(report.seconds)}, {hours(report.node_seconds)} of nodes{cost}; {ending}"
    yield f"goodput {percent(report.goodput)} of all nodes, ETTR {percent(report.ettr)} of the job"
    yield from report.notes
    yield f"job:   {_split(report.job)}"
    yield f"nodes: {_split(report.nodes)}"
    for sums in report.recovery_sums:
        median = "" if sums.median is None else f", median {time_text(sums.median)}"
        yield (
            f"{sums.kind}: {count(sums.count, 'time')}{median}, {time_text(sums.seconds)} in all, and"
            f" {time_text(sums.redone)} of work done again"
        )
    for row in report.failures[:_MOST]:
        yield f"failed {count(row.count, 'time')}, first in round {row.first_round}: {row.text}"
    if report.advice:
        yield "advice:"
        yield from (f"  {each}" for each in advice_lines(report.advice))
    if report.what_if:
        yield "what if:"
        for case in report.what_if:
            spread = (
                "" if case.least == case.most else f" ({difference(case.least)} to {difference(case.most)})"
            )
            paid = "" if case.money is None else f", {money_difference(case.money, report.currency)}"
            nodes = difference(case.more_node_seconds, in_hours=True)
            yield f"  {case.name}: {difference(case.more)}{spread} of the job, {nodes} of nodes{paid}"


def advice_lines(advice: Iterable[Advice]) -> Iterator[str]:
    """A line for each piece."""
    for each in advice:
        yield one_line(f"{each.finding}: {each.action}")


def _split(spent: tuple[Spent, ...]) -> str:
    return ", ".join(f"{it.activity} {percent(it.share)}" for it in spent[:_MOST]) or "no time yet"
