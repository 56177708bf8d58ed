"""A worker's connection to its agent, over which it asks about shared data.

``agent/memory/server.py`` is the other side: JSON over a Unix socket. Needs the standard library only.
"""

from __future__ import annotations

import json
import os
import select
import socket
import weakref
from collections.abc import Mapping
from typing import Any

from elasticrun.errors import DataError
from elasticrun.rpc.packing import MAX_MESSAGE, make_room, packed, unpacked

VARIABLE = "ELASTICRUN_MEMORY"
ROUND = "ELASTICRUN_ROUND"
VERSION = "1"


class AgentLine:
    """An open connection. It belongs to one process: in a child it must not be used."""

    def __init__(self, name: str, hello: dict[str, Any], patience: float) -> None:
        """``patience``: seconds to wait for an answer. DataError: the agent cannot be reached."""
        self._process = os.getpid()
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._channel.close)
        self._channel.settimeout(patience)
        make_room(self._channel)
        try:
            self._channel.connect(f"\0{name}")
        except OSError as error:
            self._channel.close()
            raise DataError(f"the agent cannot be reached ({error.strerror or error})") from None
        self._send(hello)
        self._receive()

    @classmethod
    def connect(cls, environment: Mapping[str, str], patience: float) -> AgentLine:
        """Connect to the agent that the environment names.

        Raises:
            DataError: it names none, or one that does not answer.
        """
        fields = environment.get(VARIABLE, "").split(":")
        if len(fields) != 4 or fields[0] != VERSION:
            raise DataError(
                "the ranks share data through the agent of elastic-run, and there is none, it has no socket,"
                " or it is of another version: start the script with elastic-run"
            )
        _, name, token, local_rank = fields
        hello = {"ask": "hello", "token": token, "local_rank": int(local_rank)}
        return cls(name, {**hello, "round": int(environment.get(ROUND, "-1"))}, patience)

    def ask(self, kind: str, body: dict[str, Any]) -> None:
        """Send one ask. DataError: the agent has gone."""
        if os.getpid() != self._process:
            raise DataError("a process that was forked cannot read shared data: read in the training process")
        self._send({"ask": "data", "kind": kind, "body": packed(body)})

    @property
    def has_answer(self) -> bool:
        """Whether an answer is there already, or none will ever come."""
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        return bool(waiting.poll(0))

    def answer(self) -> dict[str, Any]:
        """Wait for the answer. DataError: the agent has gone, refuses, or does not answer in time."""
        return unpacked(self._receive()["data"])

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode())
        except OSError as error:
            self.close()
            raise DataError(f"the agent has gone: {error.strerror or error}") from None

    def _receive(self) -> dict[str, Any]:
        try:
            data = self._channel.recv(MAX_MESSAGE)
        except TimeoutError:
            self.close()
            raise DataError("the agent has not answered: is the job's master away?") from None
        except OSError as error:
            self.close()
            raise DataError(f"the agent does not answer: {error.strerror or error}") from None
        if not data:
            raise DataError("the agent has hung up without an answer")
        found: dict[str, Any] = json.loads(data)
        if "refused" in found:
            raise DataError(f"the agent refuses this: {found['refused']}")
        return found
