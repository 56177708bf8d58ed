"""The rules of hangs and of errors that come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticrun.sim.kernel import require
from elasticrun.sim.scenario import Scenario

if TYPE_CHECKING:
    from elasticrun.sim.invariants import Rules
    from elasticrun.sim.world import World


def the_error_came_back(rules: Rules, reason: str) -> None:
    """The last rounds that failed, as many as the policy asks for, raised the same error."""
    needed = rules.scenario.policy.same_error_rounds
    failed = [
        world
        for number in sorted(rules.worlds)
        for world in rules.worlds[number]
        if world.generation == rules.generation and world.failed_by_itself
    ]
    require("the same error came back", 0 < needed <= len(failed), reason)
    errors = [world.errors for world in failed[-needed:]]
    require("it is the same error", bool(set.intersection(*errors)), f"{reason}: {errors}")


def hang_is_real(scenario: Scenario, world: World) -> None:
    """There was a time at which no unfinished node made steps."""
    specs = {spec.name: spec.local_world_size for spec in scenario.nodes}
    waits = [
        world.waits.get(name, []) for name in world.assignments if world.done.get(name, 0) != specs[name]
    ]
    starts = [start for spans in waits for start, _ in spans]
    together = any(all(any(a <= at <= b for a, b in spans) for spans in waits) for at in starts)
    require("a hang is everybody's", together or not waits, f"{world.waits} in round {world.number}")
    world.genuine = True
