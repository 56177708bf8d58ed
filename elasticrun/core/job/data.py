"""Datasets that all ranks share: who may ask, and where answers go. ``core/data/desk.py`` decides the rest.

A worker speaks through its node's agent. It counts if that node is a member of the round that it names, and
has a worker of that local rank. An answer goes to the stream that its node has now; one that is lost on its
way is asked for again. Most jobs share no data here, so the desks are loaded by the first who asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticrun.core.job.events import DataAsked, DataOpened
from elasticrun.core.job.outbox import Outbox
from elasticrun.core.job.state import SAVING, JobState
from elasticrun.core.protocol.messages import DataAnswer, OpenData

if TYPE_CHECKING:
    from elasticrun.core.data.desk import Told


class SharedData:
    """Takes in what workers ask of shared data."""

    def __init__(self, state: JobState, outbox: Outbox) -> None:
        self._state = state
        self._outbox = outbox

    def hear(self, event: DataOpened | DataAsked) -> None:
        """Answer a worker."""
        from elasticrun.core.data.desk import Desks, refusal

        state, message = self._state, event.message
        node = state.members.node_of(event.session)
        if node is None:
            return
        given, reader = state.current.assignments.get(node.info.node), message.reader
        if given is None or reader.round != state.round or reader.local_rank >= node.info.local_world_size:
            why = f"round {reader.round} is over, or has no worker {reader.local_rank} on this node"
            self._send(event.session, refusal(message, why))
            return
        desks = state.desks = state.desks or Desks()
        rank = given.first_rank + reader.local_rank
        state.readers[rank] = node.info.node
        if isinstance(message, OpenData):
            told = desks.open(rank, message)
        else:
            told = desks.ask(rank, message, state.now)
        self._tell(told)
        for line in desks.news(reader.name):
            self._outbox.decide(line)
            self._outbox.tell_all([line])

    def expire(self, _: str) -> None:
        """Refuse those who have waited too long for others to save."""
        if self._state.desks is not None:
            self._tell(self._state.desks.expire(self._state.now))

    def begin(self) -> None:
        """A round begins: what its workers read comes from the states that they load."""
        self._state.desks = None
        self._state.readers.clear()
        self._state.timers.cancel((SAVING, ""))

    def stop(self) -> None:
        """The round stops. Unless all of its workers live, those who wait for others to save wait in vain."""
        state = self._state
        is_broken = (
            bool(state.current.failures) or not state.current.assignments.keys() <= state.members.nodes.keys()
        )
        if state.desks is not None and is_broken:
            self._tell(state.desks.stop(f"the round stops: {state.current.stop_reason}"))

    def _tell(self, told: Iterable[Told]) -> None:
        state = self._state
        for rank, answer in told:
            node = state.members.nodes.get(state.readers[rank])
            if node is not None and node.session is not None:
                self._send(node.session, answer)
        deadline = state.desks.next_deadline() if state.desks is not None else None
        if deadline is None:
            state.timers.cancel((SAVING, ""))
        else:
            state.timers.set((SAVING, ""), deadline)

    def _send(self, session: int, answer: DataAnswer) -> None:
        self._outbox.send(session, replace(answer, epoch=self._state.epoch))
