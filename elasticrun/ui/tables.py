"""Tables as text: what all of them have in common."""

from __future__ import annotations

from rich.table import Table

from elasticrun.ui.printed import printed

GAP = 2  # columns of the terminal after each of ours


def render_table(table: Table, width: int, colour: bool = False) -> str:
    """The lines of a table without a box, none of them with spaces at its end.

    It is wider than ``width`` if its columns need at least so much together.
    """
    needed = sum((column.min_width or 0) + GAP for column in table.columns)
    return printed(table, max(width, needed), colour)
