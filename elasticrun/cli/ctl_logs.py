"""``elastic-ctl logs`` and ``elastic-ctl stacks``: what workers print, and where they are, from any host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from elasticrun.cli.asking import EXIT_CODES, carry_out, order_options
from elasticrun.core.protocol.plain import one_line
from elasticrun.core.protocol.questions import MAX_NEWEST
from elasticrun.errors import ElasticRunError

if TYPE_CHECKING:
    from elasticrun.cli.documents import RankStacks
    from elasticrun.cli.log_reader import Show
    from elasticrun.control import JobControl, LogStream

#: Ranks whose stacks are asked for at a time.
_AT_A_TIME = 8


@click.command(epilog=EXIT_CODES)
@click.argument("rank", type=click.IntRange(0), required=False)
@click.option(
    "-f", "--follow", is_flag=True, help="Go on with what is printed from now on, until the job ends."
)
@click.option("--stdout", "out", is_flag=True, help="Only stdout.")
@click.option("--stderr", "err", is_flag=True, help="Only stderr.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, MAX_NEWEST),
    default=10,
    show_default=True,
    help="How many of the newest lines of each stream.",
)
@click.option("--raw", is_flag=True, help="Show control characters on a terminal as they are.")
@click.option("--json", "as_json", is_flag=True, help="Print an object for each line.")
@order_options
def logs(
    rank: int | None,
    follow: bool,
    out: bool,
    err: bool,
    lines: int,
    raw: bool,
    as_json: bool,
    **target: Any,
) -> None:
    """Show what the workers of the job print, or only that of RANK, from any host.

    The agents have the log files of their node, or the end of what goes through them. With --json each line
    is an object as elasticrun/manual/schemas/logs.json describes it.
    """
    from elasticrun.cli.log_reader import JsonLines, Plain, read_logs
    from elasticrun.control import LogStream

    streams: tuple[LogStream, ...] = (LogStream.OUT, LogStream.ERR)
    if out != err:
        streams = (LogStream.OUT,) if out else (LogStream.ERR,)
    show: Show = JsonLines() if as_json else Plain(not raw and sys.stdout.isatty(), is_named=rank is None)

    async def read(job: JobControl) -> str:
        await read_logs(job, rank, streams, lines, follow, show)
        return ""

    carry_out(target, lambda: read)


@click.command(epilog=EXIT_CODES)
@click.argument("rank", type=click.IntRange(0), required=False)
@click.option("--print", "prints", is_flag=True, help="Also print them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with them.")
@order_options
def stacks(rank: int | None, prints: bool, as_json: bool, **target: Any) -> None:
    """Show the stacks of RANK's threads; without RANK, have every node save those of its workers.

    They are saved beside the logs. With --json the object is as elasticrun/manual/schemas/stacks.json
    describes it.
    """

    async def take(job: JobControl) -> str:
        if rank is None and not (prints or as_json):
            return await job.stacks()
        if rank is not None and not as_json:
            return (await job.stacks_of(rank)).rstrip("\n")
        said = await job.stacks() if rank is None else ""
        found = await _stacks_of_all(job) if rank is None else [await _stacks_of(job, rank)]
        if as_json:
            return _as_document(found)
        return "\n\n".join([said, *(f"rank {it.rank}:\n{it.stacks or it.problem}".rstrip() for it in found)])

    carry_out(target, lambda: take)


def _as_document(found: list[RankStacks]) -> str:
    from elasticrun.cli.documents import VERSION, StacksDocument, text_of

    return text_of(StacksDocument(VERSION, tuple(found)))


async def _stacks_of(job: JobControl, rank: int) -> RankStacks:
    from elasticrun.cli.documents import RankStacks

    return RankStacks(rank, await job.stacks_of(rank), "")


async def _stacks_of_all(job: JobControl) -> list[RankStacks]:
    """The stacks of all ranks, or why there are none."""
    import asyncio

    from elasticrun.cli.documents import RankStacks

    turn = asyncio.Semaphore(_AT_A_TIME)

    async def take(rank: int) -> RankStacks:
        async with turn:
            try:
                return await _stacks_of(job, rank)
            except ElasticRunError as error:
                return RankStacks(rank, "", one_line(str(error)))

    ranges = await job.ranks()
    ranks = [rank for each in ranges for rank in range(each.first, each.first + each.count)]
    return list(await asyncio.gather(*map(take, ranks)))
