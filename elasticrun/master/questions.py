"""Questions of operators that an agent has to answer, until it has, or will not.

Theory. A question goes to the session of the node that runs the rank, under a number that was never used;
its answer counts if it comes from that session, under that number, of the kind that was asked for, and within
its limits. Anything else is dropped. Each question ends: with its answer, at its deadline, or with its
session.

What questions cost is bounded: MOST in all and MOST_EACH of one node wait at a time; more are declined.
Nothing of this is a fact of the job, so nothing goes to the journal, and another master knows nothing of it.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from elasticrun.core.job.ranks import RankIndex, RankPlace, no_rank, rank_ranges
from elasticrun.core.job.state import JobState
from elasticrun.core.protocol.questions import (
    AskNode,
    Found,
    ListRanks,
    LogQuestion,
    NodeAnswer,
    Question,
    ReadLog,
    ShowStacks,
)
from elasticrun.dataclass import dataclass
from elasticrun.rpc.records import misfit

if TYPE_CHECKING:
    from elasticrun.core.protocol.orders import ControlReply
    from elasticrun.rpc.session import Session

#: Questions that wait at a time, of all nodes and of each.
MOST = 256
MOST_EACH = 32
#: Seconds that an agent may take, beyond a wait that was asked for: for a log, and for stacks.
LOG_PATIENCE = 10.0
STACKS_PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class _Pending:
    session: int
    of_log: bool
    told: asyncio.Future[NodeAnswer | str]  # the answer, or why there is none


class Questions:
    """The questions that wait for an agent, on the running loop."""

    def __init__(self, state: JobState, sessions: Mapping[int, Session]) -> None:
        """``sessions``: the agents that are attached, by number; the caller keeps it up to date."""
        self._state = state
        self._ranks = RankIndex(state)
        self._sessions = sessions
        self._pending: dict[int, _Pending] = {}
        # Random, so that a late answer to an earlier master's question is none to one of ours.
        self._next = int.from_bytes(os.urandom(6), "big")

    async def answer(self, question: Question) -> ControlReply:
        """Ask the agent that can tell, and wait for its answer. Never raises."""
        match question:
            case ListRanks():
                return _found(Found(rank_ranges(self._state)))
            case ReadLog(rank, places, lines, wait):
                log = LogQuestion(places, lines, wait)
                return await self._ask(rank, log, wait + LOG_PATIENCE)
            case ShowStacks(rank):
                return await self._ask(rank, None, STACKS_PATIENCE)

    def heard(self, session: int, answer: NodeAnswer) -> None:
        """An agent answers; dropped unless it was asked just that."""
        pending = self._pending.get(answer.id)
        if pending is None or pending.session != session or not _fits(pending, answer):
            return
        _settle(pending, answer)

    def gone(self, session: int) -> None:
        """A stream is over: whoever waits for its agent hears so."""
        for pending in list(self._pending.values()):
            if pending.session == session:
                _settle(pending, "its agent is gone, or its connection to the master is lost")

    async def _ask(self, rank: int, log: LogQuestion | None, patience: float) -> ControlReply:
        place = self._ranks.find(rank)
        if place is None:
            return _declined(no_rank(self._state, rank))
        session = self._session_of(place)
        if session is None:
            return _declined_by(rank, place, "its agent is not connected to the master now: try again")
        if why := self._is_too_much(session):
            return _declined_by(rank, place, why)
        told = await self._wait(session, place, log, patience)
        if isinstance(told, NodeAnswer) and told.answer is not None:
            return _found(Found(answer=told.answer))
        return _declined_by(rank, place, told.refused if isinstance(told, NodeAnswer) else told)

    async def _wait(
        self, session: Session, place: RankPlace, log: LogQuestion | None, patience: float
    ) -> NodeAnswer | str:
        number, self._next = self._next, self._next + 1
        pending = _Pending(session.id, log is not None, asyncio.get_running_loop().create_future())
        self._pending[number] = pending
        try:
            session.send(AskNode(self._state.epoch, number, place.local_rank, log))
            return await asyncio.wait_for(pending.told, patience)
        except asyncio.TimeoutError:
            return f"its agent did not answer within {patience:g} s"
        finally:
            del self._pending[number]

    def _session_of(self, place: RankPlace) -> Session | None:
        number = self._state.members.nodes[place.node].session
        return None if number is None else self._sessions.get(number)

    def _is_too_much(self, session: Session) -> str:
        if len(self._pending) >= MOST:
            return f"the master waits for the answers to {MOST} questions already: try again"
        waiting = Counter(pending.session for pending in self._pending.values())
        if waiting[session.id] >= MOST_EACH:
            return f"its agent is being asked {MOST_EACH} questions already: try again"
        return ""


def _fits(pending: _Pending, answer: NodeAnswer) -> bool:
    """Whether an answer is of the kind that was asked for, and within its limits."""
    if misfit(answer):
        return False
    if answer.answer is None:
        return bool(answer.refused)
    return bool(answer.answer.pieces) is pending.of_log and bool(answer.answer.stacks) is not pending.of_log


def _settle(pending: _Pending, told: NodeAnswer | str) -> None:
    if not pending.told.done():
        pending.told.set_result(told)


def _declined_by(rank: int, place: RankPlace, why: str) -> ControlReply:
    return _declined(f"rank {rank} is on {place.node}: {why}")


def _declined(text: str) -> ControlReply:
    from elasticrun.core.protocol.orders import ControlReply  # a job that nobody asks does without

    return ControlReply(False, text)


def _found(found: Found) -> ControlReply:
    from elasticrun.core.protocol.orders import ControlReply

    return ControlReply(True, "", found=found)
