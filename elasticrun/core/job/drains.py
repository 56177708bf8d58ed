"""How a node leaves that an operator drains, or that says so itself.

Theory. What only the drained node has of the saved states goes with it. So while the next world may need
that, the node stays: its round stops as any other does, its workers may save once more, its parts go to the
members of the next world, and then it is dismissed. A world that runs needs nobody outside it. If too few
nodes are left for a world, or these cannot get all of the newest commit, it is written to the storage before,
if the job has one.

A member that has saved nothing yet may do so when it is told to stop. It is waited for if its workers are
known to use the memory for saved states, or if the job has a storage; a job that saves nothing loses no time.
So is each member of a round with parameter servers, which have the state: its nodes stop in their order.

Invariant: a node that leaves is no candidate, and is gone before the next world is formed.
"""

from __future__ import annotations

from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.messages import RejectCode, Rejected
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause
from elasticrun.core.tensorflow.cluster import is_served


class Drains:
    """The nodes that are asked to leave."""

    def __init__(self, state: JobState, outbox: Outbox, attendance: Attendance) -> None:
        self._state = state
        self._outbox = outbox
        self._attendance = attendance

    def hear(self, node: Node) -> None:
        """Let a node go that says that it wants to."""
        reason = node.status.leaving
        if node.info.node not in self._state.leaving and not self._state.ended:
            self.drain(node, f"leaving: {reason}")

    def drain(self, node: Node, reason: str) -> None:
        """Have a node leave: at once, or once nobody needs what it holds."""
        state, name = self._state, node.info.node
        if not self._may_be_needed(node):
            self._dismiss(node, reason)
            return
        state.leaving[name] = reason
        self._attendance.withdraw(node)
        if state.checkup is not None:
            state.checkup.lose(name)  # it will do no work, and its agent may probe no more
            self._outbox.direct(node)
        self._outbox.decide(f"{name} is {reason}; it goes once nobody needs what it holds")
        if name in state.current.pending:
            state.current.must_stop(StopCause.MEMBER_LEFT, f"{name} {reason}")

    def _may_be_needed(self, node: Node) -> bool:
        """Whether the next world may need what a node has saved, or is about to save."""
        state, name = self._state, node.info.node
        is_member = name in state.current.pending
        if name in state.ledger.nodes:
            return is_member or state.phase is not JobPhase.RUNNING
        tasks = state.current.tasks
        stops_in_order = tasks is not None and is_served(tasks.cluster)
        saves = stops_in_order or node.status.inlet is not None or state.config.state_storage is not None
        return is_member and saves and name not in state.current.finished

    def see_off(self) -> None:
        """Dismiss the nodes that have stayed until now."""
        for name, reason in [*self._state.leaving.items()]:
            self._dismiss(self._state.members.nodes[name], reason)

    def _dismiss(self, node: Node, reason: str) -> None:
        self._attendance.dismiss(node, Rejected(RejectCode.DRAINED, reason), reason)

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state, leaving = self._state, self._state.leaving.keys()
        rules = {
            "who leaves is here": leaving <= state.members.nodes.keys(),
            "who leaves is no candidate": state.ready.keys().isdisjoint(leaving),
        }
        return [rule for rule, holds in rules.items() if not holds]
