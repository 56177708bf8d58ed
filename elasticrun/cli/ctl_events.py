"""``elastic-ctl events``: what happened in a job, and why, from its event log."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import ElasticRunError, UsageError

if TYPE_CHECKING:
    Entry = dict[str, Any]

#: Kinds of entries by which the end of a round begins.
_ENDS = frozenset({"worker_failed", "round_stopping"})


@click.command()
@click.argument("log", metavar="LOG", type=click.Path(path_type=Path))
@click.option("--why", metavar="ROUND", type=click.IntRange(0), help="Only what led to this round.")
@click.option(
    "--since",
    metavar="SECONDS",
    type=float,
    help="Only what happened so many seconds after the start, or later.",
)
@click.option("--all", "all_kinds", is_flag=True, help="Also what decisions say already.")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as they are, one in a line.")
def events(log: Path, why: int | None, since: float | None, all_kinds: bool, as_json: bool) -> None:
    """Print what happened in a job, and why.

    LOG is the file events.jsonl of a --state-dir, or that directory. With --json each line is an object
    as elasticrun/manual/schemas/events.json describes it.
    """
    from elasticrun.master.event_log import NAME, read_events
    from elasticrun.ui.events import TOLD, lines

    try:
        entries = read_events(log / NAME if log.is_dir() else log)
        if since is not None and math.isnan(since):
            raise UsageError("--since nan is not valid: give a number of seconds")
        found = _since(entries if why is None else led_to(entries, why), since)
    except ElasticRunError as error:
        click.echo(f"elastic-ctl: error: {one_line(str(error))}", err=True)
        sys.exit(error.exit_code)
    if as_json:
        for entry in found:
            click.echo(json.dumps(entry, separators=(",", ":")))
    else:
        for line in lines(it for it in found if all_kinds or it["kind"] in TOLD):
            click.echo(plain(line))


def _since(entries: Iterable[Entry], seconds: float | None) -> list[Entry]:
    return [entry for entry in entries if seconds is None or entry["at"] >= seconds]


def led_to(entries: Sequence[Entry], round_: int) -> list[Entry]:
    """What happened since the round before ended, until this one had started. UsageError: it is not there."""
    starts = {it["round"]: at for at, it in enumerate(entries) if _tells(it, ("round_started",))}
    if round_ not in starts:
        known = f"there are rounds {min(starts)} to {max(starts)}" if starts else "no round has started"
        raise UsageError(f"--why {round_}: the log has no such round; {known}")
    before = max((number for number in starts if number < round_), default=None)
    first, last = 0, entries[starts[round_]]["event"]
    if before is not None:
        ends = (at for at, it in enumerate(entries) if _tells(it, _ENDS) and it["round"] == before)
        first = next(ends, starts[before])
    return [it for it in entries[first:] if it["event"] <= last]


def _tells(entry: Entry, kinds: Iterable[str]) -> bool:
    """Whether an entry is of one of these kinds, and names a round."""
    return entry["kind"] in kinds and isinstance(entry.get("round"), int)
