"""Passes on what this node's workers ask the master about shared data, and the answers.

A worker has at most one ask under way with each of its readers, so the newest one of a reader is all there is
to know of it. It is sent again over each new stream to the master, until its answer comes: an ask that comes
twice changes nothing (``core/protocol/data.py``).

What a worker says is checked here as the master would check it. There it would end this agent's stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from elasticrun.core.protocol.messages import AskData, DataAnswer, OpenData

#: The most readers of one worker.
MAX_READERS = 64
Ask = OpenData | AskData
if TYPE_CHECKING:
    from elasticrun.core.protocol.data import DataReader

_KINDS: dict[str, type[Ask]] = {kind.__name__: kind for kind in (OpenData, AskData)}


class _Pending(NamedTuple):
    ask: Ask
    connection: int
    reply: Callable[[DataAnswer], None]


class DataRelay:
    """The asks of one node that have no answer yet."""

    def __init__(self, incarnation: str, send: Callable[[Ask], None]) -> None:
        """``incarnation``: of this agent. ``send`` drops what it is given while there is no stream."""
        self._incarnation = incarnation
        self._send = send
        self._pending: dict[str, _Pending] = {}  # by the reader's instance

    def ask(
        self,
        kind: str,
        body: dict[str, Any],
        worker: tuple[int, int],
        connection: int,
        reply: Callable[[DataAnswer], None],
    ) -> None:
        """Pass on what a worker asks. ``worker``: its round and local rank.

        Raises:
            ValueError: it makes no sense.
        """
        from elasticrun.rpc.records import from_json, misfit

        if kind not in _KINDS:
            raise ValueError(f"it asks for nothing that is known: {kind[:100]!r}")
        made: Ask = from_json(_KINDS[kind], {**body, "incarnation": self._incarnation})
        reader: DataReader = replace(made.reader, round=worker[0], local_rank=worker[1])
        made = replace(made, reader=reader)
        if fault := misfit(made):
            raise ValueError(fault)
        if sum(each.connection == connection for each in self._pending.values()) >= MAX_READERS:
            raise ValueError(f"it has {MAX_READERS} readers that wait already")
        before = self._pending.get(reader.instance)
        if before is not None and before.connection != connection:
            raise ValueError("another connection reads under the same instance")
        self._pending[reader.instance] = _Pending(made, connection, reply)
        self._send(made)

    def answered(self, answer: DataAnswer) -> None:
        """Hand an answer to the worker that waits for it; one that nobody waits for is dropped."""
        pending = self._pending.get(answer.instance)
        if pending is None or (pending.ask.reader.round, pending.ask.call) != (answer.round, answer.call):
            return
        del self._pending[answer.instance]
        pending.reply(answer)

    def attached(self) -> None:
        """There is a new stream: what has no answer may have been lost with the one before."""
        for pending in list(self._pending.values()):
            self._send(pending.ask)

    def forget(self, connection: int) -> None:
        """A worker has hung up."""
        for instance in [name for name, each in self._pending.items() if each.connection == connection]:
            del self._pending[instance]
