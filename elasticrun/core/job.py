"""The master's decisions: one job's state machine.

The machine is *level-triggered*. An event only updates facts (``core/job_facts.py``: who is attached, what
each agent last said; and which deadline passed); afterwards ``_advance`` looks at the facts and takes every
transition of ``TRANSITIONS`` that they allow, until none is left. So the order in which facts arrive can
delay a decision but not change what is finally decided, and replaying the same events gives the same state.

The invariant that makes a round safe: a world is formed only when no worker of an earlier round can be
alive on any of its members. A member of the last round blocks the next one until it has said READY for
that round or is lost; a node that was lost and comes back must say READY before it is a candidate.

Failures are charged when the round has stopped everywhere, not when the first one is heard: by then the
loss of a node, of which the failure was only an echo, is known.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.config import HealthCheckMode
from elasticrun.core.checkup import Checkup
from elasticrun.core.directives import notice
from elasticrun.core.health import NodeFinding
from elasticrun.core.job_events import (
    OUTCOMES,
    TRANSITIONS,
    Attached,
    Beat,
    Detached,
    DrainOrdered,
    Ended,
    Expired,
    JobEffect,
    JobEvent,
    JobPhase,
    Left,
    MasterStarted,
    Reported,
    RoleScaled,
    ScaleOrdered,
    StepDown,
    Trigger,
)
from elasticrun.core.job_facts import (
    BACKOFF,
    CHECK,
    CHECK_GRACE,
    GROWTH,
    HEARTBEAT,
    JOIN,
    LAST_CALL,
    NOTICE,
    REATTACH,
    STEP_DOWN,
    WARMING,
)
from elasticrun.core.job_growth import SETTLE, Growth, growth
from elasticrun.core.job_tasks import LINGER, MENDING, JobTasks
from elasticrun.core.membership import Node
from elasticrun.core.ranks import RoundTerms, assign_ranks
from elasticrun.core.recovery import settle
from elasticrun.core.restart import StopCause
from elasticrun.core.roster import name_some
from elasticrun.core.round import Round
from elasticrun.core.round_tasks import RoundTasks
from elasticrun.core.timers import Deadlines


class JobMachine(JobTasks):
    """Turns events into effects. ``now`` is the master's monotonic clock in seconds."""

    # -- interface

    def handle(self, event: JobEvent, now: float) -> list[JobEffect]:
        """Take in one event and return what to do, in order. No agent's doing makes it raise."""
        self._now = now
        self._effects = []
        match event:
            case MasterStarted(epoch, key):
                self._start(epoch, key)
            case Attached(session, hello):
                self._attach(session, hello)
            case Reported(session, status):
                self._report(session, status)
            case Beat(session):
                self._hear(session)
            case Left(session, reason):
                self._leave(session, f"left: {reason}")
            case Detached(session, reason):
                self._detach(session, f"lost: {reason}")
            case DrainOrdered(name, reason):
                self._drain(name, reason)
            case ScaleOrdered(low, high):
                self._scale(low, high)
            case RoleScaled(role, count):
                self._scale_role(role, count)
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

    def _expire(self, timer: str, name: str) -> None:
        if timer == HEARTBEAT:
            self._expire_node(name, f"lost: silent for {self.config.heartbeat_timeout:g} s")
        elif timer == REATTACH:
            for known in [n for n, node in self.members.nodes.items() if node.session is None]:
                self._expire_node(known, "lost: not back in time after the master's restart")
        elif timer == LAST_CALL:
            self._last_called = True
        elif timer == NOTICE:
            self._notify_waiting()
        elif timer == CHECK and self.checkup is not None:
            self.checkup.give_up()
        elif timer == STEP_DOWN:
            self._step_down()
        elif timer == WARMING:
            self._enlist(self.members.nodes[self.held.first])
        elif timer == GROWTH:
            self._grow()
        elif timer == MENDING:
            self._restart_lost()
        elif timer == LINGER:
            self._stop_lingering()
        elif timer == JOIN and not self.held and (self.obstacle or not self._is_enough):
            here, _ = notice(self)
            self._end(Trigger.JOIN_TIMED_OUT, f"gave up after {self.config.join_timeout:g} s: {here}")

    def _notify_waiting(self) -> None:
        text, waiting = notice(self)
        self._tell(waiting, text)
        if waiting or self.phase is JobPhase.GATHERING:
            self._timers.set((NOTICE, ""), self._now + self.config.waiting_notice_interval)

    # -- decisions

    def _advance(self) -> None:
        """Take transitions until the facts allow no more."""
        before: JobPhase | None = None
        while before is not self.phase:
            before = self.phase
            if before is JobPhase.GATHERING:
                self._try_form()
            elif before is JobPhase.CHECKING:
                self._try_judge()
            elif before is JobPhase.RUNNING:
                self._watch_round()
            elif before is JobPhase.STOPPING:
                self._try_settle()

    def _move(self, trigger: Trigger) -> None:
        self.phase = TRANSITIONS[self.phase, trigger]

    def _try_form(self) -> None:
        if self.members.detached or (BACKOFF, "") in self._timers:
            return  # known nodes are about to come back, or failures came fast; a timer bounds the wait
        self.obstacle = self._find_obstacle()
        if self.held and (self.obstacle or not self._is_enough):
            # Otherwise nobody waits for their imports: they join the world that is formed without them.
            for name in list(self.held.since):
                self._enlist(self.members.nodes[name])
            self.obstacle = self._find_obstacle()
        if self.obstacle:
            self._wait_for_nodes()
            self._timers.set_default((STEP_DOWN, ""), self._now + self.quorum.patience)
            return
        self._timers.cancel((STEP_DOWN, ""))
        if not self.limits.usable(len(self.ready)):
            self._last_called = False
            self._wait_for_nodes()
        elif self._wants_last_call():
            self._timers.cancel((NOTICE, ""))  # nobody is missing any more
            self._timers.set_default((LAST_CALL, ""), self._now + self.config.last_call_timeout)
        elif wanted := self._unchecked():
            self._check(wanted)
        elif self._is_enough:
            self._try_seat()
        else:
            self._wait_for_nodes()

    @property
    def _is_enough(self) -> bool:
        """A world could be formed, as far as that is a matter of numbers."""
        return self.limits.usable(self.electorate.available) > 0

    def _wait_for_nodes(self) -> None:
        self._timers.cancel((LAST_CALL, ""))
        self._timers.set_default((JOIN, ""), self._now + self.config.join_timeout)
        self._timers.set_default((NOTICE, ""), self._now + self.config.waiting_notice_interval)

    def _find_obstacle(self) -> str:
        """Why this master may not lead the nodes that could be members; "" if it may."""
        if not self.quorum.is_needed:
            return ""
        calls = self._wants_last_call()
        return self.electorate.obstacle(self.previous, self.limits, self.newest >= 0, calls)

    def _step_down(self) -> None:
        self._decide(f"this master steps down: {self.obstacle}")
        for name in list(self.members.nodes):
            self._expire_node(name, "is let go")
        self._effects.append(StepDown(self.obstacle))

    def _unchecked(self) -> list[str]:
        is_single = self.limits.max_nodes == 1
        return self.electorate.unchecked(self.config.health, self.round < 0, is_single)

    def _check(self, suspects: list[str]) -> None:
        self._last_called = True  # who comes later than a check does not hold up those who passed it
        self._probes += 1
        self.checkup = Checkup(self._probes, suspects, self.electorate.trusted())
        for timer in (LAST_CALL, JOIN, NOTICE):
            self._timers.cancel((timer, ""))
        self._move(Trigger.CHECK_WANTED)
        self._decide(f"checking {name_some(suspects)}")
        self._probe(self.checkup)

    def _probe(self, checkup: Checkup) -> None:
        self._probes = checkup.number
        checkup.meet(self.members.nodes)
        self._timers.set((CHECK, ""), self._now + self.config.health.timeout + CHECK_GRACE)
        self._direct_all(sorted(checkup.pending))

    def _try_judge(self) -> None:
        checkup = self.checkup
        assert checkup is not None
        while not checkup.pending:
            ratio, trusted = self.config.health.straggler_ratio, self.electorate.trusted()
            if not checkup.go_on(self._probes + 1, ratio, trusted):
                self._judge(checkup)
                return
            why = (
                "to tell suspects and links apart" if checkup.step.slots else "before anybody is called slow"
            )
            self._decide(f"probing again, {why}: {name_some(checkup.step.nodes)}")
            self._probe(checkup)

    def _judge(self, checkup: Checkup) -> None:
        self.checkup = None
        self._timers.cancel((CHECK, ""))
        found = self.electorate.conclude(checkup, self.config.health)
        self._decide(found.summary)
        for line in found.lines:
            self._decide(line)
        self._tell_all([f"health check: {line}" for line in found.lines])
        if self.config.health.only:
            self.table = found.table
            self._end(Trigger.CHECK_PASSED if found.passed else Trigger.CHECK_FAILED, found.summary)
            return
        self._exclude(*found.excluded)
        stuck = not self.held and not self._is_enough and not self._unchecked()
        if found.open_question and stuck:
            self._end(Trigger.CHECK_FAILED, f"{found.summary}; {found.open_question}")
        else:
            self._move(Trigger.CHECKED)

    def _wants_last_call(self) -> bool:
        """Only the first world waits for more nodes than it needs: nobody knows yet who will come."""
        if self.previous or self._last_called:
            return False
        return self.config.last_call_timeout > 0 and len(self.ready) < self.limits.largest

    def _try_seat(self) -> None:
        chosen, reason = self._choose()
        if self.obstacle:
            self._wait_for_nodes()
            return
        order = self._order(chosen)
        self._form(order, self._seat_tasks(order), reason)

    def _form(self, order: list[str], tasks: RoundTasks, reason: str) -> None:
        nodes = self.members.nodes
        for timer in (LAST_CALL, JOIN, NOTICE):
            self._timers.cancel((timer, ""))
        self.round = self.newest = self.newest + 1
        seats = assign_ranks([nodes[name].info for name in order], self._terms(nodes[order[0]]))
        charters = self.quorum.form(self.round, self.epoch, self.electorate.seats_of(order))
        if charters:
            incarnations = {name: nodes[name].info.incarnation for name in order}
            seats = {n: replace(seat, charter=charters[incarnations[n]]) for n, seat in seats.items()}
        if tasks:
            seats = {n: replace(s, tasks=tasks.of(n), cluster=tasks.cluster) for n, s in seats.items()}
            seats = {n: replace(seat, tag=self.config.tag) for n, seat in seats.items()}
        self.current = Round(seats, set(order), start_reason=reason, started_at=self._now, tasks=tasks)
        self.previous, self.fit.lead = tuple(order), nodes[order[0]].info
        for name in order:
            self.electorate.strike(nodes[name])
        for name in [name for name in self.ready if nodes[name].status.warming]:
            self._hold_back(nodes[name])
        if self.config.health.mode is HealthCheckMode.ALWAYS:
            self.electorate.distrust_all()
        self._move(Trigger.WORLD_FORMED)
        self._decide(f"round {self.round} starts with {name_some(order)}: {reason}")
        self._direct_all([*order, *self.ready, *self.held.since] if charters and self.round == 0 else order)

    def _terms(self, first: Node) -> RoundTerms:
        return RoundTerms(
            round=self.round,
            store_address=first.info.address,
            store_port=first.status.store_port,
            restart_count=self.budget.used,
            max_restarts=self.budget.max_restarts,
            store_hosted=first.status.hosts_store,
        )

    def _watch_round(self) -> None:
        current = self.current
        if self._has_led_to_end():
            self._end(Trigger.ALL_FINISHED, f"the leading task of round {self.round} ended with 0")
            return
        if current.stop is None and current.all_finished:
            self._end(Trigger.ALL_FINISHED, f"all workers of round {self.round} ended with 0")
            return
        if current.stop is None and current.tasks:
            self._watch_tasks()
        if current.stop is None and current.is_silent:
            self._watch_silence()
        if current.stop is None:
            self._watch_growth()
        if current.stop is not None:
            self._move(Trigger.MUST_STOP)
            for timer in (GROWTH, MENDING, LINGER):
                self._timers.cancel((timer, ""))
            current.lasted = self._now - current.started_at
            self._keep_serving()
            self._timers.set((NOTICE, ""), self._now + self.config.waiting_notice_interval)
            self._decide(f"round {self.round} stops: {current.stop_reason}")
            self._direct_all(name for name in current.seats if name not in current.serving)
        elif self.ready or self.held:
            wait = 0.0 if self.ready else self.config.waiting_notice_interval
            self._timers.set_default((NOTICE, ""), self._now + wait)

    def _watch_growth(self) -> None:
        found = self._growth()
        if found is Growth.NOW:
            self._grow()
        elif found is Growth.SOON:
            self._timers.set_default((GROWTH, ""), self._now + SETTLE)
        else:
            self._timers.cancel((GROWTH, ""))

    def _growth(self) -> Growth:
        """Whether a larger world could start at once, and nobody has finished the work yet."""
        if not self.ready or self.current.finished or self.members.detached:
            return Growth.NONE
        found = growth(len(self.current.seats), self.electorate.available, len(self.held), self.limits)
        return found if found is Growth.NONE or self._could_join() else Growth.NONE

    def _grow(self) -> None:
        self.current.must_stop(StopCause.NODE_JOINED, f"{name_some(list(self.ready))} can join")

    def _try_settle(self) -> None:
        if self._has_led_to_end():
            self._end(Trigger.ALL_FINISHED, f"the leading task of round {self.round} ended with 0")
            return
        if self.current.all_finished:
            self._end(Trigger.ALL_FINISHED, f"all workers of round {self.round} ended with 0")
            return
        self._stop_serving()
        stop = self.current.stop
        if self.current.pending or stop is None:
            return
        failures, lasted = self.current.failures, self.current.lasted
        settled = settle(self.recovery, self.config.policy, stop[0], failures, lasted)
        self.recovery, reason = settled.recovery, self._name_cause(settled.failures)
        if settled.end is not None:
            self._end(settled.end, f"{reason}; {settled.reason}")
            return
        self._move(Trigger.ALL_STOPPED)
        self._decide(f"round {self.round} has stopped ({reason}); {settled.reason}")
        if settled.delay:
            self._timers.set((BACKOFF, ""), self._now + settled.delay)
        for name in self.current.seats if settled.suspects_all else filter(None, [settled.suspect]):
            self.electorate.suspect(name)
        if settled.excluded:
            self._exclude(NodeFinding(settled.excluded, settled.reason))

    def _end(self, trigger: Trigger, reason: str) -> None:
        self._move(trigger)
        self.end_reason = reason
        self._timers = Deadlines()
        self._decide(reason)
        self._direct_all(self.members.nodes)
        self._effects.append(Ended(OUTCOMES[self.phase], reason))
