"""``elastic-ctl top``: a job as one picture, live, or at a moment of its past."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.asking import (
    EXIT_CODES,
    Here,
    Target,
    connector,
    find_target,
    order_options,
    refuse_target,
    where_to_look,
)
from elasticrun.cli.ctl_run import exit_on_errors, has_colours, run_lean
from elasticrun.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from elasticrun.ui.top.frame import Frame
    from elasticrun.ui.top.past import Past

_NARROWEST = 40
_SIGNALLED = 128  # and the number, as shells have it


@click.command(epilog=EXIT_CODES)
@order_options
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    metavar="LOG",
    help="Show the past from this events.jsonl, or from that of this --state-dir.",
)
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    help="The moment of the past: seconds since the start, 14:05, or ISO 8601 (default: the last one).",
)
@click.option("--once", is_flag=True, help="Print one picture, and exit; needs no terminal.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --once: print the data of the picture as one JSON object, see elastic-ctl manual watching.",
)
def top(log: Path | None, moment: str | None, once: bool, as_json: bool, **target: Any) -> None:
    """Show a job live: its phase and nodes, what failed, and where the time went.

    Keys: j, k or arrows select a node, d drains it, s saves stacks, q leaves, ? shows all of them. With
    --log, left and right step through what happened.
    """
    with exit_on_errors():
        if moment is not None and log is None:
            raise UsageError(f"--at {moment!r} needs the event log of the job: give --log DIR as well")
        if as_json and not once:
            raise UsageError("--json prints one picture: give --once as well")
        if not once and (kind := os.environ.get("TERM", "")) in ("dumb", "unknown"):
            raise UsageError(f"a terminal of the kind {kind!r} cannot show this: use --once for one picture")
        if log is not None:
            refuse_target(log, target)
            status = _past(log, moment, once, as_json)
        else:
            status = _live(find_target(target), once, as_json)
    sys.exit(status)


def _live(target: Target | Here, once: bool, as_json: bool) -> int:
    async def look() -> Frame:
        from elasticrun.follower import Follower
        from elasticrun.ui.top.frame import frame_of

        follower = Follower(connector(target))
        status = await follower.refresh()
        await follower.catch_up()
        return frame_of(follower.history, follower.now, status)

    async def show() -> int:
        from elasticrun.ui.top.show import LiveTop

        return await LiveTop(connector(target)).run()

    with where_to_look(target):
        return _print(run_lean(look), as_json) if once else _status(run_lean(show))


def _past(log: Path, moment: str | None, once: bool, as_json: bool) -> int:
    past = read_past(log, moment)

    async def show() -> int:
        from elasticrun.ui.top.show import PastTop

        return await PastTop(past).run()

    if not once:
        return _status(run_lean(show))
    from elasticrun.ui.top.frame import frame_of
    from elasticrun.ui.top.show import told

    return _print(frame_of(past.history, past.now), as_json, told(past))


def read_past(log: Path, moment: str | None) -> Past:
    """The past of a log, at a moment. UsageError: there is none, or no such moment."""
    from elasticrun.cli import moments
    from elasticrun.master.event_reader import log_file, stream_entries
    from elasticrun.ui.top.past import Past

    past = Past(list(stream_entries(log_file(log))))
    match None if moment is None else moments.moment("--at", moment, past.entry.time):
        case moments.SinceStart(seconds):
            past.at(seconds)
        case moments.WallClock(time):
            past.wall(time)
    return past


def _print(frame: Frame, as_json: bool, moment: str = "") -> int:
    if as_json:
        from elasticrun.cli.documents import text_of

        click.echo(text_of(frame))
        return ExitCode.OK
    from elasticrun.ui.top.picture import View, lines, printed_lines

    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    colour = has_colours()
    width = max(_NARROWEST, shutil.get_terminal_size((80, 24)).columns)
    view = View(moment=moment, is_plain=not (is_utf and colour))
    click.echo(printed_lines(lines(frame, width, None, view), width, colour))
    return ExitCode.OK


def _status(signum: int) -> int:
    return _SIGNALLED + signum if signum else ExitCode.OK
