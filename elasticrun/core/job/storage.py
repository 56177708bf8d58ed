"""The job's storage: which commit is written to it, when, and how long an end waits for that.

``Storing`` (``core/state/storing.py``) knows who writes what. This part decides when a commit is written: the
newest whole one, if none is being written and the time between two is up. That is a timer, whose end is an
event like any other.

A *flush* writes the newest whole commit at once, in place of an older one that is being written: before the
job ends, well or not, and before nodes leave without which too few are left. It is bounded by a timer of
its own, and by the tries of the nodes. Nothing trains then, so it is not written at the lowest priority.

Invariants. A job whose end waits is flushing, and a flush has a deadline. What is durable was in memory whole
when its writing began.
"""

from __future__ import annotations

from elasticrun.core.job.events import OUTCOMES, TRANSITIONS
from elasticrun.core.job.moves import Move
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import FLUSH, STORING, JobState
from elasticrun.core.membership.nodes import Node
from elasticrun.core.protocol.commits import CommitId
from elasticrun.core.protocol.messages import WriteState
from elasticrun.core.state.storing import Step

_RUN_DIGITS = 8


class Storage:
    """Has nodes write commits, and tells what became of them."""

    def __init__(self, state: JobState, outbox: Outbox) -> None:
        self._state = state
        self._outbox = outbox

    # -- what nodes say

    def hear(self, node: Node) -> None:
        """Take in how a node's order fares, and begin the next commit if there is one."""
        state, report = self._state, node.status.stored
        if self._is_off:
            return
        match state.storing.hear(node.info.node, report):
            case Step.FINISHED:
                commit = self._end()
                self._outbox.decide(f"{commit} is in {state.config.state_storage}")
            case Step.FAILED:
                assert report is not None
                self._give_up(f"{node.info.node}: {report.reason}")
            case Step.WRITTEN:
                self._go_on()
        self._begin_next()

    def lose(self, name: str) -> None:
        """A node is gone: another one writes what it had to."""
        if self._state.storing.commit is not None and not self._is_off:
            self._state.storing.lose(name)
            self._go_on()

    def greet(self, node: Node) -> None:
        """Tell a node that has come, or come back, what it has to write, if it has, or believes so."""
        order = self._state.storing.order(node.info.node)
        if order is not None or node.status.stored is not None:
            self._send(node.info.node)

    def expire(self, _: str) -> None:
        """The time between two commits is up."""
        self._begin_next()

    # -- one commit

    @property
    def _is_off(self) -> bool:
        return self._state.config.state_storage is None or self._state.ended

    def _begin_next(self) -> None:
        state, storing = self._state, self._state.storing
        if storing.commit is not None or (STORING, "") in state.timers:
            return
        newest, last = state.ledger.newest_whole(), storing.considered
        if newest is not None and (last is None or last.age < newest.age):
            self._begin(newest)

    def _begin(self, commit: CommitId, is_urgent: bool = False) -> None:
        state = self._state
        kinds, size = state.ledger.known(commit).here, state.ledger.known(commit).size
        state.timers.set((STORING, ""), state.now + state.config.state_storage_every)
        state.storing.begin(commit, _run_of(state.key), kinds, size, is_urgent)
        left = (
            f", without {size - len(kinds)} parts that are lost and not needed" if len(kinds) < size else ""
        )
        self._outbox.decide(f"{commit} is written to {state.config.state_storage}{left}")
        self._go_on()

    def _go_on(self) -> None:
        """Give the orders that can be given."""
        state, storing = self._state, self._state.storing
        assert storing.commit is not None, "nothing is being written"
        if storing.needs_writers:
            ordered, problem = storing.assign(state.ledger.parts(storing.commit))
            if problem and storing.commit in state.ledger.whole():
                self._begin_anew(problem)  # no restore needs that part
                return
            if problem:
                self._give_up(problem)
                return
            for name in ordered:
                self._send(name)
        elif storing.may_finish:
            finisher = next(iter([*storing.involved, *state.members.nodes]), None)
            if finisher is None:
                self._give_up("nobody is left who could finish it")
                return
            storing.finish(finisher)
            self._send(finisher)

    def _begin_anew(self, problem: str) -> None:
        """Write the same commit without parts that are lost. Nobody is told to leave off, and so frees it."""
        involved = self._state.storing.involved
        self._begin(self._state.storing.end(problem), (FLUSH, "") in self._state.timers)
        for name in involved:
            if self._state.storing.order(name) is None:
                self._send(name)

    def _give_up(self, problem: str) -> None:
        commit = self._end(problem)
        self._tell(f"{commit} is not written to {self._state.config.state_storage}: {problem}")

    def _end(self, problem: str = "") -> CommitId:
        involved = self._state.storing.involved
        commit = self._state.storing.end(problem)
        for name in involved:
            self._send(name)
        return commit

    def _send(self, name: str) -> None:
        node = self._state.members.nodes[name]
        if node.session is not None:
            order = self._state.storing.order(name)
            self._outbox.send(node.session, WriteState(self._state.epoch, order))

    def _tell(self, text: str) -> None:
        self._outbox.decide(text)
        self._outbox.tell_all([text])

    # -- flush

    def flushes(self) -> bool:
        """Write the newest whole commit now, unless it is durable. Returns whether to wait for that."""
        state, storing = self._state, self._state.storing
        newest = state.ledger.newest_whole()
        if self._is_off or newest is None or not state.config.state_flush_timeout:
            return False
        is_due = (FLUSH, "") in state.timers
        if storing.durable is not None and newest.age <= storing.durable.age:
            state.timers.cancel((FLUSH, ""))
            return False
        if not is_due and storing.flushed == newest:
            return False  # the time is over
        if not is_due:
            wait = state.config.state_flush_timeout
            state.timers.set((FLUSH, ""), state.now + wait)
            self._tell(f"{newest} is written to {state.config.state_storage} first, within {wait:g} s")
        if storing.commit != newest and (not is_due or storing.considered != newest):
            if storing.commit is not None:
                self._end("a newer one is written before the end")
            self._begin(newest, is_urgent=True)
        storing.flushed = newest
        if storing.commit is None:  # it was given up
            state.timers.cancel((FLUSH, ""))
        return storing.commit is not None

    def begin_round(self) -> None:
        """A world is formed: nobody waits for a flush any more, and the next one gets time of its own."""
        self._state.timers.cancel((FLUSH, ""))
        self._state.storing.flushed = None

    def delays(self, move: Move) -> bool:
        """Whether a move would end the job, and has to wait for a flush."""
        state = self._state
        after = TRANSITIONS[state.phase, move.trigger]
        if after not in OUTCOMES or not self.flushes():
            state.ending = None
            return False
        state.ending = move.trigger, move.reason
        return True

    def conclude(self) -> Move | None:
        """The end that waits, once it need not wait any more."""
        assert self._state.ending is not None, "no end waits"
        trigger, reason = self._state.ending
        return None if self.flushes() else Move(trigger, reason)

    def check(self) -> list[str]:
        """Which invariants do not hold, in words."""
        state, storing = self._state, self._state.storing
        rules = {
            **dict.fromkeys(storing.check(), False),
            "an end that waits has a deadline": state.ended
            or state.ending is None
            or (FLUSH, "") in state.timers,
            "only nodes that are here have orders": state.ended
            or set(storing.involved) <= state.members.nodes.keys(),
            "somebody does what is to be done": state.ended or storing.commit is None or storing.is_under_way,
        }
        return [rule for rule, holds in rules.items() if not holds]


def _run_of(key: str) -> str:
    """A name for this run of the job, which all its masters know."""
    import hmac  # not needed where nothing is written

    return hmac.digest(key.encode(), b"elasticrun.v1 run in a storage", "sha256").hex()[:_RUN_DIGITS]
