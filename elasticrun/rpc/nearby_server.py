"""The master's end of ``nearby.py``, which says who may order what here, and why.

Nothing that comes by this socket ends the master, or keeps it from its agents: without it a job is only
harder to find.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from elasticrun import __version__
from elasticrun.clock import happens
from elasticrun.core.protocol.messages import RejectCode, Rejected
from elasticrun.core.protocol.orders import ORDERS, AwaitStatus, ControlRequest, ShowStatus, WatchEvents
from elasticrun.core.protocol.questions import QUESTIONS
from elasticrun.rpc.event_lines import tells_the_end
from elasticrun.rpc.nearby import (
    MAX_GUESTS,
    MAX_ORDER,
    MAX_WAITING,
    TIMEOUT,
    FollowEvents,
    Peer,
    Whereabouts,
    encode_answer,
    encode_refusal,
    is_last,
    new_name,
    peer_of,
)
from elasticrun.rpc.records import from_json, misfit

if TYPE_CHECKING:
    from elasticrun.core.protocol.orders import ControlReply

logger = logging.getLogger(__name__)

#: Seconds in which a follower that has got news asks for more, on a busy host too.
RETURN_TIME = 2.0
_KINDS: dict[str, type[ControlRequest | FollowEvents]] = {
    it.__name__: it for it in (ShowStatus, AwaitStatus, WatchEvents, FollowEvents, *QUESTIONS, *ORDERS)
}
_APART = (
    "the order comes from another container, or from under another root directory: give --endpoint and the"
    " job's token, or give it from where the job was started"
)


class NearbyServer:
    """Listens for this user on this host. Made inside the running loop."""

    def __init__(
        self, order: Callable[[ControlRequest], Awaitable[ControlReply]], about: Whereabouts
    ) -> None:
        """``order`` answers a peer that may give one, and does not raise."""
        self._order = order
        self._about = about
        self._tasks: set[asyncio.Task[object]] = set()  # one for each connection, until its answer is read
        self._lasting: set[asyncio.Task[object]] = set()  # of these, those that wait for what workers print
        self._between: dict[int, float] = {}  # when a pid got news, not the end, and has not asked since
        self._changed = asyncio.Event()
        self._hang_ups: _HangUps | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen from now on. Raises OSError if that cannot be done."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._hang_ups = _HangUps()
            listener.bind(f"\0{new_name()}")
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_ORDER)
        except OSError:
            listener.close()
            raise

    async def finish(self, grace: float) -> None:
        """Let those have the end of the job who follow it, in so many seconds at most: also who has just had
        other news, and is about to ask for more.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self._between = {pid: at for pid, at in self._between.items() if begun - at < RETURN_TIME}
        while (self._tasks - self._lasting or self._between) and (left := begun + grace - loop.time()) > 0:
            self._changed.clear()
            await happens(self._changed, left)

    def stop(self) -> None:
        """Stop listening, and cut off whoever is here."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._hang_ups is not None:
            self._hang_ups.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            writer.write(await self._answer_to(reader, writer))
            await asyncio.wait_for(writer.drain(), TIMEOUT)
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):  # it, or we, go; or it is silent
            writer.transport.abort()
        except Exception:  # a bug; the master has others to serve
            logger.exception("internal error; please report this traceback")
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            self._lasting.discard(task)
            self._changed.set()
            is_unread = writer.transport.get_write_buffer_size() > 0
            writer.close()
            if is_unread:
                asyncio.get_running_loop().call_later(TIMEOUT, writer.transport.abort)

    async def _answer_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        channel: socket.socket = writer.get_extra_info("socket")
        peer, pid = peer_of(channel)
        if peer is Peer.OTHER_USER:
            return b""
        if peer is Peer.APART:
            return encode_refusal(Rejected(RejectCode.UNAUTHENTICATED, _APART))
        if len(self._tasks) > MAX_GUESTS:  # this one is among them
            text = f"{MAX_GUESTS} orders are being given here already: try again"
            return encode_refusal(Rejected(RejectCode.TOO_MANY, text))
        try:
            return await self._obey(reader, writer, channel.fileno(), pid)
        except asyncio.TimeoutError:
            text = f"no whole order came within {TIMEOUT:g} s"
            return encode_refusal(Rejected(RejectCode.OUT_OF_ORDER, text))
        except ValueError as error:
            return encode_refusal(Rejected(RejectCode.MALFORMED, str(error)[:200]))

    async def _obey(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fd: int, pid: int
    ) -> bytes:
        request = read_order(await asyncio.wait_for(_all_of(reader), TIMEOUT))
        if isinstance(request, Rejected):
            return encode_refusal(request)
        if isinstance(request, ORDERS):  # questions come again and again, also from who looks for another job
            logger.info("process %d of this user orders %s", pid, request)
        if not isinstance(request, FollowEvents) and not getattr(request, "wait", 0.0):
            return encode_answer(await self._order(request), self._about)
        assert self._hang_ups is not None
        if len(self._hang_ups) >= MAX_WAITING:
            text = f"{MAX_WAITING} others wait for news of this job here already: try again"
            return encode_refusal(Rejected(RejectCode.TOO_MANY, text))
        if isinstance(request, FollowEvents | WatchEvents):
            self._between.pop(pid, None)
        if isinstance(request, FollowEvents):
            with self._hang_ups.watched(fd):
                reply = await self._follow(request, writer)
            self._note_news(pid, reply)
            return encode_answer(reply, self._about) + b"\n"
        if not isinstance(request, WatchEvents) and (task := asyncio.current_task()) is not None:
            self._lasting.add(task)
        with self._hang_ups.watched(fd):
            reply = await self._order(request)
        self._note_news(pid, reply)
        return encode_answer(reply, self._about)

    def _note_news(self, pid: int, reply: ControlReply) -> None:
        """Note who is about to ask for more, as it has not heard the end yet."""
        lines = () if reply.watched is None else reply.watched.lines
        if lines and not any(map(tells_the_end, lines)):
            if len(self._between) >= MAX_GUESTS:
                self._between.clear()
            self._between[pid] = asyncio.get_running_loop().time()

    async def _follow(self, request: FollowEvents, writer: asyncio.StreamWriter) -> ControlReply:
        """Say each answer but the last, which is returned. Here no answer costs a connection of its own.

        Raises ConnectionAbortedError if too much of them is not read in time, or the other end is gone.
        """
        while True:
            reply = await self._order(WatchEvents(request.after, request.wait))
            if reply.watched is None or is_last(reply.watched):
                return reply
            writer.write(encode_answer(reply, self._about) + b"\n")
            if writer.transport.is_closing():  # nobody watches a descriptor any more that is closed
                raise ConnectionAbortedError
            if writer.transport.get_write_buffer_size():  # it reads slowly
                try:
                    await asyncio.wait_for(writer.drain(), TIMEOUT)
                except asyncio.TimeoutError:
                    raise ConnectionAbortedError from None
            request = FollowEvents(reply.watched.upto, request.wait)


class _HangUps:
    """Cancels the tasks of peers that hang up. Made inside the running loop.

    asyncio does not look at a connection any more once its other end has said all, and that it then goes
    altogether is no byte to read. The kernel tells that of any descriptor in an epoll, asked for or not.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._tasks: dict[int, asyncio.Task[object]] = {}
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_news)

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def watched(self, fd: int) -> Iterator[None]:
        """Cancel the current task if the other end of this connection goes meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._epoll.register(fd, 0)
        self._tasks[fd] = task
        try:
            yield
        finally:
            self._forget(fd)

    def close(self) -> None:
        """Watch nothing any more."""
        if not self._epoll.closed:
            asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _on_news(self) -> None:
        for fd, _ in self._epoll.poll(0):
            self._tasks[fd].cancel()
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        if self._tasks.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    try:
        await reader.readexactly(MAX_ORDER + 1)
    except asyncio.IncompleteReadError as error:  # the end came, as it should
        return error.partial
    raise ValueError(f"an order has at most {MAX_ORDER} bytes")


def read_order(data: bytes) -> ControlRequest | FollowEvents | Rejected:
    """What a peer orders, or why it is not heard. Raises ValueError for what is no order."""
    try:
        message = json.loads(data)
        version = message["version"]
        if version != __version__:
            return _wrong_version(version)
        request: ControlRequest | FollowEvents = from_json(_KINDS[message["kind"]], message["fields"])
    except (KeyError, TypeError):
        raise ValueError("an order has a version, a kind that is known, and fields") from None
    except RecursionError:
        raise ValueError("an order is not nested that deeply") from None
    if fault := misfit(request) or _contradiction(request):
        raise ValueError(fault)
    return request


def _contradiction(request: Any) -> str:
    found: str = request.contradiction() if hasattr(request, "contradiction") else ""
    return found


def _wrong_version(theirs: object) -> Rejected:
    text = f"the job runs elasticrun {__version__}, this is {theirs!s:.50}: use the same version"
    return Rejected(RejectCode.WRONG_VERSION, text)
