"""``elastic-ctl events``: what happened in a job, and why, from its event log, or from the job itself."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from elasticrun.cli.ctl_run import exit_on_errors, run_lean
from elasticrun.cli.moments import SinceStart, WallClock, moment
from elasticrun.core.protocol.plain import plain
from elasticrun.dataclass import dataclass
from elasticrun.errors import UsageError

if TYPE_CHECKING:
    Entry = dict[str, Any]
    #: Shows entries, in order.
    Show = Callable[[Iterable[Entry]], None]

#: Kinds of entries by which the end of a round begins.
_ENDS = frozenset({"worker_failed", "round_stopping"})


@dataclass(frozen=True, slots=True)
class Wish:
    """Which entries are shown, and how."""

    since: SinceStart | WallClock | None
    all_kinds: bool
    as_json: bool

    def show(self, entries: Iterable[Entry]) -> None:
        """Print those that are wanted."""
        wanted = (it for it in entries if self._is_late(it))
        if self.as_json:
            for entry in wanted:
                click.echo(json.dumps(entry, separators=(",", ":")))
            return
        from elasticrun.ui.events import TOLD, lines

        for line in lines(it for it in wanted if self.all_kinds or it["kind"] in TOLD):
            click.echo(plain(line))

    def _is_late(self, entry: Entry) -> bool:
        match self.since:
            case SinceStart(seconds):
                return bool(entry["at"] >= seconds)
            case WallClock(when):
                return bool(entry["time"] >= when)
        return True


@click.command(epilog=EXIT_CODES)
@click.argument("log", metavar="[LOG]", type=click.Path(path_type=Path), required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until the job ends.")
@click.option("--why", metavar="ROUND", type=click.IntRange(0), help="Only what led to this round.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only what happened since then: seconds after the start, a time such as 14:05, or ISO 8601.",
)
@click.option("--all", "all_kinds", is_flag=True, help="Also what decisions say already.")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as they are, one in a line.")
@order_options
def events(
    log: Path | None,
    follow: bool,
    why: int | None,
    since: str | None,
    all_kinds: bool,
    as_json: bool,
    **target: Any,
) -> None:
    """Print what happened in a job, and why.

    LOG is the file events.jsonl of a --state-dir, or that directory. Without LOG a running job is asked for
    what its master has in memory. With --json each line is an object as
    elasticrun/manual/schemas/events.json describes it.
    """
    with exit_on_errors():
        if why is not None and follow:
            raise UsageError("--why and --follow exclude each other: what led to a round is over")
        wish = Wish(None if since is None else moment("--since", since, time.time()), all_kinds, as_json)
        if log is None:
            _from_job(find_target(target), follow, why, wish)
        else:
            refuse_target(log, target)
            _from_log(log, follow, why, wish)


def _from_log(log: Path, follow: bool, why: int | None, wish: Wish) -> None:
    from elasticrun.master.event_reader import log_file, read_events

    if follow:
        _follow_log(log_file(log), wish.show)
        return
    entries = read_events(log_file(log))
    wish.show(entries if why is None else led_to(entries, why))


def _from_job(target: Target | Here, follow: bool, why: int | None, wish: Wish) -> None:
    entries = _ask(target, wish.show if follow else None)
    if not follow:
        wish.show(entries if why is None else led_to(entries, why))


def _ask(target: Target | Here, show: Show | None) -> list[Entry]:
    """What the job has in memory; with ``show`` that is shown as it comes, until the job ends."""
    from elasticrun.follower import Follower

    found: list[Entry] = []

    async def ask() -> None:
        is_over = False

        def take(_: object, lines: Sequence[str]) -> None:
            nonlocal is_over
            for entry in map(json.loads, lines):
                if show is None:
                    found.append(entry)
                elif not is_over:
                    show([entry])
                    is_over = entry["kind"] == "job_ended"

        follower = Follower(connector(target), take)
        await follower.catch_up()
        if show is not None:
            await follower.run()

    with where_to_look(target):
        run_lean(ask)
    return found


def _follow_log(path: Path, show: Show) -> None:
    """Show a log as it grows, until an entry tells the job's end."""
    from elasticrun.master.event_reader import files_of
    from elasticrun.ui.growing import GrowingLog
    from elasticrun.ui.watching import LogNews

    async def follow() -> None:
        news = LogNews(path)
        log = GrowingLog(path, files_of)
        try:
            while True:
                for line in log.lines():
                    for entry in _entry(line):
                        show([entry])
                        if entry["kind"] == "job_ended":
                            return
                await news.wait()
        finally:
            news.close()
            log.close()

    run_lean(follow)


def _entry(line: bytes) -> Iterator[Entry]:
    """The entry of a line; none, if it is not ours."""
    from elasticrun.rpc.event_lines import is_entry

    with contextlib.suppress(ValueError, OverflowError, RecursionError):
        found: Any = json.loads(line)
        if is_entry(found):
            yield found


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
