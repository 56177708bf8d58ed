"""``elastic-ctl manual``: the pages of ``elasticrun/manual``, in a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from elasticrun.cli.ctl_run import has_colours

#: The pages, in the order in which somebody new reads them.
TOPICS = (
    "nodes",
    "hosts",
    "kubernetes",
    "operator",
    "slurm",
    "ray",
    "restarts",
    "health-check",
    "hangs",
    "goodput",
    "watching",
    "state",
    "data",
    "warm-start",
    "options",
    "exit-codes",
    "report",
    "troubleshooting",
    "metrics",
    "security",
    "web",
    "tensorflow",
    "python",
    "testing",
    "api",
    "differences-from-torchrun",
    "speed",
)
FOLDER = Path(__file__).parent.parent / "manual"
_WIDEST = 100  # columns, beyond which lines are hard to read


@click.command()
@click.argument("topic", type=click.Choice(TOPICS), required=False)
def manual(topic: str | None) -> None:
    """Show a page of the manual, or which there are."""
    import shutil

    from elasticrun.ui.manual import render_page, render_topics

    if topic is None:
        topics = render_topics((name, _page(name)) for name in TOPICS)
        click.echo(f"elastic-ctl manual TOPIC shows one of these pages:\n\n{topics}")
        return
    is_terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, _WIDEST) if is_terminal else _WIDEST
    colour = has_colours()
    text = render_page(_page(topic), width, colour)
    if is_terminal:
        os.environ.setdefault("LESS", "-RFX")  # colours; a page that fits the window is just printed
        click.echo_via_pager(text, color=colour)
    else:
        click.echo(text)


def _page(topic: str) -> str:
    return (FOLDER / f"{topic}.md").read_text(encoding="utf-8")
