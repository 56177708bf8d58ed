"""``elastic-ctl advice``: what holds a job back, and what to do, of a job that runs or from its log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.asking import EXIT_CODES, carry_out, order_options, refuse_target
from elasticrun.cli.ctl_run import exit_on_errors
from elasticrun.core.protocol.plain import plain

if TYPE_CHECKING:
    from elasticrun.control import JobControl
    from elasticrun.core.advice.rules import Advice

_NONE = "nothing that is known asks for a change"


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
    from elasticrun.cli.ctl_report import review_of
    from elasticrun.core.advice.rules import advise
    from elasticrun.master.event_reader import log_file

    with exit_on_errors():
        refuse_target(log, target)
        click.echo(plain(_told(advise(review_of(log_file(log)).history), as_json)))


async def _live(job: JobControl, as_json: bool) -> str:
    from elasticrun.core.advice.rules import advise
    from elasticrun.follower import Follower

    async def connect() -> JobControl:
        return job

    follower = Follower(connect)
    status = await follower.refresh()
    await follower.catch_up()
    return _told(advise(follower.history, status), as_json)


def _told(found: tuple[Advice, ...], as_json: bool) -> str:
    if as_json:
        from elasticrun.cli.documents import VERSION, AdviceDocument, text_of

        return text_of(AdviceDocument(VERSION, found))
    from elasticrun.ui.report.text import advice_lines

    return "\n".join(advice_lines(found)) or _NONE
