"""What the master knows of a job: who is there, and what each of them last said.

Events end up here as facts; what follows from them is decided in ``core/job.py``. Each fact is fenced: by the
session it came in on, by the incarnation and the sequence within it, and by the epoch. So an event that is
late, doubled or from an earlier life changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from elasticrun.config import JobConfig, TaskRole
from elasticrun.core.bounds import Horizon
from elasticrun.core.checkup import Checkup, HealthBook
from elasticrun.core.directives import directive
from elasticrun.core.electorate import Electorate, Standing
from elasticrun.core.fit import Fit
from elasticrun.core.health import NodeFinding
from elasticrun.core.job_events import (
    OUTCOMES,
    Decided,
    Drop,
    JobEffect,
    JobPhase,
    Send,
)
from elasticrun.core.job_growth import HeldBack
from elasticrun.core.membership import Admission, Membership, Node
from elasticrun.core.plausible import disbelief
from elasticrun.core.protocol import (
    AgentStatus,
    Failure,
    Hello,
    NodeCheck,
    NodeInfo,
    RejectCode,
    Rejected,
    Trust,
    Waiting,
    Welcome,
)
from elasticrun.core.quorum import Quorum, accepts, next_epoch
from elasticrun.core.recovery import Recovery
from elasticrun.core.rendezvous import WorldLimits
from elasticrun.core.restart import Budget, StopCause
from elasticrun.core.roster import name_in_use, some_lines, superseded
from elasticrun.core.round import Round
from elasticrun.core.round_tasks import Order
from elasticrun.core.seniority import Seniority
from elasticrun.core.timers import Deadlines

Timer = tuple[str, str]  # its kind, and the node it is about, or ""
HEARTBEAT, LAST_CALL, JOIN, NOTICE, REATTACH = "heartbeat", "last call", "join", "notice", "re-attach"
CHECK, BACKOFF, STEP_DOWN = "check", "back-off", "step down"
GROWTH, WARMING = "growth", "warming"
#: Seconds that nodes have, after the time of a probe is over, to kill it and to say so.
CHECK_GRACE = 40.0
#: Seconds by which the time to come back to a restarted master is longer for each node that is awaited. They
#: all come at once, so the last one waits for the master to welcome the others: that takes about a
#: millisecond for each, and several times as long where their agents share the master's cores.
REATTACH_EACH = 0.005


class JobFacts:
    """The facts about one job, and how events change them."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.limits = WorldLimits(config.min_nodes, config.max_nodes, config.node_unit)
        self.phase = JobPhase.GATHERING
        self.epoch = 0
        self.key = ""  # of all masters of this journal, in hex: what agents are given secrets from
        self.round = -1  # the newest round of this job that this master knows the members of
        self.newest = -1  # the highest number that any node has heard of, perhaps from a forgotten master
        self.recovery = Recovery(Budget(config.max_restarts))
        self.quorum = Quorum(config.endpoints)
        self.health = HealthBook()
        self.checkup: Checkup | None = None
        self.table: tuple[NodeCheck, ...] = ()  # of the last check, if that is what was asked for
        self.members = Membership()
        self.fit = Fit(config.min_nodes, config.max_nodes)
        self.seniority = Seniority()
        self.current = Round()
        self.previous: tuple[str, ...] = ()  # the newest world's members by group rank
        self.electorate = Electorate(self.members.nodes, self.quorum, self.health)
        self.held = HeldBack()  # as ready, but a world that runs, or could be formed, does not wait for them
        self.role_orders: dict[TaskRole, Order] = {}  # the newest for each role of a TensorFlow job
        self.end_reason = ""
        self.obstacle = ""  # why no world is formed although enough nodes are there
        self._timers: Deadlines[Timer] = Deadlines()
        self._last_called = False
        self._probes = 0  # number of the newest one, perhaps of a master that was forgotten
        self._horizon = Horizon()
        self._sequence = 0
        self._now = 0.0
        self._effects: list[JobEffect] = []

    @property
    def budget(self) -> Budget:
        """The restarts that were used and are left."""
        return self.recovery.budget

    @property
    def ready(self) -> Mapping[str, Standing]:
        """The nodes outside a round that could start at once, in the order in which they came to that."""
        return self.electorate.ready

    @property
    def _known(self) -> tuple[int, int, int]:
        return self.epoch, self.newest, self._probes

    @property
    def ended(self) -> bool:
        """No round will follow."""
        return self.phase in OUTCOMES

    # -- facts

    def _start(self, epoch: int, key: str) -> None:
        endpoints = self.config.endpoints
        self.key = self.key or key
        self.epoch = epoch if epoch > self.epoch else next_epoch(self.epoch, endpoints, epoch % endpoints)
        self._horizon = Horizon.above(self.epoch, self.newest, self._probes)
        self.quorum.start(self.epoch)
        self.members.detach_all()
        for node in self.members.nodes.values():
            self.electorate.strike(node)
        self.held = HeldBack()
        self._timers.cancel((WARMING, ""))
        self._timers.cancel((STEP_DOWN, ""))
        if not self.quorum.is_needed:  # otherwise masters may take turns, and the wait has to end some time
            self._timers.cancel((JOIN, ""))  # who is missing is known again when they are back
        for name in self.members.nodes:
            self._timers.cancel((HEARTBEAT, name))
        self._await_known()
        self._decide(f"master epoch {self.epoch} starts; {len(self.members.nodes)} known nodes may re-attach")

    def _await_known(self) -> None:
        """Known nodes that are not back have some time to come, counted from the last one that did.

        So a node that is gone is found soon after all others are back, be they two or thousands.
        """
        missing = self.members.detached
        if missing:
            time = self.config.reattach_timeout + REATTACH_EACH * missing
            self._timers.set((REATTACH, ""), self._now + time)
        else:
            self._timers.cancel((REATTACH, ""))

    def _attach(self, session: int, hello: Hello) -> None:
        info = hello.info
        is_free = self.ended and hello.trust is Trust.STRANGER  # nobody's name has to be kept any more
        admission = self.members.judge(session, info, Trust.MEMBER if is_free else hello.trust)
        if admission in (Admission.STALE, Admission.REFUSED, Admission.IN_USE):
            self._effects.append(Drop(session, self._farewell(info, admission)))
            return
        if self.quorum.is_blank and not hello.status.seats:
            self._effects.append(Drop(session))  # neither knows of a world: it must look for the first master
            return
        if refusal := disbelief(self._horizon, self._known, info, hello.status, hello.epoch):
            self._effects.append(Drop(session, refusal))
            return
        if admission is not Admission.REATTACHES and self._is_misfit(session, info):
            return
        self._overtake(hello)
        missing = self.members.detached
        if admission is Admission.SUPERSEDES:
            self._lose(self.members.nodes[info.node], "lost: a new incarnation took its place")
        node, replaced = self.members.attach(session, info, hello.status, hello.trust)
        if replaced is not None:
            self._effects.append(Drop(replaced))
        self._effects.append(Send(session, Welcome(self.epoch, self.config.heartbeat_interval)))
        self._decide(f"{info.node} {admission.value}")
        if self.members.detached < missing:
            self._await_known()
        self._touch(node)
        self._absorb(node)
        self._direct(node)
        if admission is not Admission.REATTACHES:
            self._compare(info)

    def _is_misfit(self, session: int, info: NodeInfo) -> bool:
        """Refuse a node that was started for another job; both sides hear why."""
        other = self._reference()
        why = self.fit.refusal(info, (self.limits.min_nodes, self.limits.max_nodes), other)
        if not why:
            return False
        self._effects.append(Drop(session, Rejected(RejectCode.MISFIT, why)))
        self._warn(f"refused: {why}", [other])
        return True

    def _compare(self, info: NodeInfo) -> None:
        """Warn both sides of what may be a mistake."""
        other = self._reference()
        for line in self.fit.differences(info, other):
            self._warn(line, [other, info])

    def _reference(self) -> NodeInfo | None:
        return self.fit.reference(node.info for node in self.members.nodes.values())

    def _warn(self, line: str, readers: Sequence[NodeInfo | None]) -> None:
        self._decide(line)
        if self.fit.may_tell():
            self._tell([it.node for it in readers if it is not None and it.node in self.members.nodes], line)

    def _farewell(self, info: NodeInfo, admission: Admission) -> Rejected | None:
        if admission is Admission.REFUSED:
            return self.members.farewell(info) or superseded(info.node)
        return name_in_use(info.node) if admission is Admission.IN_USE else None

    def _overtake(self, hello: Hello) -> None:
        """Be newer than a master that we know nothing of, whose directives this agent obeyed."""
        foreign = hello.epoch == self.epoch and not self.members.has_met(hello.info)
        if foreign or hello.epoch > self.epoch:
            self.epoch = next_epoch(hello.epoch, self.config.endpoints, self.quorum.position)

    def _report(self, session: int, status: AgentStatus) -> None:
        node = self.members.node_of(session)
        if node is None:
            return
        if refusal := disbelief(self._horizon, self._known, node.info, status):
            self._effects.append(Drop(session, refusal))
            self._lose(node, f"lost: {refusal.message}")
            return
        self._touch(node)
        if status.sequence > node.status.sequence:
            node.status = status
            self._absorb(node)

    def _hear(self, session: int) -> None:
        node = self.members.node_of(session)
        if node is not None:
            self._touch(node)

    def _detach(self, session: int, reason: str) -> None:
        node = self.members.node_of(session)
        if node is not None:
            self._effects.append(Drop(session))
            self._lose(node, reason)

    def _leave(self, session: int, reason: str) -> None:
        node = self.members.node_of(session)
        if node is not None:
            self._dismiss(node, None, reason)

    def _dismiss(self, node: Node, farewell: Rejected | None, reason: str) -> None:
        """A node goes for good. Its workers still stop, so this incarnation must not come back."""
        self.members.retire(node, farewell)
        if node.session is not None:
            self._effects.append(Drop(node.session, farewell))
        self._lose(node, reason, StopCause.MEMBER_LEFT)

    def _drain(self, name: str, reason: str) -> None:
        node = self.members.nodes.get(name)
        if node is not None:
            self._dismiss(node, Rejected(RejectCode.DRAINED, f"drained: {reason}"), f"drained: {reason}")

    def _exclude(self, *faulty: NodeFinding) -> None:
        """Nodes are faulty: they end, so that whoever started them can replace them."""
        known = [found for found in faulty if found.node in self.members.nodes]
        for found in known:
            self.electorate.suspect(found.node)  # and with it its host
            farewell = Rejected(RejectCode.EXCLUDED, f"this node was excluded from the job: {found.reason}")
            self._dismiss(self.members.nodes[found.node], farewell, f"excluded: {found.reason}")
        self._tell_all([f"{found.node} was excluded from the job: {found.reason}" for found in known])

    def _scale(self, low: int, high: int) -> None:
        self.limits = WorldLimits(low, high, self.limits.node_unit)
        self._decide(f"scaled to {low}:{high} nodes")
        if self.phase is JobPhase.RUNNING and len(self.current.seats) > self.limits.largest:
            self.current.must_stop(StopCause.RESIZED, f"scaled to {low}:{high} nodes")

    def _touch(self, node: Node) -> None:
        self._timers.set((HEARTBEAT, node.info.node), self._now + self.config.heartbeat_timeout)

    def _absorb(self, node: Node) -> None:
        """Draw the consequences of a node's newest status."""
        name, status = node.info.node, node.status
        self.newest = max(self.newest, status.round)
        if status.probe is not None:  # else its answer to another probe would be taken for one to ours
            self._probes = max(self._probes, status.probe.check)
        self.quorum.hear(status.seats, node.info.position, status.round)
        if name in self.current.pending:
            if not accepts(status.seats, self.current.seats[name].charter):
                self.current.lose(name, f"{name} followed another master")
            elif status.round == self.round:
                self.current.absorb(name, status, self._now)
                self._note_completion()
            elif status.round > self.round:
                self.current.lose(name, f"{name} followed another master to round {status.round}")
        if self.checkup is not None:
            self.checkup.hear(node)
        self.electorate.hear(node)
        if not node.ready or name in self.current.pending:
            self._strike(node)
        elif status.warming and self.round >= 0 and not (self.checkup and self.checkup.involves(name)):
            self._hold_back(node)
        elif name not in self.ready:
            self._enlist(node)
            self._timers.cancel((LAST_CALL, ""))  # an arrival restarts it

    def _enlist(self, node: Node) -> None:
        """A node could be a member of the next world."""
        self._strike(node)
        self.electorate.enlist(node)

    def _strike(self, node: Node) -> None:
        """A node could not."""
        self.electorate.strike(node)
        if node.info.node in self.held:
            self.held.drop(node.info.node)
            self._watch_held()

    def _hold_back(self, node: Node) -> None:
        """A node could, but its workers would wait for imports; see ``core/job_growth.py``."""
        self.electorate.strike(node)
        self.held.add(node.info.node, self._now)
        self._watch_held()

    def _watch_held(self) -> None:
        deadline = self.held.deadline
        if deadline is None:
            self._timers.cancel((WARMING, ""))
        else:
            self._timers.set((WARMING, ""), deadline)

    def _note_completion(self) -> None:
        """Once a world has started everywhere, its members' seats say so; see ``core/quorum.py``."""
        current = self.current
        if not current.is_committed:
            return
        charter = next(iter(current.seats.values())).charter
        if charter is None or charter.base == charter.world or not self.quorum.complete(charter):
            return
        for name, seat in current.seats.items():
            assert seat.charter is not None
            current.seats[name] = replace(seat, charter=replace(seat.charter, base=seat.charter.world))
        if self.phase is JobPhase.RUNNING:
            self._direct_all([name for name in current.seats if name in current.pending])

    def _lose(self, node: Node, reason: str, cause: StopCause = StopCause.MEMBER_LOST) -> None:
        name = node.info.node
        self.members.remove(name)
        self._strike(node)
        self.electorate.forget(node)
        self._timers.cancel((HEARTBEAT, name))
        if self.checkup is not None:
            self.checkup.lose(name)
        if not self.ended:  # afterwards everybody goes
            self._decide(f"{name} {reason}")
        self.current.lose(name, f"{name} {reason}", cause)

    def _expire_node(self, name: str, reason: str) -> None:
        node = self.members.nodes[name]
        if node.session is not None:
            self._effects.append(Drop(node.session))
        self._lose(node, reason)

    def _name_cause(self, failures: tuple[Failure, ...]) -> str:
        """Why the round that has stopped did. Who was told another failure, that came first, hears of it."""
        told, reason = self.current.stop_reason, self.current.settle(failures)
        if reason != told:
            self._tell_all([f"the cause was another one: {reason}"])
        return reason

    # -- messages

    def _direct_all(self, names: Iterable[str]) -> None:
        self._sequence += 1  # one for all, so that those who are told the same are told one message
        for name in names:
            if name in self.members.nodes:
                self._repeat(self.members.nodes[name])

    def _direct(self, node: Node) -> None:
        self._sequence += 1
        self._repeat(node)

    def _repeat(self, node: Node) -> None:
        """Tell a node the directive in force for it, if it is attached and there is one."""
        if node.session is None:
            return
        message = directive(self, node, self._sequence)
        if message is not None:
            self._effects.append(Send(node.session, message))

    def _tell(self, names: Iterable[str], text: str) -> None:
        """Let the users of these nodes read something."""
        for name in names:
            session = self.members.nodes[name].session
            if session is not None:
                self._effects.append(Send(session, Waiting(self.epoch, text)))

    def _tell_all(self, lines: Sequence[str]) -> None:
        """Let all users read the first of these lines: of n nodes, n may have something to be told."""
        for line in some_lines(lines):
            self._tell(self.members.nodes, line)

    def _decide(self, text: str) -> None:
        self._effects.append(Decided(text, self.phase, self.round))
