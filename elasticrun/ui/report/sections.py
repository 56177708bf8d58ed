"""The sections of the report's page, each from the report alone; one without anything to say is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasticrun.core.protocol.amounts import count, percent, time_text
from elasticrun.core.review.document import Case, FailureRow, RecoveryRow, Report, Spent
from elasticrun.ui.report.charts import distribution, ratios, split, timeline
from elasticrun.ui.report.html import Child, Html, el, join
from elasticrun.ui.report.scales import short_time
from elasticrun.ui.report.style import slug
from elasticrun.ui.report.words import difference, hours, money, money_difference

#: How many of the longest recoveries are listed.
LONGEST = 10
RATIOS = (
    "Goodput: the share of all time of all nodes that was work on new steps. ETTR: the share of the job's"
    " time in which its world made new steps, as ByteRobust defines it; the goodputs of DLRover and of"
    " Google's ml-goodput-measurement are this one. Waiting for stragglers, spares and joiners lower only the"
    " first."
)


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], numbers: str = "") -> Html:
    """A table. ``numbers``: for each column ``n`` if it holds numbers, ``w`` if it is wide, ``s`` short."""
    kinds = [
        {"n": "n", "w": "wide", "s": "short"}.get(letter)
        for letter in numbers.ljust(len(head), "-")[: len(head)]
    ]
    top = el(
        "tr",
        *(
            el("th", name, class_="n" if kind == "n" else None)
            for name, kind in zip(head, kinds, strict=True)
        ),
    )
    body = [
        el("tr", *(el("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    return el("div", el("table", el("thead", top), el("tbody", *body)), class_="scroll")


def tiles(report: Report) -> Html:
    """The most important figures."""
    recoveries = sum(it.count for it in report.recovery_sums)
    times = sorted(it.seconds for it in report.recoveries if it.seconds is not None)
    shown = [
        (percent(report.goodput), "goodput, of all nodes"),
        (percent(report.ettr), "ETTR, of the job"),
        (time_text(report.seconds), "of the job"),
        (hours(report.node_seconds), "of all nodes together"),
        (str(report.failed), "failures of workers"),
        (str(recoveries), "recoveries"),
    ]
    if times:
        shown.append((time_text(times[len(times) // 2]), "median recovery"))
    if report.cost is not None:
        shown.append((money(report.cost, report.currency), "for all nodes"))
    return el("div", *(el("div", el("b", a), el("span", b), class_="tile") for a, b in shown), class_="tiles")


def advice(report: Report) -> Html:
    """What to do."""
    if not report.advice:
        return el("p", "Nothing in this log asks for a change.", class_="soft")
    return join(
        *(
            el(
                "div",
                el("p", el("b", f"{_sentence(it.finding)}")),
                el("p", _sentence(it.action), class_="soft"),
                class_="advice",
            )
            for it in report.advice
        )
    )


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def over_time(report: Report) -> Html | None:
    """How the ratios went."""
    if len(report.ratios) < 2:
        return None
    return join(ratios(report.ratios, report.until - report.seconds), el("p", RATIOS, class_="soft small"))


def where(report: Report) -> Html | None:
    """Where the time went."""
    if not report.job:
        return None
    named = {it.activity: it for it in (*report.job, *report.nodes)}
    job, nodes = ({it.activity: it for it in part} for part in (report.job, report.nodes))
    rows = [
        (
            el("span", el("i", class_=slug(name)), name, class_="keyed"),
            *_cells(job.get(name)),
            *_cells(nodes.get(name)),
        )
        for name in named
    ]
    return join(
        split([("the job", report.job), ("all nodes", report.nodes)]),
        table(("activity", "job", "share", "all nodes", "share"), rows, "-nnnn"),
    )


def _cells(spent: Spent | None) -> tuple[str, str]:
    return ("", "") if spent is None else (time_text(spent.seconds), percent(spent.share))


def rounds(report: Report) -> Html | None:
    """The timeline."""
    if not report.rounds:
        return None
    last = report.until
    first = report.rounds[0].started if report.rounds_before else last - report.seconds
    before = (
        el("p", f"{count(report.rounds_before, 'earlier round')} not shown.", class_="soft small")
        if report.rounds_before
        else None
    )
    return join(timeline(report, first, last), before)


def failures(report: Report) -> Html | None:
    """Failures by class."""
    if not report.failures:
        return None
    rows = [
        (
            str(it.count),
            _how(it),
            join(it.text, _tail(it)),
            ", ".join(it.hosts[:6]) + (f" and {len(it.hosts) - 6} more" if len(it.hosts) > 6 else ""),
            f"round {it.first_round}, {short_time(round(it.first_at))}",
        )
        for it in report.failures
    ]
    return table(("count", "how", "first cause", "hosts", "first"), rows, "nsw-s")


def _how(it: FailureRow) -> str:
    if it.how == "exit":
        return f"exit {it.exit_code}"
    return f"signal {-it.exit_code}" if it.how == "signal" and it.exit_code < 0 else it.how


def _tail(it: FailureRow) -> Html | None:
    if not it.tail:
        return None
    return el("details", el("summary", f"end of {it.tail_from}"), el("pre", it.tail))


def recoveries(report: Report) -> Html | None:
    """How long they took, by kind and phase."""
    if not report.recovery_sums:
        return None
    sums = [
        (
            it.kind,
            str(it.count),
            _time(it.median),
            _time(it.longest),
            time_text(it.seconds),
            _time(it.waiting),
            _time(it.redone),
        )
        for it in report.recovery_sums
    ]
    head = ("after", "count", "median", "longest", "in all", "of it waiting for nodes", "work done again")
    times = [it.seconds for it in report.recoveries if it.seconds is not None]
    longest = sorted(report.recoveries, key=lambda it: -(it.seconds or 0.0))[:LONGEST]
    return join(
        table(head, sums, "-nnnnnn"),
        distribution(times) if times else None,
        el("h3", "The longest"),
        table(
            ("round", "at", "cause", "next round", "workers run", "first step", "in all"),
            list(map(_recovery, longest)),
            "nn-nnnn",
        ),
    )


def _recovery(it: RecoveryRow) -> tuple[str, ...]:
    return (
        str(it.round),
        short_time(round(it.began)),
        it.cause,
        _time(it.stopping),
        _time(it.starting),
        _time(it.first_step),
        _time(it.seconds),
    )


def _time(seconds: float | None) -> str:
    return "" if not seconds else time_text(seconds)


def nodes(report: Report) -> Html | None:
    """The slowest nodes."""
    if len(report.slowest) < 2:
        return None
    rows = [
        (
            it.node,
            it.host,
            f"{it.slowness:.2f} x" if it.slowness > 1 else "",
            percent(it.goodput),
            time_text(it.seconds),
            time_text(it.lost),
            it.worst,
            str(it.losses) if it.losses else "",
        )
        for it in report.slowest
    ]
    head = ("node", "host", "slowness", "goodput", "here for", "lost", "most by", "times lost")
    return table(head, rows, "--nnnn-n")


def saved(report: Report) -> Html | None:
    """Saved states."""
    if not report.saved:
        return None
    words = {"memory": "memory", "hosts": "memory of several hosts", "storage": "storage"}
    rows = [
        (
            words.get(it.place, it.place),
            str(it.count),
            "" if it.last_step is None else str(it.last_step),
            "" if it.last_at is None else short_time(round(it.last_at)),
        )
        for it in report.saved
    ]
    return table(("place", "saves", "newest step", "at"), rows, "-nnn")


def what_if(report: Report) -> Html | None:
    """What if, with what it goes by."""
    if not report.what_if:
        return None
    head = ["if there had been", "the job", "from", "to", "all nodes", "ETTR"]
    if report.cost_per_node_hour is not None:
        head.append("cost")
    rows = [tuple(_as_it_was(report)), *(tuple(_case(it, report)) for it in report.what_if)]
    abouts = dict.fromkeys(it.about for it in report.what_if)
    return join(
        table(head, rows, "wnnnnnn"),
        *(el("p", about, class_="soft small") for about in abouts),
        el(
            "details",
            el("summary", "What this goes by"),
            el("ul", *(el("li", each) for each in report.assumptions), class_="small soft"),
            el(
                "p",
                "Defaults were measured: elastic-ctl manual speed. --assume NAME=FIGURE gives others.",
                class_="small soft",
            ),
        ),
    )


def _as_it_was(report: Report) -> Iterator[Child]:
    yield from ("as it was", time_text(report.seconds), "", "", hours(report.node_seconds))
    yield percent(report.ettr)
    if report.cost is not None:
        yield money(report.cost, report.currency)


def _case(it: Case, report: Report) -> Iterator[Child]:
    yield it.name
    yield el("span", difference(it.more), class_="worse" if it.more > 0 else "better")
    has_range = it.least != it.most
    yield difference(it.least) if has_range else ""
    yield difference(it.most) if has_range else ""
    yield difference(it.more_node_seconds, in_hours=True)
    yield percent(it.ettr)
    if report.cost_per_node_hour is not None:
        yield "" if it.money is None else money_difference(it.money, report.currency)
