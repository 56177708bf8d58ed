"""The phase of an agent, and its steps: (phase, trigger) -> phase."""

from __future__ import annotations

from collections.abc import Mapping

from elasticrun.core.agent.events import AgentTrigger
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase

Transitions = Mapping[tuple[AgentPhase, AgentTrigger], AgentPhase]


class Phases:
    """Moves from phase to phase by a table, and tells the master of each step."""

    def __init__(self, state: AgentState, outbox: Outbox, transitions: Transitions) -> None:
        self._state = state
        self._outbox = outbox
        self._transitions = transitions

    def move(self, trigger: AgentTrigger) -> None:
        """Take a step. Raises KeyError if it is not in the table: it cannot happen."""
        state = self._state
        state.phase = self._transitions[state.phase, trigger]
        if state.phase is AgentPhase.READY:
            state.search = state.search.begin(state.now)
        self._outbox.report()
