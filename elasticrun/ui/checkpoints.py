"""The table of ``elastic-ctl checkpoints``: one row for each commit in a storage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from elasticrun.core.protocol.plain import one_line
from elasticrun.ui.tables import GAP, render_table

_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("step", "right"),
    ("round", "right"),
    ("run", "left"),
    ("world size", "right"),
    ("size", "right"),
    ("finished (UTC)", "left"),
)
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class Row(NamedTuple):
    """One commit."""

    step: int
    round: int
    run: str
    world_size: int | None  # None: unknown
    size: int  # bytes
    finished: float | None  # seconds since 1970; None: it is not finished
    problem: str = ""


def render_commits(rows: Sequence[Row], width: int, colour: bool = False) -> str:
    """The table, without a newline at its end. A column that has nothing to tell is left out."""
    cells = [_cells(row) for row in rows]
    table = Table(box=None, padding=(0, GAP, 0, 0))
    shown = [number for number in range(len(_COLUMNS)) if any(row[number].plain for row in cells)]
    for number in shown:
        heading, justify = _COLUMNS[number]
        is_last = number == len(_COLUMNS) - 1
        widest = max(len(heading), *(len(row[number]) for row in cells))
        table.add_column(
            heading,
            justify=justify,
            overflow="fold",
            min_width=min(widest, 20) if is_last else widest,
        )
    for row in cells:
        table.add_row(*(row[number] for number in shown))
    return render_table(table, width, colour)


def size_in_words(size: int) -> str:
    """A number of bytes with three digits, such as 1.23 GB."""
    for unit, name in _UNITS:
        if size >= unit:
            value = size / unit
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {name}"
    return f"{size} B"


def when(finished: float) -> str:
    """A moment in seconds since 1970, as UTC."""
    return datetime.fromtimestamp(finished, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _cells(row: Row) -> list[Text]:
    if row.problem:
        finished = Text(one_line(row.problem), style="bold red")
    elif row.finished is None:
        finished = Text("not finished", style="yellow")
    else:
        finished = Text(when(row.finished))
    return [
        Text(str(row.step)),
        Text(str(row.round)),
        Text(one_line(row.run)),
        Text("-" if row.world_size is None else str(row.world_size)),
        Text(size_in_words(row.size)),
        finished,
    ]
