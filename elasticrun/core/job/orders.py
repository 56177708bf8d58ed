"""The orders of operators: each is judged here, once, and answered.

An order is an event like any other. So it is judged on the facts at its place among the events; a journal
also holds the refused orders, and a replay refuses them again. Invariant: each order leads to exactly one
``Answered``, and a refused order changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from elasticrun.core.job.checking import Checking
from elasticrun.core.job.cordons import Cordons
from elasticrun.core.job.drains import Drains
from elasticrun.core.job.events import Answered, JobEvent
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.scaling import Scaling
from elasticrun.core.job.state import JobState
from elasticrun.core.job.tasks import SingleTasks, idle
from elasticrun.core.membership.roster import name_some
from elasticrun.core.protocol.messages import SaveStacks
from elasticrun.core.protocol.orders import (
    CancelScale,
    CheckNodes,
    CordonNode,
    DrainNode,
    Order,
    RestartRound,
    SaveAllStacks,
    ScaleIn,
    ScaleJob,
    ScaleOut,
    ScaleRole,
    StopJob,
    UncordonNode,
)
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.tensorflow.scale import scale_promise, scale_refusal


def in_full(request: Order, names: Collection[str], cordoned: Collection[str] = ()) -> Order:
    """An order with the whole name of the node that it is about, if it has the beginning of one name only.

    ``cordoned``: a cordon is lifted from one of these, which need not be here. To be asked before the order
    becomes an event: then the journal has the node that was meant, and a replay does not depend on the rule
    for it.
    """
    match request:
        case UncordonNode(node):
            return replace(request, node=_whole(node, _cordoned_or_here(node, cordoned, names)))
        case DrainNode(node) | CordonNode(node):
            return replace(request, node=_whole(node, names))
        case ScaleIn(nodes=nodes) if nodes:
            return replace(request, nodes=tuple(_whole(node, names) for node in nodes))
    return request


def _whole(given: str, names: Collection[str]) -> str:
    found = [given] if given in names else _begun_by(given, names)
    return found[0] if len(found) == 1 else given


def _begun_by(given: str, names: Collection[str]) -> list[str]:
    return [name for name in names if name.startswith(given)]


def _cordoned_or_here(given: str, cordoned: Collection[str], names: Collection[str]) -> Collection[str]:
    """The names among which a node is that has its cordon lifted."""
    return cordoned if _begun_by(given, cordoned) else names


def _unknown(given: str, names: Collection[str]) -> str:
    """Why a name is not that of one node."""
    found = _begun_by(given, names)
    if len(found) < 2:  # one is what ``in_full`` is for
        return f"there is no node {given!r}; the nodes are: {name_some(list(names)) or 'none'}"
    return f"{given!r} begins the names of {len(found)} nodes; give more of one of: {name_some(found)}"


class Orders:
    """Judges the orders of operators and carries them out."""

    def __init__(
        self,
        state: JobState,
        outbox: Outbox,
        drains: Drains,
        tasks: SingleTasks,
        scaling: Scaling,
        cordons: Cordons,
        checking: Checking,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._drains = drains
        self._tasks = tasks
        self._scaling = scaling
        self._cordons = cordons
        self._checking = checking
        self.rules: dict[type[JobEvent], Callable[[Any], None]] = {
            DrainNode: self._drain,
            ScaleJob: self._scale,
            ScaleRole: self._scale_role,
            SaveAllStacks: self._save_stacks,
            RestartRound: self._restart,
            ScaleIn: self._scale_in,
            ScaleOut: self._scale_out,
            CordonNode: self._cordon,
            UncordonNode: self._uncordon,
            CheckNodes: self._check,
            StopJob: self._stop,
            CancelScale: self._cancel_scale,
        }

    def _drain(self, event: DrainNode) -> None:
        nodes, why = self._state.members.nodes, f"drained: {event.reason}"
        if self._allows("" if event.node in nodes else _unknown(event.node, nodes)):
            self._drains.drain(nodes[event.node], why)
            self._answer(f"{event.node} is asked to leave")

    def _cordon(self, event: CordonNode) -> None:
        nodes = self._state.members.nodes
        why = "" if event.node in nodes else _unknown(event.node, nodes)
        if self._allows_later(why or self._cordons.refuses(event.node)):
            self._answer(self._cordons.cordon(event.node, event.reason))

    def _uncordon(self, event: UncordonNode) -> None:
        nodes, cordoned = self._state.members.nodes, self._state.cordoned
        among = _cordoned_or_here(event.node, cordoned, nodes)
        why = f"{event.node} is not cordoned" if event.node in nodes else _unknown(event.node, among)
        if self._allows("" if event.node in cordoned else why):
            self._answer(self._cordons.uncordon(event.node))

    def _scale(self, event: ScaleJob) -> None:
        if self._allows_later(self._scaling.refuses_bounds(event)):
            self._answer(self._scaling.bound(event))

    def _scale_in(self, event: ScaleIn) -> None:
        nodes = self._state.members.nodes
        unknown = [_unknown(name, nodes) for name in event.nodes if name not in nodes]
        if self._allows_later(unknown[0] if unknown else self._scaling.refuses_in(event)):
            self._answer(self._scaling.scale_in(event))

    def _scale_out(self, event: ScaleOut) -> None:
        if self._allows_later(self._scaling.refuses_out(event)):
            self._answer(self._scaling.scale_out(event))

    def _cancel_scale(self, event: CancelScale) -> None:
        if self._allows(self._scaling.refuses_cancel()):
            self._answer(self._scaling.cancel(event))

    def _scale_role(self, event: ScaleRole) -> None:
        state, role, count = self._state, event.role, event.count
        tasks = state.current.tasks
        if not self._allows("" if tasks is not None else scale_refusal(None, {}, role, count, idle(state))):
            return
        assert tasks is not None
        promise = scale_promise(tasks, role, count)
        refusal = self._tasks.scale(role, count)
        self._outbox.put(Answered(not refusal, refusal or promise))

    def _save_stacks(self, _: SaveAllStacks) -> None:
        if not self._allows(""):
            return
        state = self._state
        sessions = [node.session for node in state.members.nodes.values() if node.session is not None]
        for session in sessions:
            self._outbox.send(session, SaveStacks(state.epoch))
        self._outbox.decide(f"{len(sessions)} nodes save the stacks of their workers, as was ordered")
        self._answer(f"{len(sessions)} nodes save the stacks of their workers beside their logs")

    def _restart(self, event: RestartRound) -> None:
        state = self._state
        idle = f"no round runs: the job is {state.phase.value}; try again once one does"
        if not self._allows_later("" if state.phase is JobPhase.RUNNING else idle):
            return
        state.current.must_stop(StopCause.ORDERED, f"restart ordered: {event.reason}")
        commit = state.ledger.newest_whole()
        source = "no state is in memory" if commit is None else f"{commit} is in memory"
        self._answer(f"the workers of round {state.round} are stopped and start again; {source}")

    def _check(self, event: CheckNodes) -> None:
        state, reason = self._state, f"check ordered: {event.reason}"
        if not self._allows_later("the nodes are being checked" if state.phase is JobPhase.CHECKING else ""):
            return
        self._checking.order(reason)
        what = "their accelerators, and the links between them"
        if state.phase is not JobPhase.RUNNING:
            self._answer(f"all nodes are checked before the next round: {what}")
            return
        state.current.must_stop(StopCause.CHECK, reason)
        self._answer(
            f"round {state.round} is stopped, then all nodes are checked: {what}; it spends no restart"
        )

    def _stop(self, event: StopJob) -> None:
        state, reason = self._state, f"stopped by an operator: {event.reason}"
        if not self._allows(f"the job is {state.stop_ordered} already" if state.stop_ordered else ""):
            return
        state.stop_ordered = reason
        self._outbox.decide(reason)
        if state.phase is JobPhase.RUNNING:
            state.current.must_stop(StopCause.ENDED, reason)
        self._answer(f"the job ends; its workers may save their state ({len(state.members.nodes)} nodes)")

    def _allows_later(self, refusal: str) -> bool:
        """As ``_allows``, for an order about a later world: after an order to stop there is none."""
        stop = self._state.stop_ordered
        return self._allows(f"the job is {stop}" if stop else refusal)

    def _allows(self, refusal: str) -> bool:
        """Whether to carry out an order; if not, answer with ``refusal``, or with the job's end."""
        state, why = self._state, refusal
        if state.ended:
            why = f"the job has ended: {state.end_reason}"
        elif state.ending is not None:  # nothing starts any more, and who holds the state has to stay
            why = f"the job ends once its state is stored: {state.ending[1]}"
        if why:
            self._outbox.decide(f"an order is refused: {why}")
            self._outbox.put(Answered(False, why))
        return not why

    def _answer(self, text: str) -> None:
        self._outbox.put(Answered(True, text))
