"""Tables as text: what all of them have in common."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

GAP = 2  # columns of the terminal after each of ours


def render_table(table: Table, width: int, colour: bool = False) -> str:
    """The lines of a table without a box, none of them with spaces at its end.

    It is wider than ``width`` if its columns need at least so much together.
    """
    out = io.StringIO()
    # An empty environment: else rich would let variables override the caller.
    console = Console(
        file=out,
        width=max(width, sum((column.min_width or 0) + GAP for column in table.columns)),
        force_terminal=colour,
        color_system="standard" if colour else None,
        _environ={},
    )
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))
