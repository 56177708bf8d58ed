"""The master's decisions: one job's state machine.

The machine is *level-triggered*. An event only updates facts; then the rule of the phase looks at the facts
and says whether the phase is over, until no rule says so. So the order in which facts arrive can delay a
decision but not change what is finally decided, and replaying the same events gives the same state.

Tables say which part takes in an event, which rule a phase has, and what a move begins; ``TRANSITIONS`` says
where a move leads. Each part has one job, reads the state, changes only the fields that it owns
(``core/job/state.py``), and speaks through the outbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticrun.config import JobConfig
from elasticrun.core.job.attendance import Attendance
from elasticrun.core.job.checking import Checking
from elasticrun.core.job.clusters import Clusters
from elasticrun.core.job.commits import Commits
from elasticrun.core.job.cordons import Cordons
from elasticrun.core.job.data import SharedData
from elasticrun.core.job.drains import Drains
from elasticrun.core.job.events import (
    OUTCOMES,
    TRANSITIONS,
    Attached,
    Beat,
    DataAsked,
    DataOpened,
    Detached,
    Ended,
    Expired,
    JobEffect,
    JobEvent,
    Left,
    MasterStarted,
    Reported,
    Trigger,
)
from elasticrun.core.job.formation import Formation
from elasticrun.core.job.growing import Growing
from elasticrun.core.job.intake import Intake
from elasticrun.core.job.moves import Move
from elasticrun.core.job.orders import Orders
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.rounds import Rounds
from elasticrun.core.job.scaling import Scaling
from elasticrun.core.job.settling import Settling
from elasticrun.core.job.state import (
    ARRIVING,
    CHECK,
    GROWTH,
    HEARTBEAT,
    JOIN,
    LAST_CALL,
    LINGER,
    MENDING,
    NOTICE,
    REATTACH,
    SAVING,
    SCALING,
    STEP_DOWN,
    STORING,
    WARMING,
    JobState,
)
from elasticrun.core.job.storage import Storage
from elasticrun.core.job.tasks import SingleTasks
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.timers import Deadlines

Take = Callable[[Any], Move | None]  # its argument is an event of the type under which it is listed


class JobMachine:
    """Turns events into effects. ``now`` is the master's monotonic clock in seconds."""

    def __init__(self, config: JobConfig, state: JobState | None = None) -> None:
        """The machine of a new job, or of one in this state."""
        state = self.state = JobState.new(config) if state is None else state
        outbox = self._outbox = Outbox(state)
        commits, clusters = Commits(state, outbox), Clusters(state, outbox)
        storage = self._storage = Storage(state, outbox)
        attendance = Attendance(state, outbox, commits, storage)
        drains, growing = Drains(state, outbox, attendance), Growing(state, clusters)
        intake, checking = Intake(state, outbox, attendance, drains), Checking(state, outbox, attendance)
        formation = Formation(state, outbox, attendance, drains, clusters)
        settling, data = Settling(state, outbox, attendance), SharedData(state, outbox)
        tasks = SingleTasks(state, outbox, settling)
        rounds = Rounds(state, outbox, growing, settling, tasks, data)
        scaling = self._scaling = Scaling(state, outbox, drains)
        cordons = Cordons(state, outbox, attendance)
        orders = Orders(state, outbox, drains, tasks, scaling, cordons, checking)
        self._parts = (
            *(outbox, commits, storage, attendance, intake, drains, formation),
            *(growing, checking, settling, rounds, tasks, scaling, cordons),
        )
        self._takes: dict[type[JobEvent], Take] = {
            MasterStarted: intake.start,
            Attached: intake.hear_hello,
            Reported: intake.hear_status,
            **dict.fromkeys((DataOpened, DataAsked), data.hear),
            Beat: intake.hear_beat,
            Left: intake.hear_leave,
            Detached: intake.hear_end,
            Expired: self._expire,
            **orders.rules,
        }
        #: Timers that are not listed only delay something: the rule of the phase sees that they are over.
        self._deadlines: dict[str, Callable[[str], Move | None]] = {
            HEARTBEAT: intake.expire_silent,
            REATTACH: intake.expire_away,
            LAST_CALL: formation.expire_last_call,
            JOIN: formation.expire_join,
            STEP_DOWN: formation.expire_patience,
            WARMING: formation.expire_imports,
            GROWTH: growing.grow,
            CHECK: checking.expire,
            MENDING: tasks.expire_wait,
            LINGER: tasks.expire_linger,
            NOTICE: lambda _: outbox.remind(),
            ARRIVING: commits.expire_arrival,
            SAVING: data.expire,
            STORING: storage.expire,
            SCALING: scaling.expire,
        }
        self._rules: dict[JobPhase, Callable[[], Move | None]] = {
            JobPhase.GATHERING: formation.advance,
            JobPhase.CHECKING: checking.advance,
            JobPhase.RUNNING: rounds.watch,
            JobPhase.STOPPING: rounds.settle,
        }
        #: What a move begins; moves that are not listed end the job.
        self._begins = _beginnings(checking, rounds)

    def handle(self, event: JobEvent, now: float) -> list[JobEffect]:
        """Take in one event and return what to do, in order. Never raises on agent input."""
        self.state.now = now
        if not isinstance(event, Beat):
            self.state.events += 1
        effects = self._outbox.begin()
        move = self._takes[type(event)](event)
        if move is not None and self.state.ending is None:
            self._move(move)
        while (rule := self._rules.get(self.state.phase)) is not None:
            if self.state.scaling is not None:
                self._scaling.prepare(self.state.scaling)
            move = rule() if self.state.ending is None else self._storage.conclude()
            if move is None:
                break
            self._move(move)
        if self.state.scaling is not None:
            self._scaling.settle(self.state.scaling)
        return effects

    def next_deadline(self) -> float | None:
        """When to ask for ``due`` next, or None."""
        return self.state.timers.next()

    def due(self, now: float) -> list[Expired]:
        """The first deadline that has passed, as an event for the caller to journal and to hand in.

        One at a time, because handling it may cancel the next. It is an event of its own, and only that
        event removes the deadline, so that replaying a journal needs neither a clock nor heartbeats.
        """
        timer = self.state.timers.first_due(now)
        return [] if timer is None else [Expired(*timer)]

    def check(self) -> list[str]:
        """Which invariants of the parts do not hold, in words; to be asked after any event."""
        return [f"{type(part).__name__}: {rule}" for part in self._parts for rule in part.check()]

    def _expire(self, event: Expired) -> Move | None:
        self.state.timers.cancel((event.timer, event.node))
        act = self._deadlines.get(event.timer)
        return None if act is None else act(event.node)

    def _move(self, move: Move) -> None:
        if self._storage.delays(move):
            return
        self.state.phase = TRANSITIONS[self.state.phase, move.trigger]
        self._begins.get(move.trigger, self._end)(move)

    def _end(self, move: Move) -> None:
        state = self.state
        state.end_reason = move.reason
        state.timers = Deadlines()
        self._outbox.decide(move.reason)
        self._outbox.direct_all(state.members.nodes)
        self._outbox.put(Ended(OUTCOMES[state.phase], move.reason))


def _beginnings(checking: Checking, rounds: Rounds) -> dict[Trigger, Callable[[Move], None]]:
    return {
        Trigger.CHECK_WANTED: checking.begin,
        Trigger.CHECKED: lambda _: None,
        Trigger.WORLD_FORMED: rounds.begin,
        Trigger.MUST_STOP: rounds.stop,
        Trigger.ALL_STOPPED: rounds.go_on,
    }
