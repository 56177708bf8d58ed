"""How long training stood still on this node, and how a job that ended well went: one line each.

What is measured runs from the instant at which this agent heard that training cannot go on, which is the end
of a worker, the loss of the store, or the order to stop, until all of this node's workers of a later round
have been started. That includes the time that the old workers take to end, and the wait for other nodes. It
does not include what the new workers do before their first step: the launcher cannot see that. All times are
of the agent's monotonic clock.

Invariant: nothing stands still before a first round.
"""

from __future__ import annotations

from elasticrun.core.agent.events import WorkersStarted
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.protocol.amounts import count, time_text
from elasticrun.core.protocol.messages import AgentPhase, Assignment


class Recovery:
    """Tells the user that training runs again."""

    def __init__(self, state: AgentState, outbox: Outbox) -> None:
        self._state = state
        self._outbox = outbox
        self._since: float | None = None  # when training stopped here; None: it runs, or never did
        self._restarts = 0  # of the job, by then

    def interrupted(self) -> None:
        """Note that training stops here, unless it stands still already."""
        assert self._state.assignment is not None
        if self._since is None:
            self._since, self._restarts = self._state.now, self._state.assignment.restart_count

    def started(self, event: WorkersStarted) -> None:
        """All workers of a round have been started: tell how long it took, if there was one before."""
        state, since, given = self._state, self._since, self._state.assignment
        if event.round != state.round or state.phase is not AgentPhase.RUNNING:
            return  # it has failed, or stops already
        self._since = None
        if since is None or given is None:
            return
        took, world = time_text(state.now - since), _world(given)
        if given.restart_count > self._restarts:
            restart = f"restart {given.restart_count} of {given.max_restarts}"
            self._outbox.warn(f"recovered in {took}: {world}, {restart}")
        else:
            self._outbox.warn(f"running again after {took}: {world}")

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        assert self._since is None or self._state.assignment is not None, "nothing ran that could stand still"


def describe_end(given: Assignment, seconds: float) -> str:
    """``done: 2 workers, 1 restart, 37 s``, of the last round of a job that ended well."""
    restarts = f"{count(given.restart_count, 'restart')}, " if given.restart_count else ""
    return f"done: {count(given.world_size, 'worker')}, {restarts}{time_text(seconds)}"


def _world(given: Assignment) -> str:
    return f"{count(given.world_size, 'worker')} on {count(given.group_world_size, 'node')}"
