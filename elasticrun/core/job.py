"""The master's decisions: one job's state machine.

The machine is *level-triggered*. An event only updates facts (who is attached, what each agent last
said, which deadline passed); afterwards ``_advance`` looks at the facts and takes every transition of
``TRANSITIONS`` that they allow, until none is left. So the order in which facts arrive can delay a
decision but not change what is finally decided, and replaying the same events gives the same state.

The invariant that makes a round safe: a world is formed only when no worker of an earlier round can be
alive on any of its members. A member of the last round blocks the next one until it has said READY for
that round or is lost; a node that was lost and comes back must say READY before it is a candidate.

Failures are charged when the round has stopped everywhere, not when the first one is heard: by then the
loss of a node, of which the failure was only an echo, is known.
"""

from __future__ import annotations

from collections.abc import Iterable

from elasticrun.config import JobConfig
from elasticrun.core.job_events import (
    OUTCOMES,
    TRANSITIONS,
    Attached,
    Beat,
    Decided,
    Detached,
    Drop,
    Ended,
    Expired,
    JobEffect,
    JobEvent,
    JobPhase,
    Left,
    MasterStarted,
    Reported,
    Send,
    Trigger,
)
from elasticrun.core.membership import Admission, Membership, Node
from elasticrun.core.protocol import (
    AgentStatus,
    Hello,
    JobEnded,
    MasterMessage,
    NodeInfo,
    StartRound,
    StopRound,
    Waiting,
    Welcome,
)
from elasticrun.core.ranks import RoundTerms, assign_ranks, order_members
from elasticrun.core.rendezvous import Candidate, WorldLimits, choose_world
from elasticrun.core.restart import Budget, StopCause
from elasticrun.core.roster import describe_spares, describe_waiting, name_some, superseded
from elasticrun.core.round import Round
from elasticrun.core.timers import Deadlines

Timer = tuple[str, str]  # its kind, and the node it is about, or ""
HEARTBEAT, LAST_CALL, JOIN, NOTICE, REATTACH = "heartbeat", "last call", "join", "notice", "re-attach"


class JobMachine:
    """Turns events into effects. ``now`` is the master's monotonic clock in seconds."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.limits = WorldLimits(config.min_nodes, config.max_nodes, config.node_unit)
        self.phase = JobPhase.GATHERING
        self.epoch = 0
        self.round = -1  # the newest round of this job that this master knows the members of
        self.newest = -1  # the highest number that any node has heard of, perhaps from a forgotten master
        self.budget = Budget(config.max_restarts)
        self.members = Membership()
        self.current = Round()
        self.previous: tuple[str, ...] = ()  # the newest world's members by group rank
        self.ready: dict[str, None] = {}  # nodes outside a round that could start at once
        self.end_reason = ""
        self._timers: Deadlines[Timer] = Deadlines()
        self._last_called = False
        self._sequence = 0
        self._now = 0.0
        self._effects: list[JobEffect] = []

    # -- interface

    def handle(self, event: JobEvent, now: float) -> list[JobEffect]:
        """Take in one event and return what to do, in order. No agent's doing makes it raise."""
        self._now = now
        self._effects = []
        match event:
            case MasterStarted(epoch):
                self._start(epoch)
            case Attached(session, hello):
                self._attach(session, hello)
            case Reported(session, status):
                self._report(session, status)
            case Beat(session):
                self._hear(session)
            case Left(session, reason):
                self._depart(session, f"left: {reason}", for_good=True)
            case Detached(session, reason):
                self._depart(session, f"lost: {reason}")
            case _:
                self._timers.cancel((event.timer, event.node))
                self._expire(event.timer, event.node)
        self._advance()
        return self._effects

    def next_deadline(self) -> float | None:
        """When to ask for ``due`` next, or None."""
        return self._timers.next()

    def due(self, now: float) -> list[Expired]:
        """The first deadline that has passed, as an event for the caller to journal and to hand in.

        One at a time, because handling it may cancel the next. It is an event of its own, and only that
        event removes the deadline, so that replaying a journal needs neither a clock nor heartbeats.
        """
        timer = self._timers.first_due(now)
        return [] if timer is None else [Expired(*timer)]

    @property
    def ended(self) -> bool:
        """No round will follow."""
        return self.phase in OUTCOMES

    # -- facts

    def _start(self, epoch: int) -> None:
        self.epoch = max(epoch, self.epoch + 1)
        self.members.detach_all()
        self.ready.clear()
        self._timers.cancel((JOIN, ""))  # who is missing is known again when they are back
        for name in self.members.nodes:
            self._timers.cancel((HEARTBEAT, name))
        if self.members.detached:
            self._timers.set((REATTACH, ""), self._now + self.config.reattach_timeout)
        self._decide(f"master epoch {self.epoch} starts; {len(self.members.nodes)} known nodes may re-attach")

    def _attach(self, session: int, hello: Hello) -> None:
        info = hello.info
        admission = self.members.judge(session, info)
        if admission in (Admission.STALE, Admission.REFUSED):
            farewell = superseded(info.node) if admission is Admission.REFUSED else None
            self._effects.append(Drop(session, farewell))
            return
        self._overtake(hello)
        if admission is Admission.SUPERSEDES:
            self._supersede(self.members.nodes[info.node])
        node, replaced = self.members.attach(session, info, hello.status)
        if replaced is not None:
            self._effects.append(Drop(replaced))
        self._effects.append(Send(session, Welcome(self.epoch, self.config.heartbeat_interval)))
        self._decide(f"{info.node} {admission.value}")
        self._touch(node)
        self._absorb(node)
        self._direct(node)

    def _overtake(self, hello: Hello) -> None:
        """Be newer than a master that we know nothing of, whose directives this agent obeyed."""
        foreign = hello.epoch == self.epoch and not self.members.has_met(hello.info)
        if foreign or hello.epoch > self.epoch:
            self.epoch = hello.epoch + 1

    def _supersede(self, old: Node) -> None:
        if old.session is not None:
            self._effects.append(Drop(old.session, superseded(old.info.node)))
        self._lose(old, "lost: a new incarnation took its place")

    def _report(self, session: int, status: AgentStatus) -> None:
        node = self.members.node_of(session)
        if node is None:
            return
        self._touch(node)
        if status.sequence > node.status.sequence:
            node.status = status
            self._absorb(node)

    def _hear(self, session: int) -> None:
        node = self.members.node_of(session)
        if node is not None:
            self._touch(node)

    def _depart(self, session: int, reason: str, for_good: bool = False) -> None:
        node = self.members.node_of(session)
        if node is None:
            return
        if for_good:
            self.members.retire(node)  # its workers still stop: it must not come back meanwhile
        self._effects.append(Drop(session))
        self._lose(node, reason)

    def _touch(self, node: Node) -> None:
        self._timers.set((HEARTBEAT, node.info.node), self._now + self.config.heartbeat_timeout)

    def _absorb(self, node: Node) -> None:
        """Draw the consequences of a node's newest status."""
        name, status = node.info.node, node.status
        self.newest = max(self.newest, status.round)
        if name in self.current.pending:
            if status.round == self.round:
                self.current.absorb(name, status)
            elif status.round > self.round:
                self.current.lose(name, f"{name} followed another master to round {status.round}")
        if not node.ready or name in self.current.pending:
            self.ready.pop(name, None)
        elif name not in self.ready:
            self.ready[name] = None
            self._timers.cancel((LAST_CALL, ""))  # an arrival restarts it

    def _lose(self, node: Node, reason: str) -> None:
        name = node.info.node
        self.members.remove(name)
        self.ready.pop(name, None)
        self._timers.cancel((HEARTBEAT, name))
        self._decide(f"{name} {reason}")
        self.current.lose(name, f"{name} {reason}")

    def _expire(self, timer: str, name: str) -> None:
        if timer == HEARTBEAT:
            self._expire_node(name, f"lost: silent for {self.config.heartbeat_timeout:g} s")
        elif timer == REATTACH:
            late = f"lost: not back {self.config.reattach_timeout:g} s after the master"
            for known in [n for n, node in self.members.nodes.items() if node.session is None]:
                self._expire_node(known, late)
        elif timer == LAST_CALL:
            self._last_called = True
        elif timer == NOTICE:
            self._notify_waiting()
        elif not self.limits.usable(len(self.ready)):
            here = describe_waiting(self._present(), self.limits)
            self._end(Trigger.JOIN_TIMED_OUT, f"gave up after {self.config.join_timeout:g} s: {here}")

    def _expire_node(self, name: str, reason: str) -> None:
        node = self.members.nodes[name]
        if node.session is not None:
            self._effects.append(Drop(node.session))
        self._lose(node, reason)

    # -- decisions

    def _advance(self) -> None:
        """Take transitions until the facts allow no more."""
        before: JobPhase | None = None
        while before is not self.phase:
            before = self.phase
            if before is JobPhase.GATHERING:
                self._try_form()
            elif before is JobPhase.RUNNING:
                self._watch_round()
            elif before is JobPhase.STOPPING:
                self._try_settle()

    def _move(self, trigger: Trigger) -> None:
        self.phase = TRANSITIONS[self.phase, trigger]

    def _try_form(self) -> None:
        if self.members.detached:
            return  # known nodes are about to come back; REATTACH bounds the wait
        if not self.limits.usable(len(self.ready)):
            self._timers.cancel((LAST_CALL, ""))
            self._last_called = False
            self._timers.set_default((JOIN, ""), self._now + self.config.join_timeout)
            self._timers.set_default((NOTICE, ""), self._now + self.config.waiting_notice_interval)
        elif self._wants_last_call():
            self._timers.cancel((NOTICE, ""))  # nobody is missing any more
            self._timers.set_default((LAST_CALL, ""), self._now + self.config.last_call_timeout)
        else:
            self._form()

    def _wants_last_call(self) -> bool:
        """Only the first world waits for more nodes than it needs: nobody knows yet who will come."""
        if self.previous or self._last_called:
            return False
        return self.config.last_call_timeout > 0 and len(self.ready) < self.limits.largest

    def _form(self) -> None:
        nodes = self.members.nodes
        given = {name: nodes[name].info.node_rank for name in self.ready}
        candidates = [Candidate(name, nodes[name].arrival, given[name]) for name in self.ready]
        chosen, reason = choose_world(candidates, self.previous, self.limits)
        order = order_members(chosen, self.previous, given)
        for timer in (LAST_CALL, JOIN, NOTICE):
            self._timers.cancel((timer, ""))
        self.round = self.newest = self.newest + 1
        seats = assign_ranks([nodes[name].info for name in order], self._terms(nodes[order[0]]))
        self.current = Round(seats=seats, pending=set(order), start_reason=reason)
        self.previous = tuple(order)
        for name in order:
            del self.ready[name]
        self._move(Trigger.WORLD_FORMED)
        self._decide(f"round {self.round} starts with {name_some(order)}: {reason}")
        self._direct_all(order)

    def _terms(self, first: Node) -> RoundTerms:
        return RoundTerms(
            round=self.round,
            store_address=first.info.address,
            store_port=first.status.store_port,
            restart_count=self.budget.used,
            max_restarts=self.budget.max_restarts,
        )

    def _watch_round(self) -> None:
        current = self.current
        if current.stop is None and current.all_finished:
            self._end(Trigger.ALL_FINISHED, f"all workers of round {self.round} ended with 0")
            return
        if current.stop is None and self._can_grow():
            self.current.must_stop(StopCause.NODE_JOINED, f"{name_some(list(self.ready))} can join")
        if current.stop is not None:
            self._move(Trigger.MUST_STOP)
            self._decide(f"round {self.round} stops: {current.stop_reason}")
            self._direct_all(current.seats)
        elif self.ready:
            self._timers.set_default((NOTICE, ""), self._now)

    def _can_grow(self) -> bool:
        """A larger world could start at once, and nobody has finished the work yet."""
        size = len(self.current.seats)
        if not self.ready or self.current.finished or self.members.detached:
            return False
        return self.limits.usable(size + len(self.ready)) > size

    def _try_settle(self) -> None:
        if self.current.all_finished:
            self._end(Trigger.ALL_FINISHED, f"all workers of round {self.round} ended with 0")
            return
        stop = self.current.stop
        if self.current.pending or stop is None:
            return
        cause, reason = stop
        budget, verdict = self.budget.settle(cause)
        if budget is None:
            self._end(Trigger.BUDGET_SPENT, f"{reason}; {verdict}")
            return
        self.budget = budget
        self._move(Trigger.ALL_STOPPED)
        self._decide(f"round {self.round} has stopped ({reason}); {verdict}")

    def _end(self, trigger: Trigger, reason: str) -> None:
        self._move(trigger)
        self.end_reason = reason
        self._timers = Deadlines()
        self._decide(reason)
        self._direct_all(self.members.nodes)
        self._effects.append(Ended(OUTCOMES[self.phase], reason))

    # -- messages

    def _direct_all(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.members.nodes:
                self._direct(self.members.nodes[name])

    def _direct(self, node: Node) -> None:
        """Tell a node the directive in force for it, if it is attached and there is one."""
        if node.session is None:
            return
        self._sequence += 1
        message = self._directive(node)
        if message is not None:
            self._effects.append(Send(node.session, message))

    def _directive(self, node: Node) -> MasterMessage | None:
        stamp = (self.epoch, self._sequence)
        member = node.info.node in self.current.pending
        if self.ended:
            failures = tuple(self.current.failures) if self.phase is JobPhase.FAILED else ()
            return JobEnded(*stamp, OUTCOMES[self.phase], self.end_reason, failures)
        if member and self.phase is JobPhase.RUNNING:
            return StartRound(*stamp, self.current.seats[node.info.node], self.current.start_reason)
        if member:
            return StopRound(*stamp, self.round, self.current.stop_reason)
        if self.newest < 0:
            return None
        # Also to a node that runs nothing: from then on an earlier directive that comes late is stale.
        return StopRound(*stamp, self.newest, "this node is not part of the newest round")

    def _notify_waiting(self) -> None:
        if self.phase is JobPhase.GATHERING:
            text = describe_waiting(self._present(), self.limits)
            waiting: Iterable[str] = self.members.nodes
        else:
            text = describe_spares(len(self.current.seats), len(self.ready), self.limits)
            waiting = self.ready
        for name in waiting:
            session = self.members.nodes[name].session
            if session is not None:
                self._effects.append(Send(session, Waiting(self.epoch, text)))
        if waiting or self.phase is JobPhase.GATHERING:
            self._timers.set((NOTICE, ""), self._now + self.config.waiting_notice_interval)

    def _present(self) -> list[NodeInfo]:
        return [node.info for node in self.members.nodes.values()]

    def _decide(self, text: str) -> None:
        self._effects.append(Decided(text, self.phase, self.round))
