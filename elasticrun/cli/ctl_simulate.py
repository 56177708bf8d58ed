"""``elastic-ctl simulate``: the real decisions on a simulated network, nodes and faults."""

from __future__ import annotations

import click

SEEDS = 1000


def span(context: click.Context, parameter: click.Parameter, text: str | None) -> range | None:
    """Parse seeds: a number of them, or FIRST:END with END excluded."""
    if text is None:
        return None
    first, _, end = text.rpartition(":")
    if (first or "0").isdecimal() and end.isdecimal() and (seeds := range(int(first or 0), int(end))):
        return seeds
    raise click.BadParameter(f"{text!r} is neither a number of seeds nor FIRST:END", context, parameter)


@click.command()
@click.option("--seeds", callback=span, help=f"Seeds to run: how many, or FIRST:END (default {SEEDS}).")
@click.option("--first", type=click.IntRange(0), help="The first of them (default 0).")
@click.option(
    "--nodes", type=click.IntRange(1), default=8, show_default=True, help="The number of nodes of each job."
)
@click.option("--seed", type=click.IntRange(0), help="Run this one seed.")
@click.option("--tensorflow", is_flag=True, help="Run jobs with roles, whose tasks die alone.")
@click.option("--digest", is_flag=True, help="Print one number for all that masters decide in these seeds.")
@click.option("--verbose", is_flag=True, help="With --digest: print one for each seed as well.")
@click.option("--trace", is_flag=True, help="With --seed: print everything that happens.")
@click.option(
    "--curve", is_flag=True, help="Of a large job: measure smaller ones as well, and print a table."
)
@click.pass_context
def simulate(
    context: click.Context,
    seeds: range | None,
    first: int | None,
    nodes: int,
    seed: int | None,
    tensorflow: bool,
    digest: bool,
    verbose: bool,
    trace: bool,
    curve: bool,
) -> None:
    """Put simulated jobs under faults, and check every rule after every step.

    Each seed is a job with faults of its own, the same on every machine. The first seed that breaks a
    rule is printed with all that happened.

    Without --seed, --seeds or --first, a job of 64 or more nodes is measured instead: the time and memory
    that the master's decisions take for the first world, and for new ones after a failure and a loss.
    """
    from elasticrun.master.snapshot import restore, take
    from elasticrun.sim.digest import digest_all
    from elasticrun.sim.master import Saving
    from elasticrun.sim.run import drawn, explain, run_seeds
    from elasticrun.sim.scale import LARGE, run_large

    saving = Saving(take, restore)
    if seed is None and seeds is None and first is None and nodes >= LARGE:
        context.exit(run_large(nodes, curve))
    if seed is not None and trace:
        click.echo(explain(drawn(seed, nodes, tensorflow), saving))
        return
    begin, span = first or 0, seeds or range(SEEDS)
    chosen = range(begin + span.start, begin + span.stop) if seed is None else [seed]
    if digest:
        click.echo(digest_all((drawn(each, nodes, tensorflow) for each in chosen), verbose, saving))
        return
    context.exit(run_seeds(chosen, nodes, tensorflow, saving))
