"""A soak under faults, its report, and whether what the report foretells for torchrun comes true.

First elastic-run trains on two nodes of this machine for ``--minutes``, while workers are killed and, if this
is root, each fourth time a node is killed and another one joins. The report of its event log goes to
``--out``. Then torchrun does the same with the same faults, for 5 minutes at most, and saves with
``torch.save`` at the interval that loses the least. What it lost is printed beside what the what-if of the
report says such faults cost it.

A step takes a fixed time, so what was lost is the time that passed, less that of the steps which count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticrun.cli.ctl_report import review_of
from elasticrun.core.history.incidents import Kind
from elasticrun.core.whatif.measured import Measured, measured
from elasticrun.core.whatif.replay import torchrun
from elasticrun.master.event_reader import NAME
from scripts.benchmarks.launchers import LAUNCHERS, OURS, TUNED
from scripts.benchmarks.recover import STEP, arguments_of, best_every, newest, reached
from scripts.benchmarks.run import Node, Run, opened

WARM = 30  # steps before the clock starts
BESIDE = 300.0  # seconds of torchrun at most
NODE_EACH = 4  # of so many faults one is of a node
NODES = "2"


@dataclass(frozen=True, slots=True)
class Fault:
    """After so many seconds of training."""

    at: float
    kind: Kind


@dataclass(frozen=True, slots=True)
class Lived:
    """What one way went through."""

    seconds: float
    counted: int  # steps of the final model
    faults: Counter[Kind]

    def lost(self, step: float) -> float:
        """Seconds that were no step that counts."""
        return self.seconds - self.counted * step


def schedule(seconds: float, apart: float, seed: int, with_nodes: bool) -> list[Fault]:
    """The faults of a run; those of a shorter one with the same seed are its first ones."""
    chance, found, at = random.Random(seed), list[Fault](), 0.0
    while True:
        at += apart * chance.uniform(0.7, 1.3)
        if at > seconds - apart / 2:
            return found
        is_node = with_nodes and len(found) % NODE_EACH == NODE_EACH - 1
        found.append(Fault(at, Kind.LOST if is_node else Kind.FAILED))


def foretold(
    job: Measured, faults: Mapping[Kind, int], saving: Mapping[str, float], stalls: float
) -> tuple[float, float, float]:
    """What these faults, and so many seconds of stalls, cost torchrun: the least, the usual, the most."""
    found = []
    for end in (-1, 0, 1):
        costs = torchrun(job, saving, end).by_kind
        found.append(
            stalls + sum(n * (costs[kind].recovery + costs[kind].redone) for kind, n in faults.items())
        )
    return found[0], found[1], found[2]


def main(arguments: Sequence[str]) -> int:
    """Run both, and print what was lost."""
    parser = argparse.ArgumentParser(prog="scripts/bench chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of elastic-run (default 30)")
    parser.add_argument("--apart", type=float, default=20.0, help="seconds from one fault to the next")
    parser.add_argument("--size", type=float, default=0.1, metavar="MB", help="of the state of each worker")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page of the report")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="elasticrun-bench-") as folder:
        _compare(options, Path(folder))
    return 0


def _compare(options: argparse.Namespace, folder: Path) -> None:
    every = best_every(options.size, folder, options.apart)
    seconds, with_nodes = options.minutes * 60, os.geteuid() == 0
    ours = _lived(OURS, options, folder / "ours", seconds, with_nodes, "auto")
    # of the nodes that could be master one was
    log = max((folder / "ours").glob(f"state*/{NAME}"), key=lambda path: path.stat().st_size)
    _report(log, options.out, every * STEP)
    job = measured(review_of(log).history)
    _say("elastic-run", ours)
    told = ", ".join(f"{it.count} {kind.value}" for kind, it in job.incidents.items() if it.count)
    print(f"its log: {told or 'no incidents'}, {job.all.seconds:.1f} s of recoveries", flush=True)
    theirs = _lived(TUNED, options, folder / "torch", min(seconds, BESIDE), with_nodes, every)
    _say("torchrun", theirs)
    least, usual, most = foretold(job, theirs.faults, {"every": every * STEP}, 0.0)
    print(
        f"torchrun lost {theirs.lost(STEP):.0f} s; for these faults the what-if foretold {usual:.0f} s"
        f" ({least:.0f} to {most:.0f})\nthe report: {options.out}"
    )


def _say(name: str, lived: Lived) -> None:
    goodput = lived.counted * STEP / lived.seconds
    faults = ", ".join(f"{count} {kind.value}" for kind, count in lived.faults.items())
    print(
        f"{name}: goodput {goodput:.3f}, {lived.counted} steps in {lived.seconds:.0f} s,"
        f" {lived.lost(STEP):.1f} s lost by {faults or 'no faults'}",
        flush=True,
    )


def _report(log: Path, out: Path, every: float) -> None:
    program = Path(sys.executable).with_name("elastic-ctl")
    assumed = ("--assume", f"every={every:g}")
    words = [str(program), "report", str(log), "-o", str(out), "--title", "Chaos soak", *assumed]
    subprocess.run(words, check=True)


def _lived(
    launcher: str,
    options: argparse.Namespace,
    folder: Path,
    seconds: float,
    with_nodes: bool,
    every: int | str,
) -> Lived:
    """One way, under its faults."""
    folder.mkdir()
    faults = Counter[Kind]()
    with opened(LAUNCHERS[launcher], folder, 0) as run:
        for host in ("a", "b"):
            _join(run, launcher, options, every, host if with_nodes else "")
        first = reached(run, WARM)
        for fault in schedule(seconds, options.apart, options.seed, with_nodes):
            run.collect(first.at + fault.at)
            faults[fault.kind] += _commit(run, fault, launcher, options, every, sum(faults.values()))
        run.collect(first.at + seconds)
        last = reached(run, newest(run) + 1)
        if launcher == OURS:
            run.collect(last.at + 1.0)  # what the log has to say of it
    return Lived(last.at - first.at, last.step - first.step, faults)


def _join(run: Run, launcher: str, options: argparse.Namespace, every: int | str, host: str) -> Node:
    way = "memory" if launcher == OURS else "torch"
    script = arguments_of(way, options.size, every, run.folder)
    own = ("--state-dir", str(run.folder / f"state{len(run.nodes)}-{host}")) if launcher == OURS else ()
    return run.node(NODES, "--max-restarts", "100000", *own, *script, host=host)


def _commit(
    run: Run, fault: Fault, launcher: str, options: argparse.Namespace, every: int | str, number: int
) -> int:
    """Do one fault; 0: there was nobody to do it to, as the job was still recovering from the last one."""
    if fault.kind is Kind.LOST:
        run.lose(run.guests()[0])
        _join(run, launcher, options, every, f"c{number}")
        return 1
    pids = [it.pid for it in run.events if it.what == "line" and it.rank == number % 2]
    with contextlib.suppress(ProcessLookupError):
        run.kill(pids[-1])
        return 1
    return 0
