"""What an agent says: to the master, to the user, and to whoever carries out its decisions.

Effects are collected in the order in which they are to happen. A status always tells all facts, so that the
newest one is enough, and each one has a higher sequence than those before. No report follows a farewell,
because it could call a leaving node ready. A node that *lingers* has not said its farewell: it tells in each
status that it will leave, so the master takes it for no world, and lets it go.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.agent.events import AgentEffect, Level, Say, Transmit
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.messages import AgentPhase, AgentStatus, Hello, Leave, Report


class Outbox:
    """Collects the effects of one event."""

    def __init__(self, state: AgentState, job_id: str, version: str) -> None:
        self._state = state
        self._job = (job_id, version)
        self._effects: list[AgentEffect] = []
        self._told = -1  # the newest sequence that was reported

    def put(self, *effects: AgentEffect) -> None:
        """Append these effects."""
        self._effects += effects

    def drain(self) -> list[AgentEffect]:
        """Return the effects collected since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def inform(self, text: str) -> None:
        """Inform the user."""
        self.put(Say(Level.INFO, text))

    def warn(self, text: str) -> None:
        """Warn the user."""
        self.put(Say(Level.WARNING, text))

    def report(self) -> None:
        """Send the status to the master, unless it has heard a farewell."""
        state = self._state
        state.sequence += 1
        if state.departure is None or not state.departure.is_farewell or state.lingers:
            self._told = state.sequence
            self.put(Transmit(Report(state.info.incarnation, self.status())))

    def say_farewell(self) -> None:
        """Tell the master that this node leaves, if that is so and the job may go on."""
        state = self._state
        if state.departure is not None and state.departure.is_farewell and not state.lingers:
            self.put(Transmit(Leave(state.info.incarnation, state.departure.finish.reason)))

    def hello(self) -> Hello:
        """The first message of a new stream: everything the master needs to resume from.

        Except a stall, which may be over: the watch over the workers will report it again.
        """
        status = replace(self.status(), stall=None)
        return Hello(*self._job, self._state.info, status, self._state.desired.epoch)

    def status(self) -> AgentStatus:
        """The current status."""
        state, offer = self._state, self._state.offer
        is_ready = state.phase is AgentPhase.READY
        return AgentStatus(
            state.sequence,
            state.phase,
            state.round,
            state.failures,
            offer.store_port if is_ready else 0,
            state.probe,
            state.stall if state.phase is AgentPhase.RUNNING else None,
            state.votes,
            warming=is_ready and state.is_warming,
            ports=offer.ports,
            tasks=state.scope.reports,
            hosts_store=is_ready and offer.hosts_store,
            holdings=state.stock.holdings,
            inlet=state.stock.inlet,
            copied=state.stock.copied,
            stored=state.stock.stored,
            leaving=state.departure.finish.reason if state.departure is not None and state.lingers else "",
        )

    def check(self) -> None:
        """Raise AssertionError unless all effects were taken, and no reported sequence is ahead."""
        assert not self._effects, "effects were not taken"
        assert self._told <= self._state.sequence, "a status is older than what was told"
