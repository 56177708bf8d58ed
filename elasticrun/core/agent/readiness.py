"""What a node holds ready to start workers at once, their state included, and whether it is ready to.

The ports that it offers are held free for the next round, or for further tasks of the round that runs.

Invariant: a node that is READY has a port for the workers' store.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.agent.events import (
    ENDING,
    AgentTrigger,
    GroupGone,
    HoldingsChanged,
    ImportsSeen,
    PortsOffered,
    Prepared,
)
from elasticrun.core.agent.group import Group
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.phases import Phases
from elasticrun.core.agent.state import AgentState, Offer
from elasticrun.core.protocol.messages import AgentPhase


class Readiness:
    """Takes in what the launcher has prepared."""

    def __init__(self, state: AgentState, group: Group, outbox: Outbox, phases: Phases) -> None:
        self._state = state
        self._group = group
        self._outbox = outbox
        self._phases = phases

    def prepared(self, event: Prepared) -> None:
        """Workers could be started for the first time."""
        self._state.offer = Offer(event.store_port, event.ports, event.hosts_store)
        self._phases.move(AgentTrigger.PREPARED)

    def group_gone(self, event: GroupGone) -> None:
        """Nothing is left of what ran; ignored if it is about another round."""
        state = self._state
        if event.round != state.round or not (state.phase in ENDING or self._group.is_swept):
            return
        self._group.end()
        state.offer = Offer(event.store_port, event.ports, event.hosts_store)
        self._phases.move(AgentTrigger.GROUP_GONE)

    def ports_offered(self, event: PortsOffered) -> None:
        """Ports are held free for more tasks."""
        self._state.offer = replace(self._state.offer, ports=event.ports)
        self._outbox.report()

    def holdings_changed(self, event: HoldingsChanged) -> None:
        """Workers have saved their state here, or older states were dropped."""
        self._state.stock = event
        self._outbox.report()

    def imports_seen(self, event: ImportsSeen) -> None:
        """Workers that started now would wait for imports, or not any more."""
        before = self._state.is_warming
        self._state.imports = event.under_way
        if self._state.is_warming is not before and self._state.phase is AgentPhase.READY:
            self._outbox.report()

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        is_ready = self._state.phase is AgentPhase.READY
        assert self._state.offer.store_port or not is_ready, "this node is ready, but has no port to offer"
