"""Many jobs that share a cluster: utilisation and waiting, with ours and with other schedulers.

Nothing is measured here: traces are replayed on a virtual clock, with the real decisions of core/cluster.
One trace is drawn at random (elasticrun/sim/cluster/trace.py says from which distributions), two are the
published experiment of PaddlePaddle's EDL (elasticrun/sim/cluster/edl.py says what is published, and what
is assumed).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from elasticrun.core.cluster.jobs import Rules
from elasticrun.sim.cluster.edl import PUBLISHED, Published, case_1, case_2
from elasticrun.sim.cluster.queues import Queues
from elasticrun.sim.cluster.replay import Result, replay
from elasticrun.sim.cluster.schedulers import SCHEDULERS, Scheduler
from elasticrun.sim.cluster.trace import LOAD, NODES, WEIGHTS, Trace, in_queues, synthetic

HEAD = (
    *("trace", "scheduler", "in use", "useful", "mean wait", "p95 wait", "longest wait", "mean completion"),
    *("changes of size", "turns", "swings", "stopped"),
)
ABOUT = """
In use: the share of all units. Useful: the share that works as well as one node does by itself. Waits and
completions in seconds from the submission. Turns: a job grows, and becomes smaller within 600 s; swings:
without any change from outside. Stopped: a job that ran has to wait again.

Static: first come, first served, at one size. Pod by pod: a job starts with what fits of it. Gang: fixed
sizes with priorities and EASY backfill, which is told how long each job takes. Rigid and elastic gangs: with
queues, backfill, reclaim and preempt, which are not told it; "passed for ever": without the limit of
patience, from which on nobody passes a gang that waits.
"""


def main(arguments: Sequence[str]) -> int:
    """Parse, replay and print."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench cluster",
        description=f"{__doc__}{ABOUT}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=1000, help="of the random trace (default 1000)")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"of its cluster (default {NODES})")
    parser.add_argument("--load", type=float, default=LOAD, help=f"of it at fixed sizes (default {LOAD})")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.jobs < 1 or options.nodes < 32 or options.load <= 0:
        parser.error("at least one job and 32 nodes, and a load above 0")
    random = synthetic(options.jobs, options.seed, options.nodes, options.load)
    _print(HEAD)
    _print(["---"] * len(HEAD))
    for trace, published in ((random, None), (case_1(), PUBLISHED[1]), (case_2(), PUBLISHED[2])):
        for row in _rows(trace, SCHEDULERS, published):
            _print(row)
    for row in _rows(in_queues(random, options.seed), _queues(), None):
        _print(row)
    print(ABOUT, end="")
    return 0


def _queues() -> Mapping[str, Scheduler]:
    return {
        "rigid gangs": Queues(WEIGHTS, is_elastic=False),
        "rigid gangs, passed for ever": Queues(WEIGHTS, is_elastic=False, rules=Rules(patience=inf)),
        "elastic gangs": Queues(WEIGHTS, is_elastic=True),
    }


def _rows(
    trace: Trace, schedulers: Mapping[str, Scheduler], published: tuple[Published, Published] | None
) -> Iterator[Sequence[str]]:
    if published is not None:
        for name, figures in zip(("without EDL", "with EDL"), published, strict=True):
            pending, share = f"{figures.pending:.1f}", f"{figures.utilisation:.1%}"
            yield (trace.name, f"published, {name}", share, "", pending, *[""] * 7)
    for name, scheduler in schedulers.items():
        yield (trace.name, name, *_figures(replay(trace, scheduler)))


def _figures(found: Result) -> Iterator[str]:
    yield f"{found.utilisation:.1%}"
    yield f"{found.useful:.1%}"
    yield f"{found.mean_wait:.1f}"
    yield f"{found.p95_wait:.0f}"
    yield f"{max(found.waits):.0f}"
    yield f"{found.mean_completion:.0f}" if found.completions else ""
    yield from map(str, (found.rescales, found.turns, found.swings, found.stopped))


def _print(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)
