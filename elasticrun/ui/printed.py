"""What rich shows, as text, for what is no screen."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType


def printed(shown: RenderableType, width: int, colour: bool, **how: Any) -> str:
    """The text, without a newline at its end; with escape sequences if there are colours.

    ``how``: as for rich's ``Console.print``.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        _environ={},  # else rich would let variables override the caller
    )
    console.print(shown, **how)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n"))
