"""``elastic-ctl advice``: what holds a job back, and what to do, of a job that runs or from its log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.asking import EXIT_CODES, carry_out, order_options
from elasticrun.core.protocol.plain import one_line, plain
from elasticrun.errors import ElasticRunError, UsageError

if TYPE_CHECKING:
    from elasticrun.control import JobControl
    from elasticrun.core.advice.rules import Advice

_NONE = "nothing that is known asks for a change"
_MOST_ASKS = 1000  # answers of a master, until a job counts as one that never stops


@click.command(epilog=EXIT_CODES)
@click.argument("log", metavar="[LOG]", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, see elastic-ctl manual report.")
@order_options
def advice(log: Path | None, as_json: bool, **target: Any) -> None:
    """Say what holds a job back, with the figure, and what to do about it.

    LOG is the file events.jsonl of a --state-dir, or that directory. Without it the running job is asked; its
    master knows the newest entries of the log.
    """
    if log is None:
        carry_out(target, lambda: lambda job: _live(job, as_json))
        return
    from elasticrun.cli.ctl_report import log_file, review_of
    from elasticrun.core.advice.rules import advise

    try:
        if lonely := next((name for name in ("endpoint", "rdzv_id", "pid") if target[name]), None):
            option = lonely.replace("_", "-")
            raise UsageError(f"--{option} is for a job that runs: give either {option} or a LOG")
        click.echo(plain(_told(advise(review_of(log_file(log)).history), as_json)))
    except ElasticRunError as error:
        click.echo(f"elastic-ctl: error: {one_line(str(error))}", err=True)
        sys.exit(error.exit_code)


async def _live(job: JobControl, as_json: bool) -> str:
    from elasticrun.core.advice.rules import advise
    from elasticrun.core.history.history import History
    from elasticrun.rpc.event_lines import from_line

    status, history, after = await job.status(), History(), ""
    for _ in range(_MOST_ASKS):
        watched = await job.watch(after, 0.0)
        for line in watched.lines:
            try:
                entry = from_line(line)
                if entry is not None:
                    history.take(entry)
            except (ValueError, OverflowError):
                continue  # a damaged one
        after = watched.upto
        if not watched.more:
            break
    return _told(advise(history, status), as_json)


def _told(found: tuple[Advice, ...], as_json: bool) -> str:
    if as_json:
        from elasticrun.cli.documents import VERSION, AdviceDocument
        from elasticrun.cli.documents import as_json as text_of

        return text_of(AdviceDocument(VERSION, found))
    from elasticrun.ui.report.text import advice_lines

    return "\n".join(advice_lines(found)) or _NONE
