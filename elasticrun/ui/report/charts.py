"""The plots of a report, as SVG of our own: no script, no font, nothing from elsewhere.

Each plot has a title that says what it shows, which readers of screens get instead of the drawing. What is
drawn is bounded by the report, whose lists are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasticrun.core.protocol.amounts import percent, time_text
from elasticrun.core.review.document import Ratios, Report, RoundRow, Spent
from elasticrun.ui.report.html import Html, el, join
from elasticrun.ui.report.scales import Scale, marks, short_time
from elasticrun.ui.report.style import slug

WIDTH = 1040
LEFT, RIGHT = 44, 14
KINDS = {"worker failures": "recovery", "lost nodes": "loss", "changes of the world": "change"}


def plot(height: float, about: str, *parts: Html) -> Html:
    """A drawing of that height."""
    drawing = el(
        "svg", el("title", about), *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=about
    )
    return el("div", drawing, class_="scroll")


def key(*entries: tuple[str, str]) -> Html:
    """What the colours mean: pairs of a class and a text."""
    return el("div", *(el("span", el("i", class_=name), words) for name, words in entries), class_="key")


def _line(x1: float, y1: float, x2: float, y2: float, class_: str = "axis") -> Html:
    return el("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _label(x: float, y: float, words: str, anchor: str = "start", class_: str | None = None) -> Html:
    return el("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def _box(x: float, y: float, width: float, height: float, class_: str, about: str | None = None) -> Html:
    title = el("title", about) if about else None
    return el("rect", title, x=x, y=y, width=max(0.0, width), height=height, class_=class_)


def _times(first: float, last: float, top: float, bottom: float) -> tuple[Scale, list[Html]]:
    """The scale from the first to the last instant, and its axis at the bottom."""
    across = Scale(first, last, LEFT, WIDTH - RIGHT)
    found = []
    for mark in marks(last - first):
        x = across.at(first + mark)
        found += [_line(x, top, x, bottom + 4), _label(x, bottom + 18, short_time(mark), "middle")]
    return across, found


# -- ratios over time


def ratios(rows: Sequence[Ratios], first: float) -> Html:
    """Goodput and ETTR until each instant as lines, and the ETTR between two of them as an area."""
    top, bottom = 10.0, 220.0
    across, axis = _times(first, rows[-1].at, top, bottom)
    up = Scale(0.0, 1.0, bottom, top)
    levels = [
        join(
            _line(LEFT, up.at(part), WIDTH - RIGHT, up.at(part)),
            _label(LEFT - 6, up.at(part) + 4, said, "end"),
        )
        for part, said in ((0.0, "0 %"), (0.25, "25 %"), (0.5, "50 %"), (0.75, "75 %"), (1.0, "100 %"))
    ]
    return join(
        key(
            ("goodput", "goodput until then, of all nodes"),
            ("ettr", "ETTR until then, of the job"),
            ("since goodput", "ETTR of the time since the point before"),
        ),
        plot(
            bottom + 26,
            "goodput and ETTR over the time of the job",
            *levels,
            *axis,
            el("path", d=_area(rows, first, across, up), class_="since"),
            el("path", d=_path([(across.at(it.at), up.at(it.goodput)) for it in rows]), class_="goodput"),
            el("path", d=_path([(across.at(it.at), up.at(it.ettr)) for it in rows]), class_="ettr"),
        ),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _area(rows: Sequence[Ratios], first: float, across: Scale, up: Scale) -> str:
    before, parts = across.at(first), [f"M{across.at(first):.1f},{up.at(0):.1f}"]
    for row in rows:
        x, y = across.at(row.at), up.at(row.ettr_since)
        parts.append(f"L{before:.1f},{y:.1f}L{x:.1f},{y:.1f}")
        before = x
    return "".join([*parts, f"L{before:.1f},{up.at(0):.1f}Z"])


# -- where the time went


def split(rows: Sequence[tuple[str, Sequence[Spent]]]) -> Html:
    """A bar for each name, made of its activities."""
    found, y = list[Html](), 4.0
    for name, parts in rows:
        across = Scale(0.0, 1.0, LEFT + 36, WIDTH - RIGHT)
        found.append(_label(0, y + 20, name, class_="strong"))
        done = 0.0
        for part in parts:
            start, end = across.at(done), across.at(done + part.share)
            done += part.share
            about = f"{part.activity}: {time_text(part.seconds)}, {percent(part.share)}"
            found.append(_box(start, y, end - start, 30, slug(part.activity), about))
            if end - start > 52:
                found.append(_label((start + end) / 2, y + 20, f"{100 * part.share:.0f} %", "middle", "on"))
        y += 42
    return plot(y, "where the time of the job and of its nodes went", *found)


# -- the timeline


def timeline(report: Report, first: float, last: float) -> Html:
    """Rounds, recoveries, failures and their number of nodes, over the time of the job."""
    across, axis = _times(first, last, 8, 132)
    most = max((row.nodes for row in report.rounds), default=1)
    parts = [
        *axis,
        _label(0, 30, "rounds"),
        _label(0, 72, "stops"),
        _label(0, 98, "fails"),
        _label(0, 124, "nodes"),
        *(_round(row, across, last) for row in report.rounds),
        *_recoveries(report, across, last),
        *(
            el(
                "line",
                el("title", f"{short_time(it.at - first)}: {it.text}"),
                x1=across.at(it.at),
                x2=across.at(it.at),
                y1=84,
                y2=102,
                class_="mark",
            )
            for it in report.failures_at
        ),
        *(_nodes(row, across, last, most) for row in report.rounds),
    ]
    return join(
        key(
            ("round", "a round, from its first step on"),
            *((name, f"until the next one, after {kind}") for kind, name in KINDS.items()),
            ("mark", "| a worker failed"),
        ),
        plot(158, "rounds, recoveries and failures over the time of the job", *parts),
    )


def _round(row: RoundRow, across: Scale, last: float) -> Html:
    start = across.at(row.first_step if row.first_step is not None else row.started)
    end = across.at(row.ended if row.ended is not None else last)
    why = f", ended by: {row.reason or row.cause}" if row.cause else ""
    about = f"round {row.round}: {row.nodes} nodes, {row.workers} workers{why}"
    return _box(start, 14, max(0.6, end - start), 26, f"round{' odd' if row.round % 2 else ''}", about)


def _recoveries(report: Report, across: Scale, last: float) -> Iterator[Html]:
    for it in report.recoveries:
        start = across.at(it.began)
        end = across.at(last if it.seconds is None else it.began + it.seconds)
        took = "not over" if it.seconds is None else time_text(it.seconds)
        yield _box(
            start, 58, max(1.0, end - start), 18, KINDS.get(it.kind, "recovery"), f"{it.cause}: {took}"
        )


def _nodes(row: RoundRow, across: Scale, last: float, most: int) -> Html:
    start, end = across.at(row.started), across.at(row.ended if row.ended is not None else last)
    height = 22 * row.nodes / max(1, most)
    return _box(start, 130 - height, max(0.6, end - start), height, "faint", f"{row.nodes} nodes")


# -- recoveries


def distribution(seconds: Sequence[float]) -> Html:
    """How many recoveries took how long: each bar is twice as long as the one before."""
    edges = [0.0, 0.05]
    while edges[-1] < max(seconds):
        edges.append(edges[-1] * 2)
    bins = [0] * (len(edges) - 1)
    for each in seconds:
        bins[next(i for i, edge in enumerate(edges[1:]) if each <= edge)] += 1
    filled = [i for i, number in enumerate(bins) if number]
    shown = range(max(0, filled[0] - 1), filled[-1] + 1)
    top, bottom, width = 20.0, 150.0, min(110.0, (WIDTH - LEFT - 60) / len(shown))
    up = Scale(0, max(bins), bottom, top)
    parts = [_line(LEFT, bottom, LEFT + width * len(shown), bottom)]
    for place, i in enumerate(shown):
        x = LEFT + place * width
        y = up.at(bins[i])
        about = f"{bins[i]} took {time_text(edges[i])} to {time_text(edges[i + 1])}"
        parts.append(_box(x + 2, y, width - 4, bottom - y, "bar", about))
        if bins[i]:
            parts.append(_label(x + width / 2, y - 5, str(bins[i]), "middle", "strong"))
        parts.append(_label(x + width, bottom + 16, time_text(edges[i + 1]), "middle"))
    return plot(bottom + 24, "how long recoveries took", *parts)
