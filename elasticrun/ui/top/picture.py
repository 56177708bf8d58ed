"""A frame as lines of text for a terminal of any size.

Theory. A frame and a view give lines; nothing is read from anywhere else, so a test needs no terminal. No
line is wider than the terminal, and there are no more of them than it is high. If there is not room for all,
lists are cut, and say how many more there are; then the recent events go, then the use of time. Only rows
that are seen are made, so a job of a thousand nodes costs what one of thirty does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from rich.console import Group
from rich.text import Text

from elasticrun.core.accounting.activities import Activity
from elasticrun.core.protocol.amounts import count, percent, time_text
from elasticrun.core.protocol.bounds import TIMESTAMPS
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.protocol.status import JobPhase
from elasticrun.dataclass import dataclass
from elasticrun.ui.printed import printed
from elasticrun.ui.top import columns
from elasticrun.ui.top.frame import FailedWorker, Frame, RecoveryRow, TimeSpent

HELP = (
    ("j, k, arrows", "select a node; PgUp, PgDn, Home, End go further"),
    ("d", "drain the selected node: it leaves with grace (asks y or n)"),
    ("s", "save the stacks of all workers beside their logs"),
    ("left, right", "in the past (--at, --log): the event before, and the next one"),
    ("?", "show or hide this"),
    ("q, Esc, Ctrl-C", "leave; the job goes on"),
)
LIVE_KEYS = "d drain  s stacks  j/k select  ? help  q quit"
PAST_KEYS = "left/right event  Home/End first/last  j/k select  ? help  q quit"
#: The most lines of recent events where there is no end to the height.
MOST_EVENTS = 10
#: The most cells of the job's name.
_OF_JOB = 18
_GOOD = frozenset({JobPhase.RUNNING.value, JobPhase.SUCCEEDED.value})
_BAD = frozenset(
    each.value for each in (JobPhase.FAILED, JobPhase.HOPELESS, JobPhase.UNHEALTHY, JobPhase.TIMED_OUT)
)
#: How the bar shows each activity: a letter where there are no colours or no such characters.
_LOOKS = {
    Activity.PRODUCTIVE: ("green", "\u2588", "#"),
    Activity.REDONE: ("magenta", "\u2593", "R"),
    Activity.SLOW: ("yellow", "\u2592", "S"),
    Activity.CHECKPOINT: ("bright_blue", "\u2591", "C"),
    Activity.START: ("cyan", "\u2592", "B"),
    Activity.IMPORT: ("blue", "\u2593", "I"),
    Activity.RENDEZVOUS: ("bright_cyan", "\u2591", "V"),
    Activity.RESTORE: ("bright_magenta", "\u2592", "L"),
    Activity.WAITING: ("bright_yellow", "\u2591", "W"),
    Activity.STOPPED: ("red", "\u2593", "X"),
    Activity.HUNG: ("bright_red", "\u2592", "H"),
}


@dataclass(frozen=True, slots=True)
class View:
    """How a frame is looked at."""

    selected: str = ""  # the name of a node; "": none can be
    keys: str = ""  # what can be typed; "": nobody types
    question: str = ""  # instead of the keys
    message: str = ""  # instead of the keys, until something else is typed
    moment: str = ""  # what happened then, if this is the past
    is_help: bool = False
    is_plain: bool = False  # no colours, or no characters beyond ASCII


def lines(frame: Frame, width: int, height: int | None, view: View) -> list[Text]:
    """The lines, each at most ``width`` cells wide. ``height``: how many at most; None: any number."""
    top, bottom = list(_head(frame, view)), list(_foot(view))
    room = None if height is None else max(0, height - len(top) - len(bottom))
    made = [*top, *(_help(room) if view.is_help else _body(frame, width, room, view))]
    if height is not None:
        made = made[: height - len(bottom)]
        if view.keys:  # on a screen the keys stay at its lower edge
            made += [Text("")] * (height - len(bottom) - len(made))
    for each in (made := (made + bottom)[:height]):
        each.truncate(width, overflow="ellipsis" if not view.is_plain else "crop")
    return made


def printed_lines(made: Iterable[Text], width: int, colour: bool) -> str:
    """These lines as text, for what is no screen."""
    return printed(Group(*made), width, colour, no_wrap=True, overflow="crop", highlight=False)


def clock(time: float) -> str:
    """The time of day of this host."""
    return datetime.fromtimestamp(TIMESTAMPS.clip(time)).astimezone().strftime("%H:%M:%S")


# -- head and foot


def _head(frame: Frame, view: View) -> Iterator[Text]:
    name = "job" if frame.job_id is None else f"job {columns.short(frame.job_id, _OF_JOB)}"
    style = "bold green" if frame.phase in _GOOD else "bold red" if frame.phase in _BAD else "bold yellow"
    first = Text.assemble((name, "bold"), "  ", (one_line(frame.phase), style))
    for part in _of_job(frame):
        first.append(f"  {part}")
    yield first
    step = "step -" if frame.step < 0 else f"step {frame.step:,}"
    rate = "" if frame.step_rate is None else f"  {_rate(frame.step_rate)}"
    yield Text.assemble(
        f"{step}{rate}",
        *("  goodput ", (percent(frame.goodput), "bold")),
        *("  ETTR ", (percent(frame.ettr), "bold")),
        f"  {count(frame.failed_workers, 'failure')}" if frame.failed_workers else "",
        f"  {clock(frame.time)}" if view.keys else "",
    )
    if view.moment:
        yield Text(f"at {clock(frame.time)} (+{frame.at:.1f} s): {one_line(view.moment)}", style="cyan")
    for text in (frame.trouble, frame.waiting_for, frame.reason):
        if text:
            yield Text(one_line(text), style="yellow")
    if frame.missed:
        yield Text("entries are missing: figures begin later, or are too low", style="yellow")


def _of_job(frame: Frame) -> Iterator[str]:
    if frame.round >= 0:
        yield f"round {frame.round}"
    limits = "" if frame.min_nodes is None else f" of {frame.min_nodes}:{frame.max_nodes}"
    yield f"{count(frame.present, 'node')}{limits}" if not limits else f"{frame.present}{limits} nodes"
    if frame.restarts_used is not None:
        most = "" if frame.max_restarts is None else f"/{frame.max_restarts}"
        yield f"restarts {frame.restarts_used}{most}"
    yield f"up {time_text(frame.uptime)}"


def _foot(view: View) -> Iterator[Text]:
    text, style = view.keys, "dim"
    if view.question:
        text, style = view.question, "bold yellow"
    elif view.message:
        text, style = view.message, "bold"
    if text:
        yield Text(one_line(text), style=style)


def _help(room: int | None) -> list[Text]:
    return [Text(""), *(Text(f"  {keys:<16}{what}") for keys, what in HELP)][:room]


# -- body


def _body(frame: Frame, width: int, room: int | None, view: View) -> Iterator[Text]:
    events = list(_events(frame))
    spent = list(_time(frame.spent, width, view))
    if room is None:
        yield from _section(list(_table(frame, width, None, view)))
        yield from _section(_listed(events, MOST_EVENTS + 1))
        yield from _section(spent)
        return
    least = 2 + min(len(frame.nodes), 4)  # of the table, with the blank line before
    for_spent = len(spent) + 1 if spent and room >= least + len(spent) + 1 else 0
    left = room - for_spent
    wanted = min(len(events) + 1, max(3, left // 3)) if events else 0
    for_events = max(0, min(wanted, left - least))
    for_events = for_events if for_events >= 3 else 0  # a blank line, the heading, and one of them
    yield from _section(list(_table(frame, width, max(0, left - for_events - 1), view)))
    yield from _section(_listed(events, for_events - 1) if for_events else [])
    yield from _section(spent if for_spent else [])


def _section(found: list[Text]) -> Iterator[Text]:
    if found:
        yield Text("")
        yield from found


def _listed(found: list[Text], room: int) -> list[Text]:
    """The first of these lines; the last one says how many more there are, if there are."""
    if len(found) <= room:
        return found
    return [*found[: room - 1], _more(len(found) - room + 1)]


def _more(number: int) -> Text:
    return Text(f"  and {number} more", style="dim")


def _table(frame: Frame, width: int, room: int | None, view: View) -> Iterator[Text]:
    rows = frame.nodes
    shown, first = len(rows), 0
    if room is not None and len(rows) + 1 > room:
        shown = max(0, room - 2)
        at = next((number for number, row in enumerate(rows) if row.name == view.selected), 0)
        first = min(max(0, at - shown // 2), len(rows) - shown)
    seen = rows[first : first + shown]
    if not rows or room == 0:
        return
    names, chosen = columns.chosen(width, seen)
    yield columns.heading(names, chosen)
    for row in seen:
        yield columns.line(row, names, chosen, bool(view.keys) and row.name == view.selected)
    if hidden := frame.present - len(seen) if frame.present > len(rows) else len(rows) - len(seen):
        above = f", {first} of them above" if first else ""
        yield _more(hidden).append(above, style="dim")


def _events(frame: Frame) -> Iterator[Text]:
    """The newest first, below a heading."""
    found: list[tuple[float, Text]] = []
    found += [(it.at, _recovery(it, frame.at)) for it in frame.recoveries]
    found += [(it.at, _failure(it)) for it in frame.failures]
    if found:
        yield Text("RECENT FAILURES AND RECOVERIES", style="bold")
        yield from (text for _, text in sorted(found, key=lambda each: -each[0]))


def _failure(it: FailedWorker) -> Text:
    return Text.assemble(f"  {clock(it.time)}  ", ("failed", "red"), f"  {one_line(it.summary)}")


def _recovery(it: RecoveryRow, now: float) -> Text:
    if it.seconds is not None:
        word, style = ("recovered" if it.is_failure else "changed"), "green"
        text = f" in {time_text(it.seconds)}"
    elif it.is_open:
        word, style, text = "recovering" if it.is_failure else "changing", "yellow", ""
        text = f" for {time_text(now - it.at)}"
    else:
        word, style, text = "interrupted", "red", f" before a step of round {it.round}"
    why = f"{it.cause}: {it.reason}" if it.reason else it.cause
    return Text.assemble(f"  {clock(it.time)}  ", (word, style), f"{text}  {one_line(why)}")


def _time(spent: Iterable[TimeSpent], width: int, view: View) -> Iterator[Text]:
    """The bar, and what its parts mean."""
    parts = list(spent)
    if not parts or width < 20:
        return
    yield Text("WHERE THE TIME OF ALL NODES WENT", style="bold")
    bar = Text("  ")
    for part, cells in zip(parts, _cells([it.share for it in parts], width - 4), strict=True):
        bar.append(_look(part.activity, view) * cells, style=_LOOKS[part.activity][0])
    yield bar
    legend, hidden = Text(" "), 0
    for part in parts:
        words = f" {part.activity.value} {percent(part.share)} "
        if legend.cell_len + len(words) + 2 > width - 12:
            hidden += 1
            continue
        legend.append(" ").append(_look(part.activity, view), style=_LOOKS[part.activity][0]).append(words)
    yield legend.append(f" and {hidden} more" if hidden else "")


def _look(activity: Activity, view: View) -> str:
    return _LOOKS[activity][2 if view.is_plain else 1]


def _cells(shares: list[float], width: int) -> list[int]:
    """So many cells for each share that they fill the width, as near as can be."""
    ends, total = [], 0.0
    for each in shares:
        total += each
        ends.append(round(min(1.0, total) * width))
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def _rate(rate: float) -> str:
    return f"{rate:.3g} steps/s" if rate < 1000 else f"{rate:,.0f} steps/s"
