"""``elastic-ctl top``: a job as one picture, live, or at a moment of its past."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from elasticrun.cli.asking import EXIT_CODES, Here, Target, advice_for, find_target, order_options
from elasticrun.cli.ctl_run import run_lean
from elasticrun.core.protocol.plain import one_line
from elasticrun.errors import ElasticRunError, ExitCode, UsageError

if TYPE_CHECKING:
    from elasticrun.control import JobControl
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
    found: Target | Here | None = None
    try:
        if moment is not None and log is None:
            raise UsageError(f"--at {moment!r} needs the event log of the job: give --log DIR as well")
        if as_json and not once:
            raise UsageError("--json prints one picture: give --once as well")
        if not once and (kind := os.environ.get("TERM", "")) in ("dumb", "unknown"):
            raise UsageError(f"a terminal of the kind {kind!r} cannot show this: use --once for one picture")
        if log is not None:
            status = _past(log, moment, once, as_json)
        else:
            found = find_target(target)
            status = _live(found, once, as_json)
    except ElasticRunError as error:
        _refuse(error, found)
    sys.exit(status)


def _refuse(error: ElasticRunError, target: Target | Here | None) -> NoReturn:
    click.echo(f"elastic-ctl: error: {one_line(str(error))}{advice_for(error, target)}", err=True)
    sys.exit(error.exit_code)


def connector(target: Target | Here) -> Callable[[], Awaitable[JobControl]]:
    """What makes a client of the job, as often as it is asked to: always of the one that it found first."""
    found: list[JobControl] = []

    async def connect() -> JobControl:
        from elasticrun.control import JobControl

        if found:
            return found[0]
        if isinstance(target, Here):
            found.append(await JobControl.on_this_host(target.job_id, target.launcher, target.timeout))
            return found[0]
        return JobControl(target.endpoints, target.job_id, target.security, target.timeout)

    return connect


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

    if once:
        return _print(run_lean(look), as_json)
    return _status(run_lean(show))


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
    from elasticrun.master.event_log import NAME, read_events
    from elasticrun.rpc.event_lines import from_fields
    from elasticrun.ui.top.past import Past

    fields = read_events(log / NAME if log.is_dir() else log)
    past = Past([entry for each in fields if (entry := from_fields(each)) is not None])
    match None if moment is None else moments.moment("--at", moment, past.entry.time):
        case moments.SinceStart(seconds):
            past.at(seconds)
        case moments.WallClock(time):
            past.wall(time)
    return past


def _print(frame: Frame, as_json: bool, moment: str = "") -> int:
    if as_json:
        from elasticrun.cli.documents import as_json as text_of

        click.echo(text_of(frame))
        return ExitCode.OK
    from elasticrun.ui.top.picture import View, lines
    from elasticrun.ui.top.print import printed

    is_utf = (sys.stdout.encoding or "").lower().startswith("utf")
    is_terminal = sys.stdout.isatty()
    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = max(_NARROWEST, shutil.get_terminal_size((80, 24)).columns)
    view = View(moment=moment, is_plain=not (is_utf and colour))
    click.echo(printed(lines(frame, width, None, view), width, colour))
    return ExitCode.OK


def _status(signum: int) -> int:
    return _SIGNALLED + signum if signum else ExitCode.OK
