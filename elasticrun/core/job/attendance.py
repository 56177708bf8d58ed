"""The nodes that are here, and what follows for the job when one reports something new or is lost.

A ready node in no round that may still run is a candidate for the next world or is held back
(``core/job/growth.py``). Every new status passes through ``hear``, and every departure ends in ``lose``.
These two keep the counts over all nodes exact.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.health.verdicts import NodeFinding
from elasticrun.core.job.commits import Commits
from elasticrun.core.job.growth import HeldBack
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import HEARTBEAT, LAST_CALL, REATTACH, WARMING, JobState
from elasticrun.core.job.storage import Storage
from elasticrun.core.membership.nodes import Node
from elasticrun.core.membership.quorum import accepts
from elasticrun.core.protocol.messages import RejectCode, Rejected
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.budget import StopCause

#: Seconds added for each awaited node to the time in which nodes have to come back to a restarted master. All
#: come at once, so the last one waits while the master welcomes the others: about a millisecond for each, and
#: several times as long where their agents share the master's cores.
REATTACH_EACH = 0.005


class Attendance:
    """Keeps the table of nodes, the candidates and those held back."""

    def __init__(self, state: JobState, outbox: Outbox, commits: Commits, storage: Storage) -> None:
        self._state = state
        self._outbox = outbox
        self.commits = commits
        self.storage = storage

    # -- what nodes say

    def hear(self, node: Node) -> None:
        """Take in a node's newest status, and act on it."""
        state, name, status = self._state, node.info.node, node.status
        state.newest = max(state.newest, status.round)
        if status.probe is not None:  # else this answer could pass for one to our next probe
            self.note_probe(status.probe.check)
        state.quorum.hear(status.votes, node.info.position, status.round)
        self.commits.hear(node)
        if state.config.state_storage is not None:
            self.storage.hear(node)
        if name in state.current.pending:
            self._hear_member(node)
        if state.checkup is not None:
            state.checkup.hear(node)
        state.candidates.hear(node)
        is_out = name in state.leaving or name in state.cordoned
        if not node.ready or name in state.current.pending or is_out:
            self.withdraw(node)
        elif status.warming and state.round >= 0 and not (state.checkup and state.checkup.involves(name)):
            self.hold_back(node)
        elif name not in state.ready:
            self.admit(node)
            state.timers.cancel((LAST_CALL, ""))  # an arrival restarts it

    def _hear_member(self, node: Node) -> None:
        """Take in the status of a member of the newest world that may still run."""
        state, name, status = self._state, node.info.node, node.status
        if not accepts(status.votes, state.current.assignments[name].proposal):
            state.current.lose(name, f"{name} followed another master")
        elif status.round == state.round:
            state.current.absorb(name, status, state.now)
            self._note_completion()
        elif status.round > state.round:
            state.current.lose(name, f"{name} followed another master to round {status.round}")

    def _note_completion(self) -> None:
        """Once every member has started, note that the world is complete (``core/membership/quorum.py``)."""
        current = self._state.current
        if not current.is_committed:
            return
        proposal = next(iter(current.assignments.values())).proposal
        if proposal is None or proposal.base == proposal.world or not self._state.quorum.complete(proposal):
            return
        for name, given in current.assignments.items():
            assert given.proposal is not None
            current.assignments[name] = replace(
                given, proposal=replace(given.proposal, base=given.proposal.world)
            )
        if self._state.phase is JobPhase.RUNNING:
            self._outbox.direct_all([name for name in current.assignments if name in current.pending])

    def touch(self, node: Node) -> None:
        """Note that a node is alive: restart its heartbeat timeout."""
        state = self._state
        state.timers.set((HEARTBEAT, node.info.node), state.now + state.config.heartbeat_timeout)

    # -- numbers that only grow

    def number_round(self) -> int:
        """A number for a new round, larger than any that a node has heard of."""
        self._state.newest += 1
        return self._state.newest

    def note_probe(self, number: int) -> None:
        """Note the number of a probe: the next probe gets a larger one."""
        self._state.probes = max(self._state.probes, number)

    # -- candidates

    def admit(self, node: Node) -> None:
        """Make a ready node a candidate."""
        self.withdraw(node)
        self._state.candidates.add(node)

    def withdraw(self, node: Node) -> None:
        """Remove the node from the candidates, and from those held back."""
        self._state.candidates.remove(node)
        if node.info.node in self._state.held:
            self._state.held.drop(node.info.node)
            self._watch_held()

    def hold_back(self, node: Node) -> None:
        """Keep a ready node out of worlds, as its workers would wait for imports."""
        self._state.candidates.remove(node)
        self._state.held.add(node.info.node, self._state.now)
        self._watch_held()

    def admit_first(self) -> None:
        """Make the node that was held back first a candidate."""
        self.admit(self._state.members.nodes[self._state.held.first])

    def admit_held(self) -> None:
        """Make all nodes that are held back candidates."""
        for name in list(self._state.held.since):
            self.admit(self._state.members.nodes[name])

    def _watch_held(self) -> None:
        deadline = self._state.held.deadline
        if deadline is None:
            self._state.timers.cancel((WARMING, ""))
        else:
            self._state.timers.set((WARMING, ""), deadline)

    # -- departures

    def lose(self, node: Node, reason: str, cause: StopCause = StopCause.MEMBER_LOST) -> None:
        """Forget a node that is gone."""
        state, name = self._state, node.info.node
        state.members.remove(name)
        self.withdraw(node)
        state.candidates.forget(node)
        state.leaving.pop(name, None)
        self.commits.lose(name)
        self.storage.lose(name)
        state.timers.cancel((HEARTBEAT, name))
        if state.checkup is not None:
            state.checkup.lose(name)
        if not state.ended:  # afterwards all nodes leave
            self._outbox.decide(f"{name} {reason}")
        state.current.lose(name, f"{name} {reason}", cause)

    def let_go(self, name: str, reason: str) -> None:
        """Close the stream of a node that may come back, and forget it."""
        node = self._state.members.nodes[name]
        if node.session is not None:
            self._outbox.drop(node.session)
        self.lose(node, reason)

    def dismiss(self, node: Node, farewell: Rejected | None, reason: str) -> None:
        """Forget a node for good. Its workers may be stopping, so this incarnation must not come back."""
        self._state.members.retire(node, farewell)
        if node.session is not None:
            self._outbox.drop(node.session, farewell)
        self.lose(node, reason, StopCause.MEMBER_LEFT)

    def exclude(self, *faulty: NodeFinding) -> None:
        """Dismiss faulty nodes: their agents end, so that they can be replaced."""
        nodes = self._state.members.nodes
        known = [found for found in faulty if found.node in nodes]
        for found in known:
            self._state.candidates.suspect(found.node)  # and with it its host
            farewell = Rejected(RejectCode.EXCLUDED, f"this node was excluded from the job: {found.reason}")
            self.dismiss(nodes[found.node], farewell, f"excluded: {found.reason}")
        self._outbox.tell_all([f"{found.node} was excluded from the job: {found.reason}" for found in known])

    # -- a master's restart

    def await_all(self) -> None:
        """Mark every known node as detached, as the streams of the earlier master are closed."""
        state = self._state
        state.members.detach_all()
        for node in state.members.nodes.values():
            state.candidates.remove(node)
            state.timers.cancel((HEARTBEAT, node.info.node))
        if state.checkup is not None:
            state.checkup.interrupt()
        state.held = HeldBack()
        state.timers.cancel((WARMING, ""))
        self.await_known()

    def await_known(self) -> None:
        """Restart the wait for known nodes that are not back; called for each one that returns.

        So a lost node is found soon after all others are back, whether two or thousands.
        """
        state = self._state
        missing = state.members.detached
        if missing:
            time = state.config.reattach_timeout + REATTACH_EACH * missing
            state.timers.set((REATTACH, ""), state.now + time)
        else:
            state.timers.cancel((REATTACH, ""))

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state = self._state
        nodes, ready, held = state.members.nodes, state.ready.keys(), state.held.since.keys()
        busy = state.current.pending | state.leaving.keys() | state.cordoned.keys()
        idle = {name for name, node in nodes.items() if node.ready and name not in busy}
        away = sum(node.session is None for node in nodes.values())
        silent = {
            name for name, node in nodes.items() if node.session and (HEARTBEAT, name) not in state.timers
        }
        rules = {
            "whoever is ready is a candidate or held back": ready | held == idle,
            "no candidate is held back": not ready & held,
            "who is held back is waited for": state.ended or ((WARMING, "") in state.timers) == bool(held),
            "who is away is counted": state.members.detached == away,
            "who is away is waited for": state.ended or not away or (REATTACH, "") in state.timers,
            "silence is noticed": state.ended or not silent,
        }
        return [rule for rule, holds in rules.items() if not holds]
