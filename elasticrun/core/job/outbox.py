"""What the job says: directives to agents, notices to users, decisions to the log.

Effects are collected in the order in which they were decided; the machine hands them out after each event. A
directive is derived from the facts when it is sent (``core/job/directives.py``), and a later one has a larger
stamp. So an agent that obeys only newer stamps than its last one obeys the directive in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elasticrun.core.job.directives import directive, notice, patience
from elasticrun.core.job.events import Decided, Drop, JobEffect, Send
from elasticrun.core.job.state import NOTICE, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.roster import some_lines
from elasticrun.core.protocol.messages import (
    JobEnded,
    MasterMessage,
    Rejected,
    StartProbe,
    StartRound,
    StopRound,
    Waiting,
)
from elasticrun.core.protocol.status import JobPhase

#: Messages with a stamp: only the one with the largest stamp holds.
STAMPED = (StartRound, StopRound, StartProbe, JobEnded)


class Outbox:
    """Collects the effects of one event."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._effects: list[JobEffect] = []

    def begin(self) -> list[JobEffect]:
        """Collect for another event from now on, in the list returned."""
        self._effects = []
        return self._effects

    def put(self, effect: JobEffect) -> None:
        """Add one effect as it is."""
        self._effects.append(effect)

    def decide(self, text: str) -> None:
        """Write a decision to the log."""
        state = self._state
        self._effects.append(Decided(text, state.phase, state.round, state.events))

    def drop(self, session: int, farewell: Rejected | None = None) -> None:
        """Close a session, after ``farewell`` if there is one."""
        self._effects.append(Drop(session, farewell))

    def send(self, session: int, message: MasterMessage) -> None:
        """Put a message on a session's stream."""
        self._effects.append(Send(session, message))

    # -- directives

    def direct_all(self, names: Iterable[str]) -> None:
        """Send each of these nodes that is here the directive in force for it."""
        self._state.sequence += 1  # one for all, so that equal directives are one message
        nodes = self._state.members.nodes
        for name in names:
            if name in nodes:
                self._repeat(nodes[name])

    def direct(self, node: Node) -> None:
        """Send one node the directive in force for it."""
        self._state.sequence += 1
        self._repeat(node)

    def _repeat(self, node: Node) -> None:
        if node.session is None:
            return
        message = directive(self._state, node, self._state.sequence)
        if message is not None:
            self._effects.append(Send(node.session, message))

    # -- words for users

    def tell(self, names: Iterable[str], text: str) -> None:
        """Send a text to the users of these nodes."""
        for name in names:
            session = self._state.members.nodes[name].session
            if session is not None:
                self._effects.append(Send(session, Waiting(self._state.epoch, text)))

    def tell_all(self, lines: Sequence[str]) -> None:
        """Send all users the first of these lines: there may be a line for each of n nodes."""
        for line in some_lines(lines):
            self.tell(self._state.members.nodes, line)

    def remind(self) -> None:
        """Tell the waiting nodes what they wait for, and again after a while."""
        state = self._state
        text, waiting = notice(state)
        self.tell(waiting, text + patience(state))
        if waiting or state.phase is JobPhase.GATHERING:
            state.timers.set((NOTICE, ""), state.now + state.config.waiting_notice_interval)

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        stamps = [
            (message.epoch, message.sequence)
            for effect in self._effects
            if isinstance(effect, Send) and isinstance(message := effect.message, STAMPED)
        ]
        rules = {
            "stamps grow": stamps == sorted(stamps),
            "the newest stamp is the state's": not stamps or stamps[-1][1] <= self._state.sequence,
        }
        return [rule for rule, holds in rules.items() if not holds]
