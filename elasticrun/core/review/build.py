"""A review as a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.accounting.activities import Spent as SpentTime
from elasticrun.core.accounting.summary import LOST, Summary, by_loss, share
from elasticrun.core.advice.rules import advise
from elasticrun.core.history.incidents import FailureClass, Kind
from elasticrun.core.history.views import Recovery, RoundView
from elasticrun.core.protocol.amounts import count
from elasticrun.core.protocol.chronicle import Place
from elasticrun.core.review.cases import HOUR, assumptions, cases
from elasticrun.core.review.document import (
    VERSION,
    FailureAt,
    FailureRow,
    NodeRow,
    Ratios,
    RecoveryRow,
    RecoverySums,
    Report,
    RoundRow,
    SavedRow,
    Spent,
)
from elasticrun.core.review.review import Review, Sample, Series
from elasticrun.core.whatif.measured import measured

#: What workers do of which nobody tells.
UNKNOWN = "in a round"
#: How many nodes are listed.
WORST = 20
NOTHING_ASSUMED: Mapping[str, float] = MappingProxyType({})


def report(
    review: Review,
    assumed: Mapping[str, float] = NOTHING_ASSUMED,
    hourly: float | None = None,
    currency: str = "",
) -> Report:
    """What a log tells. ``hourly``: the cost of a node for an hour."""
    history = review.history
    summary, sums, known = history.summary(), measured(history), _sees_work(review)
    return Report(
        version=VERSION,
        began=history.first[1] if history.first is not None else 0.0,
        ended=history.last[1],
        until=history.last[0],
        seconds=sums.seconds,
        node_seconds=sums.node_seconds,
        outcome=history.outcome,
        reason=history.end_reason,
        goodput=summary.goodput if known else None,
        ettr=summary.ettr if known else None,
        entries=review.entries,
        notes=tuple(_notes(review)),
        job=_split(summary.job, known),
        nodes=_split(summary.total, known),
        ratios=tuple(_ratios(review)) if known else (),
        rounds=tuple(map(_round, history.rounds)),
        rounds_before=history.restarts - max(0, len(history.rounds) - 1),
        failures=tuple(sorted(map(_class, history.incidents.classes.values()), key=lambda it: -it.count)),
        failed=history.failed,
        failures_at=tuple(
            FailureAt(at, it.round, it.node, it.rank, it.summary) for at, _, it in history.failures
        ),
        recoveries=tuple(map(_recovery, history.recoveries)),
        recovery_sums=tuple(_recovery_sums(review)),
        slowest=tuple(_slowest(review, summary)),
        saved=tuple(_saved(review)),
        advice=advise(history),
        what_if=tuple(cases(sums, assumed, hourly)),
        assumptions=tuple(assumptions(sums, assumed)),
        currency=currency,
        cost_per_node_hour=hourly,
        cost=None if hourly is None else sums.node_seconds / HOUR * hourly,
    )


def _sees_work(review: Review) -> bool:
    """Whether somebody told of steps. Else work cannot be told from imports and the like."""
    return review.history.reports_steps


def _word(activity: Activity, known: bool) -> str:
    """What an activity is called; without steps all of a round looks like imports."""
    return activity.value if known or activity is not Activity.IMPORT else UNKNOWN


def _notes(review: Review) -> Iterator[str]:
    history = review.history
    if not review.entries:
        yield "The log is empty."
    elif not history.outcome:
        yield "The job is not over, or its end is not in the log."
    if review.begins_late:
        yield "The log begins in the middle of the job: what was before is not accounted."
    if history.missed:
        known = count(review.lost, "line") if review.lost else "lines"
        yield f"In between, {known} could not be written: figures may be too low."
    if review.entries and not _sees_work(review):
        yield "No steps were reported: work cannot be told from imports, so goodput and ETTR are not known."


def _split(spent: SpentTime, known: bool) -> tuple[Spent, ...]:
    return tuple(
        Spent(_word(each, known), spent[each] / 1e6, share(spent[each], spent)) for each in by_loss(spent)
    )


def _ratios(review: Review) -> Iterator[Ratios]:
    series = Series(list(review.series.samples))
    series.add(review.history)
    before = Sample(0.0, 0.0, 0.0, 0.0, 0.0)
    for sample in series.samples:
        if sample.job <= before.job:
            continue
        yield Ratios(
            sample.at,
            _part(sample.nodes_productive, sample.nodes),
            _part(sample.productive, sample.job),
            _part(sample.nodes_productive - before.nodes_productive, sample.nodes - before.nodes),
            _part(sample.productive - before.productive, sample.job - before.job),
        )
        before = sample


def _part(part: float, whole: float) -> float:
    """A share; what was judged otherwise later may make it less than nothing, or more than all."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def _round(view: RoundView) -> RoundRow:
    ended = view.stopping if view.stopping is not None else view.stopped
    return RoundRow(
        view.number,
        view.started,
        view.first_step,
        ended,
        view.nodes,
        view.workers,
        view.cause,
        view.stop_reason,
        view.restored_step,
        view.step if view.step >= 0 else None,
    )


def _class(found: FailureClass) -> FailureRow:
    first = found.first
    return FailureRow(
        found.how,
        found.exit_code,
        first.summary,
        found.count,
        tuple(sorted(found.hosts)),
        found.first_at,
        found.last_at,
        first.round,
        first.node,
        first.rank,
        first.local_rank,
        first.pid,
    )


def _recovery(it: Recovery) -> RecoveryRow:
    def since(later: float | None, earlier: float | None) -> float | None:
        return None if later is None or earlier is None else max(0.0, later - earlier)

    end = it.over if it.over is not None else it.running
    return RecoveryRow(
        it.round,
        it.began,
        it.cause,
        Kind.of(it.cause).value,
        since(it.started, it.began),
        since(it.running, it.started),
        since(it.over, it.running if it.running is not None else it.started),
        since(end, it.began),
    )


def _recovery_sums(review: Review) -> Iterator[RecoverySums]:
    history = review.history
    listed: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    for row, it in zip(map(_recovery, history.recoveries), history.recoveries, strict=True):
        if row.seconds is not None:
            listed[Kind.of(it.cause)].append(row.seconds)
    for kind, sums in measured(history).incidents.items():
        if sums.count:
            times = sorted(listed[kind])
            median = times[len(times) // 2] if times else None
            longest = times[-1] if times else None
            yield RecoverySums(
                kind.value, sums.count, sums.seconds, median, longest, sums.waiting, sums.redone
            )


def _slowest(review: Review, summary: Summary) -> Iterator[NodeRow]:
    """The nodes that took longest, then those that lost the largest share of their time."""
    incidents, known = review.history.incidents, _sees_work(review)

    def slowness(name: str) -> float:
        return incidents.slow.get(name, 1.0)

    def goodput(name: str) -> float:
        return share(summary.nodes[name][Activity.PRODUCTIVE], summary.nodes[name])

    for name in sorted(summary.nodes, key=lambda it: (-slowness(it), goodput(it), it))[:WORST]:
        spent = summary.nodes[name]
        lost = {each: spent[each] for each in Activity if each in LOST and spent[each]}
        yield NodeRow(
            name,
            review.hosts.get(name, ""),
            sum(spent.values()) / 1e6,
            sum(lost.values()) / 1e6,
            goodput(name),
            _word(max(lost, key=lambda each: lost[each]), known) if lost else "",
            slowness(name),
            incidents.losses[name],
        )


def _saved(review: Review) -> Iterator[SavedRow]:
    history = review.history
    for place in Place:
        if newest := history.saved.get(place):
            yield SavedRow(place.value, history.totals.saves[place], newest.step, newest.at)
