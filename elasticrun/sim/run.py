"""Run many seeds until one breaks a rule, or one with its trace."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Sequence

from elasticrun.sim.draw import generate
from elasticrun.sim.failover import simulator
from elasticrun.sim.literal import literal
from elasticrun.sim.master import SAVING, Saving
from elasticrun.sim.scenario import Scenario
from elasticrun.sim.tf_job import generate_tf


def drawn(seed: int, nodes: int, is_tensorflow: bool) -> Scenario:
    """The scenario of a seed. TensorFlow jobs take their nodes from a shape instead."""
    return generate_tf(seed) if is_tensorflow else generate(seed, nodes)


def explain(scenario: Scenario, saving: Saving = SAVING) -> str:
    """The trace of a scenario, then what went wrong, then the scenario as a literal."""
    run = simulator(scenario, True, saving)
    try:
        result = str(run.run())
    except Exception:  # noqa: BLE001 - whatever went wrong is what is shown
        result = traceback.format_exc()
    lines = run.kernel.lines or []
    return "\n".join([*lines, result, f"seed {scenario.seed} as a scenario:", literal(scenario)])


def run_seeds(seeds: Sequence[int], nodes: int, is_tensorflow: bool, saving: Saving) -> int:
    """Run seeds until one fails, and explain that one; 0 if none does."""
    begin, steps, outcomes = time.monotonic(), 0, Counter[str]()
    for seed in seeds:
        scenario = drawn(seed, nodes, is_tensorflow)
        try:
            result = simulator(scenario, False, saving).run()
        except Exception:  # noqa: BLE001 - shown with its trace
            print(explain(scenario, saving))
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
