"""Lines of a picture as text, for what is no screen."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console, Group
from rich.text import Text


def printed(lines: Sequence[Text], width: int, colour: bool) -> str:
    """The text of these lines, with escape sequences if there are colours."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        _environ={},  # else rich would let variables override the caller
    )
    console.print(Group(*lines), no_wrap=True, overflow="crop", highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))
