"""The table of ``--health-check-only``: one row for each node, in the order given.

Names and details come from other nodes, so they are taken as text: no markup, nothing unprintable.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

from rich.table import Table
from rich.text import Text

from elasticrun.core.protocol.messages import NodeCheck
from elasticrun.core.protocol.plain import one_line
from elasticrun.ui.tables import GAP, render_table

_STYLES = {"good": "green", "faulty": "bold red"} | dict.fromkeys(
    ("straggler", "undecided", "gone"), "yellow"
)
_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("node", "left"),
    ("matmul", "right"),
    ("all-gather", "right"),
    ("latency", "right"),
    ("engine", "left"),
    ("verdict", "left"),
    ("detail", "left"),
)
_LEAST_FOLDED = 9
_UNKNOWN = "-"
Units = tuple[tuple[float, str], ...]
_COMPUTE: Units = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))
_BANDWIDTH: Units = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_LATENCY: Units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def render_checkup(rows: Sequence[NodeCheck], width: int, colour: bool = False) -> str:
    """The table, without a newline at its end; "" if there are no rows.

    The table is no wider than it needs. If that is more than ``width``, words are folded, down to about
    80 columns, and nothing is cut off. ``colour`` is for terminals: escape sequences colour the
    verdicts and set the heading off.
    """
    if not rows:
        return ""
    return render_table(_table([_cells(row) for row in rows]), width, colour)


def _table(cells: Sequence[Sequence[Text]]) -> Table:
    """Where room is scarce, names, engines and details are folded; the other columns stay whole."""
    table = Table(box=None, padding=(0, GAP, 0, 0))
    for number, (heading, justify) in enumerate(_COLUMNS):
        texts = [row[number] for row in cells]
        if heading == "detail" and not any(texts):
            continue
        words = (text.plain.split(" ") if heading == "engine" else [text.plain] for text in texts)
        least = max(map(len, [heading, *chain.from_iterable(words)]))
        if heading in ("node", "detail"):
            least = min(least, _LEAST_FOLDED)
        table.add_column(heading, justify=justify, overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*row[: len(table.columns)])
    return table


def _cells(row: NodeCheck) -> list[Text]:
    return [
        Text(one_line(row.node)),
        Text(_amount(row.matmul_flops, _COMPUTE)),
        Text(_amount(row.bandwidth, _BANDWIDTH)),
        Text(_amount(row.latency, _LATENCY)),
        Text(one_line(row.engine) or _UNKNOWN),
        Text(one_line(row.verdict), style=_STYLES.get(row.verdict, "")),
        Text(one_line(row.detail)),
    ]


def _amount(value: float, units: Units) -> str:
    """Three significant digits, in the largest unit of which there is at least one."""
    if value <= 0:
        return _UNKNOWN
    size, unit = next((it for it in units if value >= it[0]), units[-1])
    number = value / size
    decimals = next((n for n, limit in enumerate((100, 10, 1)) if number >= limit), 3)
    return f"{number:.{decimals}f} {unit}"
