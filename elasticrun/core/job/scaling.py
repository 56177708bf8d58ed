"""Changes of the number of nodes: new bounds, nodes that leave, and nodes that are waited for.

Theory. The bounds (``JobState.limits``) change here only. ``scale MIN:MAX`` is over at once. ``scale in`` and
``scale out`` are *operations*: they begin with an order and end with a later event, and the event log tells
both. There is one at a time, because each is judged on the bounds that it found.

``scale out`` is all or nothing. Until enough nodes are there the bounds stay as they are, and nodes that came
wait as spares; then the bounds grow and all of them join at once. So a job that they do not come to in time
has not been disturbed. If too few are left when the world forms, the bounds fall back once the time is up.

An operator may cancel it before; that ends it as the deadline does. What has begun of ``scale in`` cannot be
called back: nodes that were asked to leave do.

Invariants: the deadline of an operation is a timer exactly while it waits for nodes. Without an operation
there is none, and the bounds are those of the last order that was carried out.
"""

from __future__ import annotations

from elasticrun.core.job.drains import Drains
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import SCALING, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.rendezvous import WorldLimits
from elasticrun.core.membership.roster import name_some
from elasticrun.core.membership.scaling import (
    Direction,
    Member,
    Operation,
    ScaleResult,
    choose_leavers,
    pending,
)
from elasticrun.core.protocol.orders import CancelScale, ScaleIn, ScaleJob, ScaleOut
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause

_BUSY = (JobPhase.RUNNING, JobPhase.STOPPING)
#: The most nodes that a job can be scaled to.
_MOST = 2**31 - 1


class Scaling:
    """Judges orders for another number of nodes, and carries them out."""

    def __init__(self, state: JobState, outbox: Outbox, drains: Drains) -> None:
        self._state = state
        self._outbox = outbox
        self._drains = drains

    # -- new bounds

    def refuses_bounds(self, event: ScaleJob) -> str:
        """Why the bounds cannot be these, in a sentence; "" if they can."""
        limits = _bounds(self._state, event)
        unit = limits.node_unit
        few = limits.largest < event.min_nodes
        misses = f"no multiple of {unit} (--node-unit) lies in {event.min_nodes}:{event.max_nodes}"
        return (misses if few else "") or self._refuses_second()

    def bound(self, event: ScaleJob) -> str:
        """Change the bounds; returns the answer."""
        low, high = event.min_nodes, event.max_nodes
        text = f"scaled to {low}:{high} nodes"
        self._outbox.decide(text)
        self._limit(_bounds(self._state, event), text)
        return f"the job now wants {low} to {high} nodes"

    def _limit(self, limits: WorldLimits, why: str) -> None:
        """Set the bounds; a world that is too large for them stops."""
        state = self._state
        state.limits = limits
        if state.phase is JobPhase.RUNNING and len(state.current.assignments) > limits.largest:
            state.current.must_stop(StopCause.RESIZED, why)

    def _refuses_second(self) -> str:
        operation = self._state.scaling
        if operation is None:
            return ""
        way_out = ", or elastic-ctl scale cancel first" if operation.direction is Direction.OUT else ""
        return f"{pending_in_words(self._state)}; order this one after it{way_out}"

    def _refuses_idle(self) -> str:
        phase = self._state.phase
        idle = f"no round runs: the job is {phase.value}; try again once one does"
        return self._refuses_second() or ("" if phase is JobPhase.RUNNING else idle)

    # -- fewer nodes

    def refuses_in(self, event: ScaleIn) -> str:
        """Why these nodes cannot leave, in a sentence; "" if they can."""
        if why := self._refuses_idle():
            return why
        state, members = self._state, self._members()
        for name in event.nodes:
            if name in state.leaving:
                return f"{name} is {state.leaving[name]}, and leaves already"
            if name not in members:
                return f"{name} is no member of round {state.round}: elastic-ctl drain {name} sends it away"
        count = event.count or len(set(event.nodes))
        limits, stay = _shrunk(state.limits, count), len(members) - count
        if limits.max_nodes < limits.min_nodes or limits.usable(stay) == 0:
            least = state.limits.smallest
            text = f"{max(0, stay)} of {len(members)} nodes would be left of {state.limits.min_nodes}"
            bounds = f"{text}:{state.limits.max_nodes}, but the job needs {least}"
            return f"{bounds}; lower MIN first (elastic-ctl scale)"
        return ""

    def scale_in(self, event: ScaleIn) -> str:
        """Let nodes leave, and nothing replace them; returns the answer."""
        state, nodes = self._state, self._state.members.nodes
        names, words = tuple(dict.fromkeys(event.nodes)), name_some(list(dict.fromkeys(event.nodes)))
        if event.count:
            names, words = choose_leavers(
                [_judge(state, node) for node in self._members().values()], event.count
            )
        before, wanted = state.limits, _shrunk(state.limits, len(names))
        state.scaling = operation = Operation(
            _number(state),
            Direction.IN,
            len(names),
            state.round,
            goal=wanted.usable(len(self._members()) - len(names)),
            before=before,
            wanted=wanted,
            leavers=tuple(nodes[name].info.incarnation for name in names),
        )
        state.limits = wanted
        bounds = f"the job then wants {wanted.min_nodes} to {wanted.max_nodes} nodes"
        self._outbox.decide(f"scaled in by {len(names)}: {words} leave; {bounds}")
        for name in names:
            self._drains.drain(nodes[name], f"scaled in: {event.reason}")
        verb = "is" if len(names) == 1 else "are"
        return f"operation {operation.number}: {words} {verb} asked to leave; {bounds}"

    def _members(self) -> dict[str, Node]:
        """The members of the round that do not leave already, by name."""
        state, nodes = self._state, self._state.members.nodes
        names = [name for name in state.current.assignments if name in nodes and name not in state.leaving]
        return {name: nodes[name] for name in names}

    # -- more nodes

    def refuses_out(self, event: ScaleOut) -> str:
        """Why the job cannot get so many nodes, in a sentence; "" if it can."""
        limits = self._state.limits
        if why := self._refuses_idle():
            return why
        if event.count % limits.node_unit:
            return f"{event.count} is no multiple of {limits.node_unit} (--node-unit)"
        if event.count > _MOST - limits.max_nodes:
            return f"{event.count} nodes are too many: the job may have {_MOST - limits.max_nodes} more"
        return ""

    def scale_out(self, event: ScaleOut) -> str:
        """Wait for so many nodes more; returns the answer."""
        state, limits, size = self._state, self._state.limits, len(self._state.current.assignments)
        wanted = WorldLimits(limits.min_nodes, limits.max_nodes + event.count, limits.node_unit)
        state.scaling = operation = Operation(
            _number(state),
            Direction.OUT,
            event.count,
            state.round,
            goal=size + event.count,
            before=limits,
            wanted=wanted,
            timeout=event.timeout,
        )
        state.timers.set((SCALING, ""), state.now + event.timeout)
        text = f"{size} -> {operation.goal} nodes, once they come, within {event.timeout:g} s"
        self._outbox.decide(f"scale out: {text}")
        return f"operation {operation.number}: {text}"

    def prepare(self, operation: Operation) -> None:
        """Let the nodes in that ``scale out`` waits for, once enough are there."""
        state = self._state
        if operation.direction is Direction.IN or state.limits == operation.wanted:
            return
        if state.phase is JobPhase.RUNNING:
            here = len(state.current.assignments) + state.candidates.available
        else:
            here = state.candidates.available if state.phase is JobPhase.GATHERING else 0
        if here >= operation.goal:
            state.limits = operation.wanted
            self._outbox.decide(f"{here} nodes are there for a world of {operation.goal}: they join")

    def expire(self, _: str) -> None:
        """Give up waiting for nodes: the bounds are as before."""
        operation = self._state.scaling
        assert operation is not None  # the timer ends with it
        few = f"not enough nodes came within {operation.timeout:g} s for a world of {operation.goal}"
        self._give_up(operation, few)

    def refuses_cancel(self) -> str:
        """Why there is nothing to cancel, in a sentence; "" if there is."""
        operation = self._state.scaling
        if operation is None:
            return "no scale out waits for nodes"
        if operation.direction is Direction.IN:
            return f"{pending_in_words(self._state)}: nodes that were asked to leave cannot be called back"
        return ""

    def cancel(self, event: CancelScale) -> str:
        """Stop waiting for nodes, as an operator wants; returns the answer."""
        operation = self._state.scaling
        assert operation is not None  # else it is refused
        why = f"cancelled: {event.reason}" if event.reason else "cancelled"
        return f"operation {operation.number} is over: {self._give_up(operation, why)}"

    def _give_up(self, operation: Operation, why: str) -> str:
        """End the wait for nodes: the bounds are as before. Returns the reason in full."""
        before = operation.before
        reason = f"{why}; the job wants {before.min_nodes} to {before.max_nodes} nodes as before"
        self._limit(before, f"scale out failed: {reason}")
        self._end(operation, False, reason)
        return reason

    # -- the end of an operation

    def settle(self, operation: Operation) -> None:
        """End the operation if what it waits for has happened; to be asked after each event."""
        state = self._state
        if state.ended:
            self._end(operation, False, f"the job has ended: {state.end_reason}")
        elif operation.direction is Direction.OUT:
            size = len(state.current.assignments)
            if state.phase is JobPhase.RUNNING and size >= operation.goal:
                self._end(operation, True, f"the world has {size} nodes")
        elif not self._leaves(operation):
            wanted = operation.wanted
            text = f"{operation.count} left; the job wants {wanted.min_nodes} to {wanted.max_nodes} nodes"
            self._end(operation, True, text)

    def _leaves(self, operation: Operation) -> bool:
        """Whether a node has still to leave, or the round in which it was has still to stop."""
        state = self._state
        if state.phase in _BUSY and state.round == operation.round:
            return True
        nodes = state.members.nodes
        here = {nodes[name].info.incarnation for name in state.leaving}  # who need not stay has gone already
        return not here.isdisjoint(operation.leavers)

    def _end(self, operation: Operation, reached: bool, reason: str) -> None:
        state = self._state
        state.scaling, state.scaled = None, ScaleResult(operation, reached, reason)
        state.timers.cancel((SCALING, ""))
        word = "is done" if reached else "failed"
        self._outbox.decide(f"{operation.direction.value} {word}: {reason}")

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state, operation = self._state, self._state.scaling
        waits = operation is not None and operation.direction is Direction.OUT
        rules = {
            "who waits for nodes has a deadline": waits == ((SCALING, "") in state.timers),
            "bounds are those of the last order": operation is None
            or state.limits in (operation.before, operation.wanted),
        }
        return [rule for rule, holds in rules.items() if not holds]


def _bounds(state: JobState, event: ScaleJob) -> WorldLimits:
    return WorldLimits(event.min_nodes, event.max_nodes, state.limits.node_unit)


def _shrunk(limits: WorldLimits, count: int) -> WorldLimits:
    return WorldLimits(limits.min_nodes, limits.max_nodes - count, limits.node_unit)


def _judge(state: JobState, node: Node) -> Member:
    name = node.info.node
    is_listed = state.config.endpoints > 1 and node.info.position >= 0
    return Member(
        name,
        node.arrival,
        name in state.health.doubtful or name in state.health.suspects,
        name in state.cordoned,
        is_listed or node.info.incarnation == state.seniority.host,
    )


def _number(state: JobState) -> int:
    """The number of a new operation."""
    state.scalings += 1
    return state.scalings


def pending_in_words(state: JobState) -> str:
    """The operation that is not over, and until when; "" if there is none."""
    until = state.timers.at((SCALING, "")) or 0.0
    return "" if state.scaling is None else pending(state.scaling, until - state.now)
