"""The fences for what agents send: whose it is, and whether it counts.

Each fact is fenced by the session it came in on, by the incarnation and the sequence within it, and by the
epoch. So an event that is late, doubled or from an earlier life changes nothing. ``Attendance`` acts on what
passes.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.drains import Drains
from elasticrun.core.job.events import Attached, Beat, Detached, Left, MasterStarted, Reported
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import JOIN, STEP_DOWN, JobState
from elasticrun.core.membership.nodes import REFUSALS, Admission, Node
from elasticrun.core.membership.plausible import disbelief
from elasticrun.core.membership.quorum import next_epoch
from elasticrun.core.membership.roster import answer
from elasticrun.core.protocol.bounds import Horizon
from elasticrun.core.protocol.messages import Hello, NodeInfo, RejectCode, Rejected, Trust, Welcome


class Intake:
    """Takes in what masters and agents say of themselves."""

    def __init__(self, state: JobState, outbox: Outbox, attendance: Attendance, drains: Drains) -> None:
        self._state = state
        self._outbox = outbox
        self._attendance = attendance
        self._drains = drains

    # -- masters

    def start(self, event: MasterStarted) -> None:
        """Take up the job as a master that is newer than all before it."""
        state, epoch, endpoints = self._state, event.epoch, self._state.config.endpoints
        state.seniority.host = event.host
        state.key = state.key or event.key
        is_newer = epoch > state.epoch
        state.epoch = epoch if is_newer else next_epoch(state.epoch, endpoints, epoch % endpoints)
        state.horizon = Horizon.above(state.epoch, state.newest, state.probes)
        state.quorum.start(state.epoch)
        state.timers.cancel((STEP_DOWN, ""))
        if not state.quorum.is_needed:  # otherwise masters may take turns, and the wait has to end some time
            state.timers.cancel((JOIN, ""))  # the wait starts anew once the known nodes are back
        self._attendance.await_all()
        known = len(state.members.nodes)
        self._outbox.decide(f"master epoch {state.epoch} starts; {known} known nodes may re-attach")

    def _overtake(self, hello: Hello) -> None:
        """Raise our epoch above that of an unknown master whose directives this agent obeyed."""
        state = self._state
        foreign = hello.epoch == state.epoch and not state.members.has_met(hello.info)
        if foreign or hello.epoch > state.epoch:
            state.epoch = next_epoch(hello.epoch, state.config.endpoints, state.quorum.position)

    # -- streams

    def hear_hello(self, event: Attached) -> None:
        """Attach a node, or refuse it."""
        state, session, hello = self._state, event.session, event.hello
        info = hello.info
        admission = self._judge(session, hello)
        if admission is None:
            return
        self._overtake(hello)
        missing = state.members.detached
        if admission is Admission.SUPERSEDES:
            self._attendance.lose(state.members.nodes[info.node], "lost: a new incarnation took its place")
        node, replaced = state.members.attach(session, info, hello.status, hello.trust)
        if replaced is not None:
            self._outbox.drop(replaced)
        self._outbox.send(session, Welcome(state.epoch, state.config.heartbeat_interval))
        self._outbox.decide(f"{info.node} {admission.value}")
        if state.members.detached < missing:
            self._attendance.await_known()
        self._attendance.touch(node)
        if state.checkup is not None:
            state.checkup.hear_again(node, state.now)
        self._attendance.hear(node)
        self._outbox.direct(node)
        self._attendance.commits.greet(node)
        if state.config.state_storage is not None:
            self._attendance.storage.greet(node)
        if node.status.leaving:
            self._drains.hear(node)
        if admission is not Admission.REATTACHES:
            self._compare(info)

    def hear_status(self, event: Reported) -> None:
        """Take in a status if it is the newest of its incarnation, and can be believed."""
        state, status = self._state, event.status
        node = state.members.node_of(event.session)
        if node is None:
            return
        if refusal := disbelief(state.horizon, self._known, node.info, status):
            self._outbox.drop(event.session, refusal)
            self._attendance.lose(node, f"lost: {refusal.message}")
            return
        self._attendance.touch(node)
        if status.sequence > node.status.sequence:
            node.status = status
            self._attendance.hear(node)
            if status.leaving:
                self._drains.hear(node)

    def hear_beat(self, event: Beat) -> None:
        """Note that an agent lives."""
        node = self._state.members.node_of(event.session)
        if node is not None:
            self._attendance.touch(node)

    def hear_leave(self, event: Left) -> None:
        """Dismiss a node that goes in good order."""
        node = self._state.members.node_of(event.session)
        if node is not None:
            self._attendance.dismiss(node, None, f"left: {event.reason}")

    def hear_end(self, event: Detached) -> None:
        """Forget the node whose stream has ended, unless it has a newer one."""
        node = self._state.members.node_of(event.session)
        if node is not None:
            self._outbox.drop(event.session)
            self._attendance.lose(node, f"lost: {event.reason}")

    # -- deadlines

    def expire_silent(self, name: str) -> None:
        """Let a node go that has been silent for too long."""
        timeout = self._state.config.heartbeat_timeout
        self._attendance.let_go(name, f"lost: silent for {timeout:g} s")

    def expire_away(self, _: str) -> None:
        """Let the known nodes go that have not come back to a restarted master."""
        nodes = self._state.members.nodes
        for name in [name for name, node in nodes.items() if node.session is None]:
            self._attendance.let_go(name, "lost: not back in time after the master's restart")

    # -- admission

    def _judge(self, session: int, hello: Hello) -> Admission | None:
        """What a Hello means; None if it was refused."""
        state, info = self._state, hello.info
        is_free = state.ended and hello.trust is Trust.STRANGER  # names need no protection any more
        admission = state.members.judge(session, info, Trust.MEMBER if is_free else hello.trust)
        if admission in REFUSALS:
            told = answer(admission, info.node, state.members.farewell(info), len(state.members.nodes))
            self._outbox.drop(session, told)
            return None
        if state.quorum.is_blank and not hello.status.votes:
            self._outbox.drop(session)  # neither knows of a world: the agent must look for the first master
            return None
        if refusal := disbelief(state.horizon, self._known, info, hello.status, hello.epoch):
            self._outbox.drop(session, refusal)
            return None
        is_misfit = admission is not Admission.REATTACHES and self._refuse_misfit(session, info)
        return None if is_misfit else admission

    @property
    def _known(self) -> tuple[int, int, int]:
        return self._state.epoch, self._state.newest, self._state.probes

    def _refuse_misfit(self, session: int, info: NodeInfo) -> bool:
        """Refuse a node that was started for another job; both sides hear why."""
        other, limits = self._reference(), self._state.limits
        why = self._state.fit.refusal(info, (limits.min_nodes, limits.max_nodes), other)
        if not why:
            return False
        self._outbox.drop(session, Rejected(RejectCode.MISFIT, why))
        self._warn(f"refused: {why}", [other])
        return True

    def _compare(self, info: NodeInfo) -> None:
        """Warn both sides of what may be a mistake."""
        other = self._reference()
        for line in self._state.fit.differences(info, other):
            self._warn(line, [other, info])

    def _reference(self) -> NodeInfo | None:
        return self._state.fit.reference(node.info for node in self._state.members.nodes.values())

    def _warn(self, line: str, readers: Sequence[NodeInfo | None]) -> None:
        self._outbox.decide(line)
        nodes = self._state.members.nodes
        if self._state.fit.may_tell():
            self._outbox.tell([it.node for it in readers if it is not None and it.node in nodes], line)

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state = self._state
        names = {node.info.incarnation: node for node in state.members.nodes.values()}
        open_ = [node for node in names.values() if node.session is not None]
        rules = {
            "a name has one incarnation": len(names) == len(state.members.nodes),
            "a session is its node's": all(_owns(state, node) for node in open_),
            "the epoch is its endpoint's": state.epoch % state.config.endpoints == state.quorum.position,
        }
        return [rule for rule, holds in rules.items() if not holds]


def _owns(state: JobState, node: Node) -> bool:
    return node.session is not None and state.members.node_of(node.session) is node
