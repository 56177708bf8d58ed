"""The worker's side of the memory that its agent keeps: asks for buffers, and maps them.

``agent/memory/server.py`` is the other side, with the same messages: JSON over a Unix socket, with
descriptors. Needs the standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from elasticrun.errors import CheckpointError

VARIABLE = "ELASTICRUN_MEMORY"
ROUND = "ELASTICRUN_ROUND"
VERSION = "1"
_MAX_MESSAGE = 64 << 10
#: Seconds to wait for the agent: longer than a save may wait for others (``core/state/vault.py``).
_TIMEOUT = 60.0


class SaveRefused(CheckpointError):
    """The agent has no buffer for this save; training can go on without it."""


class Granted(NamedTuple):
    """A buffer to write into."""

    memory: mmap.mmap
    divides: bool  # write only our share of what all ranks have alike


class StoredPart(NamedTuple):
    """A part of the commit to restore, as a rank of an earlier round wrote it."""

    rank: int  # in that round
    memory: mmap.mmap
    length: int  # bytes in use
    digest: str


class AgentMemory:
    """A connection to the agent of this worker."""

    def __init__(self, channel: socket.socket, restore: tuple[int, int] | None) -> None:
        self.restore = restore  # round and step of the commit that this round restores
        self._channel = channel
        self._maps: dict[int, mmap.mmap] = {}  # by buffer

    @classmethod
    def connect(cls, environment: Mapping[str, str]) -> AgentMemory | None:
        """Connect to the agent that ``environment`` names; None if it names none.

        Raises:
            CheckpointError: the agent is of another version, or does not answer.
        """
        fields = environment.get(VARIABLE, "").split(":")
        if fields == [""]:
            return None
        if len(fields) != 5 or fields[0] != VERSION:
            raise CheckpointError(
                f"{VARIABLE} must begin with {VERSION}:, got {fields[0]!r}: the launcher and this script's"
                " environment have different versions of elasticrun; install the same one"
            )
        _, _, name, token, local_rank = fields
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(_TIMEOUT)
        try:
            channel.connect(f"\0{name}")
        except OSError as error:
            channel.close()
            raise CheckpointError(f"the agent cannot be reached ({error.strerror})") from None
        made = cls(channel, None)
        hello = {"ask": "hello", "token": token, "local_rank": int(local_rank)}
        try:
            answer, _ = made._ask({**hello, "round": int(environment.get(ROUND, "-1"))})
        except BaseException:
            channel.close()
            raise
        if answer.get("restore") is not None:
            made.restore = tuple(answer["restore"])
        return made

    def begin(self, step: int, whole: int, share: int, contents: str) -> Granted:
        """Ask for a buffer for a save. ``whole`` and ``share`` are in bytes; see ``core/state/vault.py``.

        Raises:
            SaveRefused: there is no room, or the save before is not complete everywhere.
        """
        message = {"ask": "begin", "step": step, "whole": whole, "share": share, "contents": contents}
        answer, fd = self._ask(message)
        for dropped in self._maps.keys() - set(answer["alive"]):
            del self._maps[dropped]  # else its memory would never be free
        return Granted(self._map(answer["buffer"], answer["size"], fd), answer["divides"])

    def end(self, step: int, length: int, digest: str, own: bool) -> None:
        """Tell that a part is complete: ``length`` bytes of the buffer, with this digest.

        ``own``: it has shards of tensors, which no other rank has.
        """
        self._ask({"ask": "end", "step": step, "length": length, "digest": digest, "own": own})

    def give_up(self) -> None:
        """Tell that the save that was begun will not be completed."""
        self._send({"ask": "give up"})

    def stored(self) -> list[StoredPart]:
        """What this node holds of the commit to restore."""
        return list(self._stored())  # all answers are taken in, whatever the caller does with them

    def _stored(self) -> Iterator[StoredPart]:
        answer, fd = self._ask({"ask": "restore"})
        while answer["left"] >= 0:
            length = answer["length"]
            memory = mmap.mmap(_expect(fd), length, mmap.MAP_SHARED | _POPULATE, mmap.PROT_READ)
            os.close(_expect(fd))
            yield StoredPart(answer["rank"], memory, length, answer["digest"])
            if not answer["left"]:
                return
            answer, fd = self._receive()

    def close(self) -> None:
        """Hang up. What was saved stays with the agent."""
        self._channel.close()
        self._maps.clear()

    def _map(self, buffer: int, size: int, fd: int | None) -> mmap.mmap:
        if buffer not in self._maps:
            self._maps[buffer] = mmap.mmap(_expect(fd), size, mmap.MAP_SHARED | _POPULATE)
        os.close(_expect(fd))
        return self._maps[buffer]

    def _ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        self._send(message)
        return self._receive()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode())
        except OSError as error:
            raise CheckpointError(f"the agent has gone: {error.strerror}") from None

    def _receive(self) -> tuple[dict[str, Any], int | None]:
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, _MAX_MESSAGE, 1)
        except OSError as error:
            raise CheckpointError(f"the agent does not answer: {error}") from None
        if not data:
            raise CheckpointError("the agent has hung up: this worker's round is over")
        answer = json.loads(data)
        if "refused" in answer:
            for fd in fds:
                os.close(fd)
            raise SaveRefused(answer["refused"])
        return answer, fds[0] if fds else None


#: Has the kernel fill in the page table at once, which takes a fraction of the time of as many page faults.
_POPULATE = mmap.MAP_POPULATE


def _expect(fd: int | None) -> int:
    if fd is None:
        raise CheckpointError("the agent sent no descriptor: are all descriptors in use (ulimit -n)?")
    return fd
