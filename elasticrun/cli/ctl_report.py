"""``elastic-ctl report``: a job in review, from its event log, as a page, as JSON, as text and as a trace."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    from elasticrun.core.review.document import Report
    from elasticrun.core.review.review import Review

_PATH = click.Path(path_type=Path)
_MOST = 1e9  # of a figure that is assumed
#: Names of --assume: those of core/whatif/replay.py, which only this verb needs.
ASSUMED = ("restart", "restart-nodes", "import", "lost-node", "replaced-node", "stall-factor", "every")


@click.command()
@click.argument("log", metavar="LOG", type=_PATH)
@click.option("-o", "--output", metavar="FILE", type=_PATH, help="Write the report as one page of HTML.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, see elastic-ctl manual report.")
@click.option("--trace", metavar="FILE", type=_PATH, help="Write a trace for ui.perfetto.dev.")
@click.option(
    "--logs",
    metavar="DIR",
    multiple=True,
    type=_PATH,
    help="Where --log-dir of the job was: ends of stderr are read there (default: beside LOG).",
)
@click.option(
    "--assume",
    metavar="NAME=FIGURE",
    multiple=True,
    help=f"For the what-if against torchrun; NAME is one of {', '.join(ASSUMED)}.",
)
@click.option("--cost-per-node-hour", metavar="X", type=float, help="Tell costs as well.")
@click.option("--currency", default="", metavar="NAME", help="Of the cost.")
@click.option("--title", metavar="TEXT", help="Of the page (default: where the log is).")
def report(
    log: Path,
    output: Path | None,
    as_json: bool,
    trace: Path | None,
    logs: tuple[Path, ...],
    assume: tuple[str, ...],
    cost_per_node_hour: float | None,
    currency: str,
    title: str | None,
) -> None:
    """Tell how a job went: goodput, losses, failures, recoveries, advice, and what if.

    LOG is the file events.jsonl of a --state-dir, or that directory; the job may still run. Without -o,
    --json and --trace it is told in a few lines.
    """
    from elasticrun.master.event_reader import log_file

    with exit_on_errors():
        assumed, hourly = _assumed(assume), _cost(cost_per_node_hour)
        path = log_file(log)
        if trace is not None:
            _write_trace(path, trace)
        if trace is None or output is not None or as_json:
            found = _report(path, logs, assumed, hourly, currency[:16])
            if output is not None:
                _write_page(found, output, title or str(path.parent.absolute()))
            if as_json:
                _print_json(found)
            elif output is None:
                _print(found)


def review_of(path: Path) -> Review:
    """A log, read line by line. UsageError: there is none, or it is damaged."""
    from elasticrun.core.review.review import Review
    from elasticrun.master.event_reader import stream_entries

    review = Review()
    for entry in stream_entries(path):
        try:
            review.take(entry)
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"the event log {path} is damaged: its entry at {entry.at:g} s, of event {entry.event}, has"
                f" a figure that cannot be ({error})"
            ) from error
    return review


def _assumed(given: Iterable[str]) -> dict[str, float]:
    from elasticrun.core.whatif.replay import FIGURES

    found = {}
    for text in given:
        name, _, figure = text.partition("=")
        if name not in ASSUMED:
            raise UsageError(f"--assume {text!r}: there is no {name!r}; choose of {', '.join(ASSUMED)}")
        try:
            value = float(figure)
        except ValueError:
            value = math.nan
        if not 0 <= value <= _MOST:
            usual = f"{FIGURES[name].usual:g}" if name in FIGURES else "600"
            raise UsageError(f"--assume {text!r} is not valid: give a figure from 0, such as {name}={usual}")
        found[name] = value
    return found


def _cost(given: float | None) -> float | None:
    if given is not None and not 0 <= given <= _MOST:
        raise UsageError(f"--cost-per-node-hour {given:g} is not valid: give a number from 0, such as 2.5")
    return given


def _report(
    path: Path, logs: tuple[Path, ...], assumed: dict[str, float], hourly: float | None, currency: str
) -> Report:
    from elasticrun.core.review.build import report
    from elasticrun.ui.report.tails import with_tails

    found = report(review_of(path), assumed, hourly, currency)
    return replace(found, failures=with_tails(found.failures, logs or (path.parent,)))


def _print(found: Report) -> None:
    from elasticrun.ui.report.text import lines

    for line in lines(found):
        click.echo(plain(line))


def _print_json(found: Report) -> None:
    from elasticrun.cli.documents import text_of

    click.echo(text_of(found))


def _write_page(found: Report, output: Path, title: str) -> None:
    from elasticrun import __version__
    from elasticrun.ui.report.page import page

    _write(output, [page(found, title, __version__)])


def _write_trace(path: Path, trace: Path) -> None:
    from elasticrun.master.event_reader import stream_entries
    from elasticrun.ui.report.trace import chunks

    _write(trace, chunks(stream_entries(path)))


def _write(path: Path, parts: Iterable[str]) -> None:
    """Write a file, all of it or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8", errors="replace") as file:
            file.writelines(parts)
        beside.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    click.echo(f"wrote {one_line(str(path))}", err=True)
