"""Messages from the master, and whether they count.

A directive has to pass three checks. Its epoch must not be older than that of any master seen; its (epoch,
sequence) must be newer than that of the directive in force; and an assignment must be given by a master that
knows this node's newest vote (``core/membership/quorum.py``), else its round is not started. Other messages
need only a current epoch. A refusal always passes: it is about this stream. An agent that waits for the
master no longer, as it leaves, takes no stop from it: one that takes it for a new node tells it to stop a
round in which others may still save.

Invariant: the directive in force is of no later epoch than the newest seen, and no world has two votes of
this node.
"""

from __future__ import annotations

from dataclasses import replace

from elasticrun.core.agent.departure import Departure
from elasticrun.core.agent.desired import Directive
from elasticrun.core.agent.events import STOPPABLE, DumpStacks, PassJudgement, Store
from elasticrun.core.agent.leave import Leaving
from elasticrun.core.agent.outbox import Outbox
from elasticrun.core.agent.state import AgentState
from elasticrun.core.membership.quorum import accepts, with_vote
from elasticrun.core.protocol.messages import (
    AgentPhase,
    Assignment,
    JobEnded,
    JudgeCommits,
    MasterMessage,
    RejectCode,
    Rejected,
    SaveStacks,
    StartProbe,
    StartRound,
    StopRound,
    Waiting,
    WriteState,
)


class Intake:
    """Takes in what the master says."""

    def __init__(self, state: AgentState, outbox: Outbox, leaving: Leaving) -> None:
        self._state = state
        self._outbox = outbox
        self._leaving = leaving

    def hear(self, message: MasterMessage) -> None:
        """Take in a message; it may be late, doubled, or from a master that was replaced."""
        state = self._state
        match message:
            case StartRound() | StopRound() | StartProbe() | JobEnded():
                self._hear_directive(message)
            case Rejected():
                if message.code is RejectCode.DRAINED and state.departure is None:
                    self._outbox.warn(f"this node leaves: {message.message}")
                self._leaving.depart(Departure.refused(message))
                self._leaving.release()
            case Waiting() if message.epoch >= state.desired.epoch:
                self._outbox.warn(message.text)
            case SaveStacks() if message.epoch >= state.desired.epoch and state.phase is AgentPhase.RUNNING:
                self._outbox.put(DumpStacks())
            case JudgeCommits() if message.epoch >= state.desired.epoch and message.round == state.round:
                if (place := (message.epoch, message.number)) >= state.judged:  # else it comes late
                    state.judged = place
                    self._outbox.put(PassJudgement(message))
            case WriteState() if message.epoch >= state.desired.epoch:
                self._outbox.put(Store(message.order))

    def _hear_directive(self, message: Directive) -> None:
        state = self._state
        desired = state.desired.after(message)
        if desired is None:
            return
        has_said_farewell = state.departure is not None and not state.lingers
        if has_said_farewell and isinstance(message, StopRound):
            desired = replace(desired, stop_through=state.desired.stop_through)
        state.desired = desired
        match message:
            case StartRound():
                self._compare_votes(message.assignment)
            case JobEnded():
                program = state.info.program or "its program"
                self._leaving.depart(Departure.job_over(message, program, state.assignment is not None))
                self._leaving.release()
                # A node that leaves may keep servers for its round, which is over with the job.
                state.desired = replace(desired, stop_through=max(desired.stop_through, state.round))
            case StopRound() if state.round <= message.round and state.phase in STOPPABLE:
                self._outbox.warn(f"round {message.round} stops: {message.reason}")

    def _compare_votes(self, given: Assignment) -> None:
        """Reject an assignment whose master missed our latest vote; keep what it tells of that vote."""
        state = self._state
        if not accepts(state.votes, given.proposal):
            state.desired = replace(state.desired, round=None)
            self._outbox.report()  # what the master did not know
        elif given.round == state.round and state.votes:
            state.votes = with_vote(state.votes, given.proposal)
            state.sequence += 1  # so that it is news in a Hello

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        desired, worlds = self._state.desired, [vote.world for vote in self._state.votes]
        assert desired.stamp[0] <= desired.epoch, f"{desired.stamp} is later than epoch {desired.epoch}"
        assert desired.round is None or desired.probe is None, "a round and a probe are wanted at once"
        assert len(set(worlds)) == len(worlds), f"two votes for one world: {worlds}"
