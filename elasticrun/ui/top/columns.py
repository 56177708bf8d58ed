"""The table of nodes: its columns, each with a width of its own; those that do not fit are left out.

Names, phases and doubts come from other hosts, so they are taken as text: no markup, nothing unprintable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from elasticrun.core.history.views import SLOW
from elasticrun.core.protocol.messages import AgentPhase
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.protocol.round_progress import NodeFigures
from elasticrun.dataclass import dataclass
from elasticrun.ui.top.frame import NodeRow

UNKNOWN = "-"
GAP = 2
#: The narrowest and the widest column of names, and from which width on others may come beside it.
NAMES = (12, 40)
_AMPLE = 22
#: Columns of this rank and above matter more than whole names.
_CORE = 45
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_STYLES = {
    AgentPhase.RUNNING.value: "green",
    AgentPhase.FINISHED.value: "green",
    AgentPhase.FAILED.value: "bold red",
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column after that of names. Those with the least ``rank`` go first if there is no room."""

    heading: str
    width: int
    rank: int
    cell: Callable[[NodeRow], Text]
    is_right: bool = True


def short(name: str, width: int) -> str:
    """A name in so many cells: without the domain, else without its middle, as names differ at the end."""
    name = one_line(name)
    if cell_len(name) > width:
        host, slash, mark = name.partition("/")
        name = (host.partition(".")[0] or host) + slash + mark
    if cell_len(name) <= width:
        return name
    tail = min(8, width // 2)
    end = name[-tail:]
    return set_cell_size(name, max(0, width - cell_len(end) - 1)).rstrip() + "~" + end


def amount(value: float) -> str:
    """At most three digits and a unit: ``980``, ``12.3M``, ``1.2G``."""
    size, unit = next(((size, unit) for size, unit in _UNITS if value >= 0.9995 * size), (1.0, ""))
    number = value / size
    return f"{number:.{1 if unit and number < 99.95 else 0}f}{unit}"


def chosen(width: int, rows: Sequence[NodeRow]) -> tuple[int, tuple[Column, ...]]:
    """The width of the names, and the columns that there is room for beside them."""
    longest = max((cell_len(one_line(row.name)) for row in rows), default=0)
    names = min(max(longest, NAMES[0]), NAMES[1])
    columns = [column for column in COLUMNS if column.heading != "NOTE" or any(row.doubt for row in rows)]
    while columns:
        least = min(columns, key=lambda column: column.rank)
        wanted = min(names, _AMPLE) if least.rank < _CORE else NAMES[0]
        if sum(column.width + GAP for column in columns) + wanted + 2 <= width:
            break
        columns.remove(least)
    room = width - 2 - sum(column.width + GAP for column in columns)
    return max(1, min(names, room)), tuple(columns)


def heading(names: int, columns: Sequence[Column]) -> Text:
    """The first line of the table."""
    cells = [_placed(Text(column.heading), column) for column in columns]
    return Text("  " + "NODE".ljust(names), style="bold").append(Text("").join(cells))


def line(row: NodeRow, names: int, columns: Sequence[Column], is_selected: bool) -> Text:
    """A line of the table."""
    mark = "> " if is_selected else "  "
    made = Text(mark + set_cell_size(short(row.name, names), names), style="reverse" if is_selected else "")
    for column in columns:
        cell = _placed(column.cell(row), column)
        made.append(cell.plain if is_selected else cell)
    return made


def _placed(cell: Text, column: Column) -> Text:
    cell.truncate(column.width, overflow="crop")
    free = " " * (column.width - cell.cell_len)
    made = Text(" " * GAP)
    return made.append(free).append_text(cell) if column.is_right else made.append_text(cell).append(free)


# -- cells


def _rank(row: NodeRow) -> Text:
    return Text(UNKNOWN if row.rank is None else str(row.rank))


def _phase(row: NodeRow) -> Text:
    if not row.attached:
        return Text("away", style="bold red")
    return Text(one_line(row.phase), style=_STYLES.get(row.phase, "yellow"))


def _slowness(row: NodeRow) -> Text:
    is_slow = row.slowness >= SLOW
    return Text(f"{row.slowness:.2f}x" if is_slow else UNKNOWN, style="yellow" if is_slow else "")


def _known(show: Callable[[NodeFigures], Text]) -> Callable[[NodeRow], Text]:
    return lambda row: Text(UNKNOWN) if row.figures is None else show(row.figures)


def _cpu(figures: NodeFigures) -> Text:
    return Text(f"{figures.cpu:.1f}/{figures.cpus}")


def _memory(figures: NodeFigures) -> Text:
    is_tight = figures.memory_limit > 0 and figures.memory > 0.9 * figures.memory_limit
    text = f"{amount(figures.memory)}/{amount(figures.memory_limit)}"
    return Text(text, style="bold red" if is_tight else "")


def _gpu(figures: NodeFigures) -> Text:
    return Text(UNKNOWN if figures.gpu_busy is None else f"{100 * figures.gpu_busy:.0f} %")


def _gpu_memory(figures: NodeFigures) -> Text:
    if not figures.gpus:
        return Text(UNKNOWN)
    used, limit = (sum(getattr(gpu, name) for gpu in figures.gpus) for name in ("memory", "memory_limit"))
    return Text(f"{amount(used)}/{amount(limit)}", style="bold red" if used > 0.97 * limit > 0 else "")


def _network(figures: NodeFigures) -> Text:
    return Text(f"{amount(figures.received)}/{amount(figures.sent)}")


COLUMNS = (
    Column("RANK", 4, 90, _rank),
    Column("PHASE", 9, 100, _phase, is_right=False),
    Column("SLOW", 5, 50, _slowness),
    Column("CPU", 8, 60, _known(_cpu)),
    Column("MEMORY", 11, 70, _known(_memory)),
    Column("GPU", 5, 40, _known(_gpu)),
    Column("GPU MEM", 11, 20, _known(_gpu_memory)),
    Column("NET IN/OUT", 11, 30, _known(_network)),
    Column("NOTE", 14, 10, lambda row: Text(one_line(row.doubt), style="yellow"), is_right=False),
)
