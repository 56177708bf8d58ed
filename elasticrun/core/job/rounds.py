"""A round from its first directive until it has stopped, and what follows.

Failures are charged when the round has stopped everywhere, not when the first one is heard: a failure may be
only the echo of a lost node, and that loss is known by then.
"""

from __future__ import annotations

from elasticrun.core.job.data import SharedData
from elasticrun.core.job.events import Trigger
from elasticrun.core.job.growing import Growing
from elasticrun.core.job.moves import Move
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.scope import RestartScope, WholeWorld
from elasticrun.core.job.settling import Settling
from elasticrun.core.job.state import BACKOFF, GROWTH, LINGER, MENDING, NOTICE, JobState
from elasticrun.core.job.tasks import SingleTasks
from elasticrun.core.membership.roster import name_some
from elasticrun.core.protocol.messages import Failure
from elasticrun.core.protocol.status import JobPhase
from elasticrun.core.recovery.settlement import Ending, restarts_left

#: The trigger by which a round that no other one follows ends the job.
ENDINGS = {
    Ending.BUDGET_SPENT: Trigger.BUDGET_SPENT,
    Ending.ERROR_REPEATED: Trigger.ERROR_REPEATED,
}


class Rounds:
    """Runs rounds, stops them and settles what they cost."""

    def __init__(
        self,
        state: JobState,
        outbox: Outbox,
        growing: Growing,
        settling: Settling,
        tasks: SingleTasks,
        data: SharedData,
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._growing = growing
        self._settling = settling
        self._world = WholeWorld()
        self._tasks = tasks
        self._data = data

    @property
    def _scope(self) -> RestartScope:
        return self._world if self._state.current.tasks is None else self._tasks

    # -- running

    def begin(self, _: Move) -> None:
        """Tell the members of a new world to start."""
        state, order = self._state, self._state.previous
        self._data.begin()
        self._outbox.decide(
            f"round {state.round} starts with {name_some(order)}: {state.current.start_reason}"
        )
        hears_first = state.quorum.is_needed and state.round == 0  # all nodes must hear that a world exists
        idle = [*state.ready, *state.held.since, *state.cordoned]
        self._outbox.direct_all([*order, *idle] if hears_first else order)

    def watch(self) -> Move | None:
        """Find out whether the round that runs has to stop, or is over."""
        state, current = self._state, self._state.current
        if move := self._ended(current.stop is None):
            return move
        if current.stop is None:
            self._scope.watch()
        if current.stop is None and current.is_silent:
            self._watch_silence()
        if current.stop is None:
            self._growing.watch()
        if current.stop is not None:
            return Move(Trigger.MUST_STOP)
        if state.ready or state.held:
            wait = 0.0 if state.ready else state.config.waiting_notice_interval
            state.timers.set_default((NOTICE, ""), state.now + wait)
        return None

    def _ended(self, may_finish: bool) -> Move | None:
        """The end of the job, if its work is done."""
        if why := self._scope.ended():
            return Move(Trigger.ALL_FINISHED, why)
        if may_finish and self._state.current.all_finished:
            return Move(Trigger.ALL_FINISHED, f"all workers of round {self._state.round} ended with 0")
        return None

    def _watch_silence(self) -> None:
        """Act on the silence of all members, or say why not; see ``core/hangs.py``."""
        state, current = self._state, self._state.current
        lagging = current.silences.lagging()
        left = restarts_left(state.recovery, state.config.policy, state.now - current.started_at)
        why = current.silences.doubt if lagging is None else current.silences.objection(left)
        if lagging is not None and not why:
            current.blame_hang(state.members.nodes[lagging].info)
        elif why and why != current.silence:
            current.silence = why
            self._outbox.decide(f"no node makes a step in round {state.round}; {why}")

    # -- stopping

    def stop(self, _: Move) -> None:
        """Tell the members that the round stops."""
        state, current = self._state, self._state.current
        for timer in (GROWTH, MENDING, LINGER):
            state.timers.cancel((timer, ""))
        current.lasted = state.now - current.started_at
        self._scope.stop()
        self._data.stop()
        state.timers.set((NOTICE, ""), state.now + state.config.waiting_notice_interval)
        self._outbox.decide(f"round {state.round} stops: {current.stop_reason}")
        self._outbox.direct_all(name for name in current.assignments if name not in current.serving)

    def settle(self) -> Move | None:
        """Find out what follows, once the last member has stopped."""
        state, current = self._state, self._state.current
        if move := self._ended(may_finish=True):
            return move
        self._scope.go_on_stopping()
        if current.pending or current.stop is None:
            return None
        cause, _ = current.stop
        settled = self._settling.judge(state.recovery, cause, current.failures, current.lasted)
        reason = self._name_cause(settled.failures)
        if settled.end is not None:
            self._settling.remember(settled)
            return Move(ENDINGS[settled.end], f"{reason}; {settled.reason}")
        if state.stop_ordered:
            self._settling.remember(settled)
            return Move(Trigger.STOP_ORDERED, state.stop_ordered)
        return Move(
            Trigger.ALL_STOPPED,
            f"round {state.round} has stopped ({reason}); {settled.reason}",
            settled=settled,
        )

    def go_on(self, move: Move) -> None:
        """Apply what follows a round that has stopped."""
        assert move.settled is not None
        self._settling.apply(move.settled, BACKOFF, move.reason)

    def _name_cause(self, failures: tuple[Failure, ...]) -> str:
        """Why the round stopped. If users were told another failure first, tell them the cause."""
        told, reason = self._state.current.stop_reason, self._state.current.settle(failures)
        self._state.current.cause = reason
        if reason != told:
            self._outbox.tell_all([f"the cause of the stop was: {reason}"])
        return reason

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state, current = self._state, self._state.current
        runs, stops = state.phase is JobPhase.RUNNING, state.phase is JobPhase.STOPPING
        rules = {
            "who may run has an assignment": current.pending <= current.assignments.keys(),
            "nothing stops a round that runs": not runs or current.stop is None,
            "a round stops for somebody": not stops
            or state.ending is not None
            or (bool(current.pending) and current.stop is not None),
            "only known nodes are waited for": not stops or current.pending <= state.members.nodes.keys(),
            "the newest round has the largest number": state.round <= state.newest,
            "tasks are waited for only while a round runs": runs
            or not any((timer, "") in state.timers for timer in (MENDING, LINGER)),
        }
        return [rule for rule, holds in rules.items() if not holds]
