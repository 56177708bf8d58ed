"""How much of a job's time is work that counts, while its workers are killed.

Goodput = steps that the final model has, each at the time of a step without faults and saves, over the time
that passed. Steps that had to be made again count once, and saves count as lost. A step takes a fixed time,
as on a device that does the work; ranks meet in each step.

``workers``: one of two workers is killed every so many seconds. ``nodes``: one of two hosts is lost, and
comes back at once. Ours saves with ``Checkpointer(every="auto")``; torchrun with ``torch.save``, at the
interval that loses the least for these failures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from scripts.benchmarks.launchers import HASTY, LAUNCHERS, OURS, TUNED
from scripts.benchmarks.recover import arguments_of, best_every, newest, reached
from scripts.benchmarks.run import Run, opened

CALM = 15.0  # seconds in which a step without faults is measured
WARM = 30  # steps before the clock starts
ENDPOINT_HOST = "a"


def main(arguments: Sequence[str]) -> int:
    """Measure, and print one line for each way."""
    parser = argparse.ArgumentParser(prog="scripts/bench goodput", description=__doc__)
    parser.add_argument("--size", type=float, default=0.1, metavar="MB", help="of the state of each worker")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each way (default 300)")
    parser.add_argument("--apart", type=float, default=20.0, help="seconds from one fault to the next")
    parser.add_argument("--faults", choices=("workers", "nodes"), default="workers")
    parser.add_argument(
        "--ways", default="memory,torch", help="of memory, overlap, bare, bare-overlap, torch"
    )
    options = parser.parse_args(arguments)
    if options.faults == "nodes" and os.geteuid() != 0:
        parser.error("nodes needs root, for host names")
    with tempfile.TemporaryDirectory(prefix="elasticrun-bench-") as folder:
        step = _calm_step(options, Path(folder))
        print(f"a step takes {step:.4f} s; a fault every {options.apart:g} s for {options.seconds:g} s")
        for way in options.ways.split(","):
            place = Path(folder) / way
            place.mkdir()
            counted, seconds, faults = _under_faults(way, options, place)
            share = counted * step / seconds
            print(
                f"{way:8} {options.size:6g} MB: goodput {share:.4f}"
                f" ({counted} steps in {seconds:.1f} s, {faults} faults)",
                flush=True,
            )
    return 0


def _start(run: Run, way: str, options: argparse.Namespace, folder: Path) -> Callable[[int], None]:
    """Start a job. Returns what does fault number so and so to it."""
    every: int | str = "auto"
    if way == "torch":
        every = best_every(options.size, folder, options.apart)
    script = arguments_of(way, options.size, every, folder)
    if options.faults == "workers":
        run.alone("--max-restarts", "1000", "--nproc-per-node", "2", *script)
        return lambda number: _kill_worker(run, number)
    for host in (ENDPOINT_HOST, "b"):
        run.node("2", "--max-restarts", "1000", *script, host=host)

    def lose(number: int) -> None:
        run.lose(run.guests()[0])
        run.node("2", "--max-restarts", "1000", *script, host=f"c{number}")

    return lose


def _kill_worker(run: Run, number: int) -> None:
    rank = number % 2
    run.kill([it.pid for it in run.events if it.what == "line" and it.rank == rank][-1])


def _launcher(way: str, faults: str) -> str:
    if way != "torch":
        return OURS
    return TUNED if faults == "workers" else HASTY


def _calm_step(options: argparse.Namespace, folder: Path) -> float:
    """The median of the seconds from one step to the next, without faults and saves."""
    place = folder / "calm"
    place.mkdir()
    with opened(LAUNCHERS[OURS], place, 0) as run:
        run.alone("--nproc-per-node", "2", *arguments_of("none", options.size, 1, place))
        reached(run, WARM)
        run.collect(time.monotonic() + CALM)
        at = [it.at for it in run.events if it.what == "step" and it.rank == 0 and it.step > WARM]
    return statistics.median(later - earlier for earlier, later in pairwise(at))


def _under_faults(way: str, options: argparse.Namespace, folder: Path) -> tuple[int, float, int]:
    """Steps that count, the seconds that they took, and the number of faults."""
    with opened(LAUNCHERS[_launcher(way, options.faults)], folder, 0) as run:
        fail = _start(run, way, options, folder)
        first = reached(run, WARM)
        faults = 0
        while (next_fault := first.at + (faults + 1) * options.apart) < first.at + options.seconds:
            run.collect(next_fault)
            fail(faults)
            faults += 1
        run.collect(first.at + options.seconds)
        # the first step that nobody had made before the end: all before it are in the model
        last = reached(run, newest(run) + 1)
    return last.step - first.step, last.at - first.at, faults
