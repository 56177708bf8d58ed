"""The rules of orders: what an operation may do to the bounds, and who may be in a world."""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.core.job.events import Decided, JobEffect
from elasticrun.core.job.machine import JobMachine
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.membership.scaling import Direction, Operation
from elasticrun.sim.kernel import require

#: With this a scale out is said to have failed.
_FAILED = "scale out failed: "


def operations(machine: JobMachine) -> list[Operation]:
    """The scale operation that is not over, and the last one that is."""
    state = machine.state
    ended = [] if state.scaled is None else [state.scaled.operation]
    return ended if state.scaling is None else [state.scaling, *ended]


def leavers(machine: JobMachine) -> set[str]:
    """The incarnations that were told to leave by them."""
    return {who for operation in operations(machine) for who in operation.leavers}


def scaled_limits(machine: JobMachine) -> set[WorldLimits]:
    """The limits that they may have led to."""
    return {limits for it in operations(machine) for limits in (it.before, it.wanted)}


def no_world_has_a_cordoned_node(machine: JobMachine) -> None:
    """Check a new world."""
    both = machine.state.current.assignments.keys() & machine.state.cordoned.keys()
    require("no new world has a cordoned node", not both, f"{sorted(both)}")


def operations_end_as_told(machine: JobMachine, effects: Sequence[JobEffect]) -> None:
    """Check that an operation changes the bounds by what it was to change, and leaves them if it fails.

    If the job ends first, nobody asks for the bounds any more.
    """
    state = machine.state
    if any(isinstance(it, Decided) and it.text.startswith(_FAILED) for it in effects) and not state.ended:
        require("a failure leaves the bounds", state.scaled is not None, "none has ended")
        assert state.scaled is not None
        require(
            "a failure leaves the bounds", state.limits == state.scaled.operation.before, str(state.limits)
        )
    for operation in operations(machine):
        change = operation.wanted.max_nodes - operation.before.max_nodes
        sign = 1 if operation.direction is Direction.OUT else -1
        require("an operation changes MAX by its count", change == sign * operation.count, str(operation))
        is_same = operation.wanted.min_nodes == operation.before.min_nodes
        require("an operation leaves MIN", is_same, str(operation))
    if state.scaling is not None:
        within = state.limits in (state.scaling.before, state.scaling.wanted)
        require("nobody else changes the bounds meanwhile", within, str(state.limits))
        require("an operation ends with the job", not state.ended, str(state.scaling))
