"""The command line of the simulator: many seeds, one seed with its trace, a large job, or a journal.

Without --seed, --seeds or --first, a job of more than 64 nodes is measured instead of put under faults: how
much time and memory the master's machine takes for the first world, and for new ones after a failure and a
loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from elasticrun.core.job import JobMachine
from elasticrun.core.job_events import Decided
from elasticrun.master.journal import read_journal
from elasticrun.master.snapshot import Snapshot, restore
from tests.sim.failover import simulator
from tests.sim.month import FAILURES, NODES, run_month
from tests.sim.scale import LARGE, run_large
from tests.sim.scenario import Scenario, generate
from tests.sim.tf_job import generate_tf


def literal(value: object) -> str:
    """The expression that makes ``value``, without what is as by default."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, Enum):
        return str(value)
    if not dataclasses.is_dataclass(value):
        return repr(value)
    shown = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    defaults = {f.name: f.default for f in dataclasses.fields(value)}
    arguments = ", ".join(f"{name}={literal(item)}" for name, item in shown if item != defaults[name])
    return f"{type(value).__name__}({arguments})"


def explain(scenario: Scenario) -> str:
    """The trace of a scenario, then what went wrong, then the scenario as a literal."""
    run = simulator(scenario, trace=True)
    try:
        result = str(run.run())
    except Exception:  # noqa: BLE001 - whatever went wrong is what is shown
        result = traceback.format_exc()
    lines = run.kernel.lines or []
    return "\n".join(
        [*lines, result, f"seed {scenario.seed}; for tests/sim/regressions.py:", literal(scenario)]
    )


def run_seeds(seeds: Sequence[int], nodes: int, is_tensorflow: bool = False) -> int:
    """Run seeds until one fails; 0 if none does. Jobs of TensorFlow have the nodes of their shape."""
    begin, steps, outcomes = time.monotonic(), 0, Counter[str]()
    for seed in seeds:
        scenario = generate_tf(seed) if is_tensorflow else generate(seed, nodes)
        try:
            result = simulator(scenario).run()
        except Exception:  # noqa: BLE001 - shown with its trace
            print(explain(scenario))
            return 1
        steps += result.steps
        outcomes[result.outcome.value if result.outcome else "nobody left"] += 1
    took = time.monotonic() - begin
    what = "TensorFlow jobs" if is_tensorflow else f"{nodes} nodes"
    print(
        f"{len(seeds)} seeds of {what}, {steps} steps in {took:.1f} s"
        f" ({len(seeds) / took:.0f} seeds/s); every rule held after every step; {dict(outcomes)}"
    )
    return 0


def replay_file(path: Path) -> int:
    """Print what a master decided, and why, from its journal."""
    found = read_journal(path)
    if found is None:
        print(f"{path}: there is no journal, or nothing in it", file=sys.stderr)
        return 1
    config, entries = found
    machine = JobMachine(config)
    for entry in entries:
        if isinstance(entry.event, Snapshot):
            machine = restore(config, entry.event)
            where = f"round {machine.round}, {machine.phase.value}"
            print(f"{entry.at:12.3f} the state in {where}; older events are gone")
            continue
        print(f"{entry.at:12.3f} {entry.event}")
        for effect in machine.handle(entry.event, entry.at):
            arrow = "=>" if isinstance(effect, Decided) else "->"
            print(f"{'':12} {arrow} {effect}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, help="how many seeds to run (default 1000)")
    parser.add_argument("--first", type=int, help="the first of them (default 0)")
    parser.add_argument("--nodes", type=int, default=8, help="nodes of each job (default 8)")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument(
        "--tensorflow", action="store_true", help="run jobs with roles, whose tasks die alone"
    )
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happens")
    parser.add_argument(
        "--curve", action="store_true", help="of a large job: measure smaller ones as well, and print a table"
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="print the decisions in a master's journal"
    )
    parser.add_argument(
        "--month",
        type=int,
        nargs="?",
        const=FAILURES,
        metavar="FAILURES",
        help=f"the journal of {NODES} nodes, one of which fails each minute (default {FAILURES} times)",
    )
    options = parser.parse_args(arguments)
    if options.month is not None:
        return run_month(options.month)
    if options.replay is not None:
        return replay_file(options.replay)
    is_tensorflow: bool = options.tensorflow
    if options.seed is options.seeds is options.first is None and options.nodes >= LARGE:
        return run_large(options.nodes, options.curve)
    if options.seed is None:
        first, count = options.first or 0, 1000 if options.seeds is None else options.seeds
        return run_seeds(range(first, first + count), options.nodes, is_tensorflow)
    if options.trace:
        seed = options.seed
        print(explain(generate_tf(seed) if is_tensorflow else generate(seed, options.nodes)))
        return 0
    return run_seeds([options.seed], options.nodes, is_tensorflow)


if __name__ == "__main__":
    sys.exit(main())
