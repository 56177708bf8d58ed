"""Passes on what this node's workers ask the master about shared data, and the answers.

Each reader of a worker has a connection of its own, and at most one ask under way, so that is all there is to
know of it. It is sent again over each new stream to the master, until its answer comes: an ask that comes
twice changes nothing (``core/protocol/data.py``). What a worker repeats is not even read, and nothing else is
before the answer, as it takes the agent's loop some time to read a long ask.

What a worker says is checked here as the master would check it. There it would end this agent's stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from elasticrun.core.protocol.messages import AskData, DataAnswer, OpenData

Ask = OpenData | AskData
Body = dict[str, Any] | str
if TYPE_CHECKING:
    from elasticrun.core.protocol.data import DataReader

_KINDS: dict[str, type[Ask]] = {kind.__name__: kind for kind in (OpenData, AskData)}


class _Pending(NamedTuple):
    said: tuple[str, Body]  # by the worker
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
        self._asking: dict[int, _Pending] = {}  # the same, by connection

    def ask(
        self,
        kind: str,
        body: Body,
        worker: tuple[int, int],
        connection: int,
        reply: Callable[[DataAnswer], None],
    ) -> None:
        """Pass on what a worker asks, as ``packed`` made it. ``worker``: its round and local rank.

        Raises:
            ValueError: it makes no sense, or this connection waits for another answer.
        """
        if (before := self._asking.get(connection)) is not None:
            if before.said == (kind, body):
                return
            raise ValueError("it asks before it has the answer to what it asked before")
        made = self._read(kind, body, worker)
        if made.reader.instance in self._pending:
            raise ValueError("another connection reads under the same instance")
        pending = _Pending((kind, body), made, connection, reply)
        self._pending[made.reader.instance] = self._asking[connection] = pending
        self._send(made)

    def _read(self, kind: str, body: Body, worker: tuple[int, int]) -> Ask:
        from elasticrun.rpc.packing import unpacked
        from elasticrun.rpc.records import from_json, misfit

        if kind not in _KINDS:
            raise ValueError(f"it asks for nothing that is known: {kind[:100]!r}")
        made: Ask = from_json(_KINDS[kind], {**unpacked(body), "incarnation": self._incarnation})
        reader: DataReader = replace(made.reader, round=worker[0], local_rank=worker[1])
        made = replace(made, reader=reader)
        if fault := misfit(made):
            raise ValueError(fault)
        return made

    def answered(self, answer: DataAnswer) -> None:
        """Hand an answer to the worker that waits for it; one that nobody waits for is dropped."""
        pending = self._pending.get(answer.instance)
        if pending is None or (pending.ask.reader.round, pending.ask.call) != (answer.round, answer.call):
            return
        self.forget(pending.connection)
        pending.reply(answer)

    def attached(self) -> None:
        """There is a new stream: what has no answer may have been lost with the one before."""
        for pending in list(self._pending.values()):
            self._send(pending.ask)

    def forget(self, connection: int) -> None:
        """A worker has hung up, or has its answer."""
        if (pending := self._asking.pop(connection, None)) is not None:
            del self._pending[pending.ask.reader.instance]
