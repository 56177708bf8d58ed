"""Nodes that stay attached but are chosen for no new world.

A cordoned member goes on in its round until that ends by itself. What it has saved stays in its memory, and
is copied from there into the next world. A cordon holds for the name, so an agent that is started again is
cordoned as well, until an operator lifts it or the job ends.

Invariant: a cordoned node is no candidate and is not held back, so no new world has it.
"""

from __future__ import annotations

from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import JobState

#: The most names that are cordoned at once.
MAX_CORDONED = 4096


class Cordons:
    """Keeps nodes out of new worlds."""

    def __init__(self, state: JobState, outbox: Outbox, attendance: Attendance) -> None:
        self._state = state
        self._outbox = outbox
        self._attendance = attendance

    def refuses(self, name: str) -> str:
        """Why a node that is here cannot be cordoned, in a sentence; "" if it can."""
        state = self._state
        if name in state.cordoned:
            return f"{name} is {state.cordoned[name]} already"
        if len(state.cordoned) >= MAX_CORDONED:
            return f"{MAX_CORDONED} nodes are cordoned, which is the most; lift a cordon first"
        if state.quorum.is_needed and state.newest < 0:
            return "the job has not begun, and needs all hosts of --rdzv-endpoint for that; wait until it has"
        out = {name, *state.leaving, *state.cordoned, *state.health.doubtful}
        left = len(state.members.nodes.keys() - out)
        if state.limits.usable(left):
            return ""
        needed = state.limits.smallest
        return f"{left} nodes would be left for the next world, but it needs {needed}; nothing has changed"

    def cordon(self, name: str, reason: str) -> str:
        """Choose a node for no new world; returns the answer."""
        state = self._state
        state.cordoned[name] = f"cordoned: {reason}" if reason else "cordoned"
        self._attendance.withdraw(state.members.nodes[name])
        self._outbox.decide(f"{name} is {state.cordoned[name]}; no new world has it")
        if name in state.current.pending:
            return f"{name} is cordoned; it goes on in round {state.round}, and no later world has it"
        return f"{name} is cordoned: no new world has it"

    def uncordon(self, name: str) -> str:
        """Let a node be chosen again; returns the answer."""
        state = self._state
        del state.cordoned[name]
        self._outbox.decide(f"{name} is no longer cordoned")
        if (node := state.members.nodes.get(name)) is not None and name not in state.current.pending:
            self._attendance.hear(node)
        return f"{name} may be chosen for the next world again"

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state, cordoned = self._state, self._state.cordoned.keys()
        rules = {
            "who is cordoned is no candidate": state.ready.keys().isdisjoint(cordoned),
            "who is cordoned is not held back": state.held.since.keys().isdisjoint(cordoned),
        }
        return [rule for rule, holds in rules.items() if not holds]
