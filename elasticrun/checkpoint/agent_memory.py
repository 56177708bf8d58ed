"""The worker's side of the memory that its agent keeps: asks for buffers, and maps them.

``agent/memory/server.py`` is the other side, with the same messages: JSON over a Unix socket, with
descriptors. Needs the standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from elasticrun.errors import CheckpointError

VARIABLE = "ELASTICRUN_MEMORY"
ROUND = "ELASTICRUN_ROUND"
VERSION = "1"
_MAX_MESSAGE = 64 << 10
#: In place of the rest: the agent could not open its socket.
NO_SOCKET = "none"
#: Seconds to wait for the agent: longer than a save may wait there (``core/state/vault.py``).
TIMEOUT = 60.0
#: The same for an answer without which one can do.
COURTESY = 2.0


class SaveRefused(CheckpointError):
    """The agent has no buffer for this save, or does not answer; training can go on without it."""


class AgentSilent(CheckpointError):
    """The agent did not answer in time. The next request makes a new connection."""


class Granted(NamedTuple):
    """A buffer to write into."""

    memory: mmap.mmap
    divides: bool  # write only our share of what all ranks have alike
    lost: int = 0  # so many of the newest saves of this node were in vain, as other ranks did not make them


class StoredPart(NamedTuple):
    """A part of the commit to restore, as a rank of an earlier round wrote it."""

    rank: int  # in that round
    memory: mmap.mmap
    length: int  # bytes in use
    digest: str


class AgentMemory:
    """A connection to the agent of this worker; once it is broken, the next request makes a new one."""

    def __init__(self, name: str, hello: dict[str, Any]) -> None:
        """``name``: of the agent's socket. ``hello``: what the agent has to hear first."""
        self.restore: tuple[int, int] | None = None  # round and step of the commit that this round restores
        self.storage: str | None = None  # where the job's saved states are written
        self._name = name
        self._hello = hello
        self._channel: socket.socket | None = None
        self._maps: dict[int, mmap.mmap] = {}  # by buffer
        #: Called with each buffer before it is unmapped.
        self.before_unmap: Callable[[mmap.mmap], object] = lambda memory: None

    @classmethod
    def connect(cls, environment: Mapping[str, str]) -> AgentMemory | None:
        """Connect to the agent that ``environment`` names; None if it names none.

        Raises:
            CheckpointError: the agent is of another version, has no socket, or does not answer.
        """
        fields = environment.get(VARIABLE, "").split(":")
        if fields == [""]:
            return None
        if fields == [VERSION, NO_SOCKET]:
            raise CheckpointError(
                "this node's agent could not open its socket for saved state (its log says why), and without"
                " it this rank would start from step 0 while others restore a later one"
            )
        if len(fields) != 4 or fields[0] != VERSION:
            raise CheckpointError(
                f"{VARIABLE} must begin with {VERSION}:, got {fields[0]!r}: the launcher and this script's"
                " environment have different versions of elasticrun; install the same one"
            )
        _, name, token, local_rank = fields
        hello = {"ask": "hello", "token": token, "local_rank": int(local_rank)}
        made = cls(name, {**hello, "round": int(environment.get(ROUND, "-1"))})
        made._open()
        return made

    @property
    def name(self) -> str:
        """Of the agent's socket: the same for all workers of this node."""
        return self._name

    @property
    def local_rank(self) -> int:
        """This worker's place among those of its node. LOCAL_RANK may be virtual, or the script's own."""
        return int(self._hello["local_rank"])

    def begin(
        self,
        step: int,
        whole: int,
        share: int,
        contents: str,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Granted:
        """Ask for a buffer for a save. ``whole`` and ``share`` are in bytes; see ``core/state/vault.py``.

        ``meanwhile``: called while the agent looks for one. If it raises, the save has not begun.

        Raises:
            SaveRefused: there is no room, the save before is not complete everywhere, or there is no answer.
        """
        for narrow in [number for number, each in self._maps.items() if len(each) < min(whole, share)]:
            self._unmap(narrow)  # the agent may need the room of what it has dropped
        message = {"ask": "begin", "step": step, "whole": whole, "share": share, "contents": contents}
        try:
            answer, fd = self._ask(message, meanwhile=meanwhile)
        except AgentSilent as silence:
            raise SaveRefused(str(silence)) from None
        for dropped in self._maps.keys() - set(answer["alive"]):
            self._unmap(dropped)  # else its memory would never be free
        try:
            memory = self._map(answer["buffer"], answer["size"], fd)
            return Granted(memory, answer["divides"], answer["lost"])
        except OSError as error:
            self.give_up()  # else the agent would take the next save for one that comes during this one
            raise SaveRefused(f"the agent's buffer cannot be mapped: {_words(error)}") from None

    def copied(self, step: int, length: int, digest: str, own: bool) -> None:
        """Tell that a part needs only its digests: if this process ends now, it is complete as it is.

        The arguments are as for ``end``.
        """
        if self._channel is not None:  # else the save is lost, as ``end`` tells
            self._send({"ask": "copied", "step": step, "length": length, "digest": digest, "own": own})

    def end(self, step: int, length: int, digest: str, own: bool) -> None:
        """Tell that a part is complete: ``length`` bytes of the buffer, with this digest.

        ``own``: it has what no other rank has saved, so the commit is lost with it.
        """
        self._ask({"ask": "end", "step": step, "length": length, "digest": digest, "own": own})

    def map_ahead(self, how_many: int) -> None:
        """Map buffers that this worker is likely to write into, the next one first, so that no save waits for
        that. Other threads run meanwhile. ``begin`` maps what is not mapped here.
        """
        for number in range(how_many):
            answer, fd = self._ask({"ask": "buffer", "number": number}, COURTESY)
            if answer["buffer"] is None:
                return
            if answer["buffer"] in self._maps:
                _close(fd)
            else:
                self._maps[answer["buffer"]] = _mapped(fd, answer["size"], _WRITABLE, gently=True)

    def give_up(self) -> None:
        """Tell that the save that was begun will not be completed."""
        if self._channel is not None:  # else the agent has found out by that
            self._send({"ask": "give up"})

    def stored(self) -> list[StoredPart]:
        """What this node holds of the commit to restore, in order of rank."""
        found: list[StoredPart] = []
        while part := self._stored_from(found[-1].rank + 1 if found else 0):
            found.append(part)
        return found

    def _stored_from(self, rank: int) -> StoredPart | None:
        """The part of the next rank from this one on that is here."""
        answer, fd = self._ask({"ask": "restore", "from": rank})
        if answer["rank"] is None:
            return None
        try:
            memory = _mapped(fd, answer["length"], mmap.PROT_READ)
        except OSError as error:
            raise CheckpointError(f"what is restored cannot be mapped: {_words(error)}") from None
        return StoredPart(answer["rank"], memory, answer["length"], answer["digest"])

    def close(self) -> None:
        """Hang up. What was saved stays with the agent."""
        self._hang_up()
        while self._maps:
            self.before_unmap(self._maps.popitem()[1])

    def _open(self) -> None:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.settimeout(TIMEOUT)
        try:
            channel.connect(f"\0{self._name}")
        except (TimeoutError, BlockingIOError):
            channel.close()
            raise AgentSilent("the agent takes no connection") from None
        except OSError as error:
            channel.close()
            raise CheckpointError(f"the agent cannot be reached ({_words(error)})") from None
        self._channel = channel
        try:
            self._send(self._hello)
            answer, _ = self._receive()
        except BaseException:
            self._hang_up()
            raise
        self.restore = tuple(answer["restore"]) if answer.get("restore") is not None else None
        self.storage = answer.get("storage")

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _unmap(self, buffer: int) -> None:
        self.before_unmap(self._maps.pop(buffer))

    def _map(self, buffer: int, size: int, fd: int | None) -> mmap.mmap:
        if buffer not in self._maps:
            self._maps[buffer] = _mapped(fd, size, _WRITABLE)
        else:
            _close(fd)
        return self._maps[buffer]

    def _ask(
        self,
        message: dict[str, Any],
        timeout: float | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> tuple[dict[str, Any], int | None]:
        if self._channel is None:
            self._open()
        try:
            self._send(message)
            meanwhile()
            return self._receive(timeout)
        except SaveRefused:
            raise
        except BaseException:  # also of the script's handler of a signal
            self._hang_up()  # else the next answer would be that to this message
            raise

    def _send(self, message: dict[str, Any]) -> None:
        assert self._channel is not None
        try:
            self._channel.sendall(json.dumps(message).encode())
        except TimeoutError:
            self._hang_up()
            raise AgentSilent("the agent does not listen") from None
        except OSError as error:
            self._hang_up()
            raise CheckpointError(f"the agent has gone: {_words(error)}") from None

    def _receive(self, timeout: float | None = None) -> tuple[dict[str, Any], int | None]:
        """Take the next answer. If it fails, the connection has to end: the next one would be an old one."""
        assert self._channel is not None
        timeout = TIMEOUT if timeout is None else timeout
        try:
            self._channel.settimeout(timeout)
            data, fds, _, _ = socket.recv_fds(self._channel, _MAX_MESSAGE, 1)
        except TimeoutError:
            raise AgentSilent(f"the agent has not answered for {timeout:g} s") from None
        except OSError as error:
            raise CheckpointError(f"the agent does not answer: {_words(error)}") from None
        if not data:
            raise CheckpointError("the agent has hung up without an answer")
        answer = json.loads(data)
        if "refused" in answer:
            for fd in fds:
                os.close(fd)
            raise SaveRefused(answer["refused"])
        return answer, fds[0] if fds else None


_WRITABLE = mmap.PROT_READ | mmap.PROT_WRITE
#: Has the kernel fill in the page table at once, which takes a fraction of the time of as many page faults.
_POPULATE = mmap.MAP_POPULATE
#: The same for a part of a map, from Linux 5.14 on; Python does not know it.
_MADV_POPULATE_WRITE = 23
#: Bytes about which the kernel is advised at a time: half a millisecond, in which no other thread can map.
_STRIDE = 4 << 20


def _mapped(fd: int | None, size: int, protection: int, gently: bool = False) -> mmap.mmap:
    """Map what a descriptor names, and close it. OSError: it cannot be, or did not come.

    ``gently``: other threads run meanwhile, if the kernel can do that.
    """
    if fd is None:  # the kernel drops a descriptor for which there is no room
        raise OSError(errno.EMFILE, "no descriptor came: are all in use (ulimit -n)?")
    try:
        if gently:
            memory = mmap.mmap(fd, size, mmap.MAP_SHARED, protection)
            if _populate(memory):
                return memory
        return mmap.mmap(fd, size, mmap.MAP_SHARED | _POPULATE, protection)
    finally:
        os.close(fd)


def _populate(memory: mmap.mmap) -> bool:
    """Have the kernel fill in the page table of a map. Returns whether it can do that."""
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return _advise(at, len(memory), _MADV_POPULATE_WRITE)


def empty(address: int, length: int) -> None:
    """Take the pages out of a map, so that it takes no time to drop it. The memory itself stays as it is."""
    _advise(address, length, mmap.MADV_DONTNEED)


def _advise(address: int, length: int, advice: int) -> bool:
    """Advise the kernel piece by piece. Returns whether it follows.

    Python's own ``mmap.madvise`` would keep other threads from running meanwhile.
    """
    madvise = ctypes.CDLL(None).madvise
    for start in range(0, length, _STRIDE):
        size = ctypes.c_size_t(min(_STRIDE, length - start))
        if madvise(ctypes.c_void_p(address + start), size, advice) != 0:
            return False
    return True


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def _words(error: OSError) -> str:
    return error.strerror or str(error)
