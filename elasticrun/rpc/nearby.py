"""A job that is on this host, found and asked by its own user without a token.

Theory. Each master listens, besides its port, on a Unix socket with an abstract name: PREFIX, the user's
number, and a random part. The kernel lists such names in /proc/net/unix, so nothing has to be written down to
find them, and a name goes with the process, so nothing is left behind whoever is killed. One connection
carries one order and one answer, each a JSON value up to the end of its half; but who follows a job gets one
answer after the other, each in a line (``FollowEvents``). There is no gRPC and no protobuf, so
``elastic-ctl`` is quick here and a master that is alone imports neither.

Who may order. An abstract name has no permissions: every process of this network namespace may connect, and a
container with the host's network is in it too. So each end checks who the other is, as the kernel tells:

1. the same effective user (SO_PEERCRED); 0 is no exception, and may become any user anyway;
2. the same user, pid and mount namespace, and the same root directory. Else "user 0" of a container that
   shares only the host's network would do, which is another user in all but the number. Where the kernel has
   SO_PEERPIDFD, the process must live on after that look, so its pid was not another's meanwhile.

Why this is as safe as a token: such a process could read the files in which the job's token lies, and the
journal, which holds the key of agents' tickets; it could stop the master and start one that takes up that
journal. Above all it may kill every process of the job here, and what orders do besides showing the
status (drain, scale, stacks, restart) is no more than to stop and start workers with grace. That goes for
code that a training script imports as well: it runs as this user, whether it was given the token or not. So
all orders are taken, from a job without a token too. A worker that runs as another user, or in a container of
its own, can do none of it.

What others can do. They see that this user has jobs here, by the names. They may connect, and are cut off
before anything of theirs is read. They may listen on names that look like ours; the client asks only those
whose listener passes the checks above. One that takes no connection cannot be checked: it is told of, and
counts for nothing. They cannot take a name: it is random.

What a peer that passes can cost a master: at most MAX_GUESTS connections, each of MAX_ORDER bytes and
``TIMEOUT`` seconds to say all, and as many to read the answer. MAX_WAITING of them may wait for news, as who
follows a job does, so that these never keep an order out; who hangs up meanwhile counts no more.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any

from elasticrun import __version__
from elasticrun.clock import within
from elasticrun.core.protocol.bounds import TIMESTAMPS, Label, Range
from elasticrun.core.protocol.messages import Rejected
from elasticrun.core.protocol.orders import MAX_WAIT, ControlReply, ControlRequest, ShowStatus, Watched
from elasticrun.core.protocol.status import JobStatus
from elasticrun.dataclass import dataclass
from elasticrun.errors import ElasticRunError, MasterUnreachableError, ProtocolError, UsageError
from elasticrun.rpc.event_lines import tells_the_end
from elasticrun.rpc.records import from_json, misfit, to_json
from elasticrun.rpc.stream import rejection
from elasticrun.rpc.text import clean

PREFIX = "elasticrun-job-"
#: Most bytes of an order: more than the longest reason in any alphabet.
MAX_ORDER = 1 << 17
#: Most bytes of an answer: several times the longest status.
MAX_ANSWER = 16 << 20
#: Connections of this user that a master serves at a time, and those of them that may wait for news.
MAX_GUESTS = 80
MAX_WAITING = 64
#: Seconds that a master waits for an order, and for its answer to be read.
TIMEOUT = 5.0

_NAMES = "/proc/net/unix"
_CREDENTIALS = struct.Struct("3i")  # of a peer: pid, uid, gid
_SO_PEERPIDFD = 77  # since Linux 6.5; the socket module does not name it
_SHARED = ("ns/user", "ns/pid", "ns/mnt", "root")


class Peer(Enum):
    """Who the other end of a socket is."""

    OURS = "ours"
    OTHER_USER = "other user"
    APART = "apart"  # of this user's number, but perhaps in another container


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What a master tells of itself beside each answer."""

    endpoint: str  # HOST:PORT where it can be reached with the token; "": only here
    since: (
        Annotated[float, TIMESTAMPS] | None
    )  # the wall clock when the job began; None: this master took it up from another one
    launcher: int  # the pid of the launcher that started it


@dataclass(frozen=True, slots=True)
class FollowEvents:
    """``WatchEvents`` again and again: each answer is after the one before. One that ``is_last`` ends it."""

    after: Label
    wait: Annotated[float, Range(0.0, MAX_WAIT)]


@dataclass(frozen=True, slots=True)
class NearbyJob:
    """A job of this user whose master is on this host."""

    name: str  # of the socket
    status: JobStatus
    about: Whereabouts


def new_name() -> str:
    """A name for a master's socket, which nobody can take before."""
    return f"{_own_prefix()}{os.urandom(8).hex()}"


def _own_prefix() -> str:
    return f"{PREFIX}{os.geteuid()}-"


def peer_of(channel: socket.socket) -> tuple[Peer, int]:
    """Who is at the other end, or was when it connected or began to listen; and its pid."""
    try:
        size = _CREDENTIALS.size
        pid, uid, _ = _CREDENTIALS.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except OSError:
        return Peer.OTHER_USER, 0
    if uid != os.geteuid():
        return Peer.OTHER_USER, pid
    return Peer.OURS if pid > 0 and _is_beside_us(channel, pid) else Peer.APART, pid


def _is_beside_us(channel: socket.socket, pid: int) -> bool:
    """Whether a process sees the same users, processes and files as we do, and is still alive."""
    pidfd = -1
    try:
        try:
            pidfd = channel.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:  # the kernel has it, and the process has gone
                return False
        same = all(_file_at(f"/proc/{pid}/{each}") == _file_at(f"/proc/self/{each}") for each in _SHARED)
        return same and (pidfd < 0 or not _has_ended(pidfd))
    except OSError:  # it has gone, or is none of our business
        return False
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _file_at(path: str) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 - a Path costs more than the look itself
    return found.st_dev, found.st_ino


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()  # select() would not take the number of a master with many agents
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def encode_order(request: ControlRequest | FollowEvents) -> bytes:
    """The bytes of an order. Raises UsageError if it is too large to be given."""
    if fault := misfit(request):
        raise UsageError(f"the order cannot be given: {fault}")
    return _packed({"version": __version__, "kind": type(request).__name__, "fields": to_json(request)})


def encode_answer(reply: ControlReply, about: Whereabouts) -> bytes:
    """The bytes of an answer to an order that was judged."""
    return _packed({"reply": to_json(reply), "about": to_json(about)})


def encode_refusal(rejected: Rejected) -> bytes:
    """The bytes of an answer to what was no order, or was somebody else's; the same in all versions."""
    return _packed({"rejected": to_json(rejected)})


def _packed(message: dict[str, Any]) -> bytes:
    return clean(json.dumps(message, ensure_ascii=False)).encode()


# The operator's end


def names() -> list[str]:
    """The names of this user's masters on this host, as far as one can tell by names."""
    mark, found = f" @{_own_prefix()}".encode(), set()
    try:
        with open(_NAMES, "rb") as file:  # noqa: PTH123
            for line in file:
                if mark in line:  # of a listener, or of a connection that it has taken
                    found.add(line[line.index(mark) + 2 :].decode(errors="replace").rstrip())
    except OSError:
        return []  # no Linux that we know; nothing can be found
    return sorted(found)


async def jobs(timeout: float) -> tuple[list[NearbyJob], list[ElasticRunError]]:
    """The jobs of this user on this host, and why others, which may be some, do not say what they are."""
    asked = await asyncio.gather(*(_ask(name, timeout) for name in names()), return_exceptions=True)
    troubles = [each for each in asked if isinstance(each, ElasticRunError)]
    for each in asked:
        if isinstance(each, BaseException) and not isinstance(each, ElasticRunError):
            raise each
    found = [each for each in asked if isinstance(each, NearbyJob)]
    return sorted(found, key=lambda job: (job.status.job_id, job.about.launcher)), troubles


async def _ask(name: str, timeout: float) -> NearbyJob | None:
    try:
        reply, about = await give(name, ShowStatus(), timeout)
    except MasterUnreachableError as error:
        if isinstance(error, GoneError) or name not in names():  # it ended meanwhile
            return None
        raise
    if reply.status is None:
        raise ProtocolError("the master's answer to a question for its status holds none")
    return NearbyJob(name, reply.status, about)


class GoneError(MasterUnreachableError):
    """Nobody of this user listens at a name."""


class BusyError(MasterUnreachableError):
    """Somebody listens at a name and takes no more connections; nobody can tell whether it is this user."""


async def give(name: str, request: ControlRequest, timeout: float) -> tuple[ControlReply, Whereabouts]:
    """The answer of the master at ``name`` to an order, within ``timeout`` seconds.

    Raises GoneError, MasterUnreachableError, UsageError, ProtocolError or that of the master's refusal.
    An order whose answer was lost may have been obeyed.
    """
    order = encode_order(request)
    try:
        return _understood(await within(timeout, _exchange(name, order)))
    except asyncio.TimeoutError:
        raise _silent(timeout) from None


class Following:
    """The answers of a master to ``FollowEvents``, as they come."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: str, wait: float
    ) -> None:
        self.upto = after  # what the next answer is after
        self.wait = wait  # seconds that the master waits for news, for each answer
        self.is_over = False  # there is no answer any more
        self._reader = reader
        self._writer = writer

    async def next(self, timeout: float) -> ControlReply:
        """The next answer, within ``timeout`` seconds. Raises as ``give`` does, and is of no use then."""
        try:
            reply, _ = _understood(await within(timeout, self._reader.readline()))
        except asyncio.TimeoutError:
            raise _silent(timeout) from None
        except OSError:
            raise _ended() from None
        except ValueError:
            raise _too_long() from None
        self.upto = "" if reply.watched is None else reply.watched.upto
        self.is_over = reply.watched is None or is_last(reply.watched)
        return reply

    def close(self) -> None:
        """Hear no more."""
        self._writer.close()


async def follow(name: str, after: str, wait: float) -> Following:
    """Have the master at ``name`` tell what is added to its event log. Raises as ``give`` does."""
    reader, writer = await _told(name, encode_order(FollowEvents(after, wait)), MAX_ANSWER)
    return Following(reader, writer, after, wait)


def is_last(watched: Watched) -> bool:
    """Whether no other answer to ``FollowEvents`` comes after this one.

    There were no lines in all the time that it waited; or it has the end of the job; or there are more
    already, which a master tells in pieces, to do other things in between.
    """
    return not watched.lines or watched.more or any(map(tells_the_end, watched.lines))


def _silent(timeout: float) -> MasterUnreachableError:
    return MasterUnreachableError(f"the job on this host did not answer within {timeout:.3g} s")


def _too_long() -> ProtocolError:
    return ProtocolError(f"the answer of the job on this host has more than {MAX_ANSWER} bytes")


def _ended() -> MasterUnreachableError:
    return MasterUnreachableError("the job on this host ended before it answered")


async def _exchange(name: str, order: bytes) -> bytes:
    reader, writer = await _told(name, order)
    try:
        return await _all_of(reader)
    except OSError:
        raise _ended() from None
    finally:
        writer.close()


async def _told(
    name: str, order: bytes, longest_line: int = 1 << 16
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the master at ``name``, which was given an order."""
    try:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:  # this process has too many files open
        raise MasterUnreachableError(f"the job on this host cannot be asked: {error.strerror}") from None
    try:
        _connect(channel, name)
        reader, writer = await asyncio.open_unix_connection(sock=channel, limit=longest_line)
    except BaseException:
        channel.close()
        raise
    try:
        writer.write(order)
        writer.write_eof()
    except OSError:
        writer.close()
        raise _ended() from None
    return reader, writer


def _connect(channel: socket.socket, name: str) -> None:
    try:
        channel.connect(f"\0{name}")
    except OSError as error:
        if error.errno == errno.EAGAIN:  # too many want to: it does not read, as if it were stopped
            raise BusyError("what may be a job on this host takes no more connections") from None
        raise GoneError("the job on this host has ended") from None
    if peer_of(channel)[0] is not Peer.OURS:
        raise GoneError("another user, or another container, listens there")


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    data = b""
    while chunk := await reader.read(1 << 20):
        data += chunk
        if len(data) > MAX_ANSWER:
            raise _too_long()
    return data


def _understood(data: bytes) -> tuple[ControlReply, Whereabouts]:
    if not data:
        raise _ended()
    try:
        answer = json.loads(data)
        if "rejected" in answer:
            raise rejection(from_json(Rejected, answer["rejected"]))
        return from_json(ControlReply, answer["reply"]), from_json(Whereabouts, answer["about"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ProtocolError(f"the answer of the job on this host makes no sense: {error}") from None


def several(found: Sequence[NearbyJob]) -> str:
    """Jobs in one line, with what tells them apart."""
    return ", ".join(f"{job.status.job_id!r} (--pid {job.about.launcher})" for job in found)
